"""Atomic writes: files and folders are complete or absent, however the writing process ends.

They are written to a hidden scratch folder beside the target, `.NAME.XXXXXXXX.part`, flushed to disk and renamed.
"""

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import Any

from fer_vit.errors import FerVitError

ADVICE = "Choose a folder that you may write and that has room."
EXISTS = "exists already. Choose another name or add `--overwrite`."


@contextmanager
def atomic_write(path: Path, advice: str = ADVICE, overwrite: bool = True) -> Iterator[Path]:
    """Yields where to write a file or folder, which replaces `path` when the block ends without an error.

    Readers see the old file or the new one; a folder is missing for a moment between two renames. A failure to write
    raises FerVitError that ends with `advice`, as does, without `overwrite`, a file that exists in the meantime.
    """
    with scratch_folder(path, advice) as scratch:
        (scratch / "new").mkdir()
        new = scratch / "new" / _name(path)
        try:
            yield new
        except FerVitError as error:  # names the path in the scratch folder
            error.args = (str(error).replace(str(new), str(path)),)
            raise
        for entry in (*new.rglob("*"), new):
            _flush(entry)
        if new.is_dir() and path.is_dir():
            path.rename(scratch / "old")  # `_restore` brings it back after an error or a signal
        if new.is_dir() or overwrite:
            new.replace(path)
        else:
            _add(new, path)
        _flush(path.parent)


def _add(new: Path, path: Path) -> None:
    """Moves a file to a path where there is none."""
    try:
        path.hardlink_to(new)
    except OSError as error:
        if os.path.lexists(path):
            raise FerVitError(f"{path} {EXISTS}") from error
        new.replace(path)  # the file system has no links


@contextmanager
def scratch_folder(path: Path, advice: str = ADVICE) -> Iterator[Path]:
    """Yields a new hidden folder beside `path` and removes it afterwards; a failure to write raises FerVitError."""
    with ExitStack() as after:
        try:
            scratch = None
            while not (
                scratch and scratch.exists()
            ):  # before it is locked, another process may remove it
                scratch = path.parent / f".{_stem(path)}.{token_hex(4)}.part"
                after.callback(shutil.rmtree, scratch, ignore_errors=True)
                after.callback(_restore, path, scratch)
                scratch.mkdir(parents=True)
                with suppress(FileNotFoundError):
                    after.enter_context(_locked(scratch, wait=True))
        except OSError as error:
            raise _cannot_write(path, error, advice) from error
        try:
            yield scratch
        except OSError as error:
            if error.filename and not str(error.filename).startswith(
                str(scratch)
            ):  # of another file
                raise
            raise _cannot_write(path, error, advice) from error


def _cannot_write(path: Path, error: OSError, advice: str) -> FerVitError:
    reason = os.strerror(error.errno) if error.errno else error
    return FerVitError(f"Cannot write {path} ({reason}). {advice}")


def check_output(path: Path, overwrite: bool, names: Sequence[str] = ()) -> None:
    """Raises FerVitError, before any work, when an output exists already or cannot be written.

    Empty folders are accepted. A folder is only replaced if it contains nothing but `names`, the files that the command
    writes; without `names` any folder is replaced.
    """
    if path.name == "-":
        raise FerVitError(
            "Expected a file or folder to write, but got `-`. Name one, such as faces.csv."
        )
    remove_stale(path)
    if names and path.is_file():
        raise FerVitError(f"Expected a folder, but {path} is a file. Choose another name.")
    entries = os.listdir(path) if path.is_dir() else [path.name] * path.exists()
    if entries and not overwrite:
        raise FerVitError(f"{path} {EXISTS}")
    if names and (foreign := {*entries} - {*names}):
        raise FerVitError(
            f"{path} holds {min(foreign)}, which would be lost. Choose another folder."
        )
    with scratch_folder(path):
        pass


def remove_stale(path: Path) -> None:
    """Removes the scratch folders that killed processes left behind while writing `path`."""
    for stale in path.parent.glob(f".{escape(_stem(path))}.{'[0-9a-f]' * 8}.part"):
        with suppress(OSError), _locked(stale) as free:  # just removed, or another user's
            if free:
                _restore(path, stale)
                shutil.rmtree(stale, ignore_errors=True)


def as_text(name: str) -> str:
    """Returns a file name as valid Unicode, for tables; bytes that are not Unicode are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def json_text(value: object, **options: Any) -> str:
    """Returns a value as JSON with the options of `json.dumps`; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_defined(value), allow_nan=False, **options)


def _defined(value: object) -> object:
    """Returns a value whose numbers are finite or None, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _defined(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(item) for item in value]
    return value


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # of `.` and `..` as well


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(_name(path))[:200])  # names may have 255 bytes


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of entries where the system allows that, is on the disk."""
    if sys.platform == "win32":  # cannot open folders, nor flush what is open for reading
        return
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _restore(path: Path, scratch: Path) -> None:
    """Restores a folder that was moved aside when its replacement was interrupted."""
    if (scratch / "old").is_dir() and not os.path.lexists(path):
        (scratch / "old").rename(path)


@contextmanager
def _locked(scratch: Path, wait: bool = False) -> Iterator[bool]:
    """Locks a folder until the process ends; yields False if another process has the lock or there are no locks."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle, free = os.open(scratch, os.O_RDONLY), False
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            free = True
        yield free
    finally:
        os.close(handle)
