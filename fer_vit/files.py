"""Atomic writes: files and folders are complete or absent, however the process that writes them ends.

They are written to a hidden scratch folder beside them, `.NAME.XXXXXXXX.part`, flushed to disk and renamed.
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
    """Yields where to write a file or folder, which replaces `path` when the block ends without an error.

    Args:
        path: What to write; an existing one is replaced. Readers see the old file or the new one at any time; a folder
            is missing for a moment between two renames.
        names: The only entries to replace in an existing folder. The last one tells readers that the others are
            complete: it is removed first and added last.
        advice: Ends the message of the FerVitError that is raised when writing fails.
    """
    names = names if path.is_dir() else None
    folder = path.parent if names is None else path  # an existing folder may be a disk of its own
    with scratch_folder(path, folder, advice) as scratch:
        (scratch / "new").mkdir()
        new = scratch / "new" / _name(path)
        try:
            yield new
        except FerVitError as error:  # names the path in the scratch folder
            error.args = (str(error).replace(str(new), str(path)),)
            raise
        for entry in (*new.rglob("*"), new):
            _flush(entry)
        if new.is_file():
            new.replace(path)
        else:
            _swap(folder, [path.name] if names is None else names, new.parent if names is None else new, scratch)
        with suppress(PermissionError):  # a folder that can be written, but not read
            _flush(folder)


@contextmanager
def scratch_folder(path: Path, folder: Path | None = None, advice: str = ADVICE) -> Iterator[Path]:
    """Yields a new hidden folder in `folder` (None: beside `path`) to make `path` in; it is removed afterwards.

    An error of writing in it becomes a FerVitError that ends with the `advice`.
    """
    with ExitStack() as after:
        try:
            scratch = None
            while not (scratch and scratch.exists()):  # without a lock yet, it may be taken for a dead process's
                scratch = (folder or path.parent) / f".{_stem(path)}.{token_hex(4)}.part"
                after.callback(shutil.rmtree, scratch, ignore_errors=True)
                after.callback(_finish_swap, scratch)  # in case a second signal interrupted the undoing of a swap
                scratch.mkdir(parents=True)
                with suppress(FileNotFoundError):
                    after.enter_context(_locked(scratch, wait=True))
        except OSError as error:
            raise _cannot_write(path, error, advice) from error
        try:
            yield scratch
        except OSError as error:
            if error.filename and not str(error.filename).startswith(str(scratch)):  # about a file that is only read
                raise
            raise _cannot_write(path, error, advice) from error


def _cannot_write(path: Path, error: OSError, advice: str) -> FerVitError:
    reason = os.strerror(error.errno) if error.errno else error
    return FerVitError(f"Cannot write {path} ({reason}). {advice}")


def check_output(path: Path, overwrite: bool, names: Sequence[str] = ()) -> None:
    """Raises FerVitError, before any work, when an output exists already or cannot be written.

    With `names` only these entries of an existing folder count, as for `atomic_write`.
    """
    remove_stale(path)
    if names and path.exists():
        for name in names:
            check_output(path / name, overwrite)
        return
    taken = any(path.iterdir()) if path.is_dir() else path.exists()  # an empty folder does not count
    if taken and not overwrite:
        raise FerVitError(f"{path} exists already. Choose another name or add `--overwrite`.")
    with scratch_folder(path):
        pass


def remove_stale(path: Path) -> None:
    """Removes what killed processes left behind while writing `path`, and nothing of a running one."""
    pattern = f".{escape(_stem(path))}.{'[0-9a-f]' * 8}.part"
    for stale in [*path.parent.glob(pattern), *path.glob(pattern)]:
        with suppress(OSError), _locked(stale) as free:  # just removed, or another user's
            if free:
                _finish_swap(stale)
                shutil.rmtree(stale, ignore_errors=True)


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files in a folder and below it that are not hidden, in order. All folders must be readable.

    Links to folders are followed, but no folder is read twice.
    """
    top, seen = Path(os.path.realpath(folder)), set[Path]()
    for parent, folders, files in os.walk(folder, onerror=_cannot_list, followlinks=True):
        real = Path(os.path.realpath(parent))
        if real in seen or (seen and _leads_back(Path(parent), real, top)):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _leads_back(folder: Path, real: Path, top: Path) -> bool:
    """Tells a link to a folder that holds it, or to one below the top, whose files keep the names they have there."""
    if not folder.is_symlink():
        return False
    hidden = any(part.startswith(".") for part in os.path.relpath(real, top).split(os.sep))  # outside it begins with ..
    return not hidden or Path(os.path.realpath(folder.parent)).is_relative_to(real)


def _cannot_list(error: OSError) -> None:
    raise FerVitError(f"Cannot list the folder {error.filename} ({error.strerror}). Make it readable or name another.")


def as_text(name: str) -> str:
    """Returns a file name as valid Unicode, for tables; bytes that are not Unicode are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # of `.` and `..` as well


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(_name(path))[:200])  # names may have 255 bytes


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of entries, is on the disk."""
    if sys.platform == "win32":  # cannot open folders, nor flush what is open for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (EINVAL, ENOTSUP):  # from file systems that cannot flush folders
            raise
    finally:
        os.close(handle)


def _swap(folder: Path, names: Sequence[str], new: Path, scratch: Path) -> None:
    """Moves the entries of `new` into a folder, and its old ones aside; after an error none has moved."""
    old, ready = scratch / "old", scratch / "ready"
    old.mkdir()
    with ExitStack() as undo:

        def move(entry: Path, to: Path) -> None:
            undo.callback(lambda: os.path.lexists(entry) or to.rename(entry))  # before it: a signal may come in between
            entry.rename(to)

        for name in reversed(names):
            if os.path.lexists(folder / name):
                move(folder / name, old / name)
        move(new, ready)
        for name in names:
            if (ready / name).exists():
                move(ready / name, folder / name)
        undo.pop_all()
    shutil.rmtree(old, ignore_errors=True)  # before `ready`, without which `_finish_swap` would put it back


def _finish_swap(scratch: Path) -> None:
    """Completes a swap that was interrupted if all old entries had been moved aside, else undoes it."""
    source = scratch / "ready" if (scratch / "ready").is_dir() else scratch / "old"
    for entry in [*source.iterdir()] if source.is_dir() else ():
        if not os.path.lexists(goal := scratch.parent / entry.name):
            entry.rename(goal)


@contextmanager
def _locked(scratch: Path, wait: bool = False) -> Iterator[bool]:
    """Locks a folder, until the process ends at the latest; yields False where another process has the lock.

    With `wait` it waits for that process; False then means that there are no locks here.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle = os.open(scratch, os.O_RDONLY)
    free = False
    try:
        with suppress(OSError):  # another process has it, or the file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            free = True
        yield free
    finally:
        os.close(handle)
