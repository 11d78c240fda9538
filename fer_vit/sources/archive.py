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


@contextmanager
def _unpacked(archive: Path, out: Path) -> Iterator[Path]:
    """Unpacks a zip into a hidden folder beside `out` that is gone afterwards; messages name the zip in its place.

    zipfile leaves roots, drives and `..` out of names, writes links as files, and reads no more of an entry than its
    header says, so that the sizes that a zip claims are the most that it can fill.
    """
    with scratch_folder(out) as part:
        folder = part / "zip"  # away from what `files` itself keeps there
        folder.mkdir()
        try:
            with zipfile.ZipFile(archive) as file:
                entries = file.infolist()
                # Few bytes of bzip2 fill all memory at once
                if {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                    raise FerVitError(f"Expected a zip by deflate, but {archive} has others. Unpack it first.")
                size, free = sum(entry.file_size for entry in entries), shutil.disk_usage(folder).free
                if size > free:
                    raise FerVitError(
                        f"Expected room for the {size:,} bytes in {archive}, but there are {free:,} beside {out}. "
                        "Choose another place."
                    )
                file.extractall(folder)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != EINVAL:  # which is of a place before the file's start
                raise
            raise FerVitError(
                f"Expected a whole zip at {archive}, but got an error: {error}. Fetch it again."
            ) from error
        # A zip of a folder mostly holds that folder rather than what lies in it; macOS adds one of its own.
        inner = [path for path in folder.iterdir() if path.name[0] not in "._"]
        try:
            yield inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
        except FerVitError as error:
            raise FerVitError(str(error).replace(str(folder), str(archive))) from error
