"""Jobs: tasks of clients run one after another, in a process that can be killed at any time."""

import asyncio
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from multiprocessing.connection import Connection
from pathlib import Path, PurePosixPath
from secrets import token_urlsafe
from typing import Any, NamedTuple

from fer_vit.errors import FerVitError

MAX_WAITING = 64  # jobs
MAX_SECONDS = 300.0  # that a job may take, once it is its turn
KEPT = 3600.0  # seconds after which results are removed
STEP = 0.25  # seconds between two checks that the client is still there
FAILED = "These files cannot be processed."
Event = dict[str, Any]
Gone = Callable[[], Awaitable[bool]]  # returns whether the client has disconnected


class Task(NamedTuple):
    """Work for the worker process."""

    folder: Path  # its subfolder `uploads` has the files; it gets the results
    names: list[str]
    model: str
    table: str  # file name
    report: bool  # whether to make a report, too
    reading: dict[str, Any]  # options of `PhotoOptions`


class Worker:
    """A process that runs `target`, one task at a time. To cancel a task, it is killed and another one is started."""

    def __init__(
        self, models: Sequence[str], target: Callable[[Connection, Sequence[str]], None]
    ) -> None:
        self._call = (target, models)
        self._start()

    def _start(self) -> None:
        target, models = self._call
        spawn = multiprocessing.get_context("spawn")
        self._pipe, worker_end = spawn.Pipe()
        self._process = spawn.Process(target=target, args=(worker_end, models), daemon=True)
        self._process.start()
        worker_end.close()

    def wait(self) -> None:
        """Waits until the first process is ready. Raises FerVitError when it cannot load the model."""
        event = self._pipe.recv()
        if event["state"] == "failed":
            raise FerVitError(event["message"])
        os.environ["HF_HUB_OFFLINE"] = "1"  # the next process finds the model in the cache

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()

    async def run(self, task: Task, gone: Gone) -> AsyncGenerator[Event, None]:
        """Yields the events of a task, `done` or `failed` last; `cancelled` if the client is gone."""
        if not self._process.is_alive():  # it died while it was idle
            self._start()
        over, end = False, time.monotonic() + MAX_SECONDS
        try:
            self._pipe.send(task)
            while not over:
                if await gone():
                    yield {"state": "cancelled"}
                    return
                if time.monotonic() > end:
                    yield {
                        "state": "failed",
                        "message": f"This took longer than {MAX_SECONDS:g} seconds.",
                    }
                    return
                if await asyncio.to_thread(self._pipe.poll, STEP):
                    event = self._pipe.recv()
                    over = event["state"] in ("done", "failed")
                    if event["state"] != "ready":  # which a new process sends first
                        yield event
        except (EOFError, OSError):  # the process has ended
            yield {"state": "failed", "message": FAILED}
        finally:
            if not over:
                self.close()
                self._start()


class Jobs:
    """The queue of jobs and their results, which lie in a private folder under random names."""

    def __init__(self, folder: Path, models: Sequence[str], worker: Worker) -> None:
        self.folder = folder
        self.models = models  # that may be chosen, the default first
        self.results: dict[str, dict[str, Path]] = {}
        self._worker = worker
        self._queue: list[asyncio.Event] = []

    @property
    def full(self) -> bool:
        """Whether no more jobs are taken. A job counts from `new_folder` on, when its upload is not stored yet."""
        return (
            sum(path.is_dir() for path in self.folder.iterdir()) - len(self.results) > MAX_WAITING
        )

    async def run(self, task: Task, gone: Gone) -> AsyncGenerator[Event, None]:
        """Yields the events of a task; while it waits, how many are before it. Removes it unless it is done."""
        turn, done = asyncio.Event(), False
        self._queue.append(turn)
        self._queue[0].set()
        try:
            while not turn.is_set():
                yield {"state": "waiting", "position": self._queue.index(turn)}
                with suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), 2 * STEP)
                if await gone():
                    return
            yield {"state": "running"}
            async with aclosing(self._worker.run(task, gone)) as events:
                async for event in events:
                    if event["state"] == "done":
                        if await gone():
                            return
                        event, done = event | self._keep(task.folder), True
                    yield event
        finally:
            self._queue.remove(turn)
            if self._queue:
                self._queue[0].set()
            if not done:
                self.remove(task.folder.name)

    def _keep(self, folder: Path) -> Event:
        """Keeps the results of a job for an hour; returns its ID, files and addresses (None: there is no report)."""
        shutil.rmtree(folder / "uploads", ignore_errors=True)
        files = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.results[folder.name] = files
        asyncio.get_running_loop().call_later(KEPT, self.remove, folder.name)
        base, explained = f"/results/{folder.name}", "report.zip" in files
        return {
            "id": folder.name,
            "files": [name for name in files if "/" not in name],
            "html": f"{base}/report/index.html" if explained else None,
            "zip": f"{base}/report.zip" if explained else None,
        }

    def new_folder(self) -> Path:
        """Makes the folder of a job."""
        folder = self.folder / token_urlsafe(16)
        (folder / "uploads").mkdir(parents=True)
        return folder

    def remove(self, name: str) -> None:
        """Removes the files of a job; `name` is the name of a folder from `new_folder`."""
        self.results.pop(name, None)
        shutil.rmtree(self.folder / name, ignore_errors=True)


def safe_names(names: Sequence[str]) -> list[str]:
    """Returns names under which uploads are stored: different ones, without folders or unusual characters."""
    safe: list[str] = []
    for name in names:
        base = PurePosixPath(re.sub(r"[^\w .()/-]", "_", name.replace("\\", "/")))
        stem, suffix = base.stem[:50].lstrip(" .-") or "photo", base.suffix[:10]
        taken = {other.lower() for other in safe}
        numbered = (
            f"{stem}{f' ({number})' * (number > 0)}{suffix}" for number in range(len(names) + 1)
        )
        safe.append(next(one for one in numbered if one.lower() not in taken))
    return safe
