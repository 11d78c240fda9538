"""Sets the number of threads of torch: one for few faces, and in forked processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from fer_vit.system.settings import ThreadLock, call_after_fork

FEW_FACES = 8  # one thread computes up to 8 faces as fast as two threads, in about 60 ms


class _TorchThreads:
    """The number of threads of torch before blocks of `few_threads`, and the number of blocks.

    Torch has a number for each thread of Python; a new thread begins with the number that was set
    last.
    """

    lock = ThreadLock()
    users = 0  # how many blocks of `few_threads` compute in one thread
    threads = 1  # number of threads before the first of these blocks


@contextmanager
def few_threads(faces: int) -> Iterator[None]:
    """Lets torch compute few faces in one thread.

    Threads that wait for each other on busy cores cost ten times the computation.
    """
    if faces > FEW_FACES:
        yield
        return
    with _TorchThreads.lock:
        threads_before = torch.get_num_threads()
        if not _TorchThreads.users:
            _TorchThreads.threads = threads_before
        elif threads_before == 1:  # a thread that began while another one computes
            threads_before = _TorchThreads.threads
        _TorchThreads.users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _TorchThreads.lock:
            _TorchThreads.users -= 1
            torch.set_num_threads(threads_before)


def _after_fork() -> None:
    """Lets a forked process compute in one thread.

    The threads of OpenMP do not survive a fork: torch would wait for them forever.
    """
    _TorchThreads.users = 0
    torch.set_num_threads(1)


@cache
def compute_in_forks() -> None:
    """Lets each process that is forked from now on compute in one thread."""
    call_after_fork(_after_fork)
