"""Unpacks zips and tars of data sets, which may be untrusted, with limits; counts skipped files."""

import gzip
import io
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, EILSEQ, EINVAL, EISDIR, ENAMETOOLONG, ENOTDIR
from pathlib import Path
from typing import NamedTuple

from fer_vit.errors import FerVitError, printable
from fer_vit.face.image import MAX_FILE_BYTES
from fer_vit.files import scratch_folder
from fer_vit.listing import PHOTO_SUFFIXES, system_entry
from fer_vit.wording import escaped

# Longest list of a zip's entries in bytes, enough for about half a million photos. Python takes
# eight times as much memory for the list.
MAX_LIST = 64_000_000

UTF_8 = 0x800  # the flag of a zip's entry whose name is in UTF-8
ENCRYPTED = 0x1  # the flag of a zip's entry that needs a password
READ_AT_ONCE = 1_000_000  # how many bytes are read at once
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
MAX_DEPTH = 100  # most folders on the path of an entry that is unpacked
NO_FILE = "a link or device in the archive"
BAD_NAME = "a name in the archive that is not possible here"
# the errors of the operating system for a name that is not possible
NAME_ERRORS = {ENAMETOOLONG, EILSEQ, EISDIR, ENOTDIR, EEXIST}
TOO_LARGE = f"larger than {MAX_FILE_BYTES // 10**6:,} MB in the archive"


class Unpacked(NamedTuple):
    """The files of a data set."""

    folder: Path
    left_out: Counter[str]  # how many entries of the archive are not in the folder, by reason


def is_archive(path: Path) -> bool:
    """Returns whether a path names a zip or a tar."""
    return path.suffix.lower() == ".zip" or is_tar(path)


def is_tar(path: Path) -> bool:
    """Returns whether a path names a tar that can be unpacked."""
    return path.name.lower().endswith(TAR_SUFFIXES)


@contextmanager
def unpacked(archive: Path, out: Path) -> Iterator[Unpacked]:
    """Unpacks an archive into a hidden folder beside `out`, and removes that folder afterwards.

    If `archive` is no zip or tar, yields the path unchanged. Messages name the archive instead of
    the hidden folder. zipfile strips roots, drives and `..` from names, writes links as files, and
    reads no more bytes of an entry than the header declares. From a tar, only files are unpacked,
    into the folders in their names.
    """
    if not is_archive(archive):
        yield Unpacked(archive, Counter())
        return
    with scratch_folder(out) as scratch:
        folder = scratch / "unpacked"  # `fer_vit.files` uses other names in the scratch folder
        folder.mkdir()
        if is_tar(archive):
            left_out = _extract_tar(archive, folder, out)
        else:
            left_out = _extract_zip(archive, folder, out)
        try:
            yield Unpacked(_only_folder_in(folder), left_out)
        except FerVitError as error:
            raise FerVitError(str(error).replace(printable(str(folder)), str(archive))) from error


def _only_folder_in(folder: Path) -> Path:
    """Returns the only folder inside a folder, otherwise the folder.

    The archive of a folder usually contains the folder, not only the files in it. macOS adds the
    folder __MACOSX.
    """
    inner = []
    for path in folder.iterdir():
        if system_entry(path.name):
            continue
        if path.is_dir() or path.name[0] != "_":
            inner.append(path)
    if len(inner) == 1 and inner[0].is_dir():
        return inner[0]
    return folder


class _LimitedFile(io.FileIO):
    """A file with a limit for each read, because zipfile reads the list of entries in one read."""

    def read(self, size: int | None = -1, /) -> bytes:
        _check_part(size, self.name)
        return super().read(size)


def _open_zip(file: io.FileIO, archive: Path) -> zipfile.ZipFile:
    try:
        # macOS writes UTF-8 without zip's flag for it
        return zipfile.ZipFile(file, metadata_encoding="utf-8")
    except UnicodeDecodeError:
        opened = zipfile.ZipFile(file)
        _check_folder_names(opened.infolist(), archive)
        return opened


def _extract_zip(archive: Path, folder: Path, out: Path) -> Counter[str]:
    """Unpacks a zip; returns how many entries were left out, by reason.

    Raises FerVitError when the zip is damaged, is compressed in an unusual way, or needs more room
    than is free on the disk.
    """
    left_out = Counter[str]()
    try:
        with _LimitedFile(archive) as file, _open_zip(file, archive) as opened:
            entries = opened.infolist()
            _check_entries(entries, archive)
            to_unpack = []
            for entry in entries:
                reason = _reason_left_out(entry)
                if reason is None:
                    to_unpack.append(entry)
                else:
                    left_out[reason] += 1
            _check_room(sum(entry.file_size for entry in to_unpack), archive, folder, out)
            for entry in to_unpack:
                try:
                    opened.extract(entry, folder)
                except OSError as error:
                    if error.errno not in NAME_ERRORS:
                        raise
                    left_out[BAD_NAME] += 1
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        # EINVAL: a damaged zip makes zipfile seek to before the start of the file
        if isinstance(error, OSError) and error.errno != EINVAL:
            raise
        raise FerVitError(
            f"Expected a complete zip at {archive}, but got: {error}. Download it again."
        ) from error
    return left_out


def _reason_left_out(entry: zipfile.ZipInfo) -> str | None:
    """Returns why an entry of a zip is not unpacked; None for an entry that is unpacked."""
    if _is_large(entry.filename, entry.file_size):
        return TOO_LARGE
    if not entry.filename or entry.filename.count("/") > MAX_DEPTH:
        return BAD_NAME
    return None


class _LimitedGzip(gzip.GzipFile):
    """A compressed tar with a limit for each read, as tarfile reads a long header in one read."""

    def read(self, size: int | None = -1) -> bytes:
        _check_part(size, self.name)
        return super().read(size)


def _check_part(size: int | None, archive: object) -> None:
    """Raises FerVitError when a list of entries, or a header, is too long to be read."""
    if size is not None and size > MAX_LIST:
        raise FerVitError(
            f"Expected at most {MAX_LIST:,} bytes for the list of entries in {archive!s}, but got "
            f"{size:,}. Unpack it first."
        )


@contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    opener = _LimitedFile if archive.suffix.lower() == ".tar" else _LimitedGzip
    with opener(archive) as file, tarfile.open(fileobj=file, mode="r:") as opened:
        yield opened


def _extract_tar(archive: Path, folder: Path, out: Path) -> Counter[str]:
    """Unpacks the files of a tar; returns and raises as `_extract_zip`."""
    left_out = Counter[str]()
    try:
        with _open_tar(archive) as opened:
            _check_room(sum(_sizes(opened)), archive, folder, out)
            # reads up to the end, so that gzip compares the checksum
            while opened.fileobj and opened.fileobj.read(READ_AT_ONCE):
                pass
        with _open_tar(archive) as opened:
            for entry in _tar_entries(opened):
                reason = _extract_entry(opened, entry, folder)
                if reason:
                    left_out[reason] += 1
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in (None, EINVAL):
            raise
        raise FerVitError(
            f"Expected a complete tar at {archive}, but got: {error}. Download it again."
        ) from error
    return left_out


def _tar_entries(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields the entries of a tar, without a list of all entries in memory."""
    while entry := opened.next():
        opened.members = []  # type: ignore[attr-defined]
        yield entry


def _sizes(opened: tarfile.TarFile) -> Iterator[int]:
    """Yields the sizes in bytes of the files that are unpacked."""
    for entry in _tar_entries(opened):
        if entry.isfile() and not _is_large(entry.name, entry.size):
            yield entry.size


def _extract_entry(opened: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> str | None:
    """Unpacks an entry of a tar; returns why the entry is left out, or None."""
    if entry.isdir():
        return None
    if not entry.isfile():
        return NO_FILE
    if _is_large(entry.name, entry.size):
        return TOO_LARGE
    if entry.name.count("/") > MAX_DEPTH:
        return BAD_NAME
    try:
        opened.extract(entry, folder, set_attrs=False, filter="data")
    except tarfile.FilterError:  # a name that leads outside
        return BAD_NAME
    except OSError as error:
        if error.errno not in NAME_ERRORS:
            raise
        return BAD_NAME
    return None


def _check_entries(entries: list[zipfile.ZipInfo], archive: Path) -> None:
    """Raises FerVitError for a zip with a password, or with a method other than deflate."""
    if any(entry.flag_bits & ENCRYPTED for entry in entries):
        raise FerVitError(
            f"{archive} has a password. Unpack it first, and name the folder instead."
        )
    # a few bytes of bzip2 can fill all memory
    methods = {entry.compress_type for entry in entries}
    if methods - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise FerVitError(
            f"Expected a zip that uses deflate, but {archive} does not. Unpack it first."
        )


def _check_folder_names(entries: list[zipfile.ZipInfo], archive: Path) -> None:
    """Raises FerVitError for folder names in an old code page.

    Folders name classes, and a zip does not record the code page of its names.
    """
    for entry in entries:
        folder = entry.filename.rpartition("/")[0]
        if not entry.flag_bits & UTF_8 and not folder.isascii():
            raise FerVitError(
                f"Expected names of folders in UTF-8 in {archive}, but got {escaped(folder)}, from "
                "an old code page. Unpack it first with the program that made it."
            )


def _is_large(name: str, size: int) -> bool:
    """Returns whether an entry is a photo that is too large to be read; tables may be larger."""
    return Path(name).suffix.lower() in PHOTO_SUFFIXES and size > MAX_FILE_BYTES


def _check_room(size: int, archive: Path, folder: Path, out: Path) -> None:
    """Raises FerVitError when the disk has too little room for the files of an archive."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise FerVitError(
            f"Expected room for the {size:,} bytes in {archive}, but there are {free:,} beside "
            f"{out}. Choose another folder."
        )
