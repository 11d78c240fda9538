import gc
import itertools
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
from torch.utils.data import DataLoader

import fer_vit.processes as processes_module
from fer_vit.errors import FerVitError
from fer_vit.processes import (
    ProcessRank,
    process_rank,
    read_ahead,
    start_worker,
    work_in_processes,
)
from tests.helpers.marks import slow
from tests.helpers.processes import PATIENCE
from tests.helpers.videos import write_video


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("SLURM_") or name.endswith(("RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)


SLURM = "SLURM_PROCID={} SLURM_STEP_NUM_TASKS={} SLURM_LOCALID={} SLURM_STEP_TASKS_PER_NODE={}"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", ProcessRank()),
        ("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", ProcessRank(3, 8, 1, 2)),
        (SLURM.format(5, 8, 1, "4(x2)"), ProcessRank(5, 8, 1, 4)),
        (SLURM.format(2, 3, 0, "2,1"), ProcessRank(2, 3, 0, 2)),
        ("RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=0", ProcessRank()),
        ("SLURM_PROCID=0 SLURM_NTASKS=8", ProcessRank()),  # a batch script outside srun
        ("RANK=2 WORLD_SIZE=4", ProcessRank(2, 4)),  # a Kubernetes job
    ],
)
def test_the_rank_is_torchs_or_slurms(
    variables: str, expected: ProcessRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables.split():
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
    assert process_rank() == expected


@pytest.mark.parametrize("rank", ["4", "-1", "one"])
def test_a_rank_that_cannot_be(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(FerVitError, match=f"RANK={rank} and WORLD_SIZE=4"):
        process_rank()


def test_a_worker_does_not_free_a_decoder_of_the_main_process(tmp_path: Path) -> None:
    frames = [np.zeros((720, 1280, 3), np.uint8)]
    with av.open(str(write_video(tmp_path / "clip.mp4", frames, [0.0]))) as file:
        frame = next(file.decode(video=0))
        # the scaler has threads, and a forked process does not have these threads
        frame.to_ndarray(format="rgb24")
    gc.disable()
    try:
        cycle: list[object] = [frame]
        cycle.append(cycle)
        del frame, cycle
        loader = DataLoader(
            [0],
            batch_size=None,
            num_workers=1,
            collate_fn=collect,
            worker_init_fn=start_worker,
            timeout=PATIENCE,
        )
        assert list(loader) == [0]
    finally:
        gc.enable()


def collect(number: int) -> int:
    """Frees what is left for the collector, as Python does from time to time."""
    gc.collect()
    return number


def wait_as_worker(ready: int) -> None:
    start_worker()
    os.write(ready, b"1")
    time.sleep(2 * PATIENCE)


def test_a_worker_whose_pipe_is_closed_first_has_not_failed() -> None:
    """torch raises an error in the main thread for a worker that ends with another code than 0."""
    listening, ready = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=wait_as_worker, args=(ready,))
    process.start()
    assert os.read(listening, 1) == b"1"
    process._popen.finalizer()  # type: ignore[attr-defined]  # as when the main process drops it
    process.join(PATIENCE)
    assert process.exitcode == 0
    os.close(listening)
    os.close(ready)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_with_the_main_process(number: signal.Signals) -> None:
    listening, alive = os.pipe()  # the pipe ends with the last process that may write

    def work(_: int) -> Iterator[int]:
        os.write(alive, b"1")
        time.sleep(PATIENCE)  # like a long video: no result is sent, so no error stops the worker
        yield 1

    main = os.fork()
    if main == 0:
        try:
            [*work_in_processes(work, [0], 1)]
        finally:
            os._exit(1)
    os.close(alive)
    assert os.read(listening, 1) == b"1"
    os.kill(main, number)
    os.waitpid(main, 0)
    assert select.select([listening], [], [], PATIENCE / 2)[0], "the worker is still there"
    assert os.read(listening, 1) == b""
    os.close(listening)


def results_of(task: int) -> Iterator[int]:
    """Yields a task as many times as its last digit."""
    for _ in range(task % 10):
        yield task


@pytest.mark.parametrize("processes", [0, 1, 2, *slow(5)])
def test_results_come_in_order_from_any_number_of_processes(processes: int) -> None:
    tasks = [3, 10, 21, 32, 43]
    expected = [(task, task) for task in tasks for _ in range(task % 10)]
    assert [*work_in_processes(results_of, tasks, processes)] == expected


@pytest.mark.usefixtures("forked")
def test_a_task_that_kills_its_process_has_no_result_and_others_continue() -> None:
    def work(task: int) -> Iterator[int]:
        if task == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield task

    results = [*work_in_processes(work, range(8), 2)]
    assert results == [(task, None if task == 3 else task) for task in range(8)]


class TwoArgumentsError(Exception):
    """An error of a user's detector, which pickle cannot read back."""

    def __init__(self, photo: str, reason: str) -> None:
        super().__init__(f"{photo}: {reason}")


@pytest.mark.usefixtures("forked")
def test_an_error_that_cannot_be_pickled_has_its_text() -> None:
    def work(task: int) -> Iterator[int]:
        raise TwoArgumentsError("a.jpg", "no light")
        yield task

    with pytest.raises(
        RuntimeError, match=r"TwoArgumentsError: a\.jpg: no light[^$]*test_processes"
    ):
        [*work_in_processes(work, [0], 1)]


@pytest.mark.usefixtures("forked")
def test_results_before_the_death_of_a_process_are_kept() -> None:
    def work(task: int) -> Iterator[int]:
        yield from range(3)
        if task == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    results = [*work_in_processes(work, range(3), 1)]
    assert results == [
        *((task, result) for task in (0, 1) for result in range(3)),
        (1, None),
        *((2, result) for result in range(3)),
    ]


@pytest.mark.usefixtures("forked")
def test_a_process_that_is_killed_once_is_replaced(tmp_path: Path) -> None:
    """As when memory ends for several processes together."""

    def work(task: int) -> Iterator[int]:
        if task == 2 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield task

    assert [*work_in_processes(work, range(5), 2)] == [(task, task) for task in range(5)]
    assert (tmp_path / "killed").exists()


@pytest.mark.usefixtures("forked")
def test_an_error_of_a_task_is_raised_and_no_process_stays() -> None:
    def work(task: int) -> Iterator[int]:
        if task == 2:
            raise FerVitError("a reason")
        yield task

    before = set(multiprocessing.active_children())
    gc.freeze()  # the collection below leaves the libraries out
    with pytest.raises(FerVitError, match=r"^a reason$"):
        list(work_in_processes(work, range(5), 2))
    for _, result in work_in_processes(results_of, [5, 5, 5], 2):
        if result:
            break
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.usefixtures("forked")
def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        os._exit(1)

    monkeypatch.setattr(processes_module, "start_worker", fail)
    with pytest.raises(FerVitError, match=r"worker process died"):
        list(work_in_processes(results_of, [1, 2], 2))


def test_items_are_taken_ahead_in_order() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    ahead = read_ahead(items(), 3)
    first = next(ahead)
    assert [first, *ahead] == [*range(10)]
    assert taken == [*range(10)]


def test_items_before_an_error_come_first() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise FerVitError("damaged")

    results = []
    with pytest.raises(FerVitError, match="damaged"):
        results.extend(read_ahead(items(), 3))
    assert results == [*range(5)]


def test_reading_ahead_ends_with_its_reader() -> None:
    taken = []
    ahead = read_ahead((taken.append(number) or number for number in range(1, 100)), 3)  # type: ignore[func-returns-value]
    assert next(ahead) == 1
    ahead.close()
    assert len(taken) <= 5


def test_workers_start_before_the_first_result_is_taken(tmp_path: Path) -> None:
    results = work_in_processes(partial(mark, tmp_path), range(2), 2)
    for number in range(2):
        while not (tmp_path / str(number)).exists():
            time.sleep(0.01)
    assert [*results] == [(0, 0), (1, 1)]


def mark(folder: Path, number: int) -> list[int]:
    (folder / str(number)).touch()
    return [number]


def test_workers_of_unused_results_end() -> None:
    before = set(multiprocessing.active_children())
    results = work_in_processes(itertools.repeat, [1, 2], 2)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    del results
    assert not started & set(multiprocessing.active_children())
