"""The order of faces: a function of seed and epoch, dealt out to processes."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from torch.utils.data import Dataset, DistributedSampler

from fer_vit.data.sample import Draw, Sample
from fer_vit.errors import FerVitError
from fer_vit.geometry import Array
from fer_vit.processes import run_seed


class TrainSampler(DistributedSampler[Draw]):
    """Deals the rows of an epoch out to processes in a random order, each with the seed of its augmentation.

    The order is that of a single process, dealt out in turn, so the batches of all ranks together are the batch that
    one process would have. Processes get equally many rows; the remainder is skipped, different rows in every epoch. If
    there are fewer rows than processes, some are repeated.

    Args:
        weights: Probability of each of M rows (M,), drawn with replacement; None: every row once.
        start: The epoch in which a run resumes, and how many of its rows have been read already.
    """

    def __init__(
        self,
        dataset: Dataset[Sample],
        weights: Array | None = None,
        num_replicas: int = 1,
        rank: int = 0,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(dataset, num_replicas, rank, seed=run_seed(), drop_last=True)
        self.num_samples = max(1, len(dataset) // num_replicas)  # type: ignore[arg-type]
        self.weights = weights
        self.start = start
        self.epoch = start[0]

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, but never to one before `start`: Lightning sets 0 before it has read the checkpoint."""
        self.epoch = max(epoch, self.start[0])

    @property
    def done(self) -> int:
        """How many rows of the epoch have been read already, by all processes together."""
        return self.start[1] if self.epoch == self.start[0] else 0

    def __iter__(self) -> Iterator[Draw]:
        rows = len(self.dataset)  # type: ignore[arg-type]
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(rows) if self.weights is None else rng.choice(rows, rows, p=self.weights)
        seeds = rng.integers(2**31, size=rows)
        mine = np.arange(self.done + self.rank, self.num_samples * self.num_replicas, self.num_replicas) % rows
        return (Draw(int(order[index]), int(seeds[index])) for index in mine)


class EvalSampler(DistributedSampler[Draw]):
    """Deals rows out to processes in order; rows that only pad the last round are marked as repeats.

    A plain `DistributedSampler` repeats rows so that all processes get equally many, and those would count twice.
    """

    def __iter__(self) -> Iterator[Draw]:
        rows = len(self.dataset)  # type: ignore[arg-type]
        mine = range(self.rank, self.total_size, self.num_replicas)
        return (Draw(index % rows, repeat=index >= rows) for index in mine)


def check_position(position: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raises FerVitError when the options that determine an epoch's order have changed since it began."""
    for name, value in mine.items():
        if position.get(name) != value:
            raise FerVitError(
                f"The checkpoint is of the middle of an epoch with {name} {position.get(name)}, but now it is {value}. "
                "Use the same, or resume from the end of an epoch."
            )


def from_litdata(position: dict[str, Any]) -> dict[str, Any]:
    """Translates a position at the end of an epoch that an earlier version streamed with litdata.

    Raises:
        FerVitError: It is in the middle of one, whose order only litdata knows.
    """
    if "dataset" not in position:
        return position
    with suppress(KeyError, TypeError):  # of a damaged checkpoint
        if position["num_samples_yielded"] >= position["batches"] * position["dataset"]["batch_size"]:
            return {"epoch": position.get("current_epoch")}
    raise FerVitError(
        "The checkpoint is of the middle of an epoch of shards, as an earlier version dealt them out. Resume from the "
        "end of an epoch."
    )
