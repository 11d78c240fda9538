"""Stamps of input files, which tell whether a file is still the one that was read."""

import os
from hashlib import file_digest
from pathlib import Path

from fer_vit.faces import Stamp
from fer_vit.files import open_input


def read_stamp(path: Path) -> Stamp | None:
    """Returns the stamp of a file; None if the file cannot be read."""
    try:
        with open_input(path) as file:
            status = os.fstat(file.fileno())
            digest = file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except (OSError, ValueError):  # ValueError: a NUL byte in the path
        return None
    return Stamp(status.st_size, status.st_mtime_ns, digest)


def is_unchanged(path: Path, stamp: Stamp | None) -> bool:
    """Returns whether a file is the one that was read. Only a file with another time is read."""
    if stamp is None:
        return read_stamp(path) is None
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != stamp.size:
        return False
    if status.st_mtime_ns == stamp.mtime:
        return True
    now = read_stamp(path)
    return now is not None and now.sha256 == stamp.sha256
