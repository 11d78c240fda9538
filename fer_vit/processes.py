"""Processes: rank, start and end of workers, seeds that all processes share."""

import gc
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from threading import Lock, Thread
from typing import Any, NamedTuple

import cv2
import numpy as np

from fer_vit.errors import FerVitError

WORKER_DIED = """A worker process died, perhaps for lack of memory. Try fewer `--workers`. \
A Python script calls fer-vit below `if __name__ == "__main__":`."""


class ProcessRank(NamedTuple):
    """The rank of this process in one command, and (`local`) on its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),  # srun
)


def process_rank() -> ProcessRank:
    """Returns the rank that torchrun or srun has set, 0 without them; raises FerVitError if it is impossible."""
    for names in VARIABLES:
        rank, processes, *local = (os.environ.get(name, "") for name in names)
        if rank and processes:
            if not (f"{rank}{processes}".isdecimal() and int(rank) < int(processes)):
                came = f"{names[0]}={rank} and {names[1]}={processes}"
                raise FerVitError(f"Expected a rank below the number of processes, but got {came}.")
            # SLURM writes 4(x2),3 for two machines of four tasks and one of three.
            local_rank, local_world_size = (
                int(re.findall(r"^\d+|$", word)[0] or 0) for word in local
            )
            return ProcessRank(int(rank), int(processes), local_rank, max(1, local_world_size))
    return ProcessRank()


def run_seed() -> int:
    """Returns the seed of the run (`seed_everything`), the same in all of its processes; 0 if there is none."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def derived_seed(*numbers: int) -> int:
    """Returns a seed that depends on all numbers (`numpy.random.SeedSequence`)."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread() -> None:
    """Turns off OpenCV's threads: a worker that is forked while they run would wait for them forever."""
    cv2.setNumThreads(1)


class _OpenCV:
    """OpenCV's number of threads, which is one number for all threads of this process."""

    lock = Lock()
    users = 0  # how many blocks of `opencv_in_one_thread` are open
    threads = 1  # the number before the first of them


@contextmanager
def opencv_in_one_thread() -> Iterator[None]:
    """Turns off OpenCV's threads, as `one_thread` does, and restores them afterwards."""
    with _OpenCV.lock:
        if not _OpenCV.users:
            _OpenCV.threads = cv2.getNumThreads()
            one_thread()
        _OpenCV.users += 1
    try:
        yield
    finally:
        with _OpenCV.lock:
            _OpenCV.users -= 1
            if not _OpenCV.users:
                cv2.setNumThreads(_OpenCV.threads)


def start_worker(_worker: int = 0) -> None:
    """Prepares a worker process: a DataLoader's `worker_init_fn`, and the initializer of `worker_pool`.

    The main process handles signals sent to all processes of a job and stops its workers. Workers ignore these signals,
    so that `fit` can save its step, but never outlive the main process.
    """
    # A fork must not free the garbage of the main process: freeing a decoder waits forever for its threads.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_exit_on_parent_signal, daemon=True).start()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_exit_with_parent, daemon=True).start()
    one_thread()


def _exit_on_parent_signal() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    # Success: a main process that lives has closed the pipe of a worker that ends, and torch would raise an error.
    os._exit(0)


@contextmanager
def report_dead_workers() -> Iterator[None]:
    """Replaces torch's error of a dead DataLoader worker by a FerVitError with the remedy."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):  # torch's words
            raise
        raise FerVitError(WORKER_DIED) from error


@contextmanager
def worker_pool(processes: int, chunk: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yields a `map` that keeps the order and, with several processes, uses workers; if one dies, FerVitError."""
    if processes <= 1:
        yield map
        return
    # Forked processes may inherit locks that other threads hold.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), start_worker)
    try:
        yield partial(pool.map, chunksize=chunk)
    except BrokenProcessPool as error:
        raise FerVitError(WORKER_DIED) from error
    finally:
        pool.shutdown(cancel_futures=True)
