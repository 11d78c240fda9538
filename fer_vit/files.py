"""Files and folders that are whole or not there, whatever ends the process that writes them.

They are written beside their place in a hidden folder, `.NAME.XXXXXXXX.part`, flushed to the disk and renamed.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EINVAL, ENOTSUP
from glob import escape
from pathlib import Path
from secrets import token_hex

from fer_vit.errors import FerVitError

ADVICE = "Choose a folder that you may write and that has room."


@contextmanager
def atomic_write(path: Path, names: Sequence[str] | None = None, advice: str = ADVICE) -> Iterator[Path]:
    """Yields where to write a file or folder, which takes the place of `path` when the block ends without an error.

    Args:
        path: Its place; what is there is replaced. A reader sees the old file or the new one at any time, and of a
            folder for the moment of two renames nothing.
        names: Of a folder that is there, what alone is replaced. The last one tells readers that the rest is whole: it
            goes first and comes last.
        advice: Ends the message of the FerVitError that is raised when it cannot be written.
    """
    names = names if path.is_dir() else None
    place = path.parent if names is None else path  # which may be a disk of its own
    with scratch_folder(path, place, advice) as part:
        (part / "new").mkdir()
        new = part / "new" / _name(path)
        try:
            yield new
        except FerVitError as error:  # about something in it
            error.args = (str(error).replace(str(new), str(path)),)
            raise
        for entry in (*new.rglob("*"), new):
            _flush(entry)
        if new.is_file():
            new.replace(path)
        else:
            _exchange(place, [path.name] if names is None else names, new.parent if names is None else new, part)
        with suppress(PermissionError):  # of a folder that may be written, but not read
            _flush(place)


@contextmanager
def scratch_folder(path: Path, place: Path | None = None, advice: str = ADVICE) -> Iterator[Path]:
    """Yields a new hidden folder in `place` (None: beside `path`) to make `path` in; it is gone when the block ends.

    What cannot be written in it is a FerVitError that ends with the `advice`.
    """
    part = (place or path.parent) / f".{_stem(path)}.{token_hex(4)}.part"
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise _cannot_write(path, error, advice) from error
    try:
        with _locked(part):
            yield part
    except OSError as error:
        if error.filename and not str(error.filename).startswith(str(part)):  # of a file that is read
            raise
        raise _cannot_write(path, error, advice) from error
    finally:
        _settle(part)  # if a second signal came while an exchange was taken back
        shutil.rmtree(part, ignore_errors=True)


def _cannot_write(path: Path, error: OSError, advice: str) -> FerVitError:
    reason = os.strerror(error.errno) if error.errno else error
    return FerVitError(f"Cannot write {path} ({reason}). {advice}")


def check_output(path: Path, overwrite: bool) -> None:
    """Raises FerVitError, before any work, when an output is there already or its place cannot be written."""
    remove_stale(path)
    taken = any(path.iterdir()) if path.is_dir() else path.exists()  # an empty folder is nothing
    if taken and not overwrite:
        raise FerVitError(f"{path} exists already. Choose another name or add `--overwrite`.")
    with scratch_folder(path):
        pass


def remove_stale(path: Path) -> None:
    """Removes what killed processes left when they wrote `path`, and nothing that a living one writes."""
    pattern = f".{escape(_stem(path))}.{'[0-9a-f]' * 8}.part"
    for left in [*path.parent.glob(pattern), *path.glob(pattern)]:
        with suppress(OSError), _locked(left) as free:  # gone just now, or another user's
            if free:
                _settle(left)
                shutil.rmtree(left, ignore_errors=True)


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files in a folder and below it that are not hidden, in order. All folders must be readable."""
    for parent, folders, files in os.walk(folder, onerror=_cannot_list):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _cannot_list(error: OSError) -> None:
    raise FerVitError(f"Cannot list the folder {error.filename} ({error.strerror}). Make it readable or name others.")


def as_text(name: str) -> str:
    """Returns a file's name as valid Unicode, as tables hold it; bytes that are not Unicode are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # of `.` and `..` as well


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(_name(path))[:200])  # names may have 255 bytes


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    if sys.platform == "win32":  # opens no folders, and flushes nothing that is open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (EINVAL, ENOTSUP):  # by file systems that flush no folders
            raise
    finally:
        os.close(handle)


def _exchange(place: Path, names: Sequence[str], new: Path, part: Path) -> None:
    """Moves entries of a folder to a place, and those that were there aside; after an error none has moved."""
    old, ready = part / "old", part / "ready"
    old.mkdir()
    with ExitStack() as undo:

        def move(entry: Path, to: Path) -> None:
            undo.callback(lambda: os.path.lexists(entry) or to.rename(entry))  # first: a signal may come between
            entry.rename(to)

        for name in reversed(names):
            if os.path.lexists(place / name):
                move(place / name, old / name)
        move(new, ready)
        for name in names:
            if (ready / name).exists():
                move(ready / name, place / name)
        undo.pop_all()
    shutil.rmtree(old, ignore_errors=True)  # before `ready`, without which it would be put back


def _settle(left: Path) -> None:
    """Ends an exchange at which a process was killed: forwards when all that was there is aside, else back."""
    source = left / "ready" if (left / "ready").is_dir() else left / "old"
    for entry in [*source.iterdir()] if source.is_dir() else ():
        if not os.path.lexists(goal := left.parent / entry.name):
            entry.rename(goal)


@contextmanager
def _locked(part: Path) -> Iterator[bool]:
    """Holds the lock of a folder, which ends with the process at the latest; tells whether nobody else has it."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle = os.open(part, os.O_RDONLY)
    free = False
    try:
        with suppress(OSError):  # another one has it, or the file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        os.close(handle)
