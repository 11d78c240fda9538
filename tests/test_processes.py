import gc
import multiprocessing
import os
import time
from pathlib import Path

import av
import numpy as np
import pytest
from torch.utils.data import DataLoader

from fer_vit.errors import FerVitError
from fer_vit.processes import VARIABLES, ProcessRank, process_rank, start_worker
from tests.helpers.videos import write_video


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in sum(VARIABLES, ()):
        monkeypatch.delenv(name, raising=False)


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
    for name, _, value in (variable.partition("=") for variable in variables.split()):
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
        frame.to_ndarray(format="rgb24")  # its scaler has threads, which no fork has
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
            timeout=120,
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
    time.sleep(60)


def test_a_worker_whose_pipe_is_closed_first_has_not_failed() -> None:
    """torch raises an error in the main thread for a worker that ends with another code than 0."""
    listening, ready = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=wait_as_worker, args=(ready,))
    process.start()
    assert os.read(listening, 1) == b"1"
    process._popen.finalizer()  # type: ignore[attr-defined]  # as when the main process drops it
    process.join(30)
    assert process.exitcode == 0
    os.close(listening)
    os.close(ready)
