"""Runs the tasks of clients one after another, in a process that can be killed at any time."""

import asyncio
import math
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple

from fer_vit.errors import FerVitError

MAX_JOBS = 500  # most jobs that arrive, wait or run

# Most bytes of memory that a task may add to the memory of an idle worker.
MAX_WORKER_GROWTH = 450_000_000

MAX_SECONDS = 300.0  # most seconds that a task may run
KEPT_SECONDS = 3600.0  # seconds after which results are removed
CLIENT_CHECK_SECONDS = 0.25  # seconds between two checks that the client is connected
NEWS_SECONDS = 2.0  # seconds between two events with the position in the queue
MEMORY_CHECK_SECONDS = 0.01  # seconds between two checks of the memory of a worker with a task
FAILED = "These files cannot be processed."
TOO_MUCH = (
    f"This takes more than {MAX_WORKER_GROWTH // 10**6} MB of memory. "
    "Send smaller photos or clips, or fewer at a time."
)
JobEvent = dict[str, Any]
Gone = Callable[[], bool]  # returns whether the client has disconnected


class Task(NamedTuple):
    """Work for the worker process."""

    folder: Path  # the folder of the results; the subfolder `uploads` has the files
    names: list[str]  # the names of the files
    model: str
    table: str  # the file name of the table of faces
    report: bool  # whether photos and clips are drawn, and further tables are written
    reading: dict[str, Any]  # options of `PhotoOptions`
    explain: bool = True  # whether the report explains the faces
    heads: tuple[str, ...] = ()  # the heads with columns in the table of faces; empty: all heads


class Ready(NamedTuple):
    """What a ready worker reports: the columns of its tables, and the heads of its models."""

    columns: dict[str, str]  # the JSON type of each column, by name of the column
    heads: dict[str, list[str]]  # the heads of each model, by name of the model


def resident_memory(process: int | None) -> int:
    """Returns the resident memory of a process in bytes; 0 without /proc (macOS, Windows)."""
    try:
        pages = Path(f"/proc/{process}/statm").read_bytes().split()[1]
    except (OSError, IndexError):  # the process has ended
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Worker:
    """A process that runs `target`, which does one task at a time.

    To cancel a task, the process is killed, and a new process is started. A process is also killed
    when a task increases its memory by more than `MAX_WORKER_GROWTH`.
    """

    def __init__(
        self, models: Sequence[str], target: Callable[[Connection, Sequence[str]], None]
    ) -> None:
        self._target = target
        self._models = models
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, worker_end = spawn.Pipe()
        self._process = spawn.Process(
            target=self._target, args=(worker_end, self._models), daemon=True
        )
        self._process.start()
        worker_end.close()
        self._max_memory = math.inf  # bytes; infinite until the process is ready
        self._exceeded_memory = False

    def wait(self) -> Ready:
        """Waits until the first process is ready; returns its columns and heads.

        Raises FerVitError when the process cannot load the model.
        """
        try:
            event = self._receive()
        except EOFError as error:
            raise FerVitError(
                "The process that predicts ended at its start, perhaps for lack of memory."
            ) from error
        if event["state"] == "failed":
            raise FerVitError(event["message"])
        os.environ["HF_HUB_OFFLINE"] = "1"  # the next process finds the model in the cache
        return Ready(event["columns"], event["heads"])

    def _receive(self) -> JobEvent:
        event: JobEvent = self._pipe.recv()
        if event["state"] == "ready":
            self._max_memory = event["memory"] + MAX_WORKER_GROWTH
        return event

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Kills the process if it exceeds the limit of memory in this block."""
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(is_over,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _watch(self, is_over: threading.Event) -> None:
        while not is_over.wait(MEMORY_CHECK_SECONDS):
            if resident_memory(self._process.pid) > self._max_memory:
                self._exceeded_memory = True
                self._process.kill()
                return

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()

    async def run(self, task: Task, gone: Gone) -> AsyncGenerator[JobEvent, None]:
        """Yields the events of a task.

        The last event is "done", "failed", or "cancelled" if the client has disconnected.
        """
        if not self._process.is_alive():  # the process died while it was idle
            self._start()
        is_over = False
        end = time.monotonic() + MAX_SECONDS
        try:
            with self._watched():
                self._pipe.send(task)
                while not is_over:
                    if gone():
                        yield {"state": "cancelled"}
                        return
                    if time.monotonic() > end:
                        yield {
                            "state": "failed",
                            "message": f"This took longer than {MAX_SECONDS:g} seconds.",
                        }
                        return
                    if await asyncio.to_thread(self._pipe.poll, CLIENT_CHECK_SECONDS):
                        event = self._receive()
                        is_over = event["state"] in ("done", "failed")
                        if event["state"] != "ready":  # the first event of a new process
                            yield event
        except (EOFError, OSError):  # the process has ended
            yield {"state": "failed", "message": TOO_MUCH if self._exceeded_memory else FAILED}
        finally:
            if not is_over:
                self.close()
                self._start()


class Jobs:
    """The queue of jobs, and their results. Results have random names in a private folder."""

    def __init__(
        self,
        folder: Path,
        models: Sequence[str],
        worker: Worker,
        ready: Ready,
    ) -> None:
        self.folder = folder
        self.models = models  # the models that clients may choose; the first is the default
        self.columns = ready.columns
        self.heads = ready.heads
        # the path of each file, by ID of the job and by name of the file
        self.results: dict[str, dict[str, Path]] = {}
        self.active: set[str] = set()  # IDs of jobs without results
        self._closed: set[str] = set()  # IDs of active jobs that a client has closed
        self._worker = worker
        self._queue: list[asyncio.Event] = []  # set when it is the turn of a job

    @property
    def full(self) -> bool:
        """Whether the queue is full. A job counts before its upload is stored (`new_folder`)."""
        return len(self.active) >= MAX_JOBS

    async def run(self, task: Task, gone: Gone) -> AsyncGenerator[JobEvent, None]:
        """Yields the events of a task.

        While the task waits, an event has the number of tasks before it. The events "waiting" and
        "running" also have the ID of the job, so that the client can close the job. A job that ends
        without results is removed.
        """
        job = task.folder.name

        def unwanted() -> bool:
            return gone() or job in self._closed

        turn = asyncio.Event()
        self._queue.append(turn)
        self._queue[0].set()
        try:
            while not turn.is_set():
                position = self._queue.index(turn)
                yield {"state": "waiting", "id": job, "position": position}
                with suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), NEWS_SECONDS)
                if unwanted():
                    return
            yield {"state": "running", "id": job}
            async with aclosing(self._worker.run(task, unwanted)) as events:
                async for event in events:
                    if event["state"] == "done":
                        if unwanted():
                            return
                        event = event | self._keep(task.folder)
                    yield event
        finally:
            self._queue.remove(turn)
            if self._queue:
                self._queue[0].set()
            self.end(job)

    def _keep(self, folder: Path) -> JobEvent:
        """Keeps the results of a job for `KEPT_SECONDS`; returns its ID and the names of files."""
        shutil.rmtree(folder / "uploads", ignore_errors=True)
        files = {}
        for path in folder.rglob("*"):
            if path.is_file():
                files[path.relative_to(folder).as_posix()] = path
        self.results[folder.name] = files
        self.active.discard(folder.name)
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self.remove, folder.name)
        return {"id": folder.name, "files": [name for name in files if "/" not in name]}

    def new_folder(self) -> Path:
        """Makes the folder of a new job; the name of the folder is the ID of the job."""
        folder = self.folder / token_urlsafe(16)
        (folder / "uploads").mkdir(parents=True)
        self.active.add(folder.name)
        return folder

    def close(self, name: str) -> None:
        """Removes the results of a job. A job without results is cancelled."""
        if name in self.results:
            self.remove(name)
        elif name in self.active:
            self._closed.add(name)

    def end(self, name: str) -> None:
        """Removes the files of a job if the job has no results."""
        if name in self.active:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Removes the files of a job; `name` is the ID of the job."""
        self.results.pop(name, None)
        self.active.discard(name)
        self._closed.discard(name)
        shutil.rmtree(self.folder / name, ignore_errors=True)
