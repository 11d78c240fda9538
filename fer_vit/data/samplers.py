"""The order of faces: a function of seed and epoch, dealt out to processes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Dataset, DistributedSampler

from fer_vit.data.dataset import ShardDataset
from fer_vit.data.sample import Draw, Sample
from fer_vit.errors import FerVitError
from fer_vit.geometry import Array
from fer_vit.processes import run_seed


class TrainSampler(DistributedSampler[Draw]):
    """Deals the rows of an epoch out to processes in a random order, each with the seed of its augmentation.

    A single process has the same order: the batches of all ranks together are its batch. Processes get equally many
    rows; the remainder is skipped, different rows in every epoch. With fewer rows than processes some are repeated.

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
        """Sets the epoch, at least to `start`: Lightning sets 0 before it has read the checkpoint."""
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
    """Deals rows out to processes in order; rows that only pad the last round are marked, to be counted once."""

    def __iter__(self) -> Iterator[Draw]:
        rows = len(self.dataset)  # type: ignore[arg-type]
        mine = range(self.rank, self.total_size, self.num_replicas)
        return (Draw(index % rows, repeat=index >= rows) for index in mine)


class ShardSampler(TrainSampler):
    """Deals the rows of a `ShardDataset` out to processes, shard by shard.

    Every epoch shuffles the shards and the rows of each. The processes take stretches of equal length; the remainder is
    skipped, different rows in every epoch.
    """

    dataset: ShardDataset

    def __iter__(self) -> Iterator[Draw]:
        sizes = self.dataset.sizes
        rng = np.random.default_rng((self.seed, self.epoch))
        stop = (self.rank + 1) * self.num_samples
        start = stop - self.num_samples + self.done // self.num_replicas
        stretch, last = [], 0
        for shard in rng.permutation(len(sizes)).tolist():
            first, last = last, last + int(sizes[shard])
            if first < stop and start < last:
                stretch.append((shard, max(start - first, 0), stop - first))
        first_rows = sizes.cumsum() - sizes
        read = self.dataset.read_ahead(shard for shard, *_ in stretch)
        for (shard, first, last), faces in zip(stretch, read, strict=True):
            rng = np.random.default_rng((self.seed, self.epoch, shard + 1))  # 0 would repeat the order of the shards
            order, seeds = rng.permutation(len(faces)), rng.integers(2**31, size=len(faces))
            for row in order[first:last].tolist():
                yield Draw(int(first_rows[shard]) + row, int(seeds[row]), face=faces.read_row(row))


def check_position(position: dict[str, Any], options: dict[str, Any]) -> None:
    """Raises FerVitError when the options that determine an epoch's order have changed since it began."""
    for name, value in options.items():
        if position.get(name) != value:
            raise FerVitError(
                f"The checkpoint is of the middle of an epoch with {name} {position.get(name)}, but now it is {value}. "
                "Use the same value, or resume from the end of an epoch."
            )
