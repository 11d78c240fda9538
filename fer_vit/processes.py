"""Processes: rank, workers, and seeds that all processes share."""

import gc
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

import cv2
import numpy as np

from fer_vit.errors import FerVitError
from fer_vit.system.settings import SharedSetting
from fer_vit.system.untrusted import as_sendable

if sys.platform == "linux":
    import fcntl

T = TypeVar("T")
R = TypeVar("R")
PIPE_BYTES = 2**20  # capacity of the pipe for results from a worker to the main process
WORKER_DIED = """A worker process died, perhaps for lack of memory. Try fewer `--workers`. \
A Python script calls fer-vit below `if __name__ == "__main__":`."""


class ProcessRank(NamedTuple):
    """The rank of this process among all processes of a command, and (`local`) on one machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),  # srun
)


def process_rank() -> ProcessRank:
    """Returns the rank that torchrun or srun has set; rank 0 of 1 without torchrun and srun.

    Raises FerVitError for an impossible rank.
    """
    for names in RANK_VARIABLES:
        rank, processes, *local = (os.environ.get(name, "") for name in names)
        if rank and processes:
            if not (f"{rank}{processes}".isdecimal() and int(rank) < int(processes)):
                actual = f"{names[0]}={rank} and {names[1]}={processes}"
                raise FerVitError(
                    f"Expected a rank below the number of processes, but got {actual}."
                )
            # SLURM writes 4(x2),3 for two machines of four tasks and one of three.
            local_rank, local_world_size = (
                int(re.findall(r"^\d+|$", word)[0] or 0) for word in local
            )
            return ProcessRank(int(rank), int(processes), local_rank, max(1, local_world_size))
    return ProcessRank()


def run_seed() -> int:
    """Returns the seed of the run (`seed_everything`), which is the same in all processes.

    Returns 0 without such a seed.
    """
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def derived_seed(*numbers: int) -> int:
    """Returns a seed that depends on all of the numbers (`numpy.random.SeedSequence`)."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MAIN = os.getpid()


def threads() -> int:
    """Returns the number of threads that compute: `OMP_NUM_THREADS`, or one for each core.

    torchrun and Ray set this variable. A process that was forked computes in one thread: the others
    that were forked with it use the other cores.
    """
    if os.getpid() != _MAIN:
        return 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else cores()


def one_thread() -> None:
    """Turns off OpenCV's threads.

    A worker that is forked while such threads run would wait for the threads forever.
    """
    cv2.setNumThreads(1)


def warn_of_ipp() -> None:
    """Warns if OpenCV was used before `fer_vit` could disable IPP; see `fer_vit/__init__.py`."""
    if cv2.ipp.useIPP():
        warnings.warn(
            "OpenCV was used before fer_vit was imported: predictions may differ from those on "
            "other processors. Import fer_vit first.",
            stacklevel=3,
        )


OPENCV_THREADS = SharedSetting(cv2.getNumThreads, cv2.setNumThreads)


def opencv_in_one_thread() -> AbstractContextManager[None]:
    """Returns a block without OpenCV's threads; the number is restored afterwards."""
    return OPENCV_THREADS.changed(1)


def start_worker(_worker: int = 0) -> None:
    """Prepares a worker process of a DataLoader or of `work_in_processes`.

    Schedulers and terminals send signals to all processes of a job. Workers ignore such signals, so
    that `fit` can save the training step; the main process handles the signal and stops its
    workers. Workers always end with the main process.
    """
    # A worker must not free the garbage of the main process: freeing a decoder would wait forever
    # for threads that the worker does not have.
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
    _Role.is_worker = True


class _Role:
    """Whether this process is a worker."""

    is_worker = False


def is_worker() -> bool:
    """Returns whether `start_worker` has prepared this process."""
    return _Role.is_worker


def _exit_on_parent_signal() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    # The exit code is 0: the main process may still be alive, and torch raises an error for a
    # worker that fails.
    os._exit(0)


class _Message(Enum):
    """The kind of a message from a worker. A message is a kind and its content."""

    READY = auto()  # the worker has started
    RESULT = auto()  # the content is a result of the current task
    DONE = auto()  # the current task has no further results
    FAILED = auto()  # the content is the error
    DIED = auto()  # the worker has died; it does not send this message itself


def work_in_processes(
    work: Callable[[T], Iterable[R]], tasks: Sequence[T], processes: int
) -> Iterator[tuple[T, R | None]]:
    """Yields each task with each of its results, in order. Worker processes take turns with tasks.

    The workers start at once, before the caller takes the first result. If a worker dies, a new
    process repeats the task, unless the task had results already. If the new process dies as well,
    the result is None, and the other tasks continue. With 0 processes, this process does the tasks,
    as does a worker of a multiprocessing Pool, because such a worker may not start processes.

    Raises:
        FerVitError: No worker can start.
        Exception: Any error that `work` raises.
    """
    if not processes or multiprocessing.current_process().daemon:
        return _work_here(work, tasks)
    workers: list[_Worker[T, R]] = []
    with opencv_in_one_thread():
        for index in range(min(processes, len(tasks))):
            workers.append(_Worker(work, tasks[index::processes]))
    results = _take_results(workers, tasks)
    next(results)  # from here on, the end of the generator stops the workers
    return (result for result in results if result is not None)


def _work_here(
    work: Callable[[T], Iterable[R]], tasks: Sequence[T]
) -> Iterator[tuple[T, R | None]]:
    with opencv_in_one_thread():
        for task in tasks:
            for result in work(task):
                yield task, result


def _take_results(
    workers: Sequence["_Worker[T, R]"], tasks: Sequence[T]
) -> Iterator[tuple[T, R | None] | None]:
    """Yields None once, so that this generator has started, then each task with each result."""
    with opencv_in_one_thread():
        try:
            yield None
            for index, task in enumerate(tasks):
                for result in workers[index % len(workers)].do_next():
                    yield task, result
        finally:
            for worker in workers:
                worker.stop()


def read_ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """Yields items that a thread takes up to `count` ahead. No item may be None.

    Decoders release Python's global lock, so the thread decodes while the caller uses earlier
    items.
    """
    with ThreadPoolExecutor(1) as thread:
        waiting = deque[Future[T | None]]()
        try:
            for _ in range(count):
                waiting.append(thread.submit(next, items, None))
            while (item := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, items, None))
                yield item
        finally:
            for future in waiting:
                future.cancel()


class _Worker(Generic[T, R]):
    """A process that does tasks in order. After a death, a new process continues."""

    def __init__(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> None:
        self._work = work
        self._tasks = deque(tasks)  # the tasks that are not done
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context()
        self._ready = False
        self._receiver, sender = context.Pipe(duplex=False)
        if sys.platform == "linux":
            with suppress(OSError):  # the user's limit is lower
                fcntl.fcntl(sender.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        arguments = (self._work, [*self._tasks], sender)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        sender.close()  # so that the pipe ends when the process ends

    def stop(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.join()
        self._receiver.close()

    def do_next(self) -> Iterator[R | None]:
        """Yields the results of the next task.

        The last result is None if the process died.
        """
        for last_attempt in (False, True):
            message, content = self._receive()
            has_results = message is not _Message.DIED
            while message is _Message.RESULT:
                yield content
                message, content = self._receive()
            if message is _Message.FAILED:
                raise content
            if message is _Message.DONE:
                self._tasks.popleft()
                return
            if not self._ready:
                raise FerVitError(WORKER_DIED)
            self.stop()
            if has_results or last_attempt:
                break
            self._start()
        self._tasks.popleft()
        self._start()
        yield None

    def _receive(self) -> tuple[_Message, Any]:
        """Returns the kind and content of the next message from the process."""
        while True:
            wait([self._receiver, self._process.sentinel])
            try:
                if not self._receiver.poll():
                    return _Message.DIED, None
                message, content = self._receiver.recv()
            except (EOFError, OSError):  # the process died between two messages or within a message
                return _Message.DIED, None
            if message is not _Message.READY:
                return message, content
            self._ready = True


def _serve(work: Callable[[T], Iterable[R]], tasks: Sequence[T], sender: Connection) -> None:
    """Runs in a worker process: sends READY, then the results of each task and DONE.

    An error is sent as FAILED and ends the process.
    """
    start_worker()
    sender.send((_Message.READY, None))
    try:
        for task in tasks:
            for result in work(task):
                sender.send((_Message.RESULT, result))
            sender.send((_Message.DONE, None))
    except FerVitError as error:
        sender.send((_Message.FAILED, error))
    except Exception as error:
        sender.send((_Message.FAILED, as_sendable(error)))
