"""Writers that are killed before each of their changes to the disk.

`python -m tests.helpers.killed WRITER NAME FOLDER` does it in a new process: it
imports no PyTorch, so that a fork takes milliseconds.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fer_vit.files import atomic_write
from fer_vit.report.table import TableWriter
from tests.helpers.processes import PATIENCE

CHANGES = ("mkdir", "fsync", "replace", "rename", "rmdir", "unlink")
"""The functions of `os` that change the disk."""

Writer = Callable[[Path, int], None]


def leave_remains(path: Path) -> Path:
    """What a process leaves beside a path that is killed while it writes there; its folder."""
    before = {*path.parent.iterdir()}
    child = os.fork()
    if not child:
        with atomic_write(path):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (remains,) = {*path.parent.iterdir()} - before
    return remains


def mark_as_own(folder: Path) -> None:
    """Lets a folder look like what a killed process of fer-vit has left."""
    with TemporaryDirectory() as place:
        entries = leave_remains(Path(place, "a")).iterdir()
        (mark,) = [entry.name for entry in entries if entry.is_file()]
    (folder / mark).touch()


def a_file(path: Path, version: int) -> None:
    with atomic_write(path) as part:
        part.write_text(str(version) * 1000)


def a_folder(path: Path, version: int) -> None:
    with atomic_write(path) as part:
        (part / "a").mkdir(parents=True)
        for name in ("a/text", "b"):
            (part / name).write_text(str(version) * 1000)


def a_table(path: Path, version: int) -> None:
    with TableWriter(path, {"version": int}) as table:
        table.write([{"version": version}] * 1000)


def a_checkpoint(path: Path, version: int) -> None:
    import torch

    from fer_vit.train.checkpoints import AtomicCheckpointIO

    AtomicCheckpointIO().save_checkpoint({"version": torch.full((1000,), version)}, path)


def leave_killed(write: Writer, name: str, folder: Path) -> None:
    """Fills folders `at-0`, `at-1`, ...: version 1, and what a killed writer of version 2 leaves.

    The writer of `at-N` is killed before its change N; in the last folder it comes to its end.
    """
    for number in count():
        place = folder / f"at-{number}"
        write(place / name, 1)
        if not killed_at(number, lambda path=place / name: write(path, 2)):
            return


def killed_at(number: int, write: Callable[[], None]) -> bool:
    """Runs a writer in a fork that kills itself before a change; returns whether there was one."""
    pid = os.fork()
    calls = count()

    def before(real: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)

    if pid == 0:
        signal.alarm(int(PATIENCE))
        for name in CHANGES:
            setattr(os, name, partial(before, getattr(os, name)))
        with suppress(BaseException):
            write()
            os._exit(0)
        os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


if __name__ == "__main__":
    writer_name, target, folder_name = sys.argv[1:]
    leave_killed(globals()[writer_name], target, Path(folder_name))
