"""Opens inputs, and writes outputs atomically.

`open_input` opens each file that a user or a data set names, and never waits for a pipe or a
device. An output, a file or a folder, is complete or absent, however the writing process ends.

Outputs are written to a hidden scratch folder beside the target, `.NAME.XXXXXXXX.part`, flushed to
disk and renamed. Other users may write to the folder of the target, so only `open_own_folder` opens
scratch folders. `check_output` removes the scratch folders that killed processes have left beside a
target; `clear_remains_of` and `clear_remains_in` do so for other callers.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from errno import EINVAL
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import BinaryIO

from fer_vit.errors import FerVitError, printable

ADVICE = "Choose a folder that you may write and that has room."
ALREADY_EXISTS = "already exists. Choose another name or add `--overwrite`."
SCRATCH_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)  # .faces.csv.0123abcd.part

# A file in each scratch folder. Another user may rename a folder of this user to the name of a
# scratch folder. Such a folder has no such file and is not removed.
OWN_MARK = "made-by-fer-vit"

# Files, in lower case, that file managers write into folders. Such files do not count as content.
VIEW_FILES = frozenset((".ds_store", "desktop.ini", "thumbs.db"))

ATTEMPTS = 100  # attempts to make a folder whose parents other processes remove

# Flags of `os.open` that not every system has. Opening a FIFO does not wait for its writer.
INPUT_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
NOT_REGULAR = "not a regular file"


def open_input(path: str | Path) -> BinaryIO:
    """Opens a file for reading bytes, without waiting.

    Raises OSError for a file that does not exist, and for a folder, a pipe or a device: reading
    such an entry could wait forever.
    """
    handle = os.open(path, os.O_RDONLY | INPUT_FLAGS)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(EINVAL, NOT_REGULAR, str(path))
    return os.fdopen(handle, "rb")


@contextmanager
def atomic_write(path: Path, advice: str = ADVICE, overwrite: bool = True) -> Iterator[Path]:
    """Yields a temporary path; moves the content to `path` when the block ends without an error.

    A link at `path` is replaced and not followed, because another user may have made the link.
    Readers see the old or the new version of a file. A folder that is replaced is missing for a
    moment between two renames.

    Raises:
        FerVitError: The output cannot be written; the message ends with `advice`. Without
            `overwrite`, also when another process has written the output during the block.
    """
    with scratch_folder(path, advice) as scratch:
        (scratch / "new").mkdir()
        new = scratch / "new" / _name(path)
        try:
            yield new
        except FerVitError as error:  # the message names the path in the scratch folder
            error.args = (str(error).replace(printable(str(new)), printable(str(path))),)
            raise
        for entry in (*new.rglob("*"), new):
            _flush(entry)
        if new.is_dir() and path.is_dir():
            if not overwrite and _visible_names(path):
                raise FerVitError(f"{path} {ALREADY_EXISTS}")
            # `_restore` moves the old folder back after an error or a signal
            path.rename(scratch / "old")
            new.replace(path)
        elif new.is_dir() or overwrite:
            new.replace(path)
        else:
            _add(new, path)
        _flush(path.parent)


def _add(new: Path, path: Path) -> None:
    """Moves a file to a path that does not exist; raises FerVitError if the path exists."""
    try:
        path.hardlink_to(new)
    except OSError as error:
        if os.path.lexists(path):
            raise FerVitError(f"{path} {ALREADY_EXISTS}") from error
        new.replace(path)  # the file system does not support hard links


@contextmanager
def scratch_folder(path: Path, advice: str = ADVICE) -> Iterator[Path]:
    """Yields a new hidden folder beside `path` and removes it afterwards.

    Other users may not enter the folder. Parents that were made for the scratch folder, and are
    empty afterwards, are removed as well, so that a command that fails leaves nothing.

    Raises:
        FerVitError: The folder cannot be made or written.
    """
    _check_parents(path)
    with ExitStack() as after:
        # At the end, these steps run in reverse order: the scratch folder is unlocked, a replaced
        # folder in it returns to `path`, the scratch folder is removed, empty parents are removed.
        after.callback(_remove_empty_folders, _missing_parents(path))
        try:
            scratch = None
            # Another process may remove the scratch folder before it is locked.
            while scratch is None or not scratch.exists():
                scratch = path.parent / f".{_stem(path)}.{token_hex(4)}.part"
                after.callback(_remove_scratch, scratch)
                after.callback(_restore, path, scratch / "old")
                _make_scratch(scratch)
                after.enter_context(_locked(scratch, wait=True))  # no lock on Windows
            (scratch / OWN_MARK).touch()
        except OSError as error:
            raise cannot_write(path, error, advice) from error
        try:
            yield scratch
        except OSError as error:
            of_another_file = error.filename and not str(error.filename).startswith(str(scratch))
            if of_another_file:
                raise
            raise cannot_write(path, error, advice) from error


def _check_parents(path: Path) -> None:
    """Raises FerVitError when a path lies in a file."""
    for parent in path.parents:
        if os.path.lexists(parent):
            if not parent.is_dir():
                raise FerVitError(
                    f"Cannot write {path}, because {parent} is not a folder. Choose another name."
                )
            return


def _missing_parents(path: Path) -> list[Path]:
    """Returns the folders above a path that do not exist, the lowest first."""
    whole = Path(os.path.abspath(path))  # in a/../b, `a` must stay while the path is used
    return [parent for parent in whole.parents if not os.path.lexists(parent)]


def _remove_empty_folders(folders: Iterable[Path]) -> None:
    """Removes the folders that are empty."""
    for folder in folders:
        with suppress(OSError):  # the folder is not empty or does not exist
            folder.rmdir()


def _make_scratch(scratch: Path) -> None:
    """Makes a scratch folder and its parents.

    Other processes that fail may remove the empty parents at the same time, so there are
    `ATTEMPTS` attempts. The number is limited, because no attempt succeeds in a folder such as
    /proc.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            _make_with_parents(scratch)
            return
    _make_with_parents(scratch)


def _make_with_parents(scratch: Path) -> None:
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(mode=0o700)


def cannot_write(path: Path, error: OSError, advice: str = ADVICE) -> FerVitError:
    """Returns an error with the path that cannot be written, the reason and `advice`."""
    reason = os.strerror(error.errno) if error.errno else error
    return FerVitError(f"Cannot write {path} ({reason}). {advice}")


def check_output(path: Path, overwrite: bool, names: Sequence[str] = ()) -> None:
    """Raises FerVitError, before any work, when an output already exists or cannot be written.

    Args:
        path: The file to write; with `names`, the folder to write. A folder may exist if it is
            empty.
        overwrite: Whether an existing output may be replaced.
        names: Patterns of `fnmatch` for the files that the command writes into the folder. A folder
            with other files is not replaced.
    """
    if path.parts[:1] == ("-",):
        raise FerVitError(
            "Expected a file or folder to write, but got `-`. Name one; only `fer-vit predict` "
            "prints its table."
        )
    clear_remains_of(path)
    if path.is_dir() and not names:
        raise FerVitError(f"Expected a file, but {path} is a folder. Choose another name.")
    entries = _visible_names(path) if path.is_dir() else []
    is_file = os.path.lexists(path) and not path.is_dir()  # True for a broken link, too
    if names and is_file:
        raise FerVitError(f"Expected a folder, but {path} is a file. Choose another name.")
    if (entries or is_file) and not overwrite:
        raise FerVitError(f"{path} {ALREADY_EXISTS}")
    others = []
    for entry in entries:
        if not any(fnmatchcase(entry, pattern) for pattern in names):
            others.append(entry)
    if others:
        raise FerVitError(
            f"{path} contains {min(others)}, which would be deleted. Choose another folder."
        )
    with scratch_folder(path):
        pass


def _visible_names(folder: Path) -> list[str]:
    """Returns the names in a folder without `VIEW_FILES`."""
    return [name for name in os.listdir(folder) if name.lower() not in VIEW_FILES]


def check_beside(output: Path, folders: Iterable[Path]) -> None:
    """Raises FerVitError when an output lies inside one of the folders that are read.

    The next run would read the results as input.
    """
    place = output.resolve()
    for folder in folders:
        if place.is_relative_to(folder.resolve()):
            raise FerVitError(
                f"{output} is in {folder}, so the next run would read the results. "
                "Choose another place."
            )


def clear_remains_of(path: Path) -> None:
    """Removes the scratch folders of killed processes of this user that wrote `path`."""
    for scratch in path.parent.glob(f".{escape(_stem(path))}.{'[0-9a-f]' * 8}.part"):
        with _locked(scratch) as handle:
            if handle is not None:
                _remove_open_scratch(scratch, handle, path)


def clear_remains_in(folder: Path) -> None:
    """Removes the scratch folders of killed processes of this user in a folder of results.

    The processes may have written any target. A scratch folder that contains a replaced folder is
    kept, because the path of the replaced folder is unknown here.
    """
    entries = os.listdir(folder) if folder.is_dir() else []
    for scratch in (folder / name for name in entries if SCRATCH_NAME.fullmatch(name)):
        with _locked(scratch) as handle:
            if handle is not None and "old" not in os.listdir(handle):
                _remove_open_scratch(scratch, handle)


def _remove_open_scratch(scratch: Path, handle: int, path: Path | None = None) -> None:
    """Removes an open scratch folder.

    A replaced folder in the scratch folder returns to `path` first.
    """
    # The process was killed before it made the mark, or the folder is no scratch folder.
    if OWN_MARK not in os.listdir(handle):
        with suppress(OSError):  # the folder is not empty
            scratch.rmdir()
        return
    if path is not None:
        _restore(path, "old", handle)
    _remove_scratch(scratch)


def _remove_scratch(scratch: Path) -> None:
    """Removes a scratch folder as far as possible, `OWN_MARK` last.

    If the process is killed meanwhile, the folder still has the mark and can be removed later.
    """
    handle = None if sys.platform == "win32" else open_own_folder(scratch)
    if handle is not None:
        try:
            for name in set(os.listdir(handle)) - {OWN_MARK}:
                with suppress(OSError):  # the entry is a folder
                    os.unlink(name, dir_fd=handle)
                shutil.rmtree(name, ignore_errors=True, dir_fd=handle)
        finally:
            os.close(handle)
    # The folder now contains only the mark; on Windows, it still contains everything.
    shutil.rmtree(scratch, ignore_errors=True)


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # `.` and `..` have a name as well


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(_name(path))[:200])  # names may have 255 bytes


def _flush(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk.

    For folders, this works only where the system supports it.
    """
    # Windows cannot open folders, and cannot flush files that are open for reading.
    if sys.platform == "win32":
        return
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_own_folder(path: Path) -> int | None:
    """Opens a folder of this user, for locking or for removing its content.

    Returns a descriptor, or None if the entry is no folder of this user. Links are not followed,
    and opening a FIFO does not block: in a shared folder, any user can make an entry of any name.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError:  # no folder, a folder of another user, or a removed folder
        return None
    if os.fstat(handle).st_uid == os.geteuid():
        return handle
    os.close(handle)
    return None


def _restore(path: Path, old: str | Path, folder: int | None = None) -> None:
    """Moves a replaced folder from `old` back to `path`, unless `path` exists.

    `old` may be relative to an open folder.
    """
    with suppress(FileNotFoundError):  # nothing was moved aside
        if not os.path.lexists(path):
            os.rename(old, path, src_dir_fd=folder)


@contextmanager
def _locked(scratch: Path, wait: bool = False) -> Iterator[int | None]:
    """Locks a folder of this user within the block; yields the descriptor of the folder.

    The lock is released when the process ends, too. Yields None if another process has the lock, if
    the system has no locks, or if the folder does not belong to this user.
    """
    handle = None if sys.platform == "win32" else open_own_folder(scratch)
    if handle is None:
        yield None
        return
    import fcntl

    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    try:
        is_locked = False
        with suppress(OSError):
            fcntl.flock(handle, operation)
            is_locked = True
        yield handle if is_locked else None
    finally:
        os.close(handle)
