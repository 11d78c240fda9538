"""How much memory a function takes, in a fork of this process, which has imported all it needs."""

import os
import resource
from collections.abc import Callable
from contextlib import suppress

CPU_SECONDS = 120
"""After these the fork is killed."""


def peak_growth(function: Callable[[], object], warm_up: Callable[[], object] = int) -> float:
    """Returns by how many MB the memory of a process grows at most while it runs a function.

    Errors of the function are ignored. `warm_up` runs before, in the same process: a fork has no
    page of a library in its memory until it calls the library.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        warm_up()
        before = _peak()
        with suppress(BaseException):
            function()
        os.write(writing, str(_peak() - before).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the process was killed: status {status}"
    return int(answer) / 1000


def _peak() -> int:
    """Returns the largest resident memory of this process so far, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
