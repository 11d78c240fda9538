"""Parses files from elsewhere in a child process, with limits of memory and time.

The child is a fresh interpreter: a fork would inherit locks of torch's and onnxruntime's threads.
It stays for further files, so that only the first file waits for its start.
"""

import atexit
import math
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Timer
from typing import Any, TypeVar

from fer_vit.system.settings import SharedSetting

if sys.platform == "linux":
    import resource

R = TypeVar("R")
MEGA = 1_000_000
STATUS = "/proc/self/status"  # what Linux counts of this process
MAX_KEPT_GROWTH = 50 * MEGA  # a child that has grown by more bytes is not kept
COMMAND = "import sys; sys.path[:] = {!r}; from fer_vit.system.untrusted import serve; serve()"

# Settings of the child: its libraries start no threads, and Arrow reserves no memory in advance.
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

# The kinds of the messages from the child.
VALUE = "value"
DONE = "done"
FAILED = "failed"

_idle: list[subprocess.Popen[bytes]] = []  # children that wait for a file
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # they belong to the other process


class TooHeavyError(ValueError):
    """A file takes too much memory or time to parse, or crashes its parser."""


def limit_memory(growth: int) -> None:
    """Lets this process allocate at most `growth` more bytes. Only Linux has such a limit.

    The limit counts private memory that can be written (RLIMIT_DATA of Linux 4.7 or newer), not
    addresses that threads and libraries only reserve. An allocation beyond the limit fails: Python
    raises MemoryError; a library may end the process. There is no limit where the kernel does not
    count (no /proc in a chroot, sandboxes that imitate Linux).
    """
    allocated = allocated_bytes()
    if sys.platform == "linux" and allocated:
        _, most = _data_limits()
        _set_data_limits((_lowest(allocated + growth, most), most))


def memory_limit(growth: int) -> AbstractContextManager[None]:
    """Returns a block in which the memory of this process is limited, as by `limit_memory`.

    A lower limit stays. Blocks of several threads that overlap have the limit of the first.
    """
    allocated = allocated_bytes()
    if sys.platform != "linux" or not allocated:
        return nullcontext()
    limit, most = _data_limits()
    return DATA_LIMITS.changed((_lowest(allocated + growth, limit, most), most))


def _data_limits() -> tuple[int, int]:
    """Returns the limit of RLIMIT_DATA, and the most that it may be set to."""
    return resource.getrlimit(resource.RLIMIT_DATA)


def _set_data_limits(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, limits)


def _lowest(*limits: int) -> int:
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


DATA_LIMITS = SharedSetting(_data_limits, _set_data_limits)


def allocated_bytes() -> int:
    """Returns the bytes of this process that `limit_memory` counts; 0 if they are unknown."""
    with suppress(OSError), open(STATUS, "rb") as file:
        for line in file:
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def parse_apart(
    function: Callable[..., Iterable[R]], *arguments: Any, memory: int, seconds: float
) -> Iterator[R]:
    """Yields the values that a function of a module yields in the child process.

    While the function runs, the child may allocate `memory` bytes (see `limit_memory`); after
    `seconds`, it is killed. The caller checks the values and their total size. An error of the
    function is raised here.

    Raises TooHeavyError when a limit is reached, or the child dies.
    """
    child: Any = _take_idle() or _start_child()  # its pipes are not None
    timer = Timer(seconds, child.kill)
    timer.daemon = True
    timer.start()
    is_kept = False
    try:
        request = (os.getcwd(), memory, seconds, function, arguments)
        with suppress(OSError):  # the child has died: `load` raises EOFError
            pickle.dump(request, child.stdin)
            child.stdin.flush()
        while True:
            try:
                kind, content, is_kept = pickle.load(child.stdout)  # noqa: S301 - from `serve`
            except (EOFError, pickle.UnpicklingError) as error:
                limits = f"{memory // MEGA:,} MB of memory or {seconds:,.0f} s"
                raise TooHeavyError(f"reading it takes more than {limits}, or crashes") from error
            if kind == FAILED:
                raise content
            if kind == DONE:
                return
            yield content
    finally:
        timer.cancel()
        if is_kept:
            _idle.append(child)
        else:
            _end(child)


def _take_idle() -> subprocess.Popen[bytes] | None:
    """Returns a child that waits; None without any. Another thread may take one meanwhile."""
    with suppress(IndexError):
        while True:
            child = _idle.pop()
            if child.poll() is None:
                return child
            _end(child)  # somebody has killed it, such as the kernel for memory
    return None


def _start_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", COMMAND.format(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | ENVIRONMENT,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()  # closes the pipes, and waits for the end


@atexit.register
def _end_idle() -> None:
    while _idle:
        _end(_idle.pop())


def serve() -> None:
    """Runs in the child: answers requests until the other process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not disturb the answers
    is_kept = True
    while is_kept:
        try:  # imports the module of the function
            request = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by `parse_apart`
        except EOFError:
            return
        folder, memory, seconds, function, arguments = request
        os.chdir(folder)
        if hasattr(signal, "alarm"):
            signal.alarm(math.ceil(seconds) + 1)  # if the other process has been killed
        before = allocated_bytes()
        kind = DONE
        content = None
        try:
            with memory_limit(memory):
                for value in function(*arguments):
                    pickle.dump((VALUE, value, False), answers, pickle.HIGHEST_PROTOCOL)
                    answers.flush()
        except Exception as error:
            if _is_of_memory(error):
                return
            kind = FAILED
            content = as_sendable(error)
        if hasattr(signal, "alarm"):
            signal.alarm(0)  # the child may wait for the next file for any time
        is_kept = allocated_bytes() - before <= MAX_KEPT_GROWTH
        pickle.dump((kind, content, is_kept), answers)
        answers.flush()


def _is_of_memory(error: BaseException | None) -> bool:
    """Returns whether an error, or an error that led to it, is a MemoryError."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def as_sendable(error: Exception) -> Exception:
    """Returns an error with its traceback as a note, or its text if it cannot be pickled."""
    # a pickled error has no traceback
    error.add_note(f"In a worker process: {traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes that this line has made
    except Exception:  # an error class of a user may raise any error here
        return RuntimeError("".join(traceback.format_exception_only(error)))
    return error
