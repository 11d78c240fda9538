"""A data set in a zip."""

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
    """Unpacks a zip into a hidden folder beside `out` that is gone afterwards; anything else is yielded as it is.

    Messages name the zip rather than that folder. zipfile leaves roots, drives and `..` out of names, writes links as
    files, and reads no more of an entry than its header says, so a zip never fills more than it claims to.

    Raises:
        FerVitError: It is not a whole zip, is compressed in an unusual way, or does not fit on the disk.
    """
    if not is_zip(archive):
        yield archive
        return
    with scratch_folder(out) as scratch:
        folder = scratch / "zip"  # away from what `files` itself keeps there
        folder.mkdir()
        _extract(archive, folder, out)
        # A zip of a folder mostly holds that folder rather than what lies in it; macOS adds one of its own.
        inner = [path for path in folder.iterdir() if path.name[0] not in "._"]
        try:
            yield inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
        except FerVitError as error:
            raise FerVitError(str(error).replace(str(folder), str(archive))) from error


def _extract(archive: Path, folder: Path, out: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as file:
            entries = file.infolist()
            # A few bytes of bzip2 fill all memory at once
            if {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise FerVitError(f"Expected a zip by deflate, but {archive} is compressed otherwise. Unpack it first.")
            size, free = sum(entry.file_size for entry in entries), shutil.disk_usage(folder).free
            if size > free:
                raise FerVitError(
                    f"Expected room for the {size:,} bytes in {archive}, but there are {free:,} beside {out}. "
                    "Choose another folder."
                )
            file.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != EINVAL:  # which a broken zip causes: a seek before the start
            raise
        raise FerVitError(f"Expected a whole zip at {archive}, but got an error: {error}. Fetch it again.") from error
