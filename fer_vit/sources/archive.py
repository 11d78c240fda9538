"""Zips of data sets, which may come from anyone: what is unpacked is limited, and what is not is counted."""

import io
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, EILSEQ, EINVAL, EISDIR, ENAMETOOLONG, ENOTDIR
from pathlib import Path
from typing import NamedTuple

from fer_vit.errors import FerVitError
from fer_vit.files import scratch_folder
from fer_vit.listing import PHOTO_SUFFIXES

MAX_PHOTO = 1_000_000_000
"""Largest photo that is unpacked, in bytes."""
MAX_LIST = 64_000_000
"""Longest list of a zip's entries in bytes: about half a million photos. Python takes eight times as much memory."""
MAX_DEPTH = 100
"""Deepest folder that is unpacked."""
TOO_LONG = "the name in the zip is too long"
SAME_NAME = "the zip has a file and a folder of one name"
BAD_NAMES = {
    ENAMETOOLONG: TOO_LONG,
    EILSEQ: "the name in the zip is not possible here",
    EISDIR: SAME_NAME,
    ENOTDIR: SAME_NAME,
    EEXIST: SAME_NAME,
}
"""Why the system makes no file of an entry, by the number of its error."""
TOO_LARGE = f"larger than {MAX_PHOTO // 10**6:,} MB in the zip"


class Unpacked(NamedTuple):
    """The files of a data set."""

    folder: Path
    left_out: Counter[str]  # entries of the zip that are not in the folder, by reason


def is_zip(path: Path) -> bool:
    """Returns whether a path names a zip."""
    return path.suffix.lower() == ".zip"


@contextmanager
def unpacked(archive: Path, out: Path) -> Iterator[Unpacked]:
    """Unpacks a zip into a hidden folder beside `out` that is removed afterwards; yields a folder unchanged.

    Messages name the zip instead of the hidden folder. zipfile strips roots, drives and `..` from names, writes links
    as files, and reads no more of an entry than its header declares.
    """
    if not is_zip(archive):
        yield Unpacked(archive, Counter())
        return
    with scratch_folder(out) as scratch:
        folder = scratch / "zip"  # `fer_vit.files` uses other names in there
        folder.mkdir()
        left_out = _extract(archive, folder, out)
        # A zip of a folder usually contains the folder rather than its contents; macOS adds __MACOSX.
        inner = [
            path
            for path in folder.glob("[!.]*")
            if path.name != "__MACOSX" and (path.is_dir() or path.name[0] != "_")
        ]
        try:
            yield Unpacked(inner[0] if len(inner) == 1 and inner[0].is_dir() else folder, left_out)
        except FerVitError as error:
            raise FerVitError(str(error).replace(str(folder), str(archive))) from error


class _LimitedFile(io.FileIO):
    """A file of which no large part can be read at once: zipfile reads the list of entries as a whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_LIST:
            raise FerVitError(
                f"Expected at most {MAX_LIST:,} bytes for the list of entries in {self.name!s}, "
                f"but got {size:,}. Unpack it first."
            )
        return super().read(size)


def _open_zip(file: io.FileIO) -> zipfile.ZipFile:
    try:
        # macOS writes UTF-8 without zip's flag for it
        return zipfile.ZipFile(file, metadata_encoding="utf-8")
    except UnicodeDecodeError:
        return zipfile.ZipFile(file)


def _extract(archive: Path, folder: Path, out: Path) -> Counter[str]:
    """Unpacks a zip; returns the number of entries that were left out, by reason.

    Raises FerVitError when the zip is damaged, compressed in an unusual way, or larger than the free disk.
    """
    left_out = Counter[str]()
    try:
        with _LimitedFile(archive) as file, _open_zip(file) as opened:
            entries = opened.infolist()
            _check_compression(entries, archive)
            wanted = []
            for entry in entries:
                if _is_large_photo(entry):
                    left_out[TOO_LARGE] += 1
                elif entry.filename.count("/") > MAX_DEPTH:
                    left_out[TOO_LONG] += 1
                else:
                    wanted.append(entry)
            _check_room(sum(entry.file_size for entry in wanted), archive, folder, out)
            for entry in wanted:
                try:
                    opened.extract(entry, folder)
                except OSError as error:
                    if error.errno not in BAD_NAMES:
                        raise
                    left_out[BAD_NAMES[error.errno]] += 1
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != EINVAL:  # a seek before the start
            raise
        raise FerVitError(
            f"Expected a complete zip at {archive}, but got: {error}. Fetch it again."
        ) from error
    return left_out


def _check_compression(entries: list[zipfile.ZipInfo], archive: Path) -> None:
    """Raises FerVitError for other methods than deflate: a few bytes of bzip2 can fill all memory at once."""
    if {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise FerVitError(
            f"Expected a zip that uses deflate, but {archive} does not. Unpack it first."
        )


def _is_large_photo(entry: zipfile.ZipInfo) -> bool:
    """Returns whether an entry is a photo that would not be read; labels and lists may be larger."""
    return Path(entry.filename).suffix.lower() in PHOTO_SUFFIXES and entry.file_size > MAX_PHOTO


def _check_room(size: int, archive: Path, folder: Path, out: Path) -> None:
    """Raises FerVitError when the disk has too little room for the files of a zip."""
    free = shutil.disk_usage(folder).free
    if size > free:
        room = f"room for the {size:,} bytes in {archive}, but there are {free:,} beside {out}"
        raise FerVitError(f"Expected {room}. Choose another folder.")
