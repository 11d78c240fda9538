"""What a user's folder holds: photos, videos, other files, and entries that no user made.

This is the only place that decides which suffixes are photos and videos, which entries belong to
the system, and which folders are results.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from fer_vit.errors import FerVitError
from fer_vit.wording import counted, list_counts

_PHOTOS = """
    .jpg .jpeg .jpe .jif .jfif .jfi .mpo .png .apng .webp .bmp .dib .tif .tiff .gif .avif .avifs
    .heic .heif .hif .jp2 .j2k .jpf .jpx .jpm .ppm .pgm .pbm .pnm .pam .tga .ras .sr
"""

# Lower-case suffixes of the files in a folder that count as photos, decodable or not.
PHOTO_SUFFIXES = frozenset(_PHOTOS.split())

_VIDEOS = """
    .mp4 .m4v .mp4v .mov .qt .webm .mkv .avi .divx .mpg .mpeg .mpe .mpv .m1v .m2v .vob .ts .mts
    .m2ts .m2t .m3u8 .3gp .3gpp .3g2 .wmv .asf .flv .f4v .ogv .ogm .dv .mxf .mod .tod
    .y4m .wtv .insv .lrv .h264 .264 .avc .hevc .h265 .265 .mjpeg .mjpg .ivf
"""

# Lower-case suffixes of the files in a folder that count as videos, decodable or not.
VIDEO_SUFFIXES = frozenset(_VIDEOS.split())

MEDIA_SUFFIXES = PHOTO_SUFFIXES | VIDEO_SUFFIXES

_STORAGE = """
    @eaDir @tmp @Recycle @Recently-Snapshot @Transcode @SynoResource @sharebin @sharesnap
    #recycle #snapshot SYNOPHOTO_* SYNOFILE_* SYNOVIDEO_* SYNOINDEX_* .@__* .@upload_cache
    ~snapshot .snapshot .snapshots .zfs trashbox .wdmc .wdcache .twonky*
"""
_WINDOWS = """
    $RECYCLE.BIN RECYCLER RECYCLED System?Volume?Information $WinREAgent Config.Msi
    found.[0-9][0-9][0-9] Thumbs.db Thumbs.db:* ehthumbs.db ehthumbs_vista.db desktop.ini
    WPSettings.dat ZbThumbnail.info pspbrwse.jbf _vti_cnf
"""
_MACOS = """
    __MACOSX .DS_Store ._* .AppleDouble .AppleDB .AppleDesktop .LSOverride .Spotlight-V100
    .Trashes .fseventsd .TemporaryItems Temporary?Items .DocumentRevisions-V100
    Network?Trash?Folder TheVolumeSettingsFolder Desktop?DB Desktop?DF
"""
_LINUX = """
    lost+found LOST.DIR .Trash .Trash-* .trashed-* .recycle .nfs* .directory .thumbnails .thumbs
    .nomedia .ipynb_checkpoints
"""
_SYNCHRONISATION = """
    .stfolder* .stversions .stignore ~syncthing~* .syncthing* .dropbox .dropbox.cache
    .dropbox.attr .tmp.drivedownload .tmp.driveupload .sync .SyncArchive .SyncID .SyncIgnore
    _gsdata_ .sync_*.db .owncloudsync* files_trashbin files_versions .icloud .*.icloud
    .picasa.ini Picasa.ini .picasaoriginals
"""

# Files and folders of storage systems, operating systems and synchronisation tools, as patterns for
# any case.
SYSTEM_ENTRIES = tuple((_STORAGE + _WINDOWS + _MACOS + _LINUX + _SYNCHRONISATION).split())

# a group for each entry, named by its index
_GROUPS = [f"(?P<_{index}>{translate(name)})" for index, name in enumerate(SYSTEM_ENTRIES)]
_SYSTEM = re.compile("|".join(_GROUPS), re.IGNORECASE)
OTHER_HIDDEN = "other hidden entries"


def system_entry(name: str) -> str | None:
    """Returns the pattern of a name that no user gave, else None.

    It is `OTHER_HIDDEN` for others with a dot at the start.
    """
    match = _SYSTEM.match(name)
    if match and match.lastgroup:
        return SYSTEM_ENTRIES[int(match.lastgroup[1:])]
    return OTHER_HIDDEN if name.startswith(".") else None


GENERATOR = "fer-vit visualize"  # the program of a report, in the head of its page
REPORT_FOLDER = "by visualize"
TRAINING_LOG = "by training"

# Folders whose pictures are results, and no photos of a user.
RESULTS = (REPORT_FOLDER, TRAINING_LOG)


def is_report(page: Path) -> bool:
    """Returns whether a file is the page of a report."""
    try:
        with page.open("rb") as file:
            return f'name="generator" content="{GENERATOR}"'.encode() in file.read(1000)
    except OSError:  # there is none, or it is a folder
        return False


# The program of a video with marked faces, in the comment of its file.
MARKED_COPY = "fer-vit predict --annotate"

COPY_END = 2**16  # bytes at the end of an MP4 file in which its comment stands


def is_marked_copy(path: Path) -> bool:
    """Returns whether a file is a video with marked faces that `predict` has written."""
    if path.suffix.lower() != ".mp4":
        return False
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - COPY_END))
            return MARKED_COPY.encode() in file.read(COPY_END)
    except OSError:  # its reader reports it
        return False


def result_kind(folder: Path) -> str | None:
    """Returns which of `RESULTS` a folder is; None for others, and for one that is not readable."""
    page = folder / "index.html"
    if os.path.isfile(page) and is_report(page):  # `Path.is_file` raises without permission
        return REPORT_FOLDER
    with suppress(OSError):
        if any(name.startswith("events.out.tfevents.") for name in os.listdir(folder)):
            return TRAINING_LOG
    return None


def check_runs(folder: Path, *runs: str) -> None:
    """Raises FerVitError for a folder that a command cannot complete.

    It is a file, or has content and no result of the command.

    Args:
        folder: The output of a command that resumes its runs.
        runs: Patterns of `glob` for the results of the command.
    """
    if folder.is_file():
        raise FerVitError(f"Expected a folder, but {folder} is a file. Choose another name.")
    if not folder.is_dir() or any(any(folder.glob(pattern)) for pattern in runs):
        return
    entries = [name for name in os.listdir(folder) if system_entry(name) is None]
    if entries:
        raise FerVitError(
            f"{folder} contains {min(entries)} and no results of this command. Choose another "
            "folder."
        )


@dataclass(frozen=True)
class Listing:
    """The content of a folder, at any depth and in order."""

    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    system: Counter[str] = field(default_factory=Counter)
    """Number of system entries and hidden ones by their pattern, and of results by their kind,
    also of marked copies of videos; what lies below them is not counted.
    """

    def with_suffixes(self, suffixes: Set[str]) -> list[Path]:
        """Returns the files with one of the lower-case suffixes."""
        return [path for path in self.files if path.suffix.lower() in suffixes]

    def count_others(self, suffixes: Set[str]) -> Counter[str]:
        """Counts the files without one of the lower-case suffixes, by their suffix."""
        counts = Counter[str]()
        for path in self.files:
            suffix = path.suffix.lower()
            if suffix not in suffixes:
                counts[suffix or "no suffix"] += 1
        return counts


def list_folder(folder: Path) -> Listing:
    """Lists a folder without system entries, hidden ones, and folders of results.

    Raises FerVitError if it cannot read a folder below. Links are followed, but no folder is listed
    twice: neither through a link to a parent, nor through one to a folder below the top, which is
    listed under the folder's name. A link to a file is listed like a file: labels go by its name,
    and stores of data keep equal files as links to one file.
    """
    listing = Listing()
    top = Path(os.path.realpath(folder))
    seen = {*map(str, top.parents)}
    for parent, folders, files in os.walk(folder, onerror=_cannot_list, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen or (os.path.islink(parent) and _is_listed_below(real, top)):
            folders.clear()
            continue
        seen.add(real)
        kind = result_kind(Path(parent))
        if kind:
            listing.system[kind] += 1
            folders.clear()
            continue
        if real != str(top):
            listing.folders.append(Path(parent))
        folder_names = _separate_names(folders)
        file_names = _separate_names(files)
        listing.system.update(folder_names.system)
        listing.system.update(file_names.system)
        folders[:] = folder_names.user
        for name in file_names.user:
            path = Path(parent, name)
            if is_marked_copy(path):
                listing.system[MARKED_COPY] += 1
            else:
                listing.files.append(path)
    return listing


class _Names(NamedTuple):
    """The names in a folder."""

    user: list[str]  # that a user gave, in order
    system: Counter[str]  # the number of others by their pattern


def _separate_names(names: Iterable[str]) -> _Names:
    """Returns the names in a folder without system entries, and counts these."""
    user = []
    system = Counter[str]()
    for name in sorted(names):
        pattern = system_entry(name)
        if pattern:
            system[pattern] += 1
        else:
            user.append(name)
    return _Names(user, system)


def _is_listed_below(real: str, top: Path) -> bool:
    """Returns whether a folder lies below the top, and none of the folders between is left out."""
    if top not in Path(real).parents:
        return False
    return not any(system_entry(name) for name in Path(real).relative_to(top).parts)


def _cannot_list(error: OSError) -> None:
    raise FerVitError(
        f"Cannot list the folder {error.filename} ({error.strerror}). Make it readable or name "
        "another."
    )


def unread_notes(other_suffixes: Counter[str], system: Counter[str]) -> list[str]:
    """Returns lines for what is not read: files by suffix, system entries, results."""
    results = Counter({kind: system[kind] for kind in RESULTS if system[kind]})
    copies = system[MARKED_COPY]
    system = system - results - Counter({MARKED_COPY: copies})
    notes = []
    if other_suffixes:
        files = counted(other_suffixes.total(), "file")
        notes.append(f"not read: {files} ({list_counts(other_suffixes)})")
    if system:
        notes.append(
            "not read: "
            f"{counted(system.total(), 'system or hidden entry', 'system or hidden entries')} "
            f"({list_counts(system)})"
        )
    if results:
        folders = counted(results.total(), "folder of results", "folders of results")
        notes.append(f"not read: {folders} ({list_counts(results)})")
    if copies:
        videos = counted(copies, "video with marked faces", "videos with marked faces")
        notes.append(f"not read: {videos} (by predict)")
    return notes
