"""`fer-vit app` as a process that tests start, with its own temporary folder."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from fer_vit.app.jobs import JobEvent, Task
from tests.helpers.processes import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]


class Server(NamedTuple):
    """A running server: its address, its output, its temporary folder and its process."""

    address: str
    log: Path
    temporary: Path
    process: subprocess.Popen[bytes]

    @property
    def folder(self) -> Path:
        """The private folder with the folders of all jobs."""
        (folder,) = self.temporary.glob(".fer-vit-app.*")
        return folder

    @property
    def jobs(self) -> list[Path]:
        """The folders of jobs that are not removed yet."""
        return [path for path in self.folder.iterdir() if path.is_dir()]


def started(temporary: Path, *words: str, **variables: str) -> Server:
    """Starts a server that refuses the network itself; the refusal of the tests is off."""
    log = temporary / "log"
    environment = os.environ | {"PYTHONPATH": "", "TMPDIR": str(temporary)} | variables
    command = (sys.executable, "-m", "cli", "app", "--port", "0", *words)
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)

    def address() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"Open (http://\S+) ", log.read_text())

    return Server(wait_until(address)[1], log, temporary, process)


@contextmanager
def running(temporary: Path, *words: str, **variables: str) -> Iterator[Server]:
    """Yields a server, ends it, and checks that nothing is left and that nothing was raised."""
    server = started(temporary, *words, **variables)
    try:
        yield server
    finally:
        server.process.terminate()
        status = server.process.wait(PATIENCE)
    assert status == 128 + signal.SIGTERM
    assert not [*temporary.glob(".fer-vit-app.*")], "uploads are left behind"
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "leaked" not in log  # which Python's resource tracker reports


def obey(pipe: Connection, models: Sequence[str]) -> None:
    """A worker process; the name of the model is its order. It stands here because this module
    imports no PyTorch.
    """
    if models == ["dead"]:
        raise SystemExit
    if models == ["gone"]:
        pipe.send({"state": "failed", "message": "no such model"})
    else:
        pipe.send({"state": "ready", "columns": {"path": "string"}, "heads": {}})
    while True:
        task = pipe.recv()
        order = task.model
        if order == "die":
            raise SystemExit
        if order == "hang":
            time.sleep(600)
        if order == "read":  # a file that is named "deadly" ends the process
            for index, name in enumerate(task.names):
                if index not in task.crashed:
                    pipe.send({"state": "reading", "file": index})
                    if name == "deadly":
                        raise SystemExit
            (task.folder / "faces.csv").write_text(str(sorted(task.crashed)))
        pipe.send({"state": "done"})


class Stub:
    """A worker that writes the results that a test expects, when the test lets it."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.proceed = threading.Event()
        self.proceed.set()
        self.cancelled = 0
        self.uploads: dict[str, bytes] = {}  # of the last task, by name
        self.table = b""  # what to send instead of rows with names

    async def run(self, task: Task, gone: Any) -> AsyncIterator[JobEvent]:
        self.tasks.append(task)
        try:
            while not self.proceed.is_set():
                if await gone():
                    self.cancelled += 1
                    yield {"state": "cancelled"}
                    return
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.uploads = {
            path.name: path.read_bytes() for path in (task.folder / "uploads").iterdir()
        }
        if task.names == ["bad.jpg"]:
            yield {"state": "failed", "message": "bad.jpg is wrong."}
            return
        rows = [{"path": name} for name in task.names]
        (task.folder / task.table).write_bytes(self.table or json.dumps(rows).encode())
        if task.report and task.explain:
            (task.folder / "report").mkdir()
            (task.folder / "report" / "index.html").write_text("<p>Report</p>")
            (task.folder / "report.zip").write_bytes(b"zip")
        yield {"state": "done", "messages": ["1 face"], "warnings": [], "photos": []}
