"""A data set in a zip file."""

import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path

from fer_vit.errors import FerVitError
from fer_vit.files import scratch_folder


def is_zip(path: Path) -> bool:
    """Tells a zip from a folder, by its name."""
    return path.suffix.lower() == ".zip"


@contextmanager
def unpacked(archive: Path, out: Path) -> Iterator[Path]:
    """Unpacks a zip into a hidden folder beside `out` that is removed afterwards; yields anything else unchanged.

    Messages name the zip rather than that folder. zipfile strips roots, drives and `..` from names, writes links as
    files, and reads no more of an entry than its header says, so a zip never takes more space than it claims.

    Raises:
        FerVitError: It is damaged, compressed in an unusual way, or does not fit on the disk.
    """
    if not is_zip(archive):
        yield archive
        return
    with scratch_folder(out) as scratch:
        folder = scratch / "zip"  # separate from what `fer_vit.files` keeps there
        folder.mkdir()
        _extract(archive, folder, out)
        # A zip of a folder usually holds the folder itself rather than its contents; macOS adds one of its own.
        inner = [
            path for path in folder.glob("[!.]*") if path.name != "__MACOSX" and (path.is_dir() or path.name[0] != "_")
        ]
        try:
            yield inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
        except FerVitError as error:
            raise FerVitError(str(error).replace(str(folder), str(archive))) from error


def _opened(archive: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(archive, metadata_encoding="utf-8")  # macOS writes UTF-8 without zip's flag for it
    except UnicodeDecodeError:
        return zipfile.ZipFile(archive)


def _extract(archive: Path, folder: Path, out: Path) -> None:
    try:
        with _opened(archive) as file:
            entries = file.infolist()
            # A few bytes of bzip2 can fill all memory at once
            if {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise FerVitError(f"Expected a zip that uses deflate, but {archive} does not. Unpack it first.")
            size, free = sum(entry.file_size for entry in entries), shutil.disk_usage(folder).free
            if size > free:
                raise FerVitError(
                    f"Expected room for the {size:,} bytes in {archive}, but there are {free:,} beside {out}. "
                    "Choose another folder."
                )
            file.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != EINVAL:  # from a damaged zip: a seek before its start
            raise
        raise FerVitError(f"Expected a complete zip at {archive}, but got: {error}. Fetch it again.") from error
