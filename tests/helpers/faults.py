"""Commands that are killed at random moments, run again, and compared with runs that nobody killed.

A killed run gets SIGKILL with all its processes, at a moment drawn evenly over the time that an undisturbed run took.
Every file that is there afterwards must be whole; then the same command runs again (`fit` with `--ckpt_path last.ckpt`,
if there is one), and must end with what the undisturbed run made: tables and weights to the last bit, probabilities up
to 1e-5. Runs are forked from a process that has imported everything, so that no kill falls among imports.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from fer_vit.cli import main as fer_vit
from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.commands import TINY

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["__main__", "fer_vit.commands.prepare", "fer_vit.commands.predict", "fer_vit.train.cli"])
FIT = [*TINY, "--trainer.max_epochs=4", "--trainer.limit_train_batches=3", "--trainer.log_every_n_steps=1"]
BOUND = 600
"""Seconds that a run may last."""
Content = dict[str, Any]
"""What a run made, by name: Arrow tables, or weights."""


class Case(NamedTuple):
    """A command to be killed.

    Attributes:
        words: The command, for a folder to write to.
        content: Reads what it made there.
    """

    words: Callable[[Path], list[str]]
    content: Callable[[Path], Content]


def drawn(root: Path, table: Path) -> list[str]:
    """The command that draws faces."""
    return ["prepare", "drawn", str(root), str(table), "--count=160", "--size=48", "--workers=1"]


def cases(data: Path) -> dict[str, list[Case]]:
    """The commands of every verb; `data` has the folder `faces`, its zip and its manifest."""

    def prepare(root: str, name: str, *more: str) -> Callable[[Path], list[str]]:
        options = ["--detector=none", "--workers=1", *more]
        return lambda folder: ["prepare", "folder", str(data / root), str(folder / name), *options]

    def predict(name: str) -> Callable[[Path], list[str]]:
        options = ["--face=crop", "--detector=none", "--batch_size=4", "--workers=1", "--part_size=20"]
        return lambda folder: ["predict", str(data / "faces"), f"--output={folder / name}", *options]

    def fit(folder: Path) -> list[str]:
        place = [f"--data.manifest={data / 'faces.parquet'}", f"--trainer.logger.init_args.save_dir={folder}"]
        newest = max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime_ns, default=None)
        return ["fit", *FIT, *place, *([f"--ckpt_path={newest}"] if newest else [])]

    return {
        "prepare": [
            Case(prepare("faces", "out.parquet"), tables),
            Case(prepare("faces", "shards", "--shards=5", "--workers=2"), tables),
            Case(prepare("faces.zip", "out.parquet"), tables),
            Case(lambda folder: drawn(folder / "drawn", folder / "out.parquet"), tables),
        ],
        "fit": [Case(fit, weights)],
        "predict": [Case(predict("out.csv"), tables), Case(predict("parts"), tables)],
    }


def visible(folder: Path) -> list[Path]:
    """The files that a reader would find."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def tables(folder: Path) -> Content:
    """Reads every table and picture whole.

    Raises:
        Exception: One of them is not.
    """
    found: Content = {}
    for path in visible(folder):
        name = str(path.relative_to(folder))
        if path.suffix == ".parquet":
            found[name] = pq.read_table(path, partitioning=None)
        elif path.suffix == ".csv":
            found[name] = pyarrow.csv.read_csv(path)
        else:
            found[name] = path.read_bytes()
    return found


def weights(folder: Path) -> Content:
    """Reads every checkpoint; what comes back is the state of the newest one that ended an epoch.

    Raises:
        Exception: One of them is not whole.
    """
    loaded = {path: load_checkpoint(path) for path in visible(folder) if path.suffix == ".ckpt"}
    last = max((path for path in loaded if path.stem == "last"), key=lambda path: path.stat().st_mtime_ns, default=None)
    if last is None:
        return {}
    state = loaded[last]
    return {"epoch": state["epoch"], "global_step": state["global_step"], **state["state_dict"]}


def same(one: object, other: object) -> bool:
    """Compares two tables, tensors or values."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, pyarrow.Table) and isinstance(other, pyarrow.Table):
        if one.schema != other.schema or len(one) != len(other):
            return False
        return all(
            np.allclose(mine.fill_null(-1), theirs.fill_null(-1), atol=1e-5, rtol=0)
            if mine.type == pyarrow.float64()
            else mine == theirs
            for mine, theirs in zip(one.columns, other.columns, strict=True)
        )
    return one == other


def differing(expected: Content, content: Content) -> list[str]:
    """Lists what is not as expected."""
    return [name for name in expected.keys() | content.keys() if not same(expected.get(name), content.get(name))]


def run(words: list[str], log: Path) -> None:
    """A process's work: the command, with all that it starts in a group of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
    multiprocessing.set_start_method(None, force=True)  # for what it starts, that of the command line
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    status = None
    try:
        fer_vit(words)
    except SystemExit as end:  # at which multiprocessing would end before what the error holds is gone
        status = end.code
    sys.exit(status)


def start(case: Case, folder: Path) -> Any:
    """Starts a command."""
    process = SERVER.Process(target=run, args=(case.words(folder), folder.with_suffix(".log")))
    process.start()
    return process


def kill(case: Case, expected: Content, folder: Path, moment: float, found: Counter[str]) -> None:
    """Kills a command after so many seconds, runs it again, and counts what was found."""
    process = start(case, folder)
    process.join(moment)
    ended = process.exitcode is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # which has no group of its own yet
    process.join()
    state = "after" if ended else "midst" if any(folder.iterdir()) else "before"
    found[state] += 1
    complete = False
    try:
        complete = not differing(expected, case.content(folder))
    except Exception as error:
        found["half"] += 1
        print(f"{folder}: {error}", file=sys.stderr)
    again = start(case, folder)
    again.join(BOUND)
    with suppress(ProcessLookupError):
        os.killpg(again.pid, signal.SIGKILL)
    try:
        lost = differing(expected, case.content(folder))
    except Exception as error:
        lost = [str(error)]
    if again.exitcode not in ((0, 2) if complete else (0,)):  # 2: it exists already
        lost.append(f"exit code {again.exitcode}")
    hidden = {part for path in folder.rglob(".*") for part in path.relative_to(folder).parts if part.startswith(".")}
    lost += [name for name in hidden if not name.endswith(".part")]
    if lost:
        found["lost"] += 1
        print(f"{folder}, killed after {moment:.3f} s: {sorted(lost)[:3]}", file=sys.stderr)
    else:
        shutil.rmtree(folder)


def faults(verb: str, commands: list[Case], runs: int, place: Path, seed: int) -> Counter[str]:
    """Kills the commands of a verb in turns; returns what was found."""
    rng, found = random.Random(f"{verb} {seed}"), Counter[str]()
    undisturbed = []
    for number, case in enumerate(commands[:runs]):
        folder = place / f"{verb}-{number}"
        folder.mkdir()
        since = time.perf_counter()
        process = start(case, folder)
        process.join()
        took = time.perf_counter() - since
        if process.exitcode:
            raise SystemExit(folder.with_suffix(".log").read_text())
        undisturbed.append((case, case.content(folder), took))
    turns = islice(cycle(undisturbed), runs)
    for number, (case, expected, took) in enumerate(tqdm(turns, verb, runs, unit="kills", disable=None)):
        folder = place / f"{verb}-killed-{number}"
        folder.mkdir()
        kill(case, expected, folder, rng.uniform(0, took), found)
    return found


def make(data: Path) -> None:
    """Draws what the commands read."""
    fer_vit(drawn(data / "faces", data / "faces.parquet"))
    shutil.make_archive(str(data / "faces"), "zip", data / "faces")
