"""Processes: how many, how they start and end, and their seeds."""

import os
import signal
import sys
from threading import Thread

import cv2
import numpy as np


def run_seed() -> int:
    """Returns the seed of the run (`seed_everything`), the same in all of its processes; 0 if there is none."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def derived_seed(*numbers: int) -> int:
    """Returns a seed that, but for one case in billions, differs where numbers do (`numpy.random.SeedSequence`)."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def start_worker(_worker: int) -> None:
    """Lets a process that loads data outlive a SIGTERM to all processes of a job: its own run alone ends it."""
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_end_by_parent, daemon=True).start()
    one_thread()


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread(_worker: int = 0) -> None:
    """Ends OpenCV's own threads, in a process among several and in one that is to be forked.

    Processes forked while the threads live would wait for them for ever.
    """
    cv2.setNumThreads(1)
