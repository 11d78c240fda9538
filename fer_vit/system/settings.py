"""Settings of the whole process that blocks of several threads change together."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


def call_after_fork(function: Callable[[], None]) -> None:
    """Calls a function first in each process that is forked from this process."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


class ThreadLock:
    """A lock for the threads of a process. A forked process begins with a free lock.

    If a thread has the lock during a fork, the new process does not have this thread, so the lock
    would never become free.
    """

    def __init__(self) -> None:
        self._renew()
        call_after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class SharedSetting(Generic[T]):
    """A setting of the whole process. Blocks of several threads that change it may overlap.

    The first block stores the user's value and sets its own; the last block restores the user's.

    Args:
        get: Returns the value.
        set_to: Sets the value.
    """

    def __init__(self, get: Callable[[], T], set_to: Callable[[T], object]) -> None:
        self._get = get
        self._set_to = set_to
        self._lock = ThreadLock()
        self._blocks = 0  # how many blocks run now
        self._before: T  # the user's value while blocks run

    @contextmanager
    def changed(self, value: T) -> Iterator[None]:
        """Sets a value within the block, unless another block has set its own."""
        with self._lock:
            if not self._blocks:
                self._before = self._get()
                self._set_to(value)
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._set_to(self._before)
