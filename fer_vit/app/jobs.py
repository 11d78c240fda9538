"""Runs the tasks of clients one after another, in a process that can be killed at any time."""

import asyncio
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from secrets import token_urlsafe
from typing import Literal, NamedTuple, Required, TypedDict

from fer_vit.errors import FerVitError

MAX_JOBS = 100  # most jobs that arrive, wait or run

# Most bytes that a task may allocate. Clips of 8K take 1.2 to 1.7 GB, and photos less.
MAX_TASK_MEMORY = 2_000_000_000

# A worker that keeps more bytes of memory than this after a task, beyond its memory before the
# first task, is replaced. The first explanation imports PyTorch, which takes 700 MB.
MAX_KEPT_MEMORY = 1_200_000_000

MAX_SECONDS = 300.0  # most seconds that a task may run
KEPT_SECONDS = 3600.0  # seconds after which results are removed
CLIENT_CHECK_SECONDS = 0.25  # seconds between two checks that the client is connected
NEWS_SECONDS = 2.0  # seconds between two events with the position in the queue
FAILED = "These files cannot be processed."
UPLOADS = "uploads"  # the folder of the uploads in the folder of a task
Gone = Callable[[], Awaitable[bool]]  # returns whether the client has disconnected


class Span(TypedDict, total=False):
    """Which frames of a clip are read, as for `PhotoOptions`."""

    fps: float | None
    start: float
    end: float


Working = Literal["ready", "waiting", "running", "reading", "found", "explaining"]
Ended = Literal["done", "failed", "cancelled"]


class JobEvent(TypedDict, total=False):
    """What happens to a job, or to the worker; the comments name the states that have a key."""

    state: Required[Working | Ended]
    columns: dict[str, str]  # ready: see `Ready`
    heads: dict[str, list[str]]  # ready
    id: str  # waiting, running, done: the ID of the job
    position: int  # waiting: the number of tasks before it
    file: int | None  # reading: the index of the file that is read; None: no file
    messages: list[str]  # found, done: a sentence about each file with faces
    warnings: list[str]  # found, done: a sentence about each file without
    faces: int  # explaining: the number of explained faces
    of: int  # explaining: the number of faces to explain
    photos: list[dict[str, str]]  # done: the name and the picture's file of each drawn photo
    files: list[str]  # done: the names of the tables and archives
    html: str | None  # done: the address of the page; None: there is none
    zip: str | None  # done: the address of the page as an archive
    message: str  # failed


class Task(NamedTuple):
    """Work for the worker process."""

    folder: Path  # the folder of the results; the subfolder `uploads` has the files
    names: list[str]  # the names of the files
    model: str
    table: str  # the file name of the table of faces
    report: bool  # whether photos and clips are drawn, and further tables are written
    reading: Span
    explain: bool = True  # whether the report explains the faces
    heads: tuple[str, ...] = ()  # the heads with columns in the table of faces; empty: all heads
    crashed: frozenset[int] = frozenset()  # the files that have killed the worker, by index


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

    To cancel a task, the process is killed, and a new process is started.
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
        self._max_kept = math.inf  # bytes; infinite until the process is ready

    def wait(self) -> Ready:
        """Waits until the first process is ready; returns its columns and heads.

        Raises FerVitError when the process cannot load the model.
        """
        try:
            event = self._receive()
        except EOFError as error:
            raise FerVitError(
                "The prediction process could not start, perhaps for lack of memory."
            ) from error
        if event["state"] == "failed":
            raise FerVitError(event["message"])
        os.environ["HF_HUB_OFFLINE"] = "1"  # the next process finds the model in the cache
        return Ready(event["columns"], event["heads"])

    def _receive(self) -> JobEvent:
        event: JobEvent = self._pipe.recv()
        if event["state"] == "ready":
            self._max_kept = resident_memory(self._process.pid) + MAX_KEPT_MEMORY
        return event

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()

    async def run(self, task: Task, gone: Gone) -> AsyncGenerator[JobEvent, None]:
        """Yields the events of a task.

        The last event is "done", "failed", or "cancelled" if the client has disconnected. If the
        process dies while it reads a file, a new process repeats the task without this file, whose
        row has a status.
        """
        end = time.monotonic() + MAX_SECONDS
        while True:
            reading: int | None = None
            try:
                async with aclosing(self._attempt(task, gone, end)) as events:
                    async for event in events:
                        if event["state"] == "reading":
                            reading = event["file"]
                        else:
                            yield event
                return
            except (EOFError, OSError):  # the process has ended
                if reading is None or reading in task.crashed:
                    yield {"state": "failed", "message": FAILED}
                    return
            remove_outputs(task.folder)
            task = task._replace(crashed=task.crashed | {reading})

    async def _attempt(self, task: Task, gone: Gone, end: float) -> AsyncGenerator[JobEvent, None]:
        """Yields the events of a task, also those for `run`; `end` is when it takes too long.

        Raises EOFError or OSError when the process dies.
        """
        if not self._process.is_alive():  # the process died while it was idle
            self._start()
        is_over = False
        try:
            self._pipe.send(task)
            while not is_over:
                if await gone():
                    yield {"state": "cancelled"}
                    return
                if time.monotonic() > end:
                    message = f"This took longer than {MAX_SECONDS:g} seconds."
                    yield {"state": "failed", "message": message}
                    return
                if await asyncio.to_thread(self._pipe.poll, CLIENT_CHECK_SECONDS):
                    event = self._receive()
                    is_over = event["state"] in ("done", "failed")
                    if event["state"] != "ready":  # the first event of a new process
                        yield event
        finally:
            if not is_over or resident_memory(self._process.pid) > self._max_kept:
                self.close()
                self._start()


def remove_outputs(folder: Path) -> None:
    """Removes what an attempt has written to the folder of a task; uploads stay."""
    for entry in folder.iterdir():
        if entry.name == UPLOADS:
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


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

        async def unwanted() -> bool:
            return job in self._closed or await gone()

        turn = asyncio.Event()
        self._queue.append(turn)
        self._queue[0].set()
        try:
            while not turn.is_set():
                position = self._queue.index(turn)
                yield {"state": "waiting", "id": job, "position": position}
                with suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), NEWS_SECONDS)
                if await unwanted():
                    return
            yield {"state": "running", "id": job}
            async with aclosing(self._worker.run(task, unwanted)) as events:
                async for event in events:
                    if event["state"] == "done":
                        if await unwanted():
                            return
                        files = self._keep(task.folder)
                        event = {**event, "id": job, "files": files}
                    yield event
        finally:
            self._queue.remove(turn)
            if self._queue:
                self._queue[0].set()
            self.end(job)

    def _keep(self, folder: Path) -> list[str]:
        """Keeps the results of a job for `KEPT_SECONDS`; returns the tables and archives."""
        shutil.rmtree(folder / UPLOADS, ignore_errors=True)
        files = {}
        for path in folder.rglob("*"):
            if path.is_file():
                files[path.relative_to(folder).as_posix()] = path
        self.results[folder.name] = files
        self.active.discard(folder.name)
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self.remove, folder.name)
        return [name for name in files if "/" not in name]

    def new_folder(self) -> Path:
        """Makes the folder of a new job; the name of the folder is the ID of the job."""
        folder = self.folder / token_urlsafe(16)
        (folder / UPLOADS).mkdir(parents=True)
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
