"""What a user's folder contains: photos, videos, other files, and entries that no user made.

Only this module decides which suffixes are photos and videos, which entries belong to the system,
and which folders are results.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fer_vit.errors import FerVitError
from fer_vit.files import open_input
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

# Patterns for the files and folders that storage systems, operating systems and synchronisation
# tools make. Case does not matter. `?` stands for a space, because spaces separate the patterns.
SYSTEM_ENTRIES = tuple((_STORAGE + _WINDOWS + _MACOS + _LINUX + _SYNCHRONISATION).split())

OTHER_HIDDEN = "other hidden entries"


@cache
def _system_pattern() -> re.Pattern[str]:
    """Returns one expression for all patterns, which takes a third of the time of one for each.

    The name of a group is `_` and the index of its pattern.
    """
    groups = [f"(?P<_{index}>{translate(name)})" for index, name in enumerate(SYSTEM_ENTRIES)]
    return re.compile("|".join(groups), re.IGNORECASE)


def system_entry(name: str) -> str | None:
    """Returns the pattern of `SYSTEM_ENTRIES` that a name matches.

    Returns `OTHER_HIDDEN` for another name that begins with a dot, and None for the name of a
    user's file or folder.
    """
    match = _system_pattern().match(name)
    if match and match.lastgroup:
        return SYSTEM_ENTRIES[int(match.lastgroup[1:])]
    return OTHER_HIDDEN if name.startswith(".") else None


# Kinds of folders whose pictures are results and no photos of a user, in the words of a note: "2
# folders of results (2 by visualize)".
MADE_BY_VISUALIZE = "by visualize"
MADE_BY_TRAINING = "by training"

GENERATOR = "fer-vit visualize"  # the content of <meta name="generator"> in a report


def is_report(page: Path) -> bool:
    """Returns whether a file is the page of a report."""
    try:
        with open_input(page) as file:
            return f'name="generator" content="{GENERATOR}"'.encode() in file.read(1000)
    except OSError:  # there is no page that can be read
        return False


MARKED_COPY = "marked.mp4"  # the name of a video with marked faces, or its end after a dot


def is_marked_copy(path: Path) -> bool:
    """Returns whether a file is a video with marked faces, by its name: clip.marked.mp4."""
    return f".{path.name}".lower().endswith(f".{MARKED_COPY}")


def result_kind(folder: Path) -> str | None:
    """Returns the kind of a folder of results.

    Returns None for another folder, and for a folder that is not readable.
    """
    if is_report(folder / "index.html"):
        return MADE_BY_VISUALIZE
    with suppress(OSError):
        if any(name.startswith("events.out.tfevents.") for name in os.listdir(folder)):
            return MADE_BY_TRAINING
    return None


def check_resumable(folder: Path, *patterns: str) -> None:
    """Raises FerVitError for an output in which a command cannot resume its runs.

    Such an output is a file, or a folder that contains other files and no results of the command.

    Args:
        folder: The output of the command.
        patterns: Patterns of `glob` for the results of the command.
    """
    if folder.is_file():
        raise FerVitError(f"Expected a folder, but {folder} is a file. Choose another name.")
    has_results = any(any(folder.glob(pattern)) for pattern in patterns)
    if not folder.is_dir() or has_results:
        return
    entries = [name for name in os.listdir(folder) if system_entry(name) is None]
    if entries:
        raise FerVitError(
            f"{folder} contains {min(entries)} and no results of this command. Choose another "
            "folder."
        )


@dataclass
class Skipped:
    """Counts of what a listing leaves out. What a skipped folder contains is not counted."""

    system: Counter[str] = field(default_factory=Counter)  # system and hidden entries, by pattern
    results: Counter[str] = field(default_factory=Counter)  # folders of results, by kind
    marked_copies: int = 0  # videos that `predict --annotate` wrote

    def __add__(self, other: "Skipped") -> "Skipped":
        return Skipped(
            self.system + other.system,
            self.results + other.results,
            self.marked_copies + other.marked_copies,
        )


@dataclass
class Listing:
    """The content of a folder, at any depth and in order."""

    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)

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
    """Lists a folder without system entries, hidden entries and folders of results.

    Links to folders are followed, but each folder is listed once. A folder below the top is listed
    under its own name, not under the name of a link. A link to a file is listed like a file: the
    name of the link may be the label, and some systems store equal files once, as links.

    Raises:
        FerVitError: A folder below cannot be read.
    """
    listing = Listing()
    skipped = listing.skipped
    top = Path(os.path.realpath(folder))
    seen = {*map(str, top.parents)}  # a link to a parent is not followed
    for parent, folders, files in os.walk(folder, onerror=_cannot_list, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen or (os.path.islink(parent) and _is_listed_below(real, top)):
            folders.clear()
            continue
        seen.add(real)
        kind = result_kind(Path(parent))
        if kind:
            skipped.results[kind] += 1
            folders.clear()
            continue
        if real != str(top):
            listing.folders.append(Path(parent))
        folder_names = _separate_names(folders)
        file_names = _separate_names(files)
        skipped.system.update(folder_names.skipped)
        skipped.system.update(file_names.skipped)
        folders[:] = folder_names.kept
        for name in file_names.kept:
            path = Path(parent, name)
            if is_marked_copy(path):
                skipped.marked_copies += 1
            else:
                listing.files.append(path)
    return listing


class _Names(NamedTuple):
    """The names in a folder."""

    kept: list[str]  # names of a user's files or folders, in order
    skipped: Counter[str]  # the number of system and hidden entries, by pattern


def _separate_names(names: Iterable[str]) -> _Names:
    """Separates the names in a folder that a user gave from system and hidden entries."""
    kept = []
    skipped = Counter[str]()
    for name in sorted(names):
        pattern = system_entry(name)
        if pattern:
            skipped[pattern] += 1
        else:
            kept.append(name)
    return _Names(kept, skipped)


def _is_listed_below(real: str, top: Path) -> bool:
    """Returns whether a folder lies below the top, and no part of the path is a system entry.

    Folders of results on the path are not considered.
    """
    if top not in Path(real).parents:
        return False
    return not any(system_entry(name) for name in Path(real).relative_to(top).parts)


def _cannot_list(error: OSError) -> None:
    raise FerVitError(
        f"Cannot list the folder {error.filename} ({error.strerror}). Make it readable or name "
        "another."
    )


def unread_notes(other_suffixes: Counter[str], skipped: Skipped) -> list[str]:
    """Returns lines about what is not read: files by suffix, system entries, results."""
    system = skipped.system
    results = skipped.results
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
    if skipped.marked_copies:
        videos = counted(
            skipped.marked_copies, "video with marked faces", "videos with marked faces"
        )
        notes.append(f"not read: {videos} (by predict)")
    return notes
