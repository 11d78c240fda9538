"""Samples and batches of faces from a manifest, and the order in which training reads the faces.

Order and augmentation depend only on the run's seed and the epoch. So an interrupted run resumes
with the faces that would have come next. Any number of processes or workers reads the same faces,
with the same augmentation.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler
from tqdm import tqdm

from fer_vit.data.manifest import Manifest, named_in_errors
from fer_vit.face.crop import Cropped, CropSpec, crop_face, mirror, place_regions
from fer_vit.faces import Crops
from fer_vit.geometry import Array, Float32Array, Image, Mask, rotation
from fer_vit.heads import HEADS
from fer_vit.processes import run_seed

PADDING = -1  # the row of a sample that repeats a face only to fill a batch or a process's share


class Sample(NamedTuple):
    """One face."""

    image: Image  # (S, S, 3), the crop
    boxes: Float32Array  # (R, 4), boxes of the regions, xyxy in crop pixels; 0 where not `valid`
    valid: Mask  # (R,), which regions are present
    target: Array | None  # (C,), the share of each class
    row: int  # the row in the data set, or PADDING
    path: str  # the name of the image
    to_crop: Array  # (2, 3), the matrix from image to crop pixels, before mirroring
    targets: dict[str, Array]  # (K,) for each further head, as seen in the crop; NaN: unknown


class Batch(NamedTuple):
    """B samples, stacked."""

    image: Tensor  # (B, 3, S, S); uint8 on the way to the device, float in [0, 1] for the model
    boxes: Tensor  # (B, R, 4); 0 where `valid` is False
    valid: Tensor  # (B, R)
    target: Tensor | None  # (B, C)
    row: Tensor  # (B,)
    path: list[str]
    to_crop: Tensor  # (B, 2, 3)
    targets: dict[str, Tensor]  # (B, K) for each further head; NaN: unknown

    def ready(self, device: torch.device) -> "Batch":
        """Returns the batch with the model's inputs on a device, the images as float in [0, 1]."""
        image = self.image.to(device).float() / 255
        return self._replace(image=image, boxes=self.boxes.to(device), valid=self.valid.to(device))


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks one or more samples into a batch."""
    images = np.stack([sample.image for sample in samples])  # (B, S, S, 3)
    boxes = np.stack([sample.boxes for sample in samples])  # (B, R, 4)
    valid = np.stack([sample.valid for sample in samples])  # (B, R)
    to_crop = np.stack([sample.to_crop for sample in samples])  # (B, 2, 3)

    # either all samples of a data set have a target, or no sample has one
    target = None
    shares = [sample.target for sample in samples if sample.target is not None]
    if shares:
        target = torch.from_numpy(np.stack(shares)).float()  # (B, C)

    targets = {}
    for head in samples[0].targets:
        values = np.stack([sample.targets[head] for sample in samples])  # (B, K)
        targets[head] = torch.from_numpy(values).float()

    return Batch(
        image=torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
        boxes=torch.from_numpy(boxes),
        valid=torch.from_numpy(valid),
        target=target,
        row=torch.tensor([sample.row for sample in samples]),
        path=[sample.path for sample in samples],
        to_crop=torch.from_numpy(to_crop).float(),
        targets=targets,
    )


class Draw(NamedTuple):
    """A row that a sampler has drawn."""

    row: int
    seed: int = 0  # the seed for the augmentation
    repeat: bool = False  # whether the row only fills the share of a process


# Crops and augments a face, given its landmarks (5, 2) and a seed.
Cropping: TypeAlias = Callable[[Image, Array | None, CropSpec, int], Cropped]


class FaceDataset(Dataset[Sample]):
    """The rows of a manifest, cropped and augmented (see `transforms.Augment`).

    With `partial`, a row without a label has a target of NaN. Without `partial`, one such row makes
    all targets None.
    """

    def __init__(
        self,
        manifest: Manifest,
        spec: CropSpec,
        augment: Cropping | None = None,
        partial: bool = False,
    ) -> None:
        self.manifest = manifest
        self.spec = spec
        self.augment = augment
        # These columns are read once: a lookup in the table takes longer than the rest of a row.
        self.landmarks = manifest.landmarks()
        self.targets = manifest.targets(partial)
        self.outputs = manifest.outputs.plain  # names by head
        self.head_targets = manifest.head_targets()

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int | Draw) -> Sample:
        """Decodes, crops and augments a face; raises FerVitError if its image is not readable."""
        draw = index if isinstance(index, Draw) else Draw(index)
        row = draw.row
        name = self.manifest.name(row)
        with named_in_errors(self.manifest.path, name):
            image = self.manifest.image(row)
        landmarks = None if np.isnan(self.landmarks[row]).any() else self.landmarks[row]

        if self.augment is None:
            cropped = crop_face(image, landmarks, self.spec, framed=True)
        else:
            cropped = self.augment(image, landmarks, self.spec, draw.seed)
        boxes, valid = place_regions(cropped.landmarks, self.spec)  # (R, 4), (R,)

        targets = {}
        for head, values in self.head_targets.items():
            targets[head] = targets_in_crop(head, self.outputs[head], values[row], cropped)
        return Sample(
            image=cropped.image,
            boxes=boxes,
            valid=valid,
            target=None if self.targets is None else self.targets[row],
            row=PADDING if draw.repeat else row,
            path=name,
            to_crop=cropped.to_crop,
            targets=targets,
        )


def targets_in_crop(head: str, outputs: Sequence[str], values: Array, cropped: Cropped) -> Array:
    """Returns the targets (K,) of a head for a crop, rotated and mirrored as the face was."""
    degrees = np.array([rotation(cropped.to_crop)])
    values = HEADS[head].rotate(values[None], outputs, degrees)[0]
    if not cropped.mirrored:
        return values
    source, sign = HEADS[head].mirror(outputs)
    return np.asarray(values[source] * sign)


def crop_mirrored(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
    """Crops a face with landmarks (5, 2) from an image (H, W, 3), and mirrors the crop.

    The matrix in the result maps to the crop before mirroring. The seed has no effect.
    """
    cropped = crop_face(image, landmarks, spec, framed=True)
    crop, points = mirror(cropped.image, cropped.landmarks)
    return Cropped(crop, points, cropped.to_crop, mirrored=True)


def face_crops(dataset: FaceDataset, rows: Sequence[int], size: int) -> Iterator[Crops]:
    """Yields rows in batches of `size` faces."""
    for start in tqdm(range(0, len(rows), size), unit=" batches", disable=None, leave=False):
        faces = [dataset[row] for row in rows[start : start + size]]
        yield Crops(
            image=np.stack([face.image for face in faces]),
            boxes=np.stack([face.boxes for face in faces]),
            valid=np.stack([face.valid for face in faces]),
            to_crop=np.stack([face.to_crop for face in faces]),
        )


class Position(NamedTuple):
    """Where a run resumes."""

    epoch: int = 0
    done: int = 0  # how many rows of this epoch all processes together have read


class TrainSampler(DistributedSampler[Draw]):
    """Splits the rows of an epoch between processes, in a random order and with augmentation seeds.

    The order does not depend on the number of processes: their batches together are the batch of a
    single process. Each process gets the same number of rows. The remainder is skipped; each epoch
    skips different rows. With fewer rows than processes, rows are repeated.
    """

    def __init__(
        self,
        dataset: Dataset[Sample],
        # (M,), the probability of each row, drawn with replacement; None: each row once
        weights: Array | None = None,
        num_replicas: int = 1,
        rank: int = 0,
        start: Position = Position(),  # noqa: B008 - a tuple
    ) -> None:
        super().__init__(dataset, num_replicas, rank, seed=run_seed(), drop_last=True)
        self.num_samples = max(1, len(dataset) // num_replicas)  # type: ignore[arg-type]
        self.weights = weights
        self.start = start
        self.epoch = start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch to the given one, or to the epoch of `start` if that is later.

        Lightning sets epoch 0 before it reads the checkpoint.
        """
        self.epoch = max(epoch, self.start.epoch)

    @property
    def done(self) -> int:
        """How many rows of the epoch all processes together have read already."""
        return self.start.done if self.epoch == self.start.epoch else 0

    def __iter__(self) -> Iterator[Draw]:
        num_rows = len(self.dataset)  # type: ignore[arg-type]
        rng = np.random.default_rng((self.seed, self.epoch))
        if self.weights is None:
            order = rng.permutation(num_rows)
        else:
            order = rng.choice(num_rows, num_rows, p=self.weights)
        seeds = rng.integers(2**31, size=num_rows)

        # All processes together read the places from `done` to `stop` in `order`; each process
        # reads every `num_replicas`-th place. With fewer rows than processes, places wrap around.
        first = self.done + self.rank
        stop = self.num_samples * self.num_replicas
        places = np.arange(first, stop, self.num_replicas) % num_rows
        return (Draw(int(order[place]), int(seeds[place])) for place in places)


class EvalSampler(DistributedSampler[Draw]):
    """Splits rows between processes in order; the last round is filled with repeated rows."""

    def __iter__(self) -> Iterator[Draw]:
        num_rows = len(self.dataset)  # type: ignore[arg-type]
        indices = range(self.rank, self.total_size, self.num_replicas)
        return (Draw(index % num_rows, repeat=index >= num_rows) for index in indices)
