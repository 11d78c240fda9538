import pytest

from fer_vit.errors import FerVitError
from fer_vit.processes import VARIABLES, ProcessRank, process_rank


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in sum(VARIABLES, ()):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ProcessRank()),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, ProcessRank(3, 8, 1, 2)),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            ProcessRank(5, 8, 1, 4),
        ),
        (
            {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"},
            ProcessRank(2, 3, 0, 2),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "0"}, ProcessRank()),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ProcessRank()),  # a batch script outside srun
        ({"RANK": "2", "WORLD_SIZE": "4"}, ProcessRank(2, 4)),  # a Kubernetes job
    ],
)
def test_the_rank_is_torchruns_or_slurms(
    variables: dict[str, str], expected: ProcessRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_rank() == expected


@pytest.mark.parametrize("rank", ["4", "-1", "one"])
def test_a_rank_that_cannot_be(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(FerVitError, match=f"RANK={rank} and WORLD_SIZE=4"):
        process_rank()
