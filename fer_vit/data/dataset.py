"""Faces of a manifest as samples, and the order in which they come.

Order and augmentation of a run follow from its seed and the epoch alone, so that it goes on as if nothing had happened,
and any number of processes or workers sees the same faces, changed in the same way.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch.utils.data import Dataset, DistributedSampler

from fer_vit.data.crop import CropSpec, crop_face, place_regions
from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Sample
from fer_vit.errors import FerVitError
from fer_vit.face.geometry import Array, Image
from fer_vit.face.image import ImageError, decode_image, one_thread

Change: TypeAlias = Callable[[Image, Array, int], tuple[Image, Array]]
"""Changes a crop (S, S, 3) and its landmarks (5, 2) in crop pixels, given a seed."""


class Draw(NamedTuple):
    """A row as a sampler asks for it.

    Attributes:
        row: The row.
        seed: Of its augmentation.
        repeat: Whether the row only fills up a process's share.
    """

    row: int
    seed: int = 0
    repeat: bool = False


class FaceDataset(Dataset[Sample]):
    """The rows of a manifest, cropped and augmented.

    Args:
        manifest: The rows.
        spec: How a face becomes a crop.
        augment: Changes crop and landmarks (see `transforms.Augment`), or None.
    """

    def __init__(self, manifest: Manifest, spec: CropSpec, augment: Change | None = None) -> None:
        self.manifest = manifest
        self.spec = spec
        self.augment = augment
        self.landmarks = manifest.landmarks()
        self.targets = manifest.targets()

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int | Draw) -> Sample:
        """Returns the sample of a row."""
        row, seed, repeat = index if isinstance(index, Draw) else Draw(index)
        name = self.manifest.name(row)
        try:
            image = decode_image(self.manifest.image_bytes(row))
        except ImageError as error:
            raise FerVitError(f"{self.manifest.path}, image {name}: {error}.") from error
        landmarks = None if np.isnan(self.landmarks[row]).any() else self.landmarks[row]
        crop, points, to_crop = crop_face(image, landmarks, self.spec, framed=True)
        if self.augment is not None:
            crop, points = self.augment(crop, points, seed)
        boxes, valid = place_regions(points, self.spec)
        target = None if self.targets is None else self.targets[row]
        return Sample(crop, boxes, valid, target, -1 if repeat else row, name, to_crop)


class TrainSampler(DistributedSampler[Draw]):
    """Deals the rows of an epoch out to processes in a random order, each with the seed of its augmentation.

    The order is that of one process, dealt out in turn: what a batch of every process holds together, one process would
    have in a batch. Rows that are too few for one each come again; those that are too many stay away, other ones in
    every epoch.

    Args:
        dataset: The rows.
        weights: How often each row is drawn, with repetition, as parts of 1 (M,); None: every row once.
        num_replicas: Number of processes.
        rank: This one's.
        start: The epoch that a run goes on with, and how many of its rows have had their turn.
    """

    def __init__(
        self,
        dataset: FaceDataset,
        weights: Array | None = None,
        num_replicas: int = 1,
        rank: int = 0,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(dataset, num_replicas, rank, seed=run_seed(), drop_last=True)
        self.num_samples = max(1, len(dataset) // num_replicas)
        self.weights = weights
        self.start = start
        self.epoch = start[0]

    def set_epoch(self, epoch: int) -> None:
        """Lightning speaks of epoch 0 before it has read the checkpoint."""
        self.epoch = max(epoch, self.start[0])

    def __iter__(self) -> Iterator[Draw]:
        rows = len(self.dataset)  # type: ignore[arg-type]
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(rows) if self.weights is None else rng.choice(rows, rows, p=self.weights)
        seeds = rng.integers(2**31, size=rows)
        done = self.start[1] if self.epoch == self.start[0] else 0
        places = np.resize(np.arange(rows), self.num_samples * self.num_replicas)[done + self.rank :: self.num_replicas]
        return (Draw(int(order[place]), int(seeds[place])) for place in places)


class EvalSampler(DistributedSampler[Draw]):
    """Deals rows out to processes in order; rows that only fill up the last round are marked as repeats.

    A plain `DistributedSampler` repeats rows so that every process gets as many, and they would count twice in the
    figures.
    """

    def __init__(self, dataset: FaceDataset, num_replicas: int | None = None, rank: int | None = None) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)

    def __iter__(self) -> Iterator[Draw]:
        for place, row in zip(range(self.rank, self.total_size, self.num_replicas), super().__iter__(), strict=True):
            yield Draw(row, repeat=place >= len(self.dataset))  # type: ignore[arg-type]


def run_seed() -> int:
    """Returns the seed of the run (`seed_everything`), the same in all of its processes; 0 if there is none."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def mixed_seed(*numbers: int) -> int:
    """Returns a seed that, but for one case in billions, differs where numbers do (`numpy.random.SeedSequence`)."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def check_position(position: dict[str, Any], mine: dict[str, Any]) -> None:
    """Checks that the rest of an epoch can be dealt out as its beginning was.

    Args:
        position: Where a run stopped, out of a checkpoint, with what its order depends on.
        mine: What the order depends on now, by the names of the options.

    Raises:
        FerVitError: They differ, or the position is none.
    """
    for name, value in mine.items():
        if position.get(name) != value:
            raise FerVitError(
                f"The checkpoint is of the middle of an epoch with {name} {position.get(name)}, but now it is {value}. "
                "Go on with the same, or from the end of an epoch."
            )


def start_worker(_worker: int) -> None:
    """Lets a process that loads data outlive a SIGTERM to all processes of a job: its own run alone ends it."""
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_end_by_parent, daemon=True).start()
    one_thread()


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
