"""Atomic writes: files and folders are complete or absent, however the writing process ends.

They are written to a hidden scratch folder beside the target, `.NAME.XXXXXXXX.part`, flushed to
disk and renamed. Other users may write to the folder of the target, so scratch folders are opened
by `open_own_folder` alone. What killed processes have left is removed by the next one that writes.
"""

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from secrets import token_hex

from fer_vit.errors import FerVitError, printable

ADVICE = "Choose a folder that you may write and that has room."
ALREADY_EXISTS = "exists already. Choose another name or add `--overwrite`."
SCRATCH_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)  # .faces.csv.0123abcd.part

# A file in each scratch folder: a folder that another user has renamed has none, and is not
# removed.
OWN_MARK = "made-by-fer-vit"

# Files, in lower case, that programs write into folders that they show. They are no content.
VIEW_FILES = frozenset((".ds_store", "desktop.ini", "thumbs.db"))

ATTEMPTS = 100  # to make a folder whose parents other processes remove

# Of Linux' renameat2: paths are relative to the working directory; two names change places at once.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@contextmanager
def atomic_write(path: Path, advice: str = ADVICE, overwrite: bool = True) -> Iterator[Path]:
    """Yields a temporary path; its content replaces `path` when the block ends without an error.

    A link at `path` is replaced, too, and not followed: another user may have made it. Readers see
    the old version or the new one. A folder is missing for a moment between two renames where the
    system cannot exchange two names: outside Linux, and on some network file systems.

    Raises:
        FerVitError: The output cannot be written; the message ends with `advice`. Without
            `overwrite`: another process has written it in the meantime.
    """
    with scratch_folder(path, advice) as scratch:
        (scratch / "new").mkdir()
        new = scratch / "new" / _name(path)
        try:
            yield new
        except FerVitError as error:  # names the path in the scratch folder
            error.args = (str(error).replace(printable(str(new)), printable(str(path))),)
            raise
        for entry in (*new.rglob("*"), new):
            _flush(entry)
        if new.is_dir() and path.is_dir():
            if not overwrite and _visible_names(path):
                raise FerVitError(f"{path} {ALREADY_EXISTS}")
            if not _exchange(new, path):
                path.rename(scratch / "old")  # `_restore` brings it back after an error or a signal
                new.replace(path)
        elif new.is_dir() or overwrite:
            new.replace(path)
        else:
            _add(new, path)
        _flush(path.parent)


def _exchange(new: Path, path: Path) -> bool:
    """Exchanges the names of two folders at once.

    Returns False where the system or the disk cannot.
    """
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    failed = renameat2(
        AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(path), ctypes.c_uint(RENAME_EXCHANGE)
    )
    return not failed  # the two renames that follow report a real error


def _add(new: Path, path: Path) -> None:
    """Moves a file to a path where there is none."""
    try:
        path.hardlink_to(new)
    except OSError as error:
        if os.path.lexists(path):
            raise FerVitError(f"{path} {ALREADY_EXISTS}") from error
        new.replace(path)  # the file system has no links


@contextmanager
def scratch_folder(path: Path, advice: str = ADVICE) -> Iterator[Path]:
    """Yields a new hidden folder beside `path` and removes it afterwards.

    A failure to write raises FerVitError. Other users may not enter the folder. Folders above it
    that are made for it, and are empty afterwards, are removed as well: a command that fails leaves
    nothing.
    """
    _check_parents(path)
    with ExitStack() as after:
        # At the end, in reverse order: the folder is unlocked, a replaced folder in it returns to
        # `path`, the scratch folder is removed, then the empty folders above it.
        after.callback(_remove_empty_folders, _missing_parents(path))
        try:
            scratch = None
            # Before the folder is locked, another process may remove it.
            while scratch is None or not scratch.exists():
                scratch = path.parent / f".{_stem(path)}.{token_hex(4)}.part"
                after.callback(_remove_scratch, scratch)
                after.callback(_restore, path, scratch / "old")
                _make_scratch(scratch)
                after.enter_context(_locked(scratch, wait=True))  # where there are locks
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
                    f"Cannot write {path}, because {parent} is no folder. Choose another name."
                )
            return


def _missing_parents(path: Path) -> list[Path]:
    """Returns the folders above a path that do not exist, the lowest first."""
    whole = Path(os.path.abspath(path))  # in a/../b, `a` is needed as long as the path is
    return [parent for parent in whole.parents if not os.path.lexists(parent)]


def _remove_empty_folders(folders: Iterable[Path]) -> None:
    """Removes folders that are empty."""
    for folder in folders:
        with suppress(OSError):  # a folder has files, or was never made
            folder.rmdir()


def _make_scratch(scratch: Path) -> None:
    """Makes a scratch folder and the folders above it.

    Meanwhile other processes that fail may remove these again, because they are empty, and make
    them anew. It is tried `ATTEMPTS` times: in a folder such as /proc, where nothing can be made,
    it would never end.
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
    """Returns the error of a file that cannot be written: its name, the reason and `advice`."""
    reason = os.strerror(error.errno) if error.errno else error
    return FerVitError(f"Cannot write {path} ({reason}). {advice}")


def check_output(path: Path, overwrite: bool, names: Sequence[str] = ()) -> None:
    """Raises FerVitError, before any work, when an output exists already or cannot be written.

    Args:
        path: The file to write; with `names`, the folder. An empty folder counts as none.
        overwrite: Whether an existing output may be replaced.
        names: What the command writes into the folder, as patterns of `fnmatch`. A folder with
            anything else is not replaced.
    """
    if path.name == "-":
        raise FerVitError(
            "Expected a file or folder to write, but got `-`. Name one, such as faces.csv."
        )
    clear_remains_of(path)
    if path.is_dir() and not names:
        raise FerVitError(f"Expected a file, but {path} is a folder. Choose another name.")
    entries = _visible_names(path) if path.is_dir() else []
    is_file = os.path.lexists(path) and not path.is_dir()  # a link to nothing is one, too
    if names and is_file:
        raise FerVitError(f"Expected a folder, but {path} is a file. Choose another name.")
    if (entries or is_file) and not overwrite:
        raise FerVitError(f"{path} {ALREADY_EXISTS}")
    others = [entry for entry in entries if not _matches(entry, names)]
    if others:
        raise FerVitError(
            f"{path} contains {min(others)}, which would be deleted. Choose another folder."
        )
    with scratch_folder(path):
        pass


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _visible_names(folder: Path) -> list[str]:
    """Returns the names in a folder, without the files of programs that show folders."""
    return [name for name in os.listdir(folder) if name.lower() not in VIEW_FILES]


def check_beside(output: Path, folders: Iterable[Path]) -> None:
    """Raises FerVitError when an output lies in a folder that is read.

    The next run would read the results as if they were its input.
    """
    place = output.resolve()
    for folder in folders:
        if place.is_relative_to(folder.resolve()):
            raise FerVitError(
                f"{output} lies in {folder}: the next run would read the results. "
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

    They may be of any target. A scratch folder that contains a replaced folder stays, because only
    its target can take that back.
    """
    entries = os.listdir(folder) if folder.is_dir() else []
    for scratch in (folder / name for name in entries if SCRATCH_NAME.fullmatch(name)):
        with _locked(scratch) as handle:
            if handle is not None and "old" not in os.listdir(handle):
                _remove_open_scratch(scratch, handle)


def _remove_open_scratch(scratch: Path, handle: int, path: Path | None = None) -> None:
    """Removes an open scratch folder.

    The folder in it that was to be replaced returns to `path` first.
    """
    if OWN_MARK not in os.listdir(handle):  # killed before the mark was made, or another folder
        with suppress(OSError):  # it is not empty
            scratch.rmdir()
        return
    if path is not None:
        _restore(path, "old", handle)
    _remove_scratch(scratch)


def _remove_scratch(scratch: Path) -> None:
    """Removes a scratch folder as far as possible, its mark last.

    A process that is killed here leaves it marked.
    """
    handle = None if sys.platform == "win32" else open_own_folder(scratch)
    if handle is not None:
        try:
            for name in set(os.listdir(handle)) - {OWN_MARK}:
                with suppress(OSError):  # a folder
                    os.unlink(name, dir_fd=handle)
                shutil.rmtree(name, ignore_errors=True, dir_fd=handle)
        finally:
            os.close(handle)
    # by now empty but for its mark; on Windows, all of it
    shutil.rmtree(scratch, ignore_errors=True)


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # of `.` and `..` as well


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(_name(path))[:200])  # names may have 255 bytes


def _flush(path: Path) -> None:
    """Waits until a file, or where systems allow that a folder's entries, are on the disk."""
    if sys.platform == "win32":  # cannot open folders, nor flush what is open for reading
        return
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_own_folder(path: Path) -> int | None:
    """Opens a folder of this user, to lock it or to remove what is in it.

    Returns a descriptor, or None where the entry is anything else. Links are not followed, and a
    FIFO is not waited for: in a shared folder any user can make an entry of any name.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError:  # no folder, another user's, or just removed
        return None
    if os.fstat(handle).st_uid == os.geteuid():
        return handle
    os.close(handle)
    return None


def _restore(path: Path, old: str | Path, folder: int | None = None) -> None:
    """Moves a folder back that was moved aside; `old` may be relative to an open folder."""
    with suppress(FileNotFoundError):  # nothing was moved aside
        if not os.path.lexists(path):
            os.rename(old, path, src_dir_fd=folder)


@contextmanager
def _locked(scratch: Path, wait: bool = False) -> Iterator[int | None]:
    """Locks a folder of this user until the process ends; yields its descriptor.

    Yields None if another process has the lock, there are no locks, or the folder is not this
    user's.
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
