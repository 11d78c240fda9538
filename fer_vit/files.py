"""Files and folders that are whole or not there, whatever ends the process that writes them.

They are written beside their place in a hidden folder, `.NAME.XXXXXXXX.part`, flushed to the disk and renamed. After an
error that folder is removed; what a killed process leaves of it is read by nobody, see `remove_left`.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EINVAL
from glob import escape
from pathlib import Path
from secrets import token_hex

from fer_vit.errors import FerVitError

ADVICE = "Choose a folder that you may write and that has room."


@contextmanager
def whole(path: Path, names: Sequence[str] | None = None, advice: str = ADVICE) -> Iterator[Path]:
    """Yields where to write a file or folder, which takes the place of `path` when the block ends without an error.

    Args:
        path: Its place; what is there is replaced. A reader sees the old file or the new one at any time, and of a
            folder for the moment of two renames nothing.
        names: Of a folder that is there, what alone is replaced. The last one tells readers that the rest is whole: it
            goes first and comes last.
        advice: What the user can do when it cannot be written.

    Raises:
        FerVitError: It cannot be written, for example since the disk is full.
    """
    # A folder that is there may be a disk of its own
    place = path if names is not None and path.is_dir() else path.parent
    with hidden(path, place, advice) as part:
        new = part / _name(path)
        try:
            yield new
        except FerVitError as error:  # about something in it
            error.args = (str(error).replace(str(new), str(path)),)
            raise
        sync(new)
        if new.is_file():
            new.replace(path)
        else:
            _exchange([(path / name, new / name) for name in names or ()] if place == path else [(path, new)], part)
        _flush(place)


@contextmanager
def hidden(path: Path, place: Path | None = None, advice: str = ADVICE) -> Iterator[Path]:
    """Yields a new hidden folder that is gone when the block ends.

    Args:
        path: What is made in it.
        place: Where it is; None: beside `path`.
        advice: What the user can do when it cannot be written.

    Raises:
        FerVitError: It, or something in it, cannot be written.
    """
    part = (place or path.parent) / f".{_name(path)}.{token_hex(4)}.part"
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
        shutil.rmtree(part, ignore_errors=True)


def _cannot_write(path: Path, error: OSError, advice: str) -> FerVitError:
    reason = os.strerror(error.errno) if error.errno else error
    return FerVitError(f"Cannot write {path} ({reason}). {advice}")


def remove_left(path: Path) -> None:
    """Removes what killed processes left when they wrote `path`, and nothing that a living one writes."""
    pattern = f".{escape(_name(path))}.{'[0-9a-f]' * 8}.part"
    for left in [*path.parent.glob(pattern), *path.glob(pattern)]:
        with _locked(left) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file, or a folder and all below it, is on the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            sync(entry)
    _flush(path)


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # of `.` and `..` as well


def _flush(path: Path) -> None:
    if sys.platform == "win32":  # opens no folders, and flushes nothing that is open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != EINVAL:  # by file systems that flush no folders
            raise
    finally:
        os.close(handle)


def _exchange(pairs: Sequence[tuple[Path, Path]], aside: Path) -> None:
    """Moves the second of each pair, where it is there, to the place of the first; after an error none has moved."""
    old = aside / "old.part"
    old.mkdir()
    with ExitStack() as undo:

        def move(entry: Path, place: Path) -> None:
            undo.callback(lambda: os.path.lexists(entry) or place.rename(entry))  # first: a signal may come between
            entry.rename(place)

        for place, _ in reversed(pairs):
            if os.path.lexists(place):
                move(place, old / _name(place))
        for place, new in pairs:
            if new.exists():
                move(new, place)
        undo.pop_all()


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
