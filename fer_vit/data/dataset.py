"""Faces as samples and batches, read from a manifest, and the order in which training reads them.

Order and augmentation depend only on the run's seed and the epoch: an interrupted run resumes with
the faces it would have continued with, and any number of processes or workers reads the same faces,
augmented in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from tqdm import tqdm

from fer_vit.data.manifest import Manifest, named_in_errors, no_label
from fer_vit.data.schema import Shard, find_shards
from fer_vit.errors import FerVitError
from fer_vit.face.crop import Cropped, CropSpec, crop_face, mirror, place_regions
from fer_vit.face.image import decode_image
from fer_vit.geometry import Array, Float32Array, Image, Mask, rotation
from fer_vit.heads import HEADS
from fer_vit.processes import note_in_worker, run_seed


class Sample(NamedTuple):
    """One face."""

    image: Image  # crop (S, S, 3)
    boxes: Float32Array  # of the regions (R, 4), xyxy in crop pixels; 0 where not `valid`
    valid: Mask  # which regions are present (R,)
    target: Array | None  # share of every class (C,)
    row: int  # in the data set; -1 for a repeat that only pads a rank's share
    path: str  # the name of the image
    to_crop: Array  # matrix (2, 3) from image to crop pixels, before a mirror
    targets: dict[str, Array]  # of other heads (K,) each, in the crop; NaN: unknown


class Batch(NamedTuple):
    """B samples, stacked."""

    image: Tensor  # (B, 3, S, S); uint8 on the way to the device, float in [0, 1] for the model
    boxes: Tensor  # (B, R, 4); 0 where `valid` is False
    valid: Tensor  # (B, R)
    target: Tensor | None  # (B, C)
    row: Tensor  # (B,)
    path: list[str]
    to_crop: Tensor  # (B, 2, 3)
    targets: dict[str, Tensor]  # of other heads (B, K) each; NaN: unknown

    def split(self, size: int) -> Iterator["Batch"]:
        """Yields the batch in chunks of at most `size` faces."""
        for start in range(0, len(self.path), size):
            rows = slice(start, start + size)
            yield Batch(
                image=self.image[rows],
                boxes=self.boxes[rows],
                valid=self.valid[rows],
                target=None if self.target is None else self.target[rows],
                row=self.row[rows],
                path=self.path[rows],
                to_crop=self.to_crop[rows],
                targets={head: values[rows] for head, values in self.targets.items()},
            )

    def ready(self, device: torch.device) -> "Batch":
        """Moves the model's inputs to its device, the images as float in [0, 1]."""
        image = self.image.to(device).float() / 255
        return self._replace(image=image, boxes=self.boxes.to(device), valid=self.valid.to(device))


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks samples, one or more, into a batch."""
    images = torch.from_numpy(np.stack([sample.image for sample in samples]))
    targets = [sample.target for sample in samples if sample.target is not None]
    others = {
        head: np.stack([sample.targets[head] for sample in samples]) for head in samples[0].targets
    }
    return Batch(
        image=images.permute(0, 3, 1, 2).contiguous(),
        boxes=torch.from_numpy(np.stack([sample.boxes for sample in samples])),
        valid=torch.from_numpy(np.stack([sample.valid for sample in samples])),
        target=torch.from_numpy(np.stack(targets)).float() if targets else None,
        row=torch.tensor([sample.row for sample in samples]),
        path=[sample.path for sample in samples],
        to_crop=torch.from_numpy(np.stack([sample.to_crop for sample in samples])).float(),
        targets={head: torch.from_numpy(values).float() for head, values in others.items()},
    )


class EncodedFace(NamedTuple):
    """A row of a manifest, with its image still encoded."""

    manifest: str | Path  # the name of the manifest or shard
    path: str  # the name of the image
    image: bytes
    landmarks: Array  # (5, 2) in image pixels; NaN where there are none
    target: Array | None  # share of every class (C,)
    outputs: dict[str, list[str]]  # the names of the K outputs of other heads
    targets: dict[str, Array]  # of these heads in the image (K,) each; NaN: unknown


class Draw(NamedTuple):
    """A row that a sampler has drawn."""

    row: int
    seed: int = 0  # of its augmentation
    repeat: bool = False  # the row only pads a rank's share
    face: EncodedFace | None = None  # the contents of the row, for a data set of shards


# Crops and augments a face, given its landmarks (5, 2) and a seed.
Cropping: TypeAlias = Callable[[Image, Array | None, CropSpec, int], Cropped]


class FaceDataset(Dataset[Sample]):
    """The rows of a manifest, cropped and augmented (see `transforms.Augment`).

    With `partial`, rows without a label have a target of NaN. Else the targets are None when any
    row has no label.
    """

    def __init__(
        self,
        manifest: Manifest,
        spec: CropSpec,
        augment: Cropping | None = None,
        partial: bool = False,
    ) -> None:
        self.manifest, self.spec, self.augment = manifest, spec, augment
        self.landmarks, self.targets = manifest.landmarks(), manifest.targets(partial)
        self.outputs, self.head_targets = manifest.outputs, manifest.head_targets()

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int | Draw) -> Sample:
        draw = index if isinstance(index, Draw) else Draw(index)
        return make_sample(self.read_row(draw.row), draw, self.spec, self.augment)

    def read_row(self, row: int) -> EncodedFace:
        """Returns a row with its image still encoded."""
        path, name = self.manifest.path, self.manifest.name(row)
        with named_in_errors(path, name):
            image = self.manifest.image_bytes(row)
        return EncodedFace(
            path,
            name,
            image,
            self.landmarks[row],
            None if self.targets is None else self.targets[row],
            self.outputs,
            {head: values[row] for head, values in self.head_targets.items()},
        )


class ShardDataset(Dataset[Sample]):
    """The training rows of a folder or URL of shards with these labels; `ShardSampler` passes the
    rows in.

    A process reads its shards one after the other, prefetching the next one, and passes their rows,
    images still encoded, to its workers: each row is read once, and at most three shards are in
    memory. Raises FerVitError when there are none, one cannot be read, or they are from different
    runs of `prepare`.
    """

    def __init__(
        self,
        path: str | Path,
        names: tuple[str, ...],
        spec: CropSpec,
        augment: Cropping | None,
        unlabelled: bool,
    ) -> None:
        self.names, self.spec, self.augment, self.unlabelled = names, spec, augment, unlabelled
        self.shards = [shard for shard in find_shards(path) if shard.split == "train"]
        if not self.shards:
            raise FerVitError(
                f"{path} has no rows with split train. Prepare the data set with that split."
            )
        with ThreadPoolExecutor() as pool:
            footers = list(pool.map(Shard.footer, self.shards))
        if len({(footer.metadata or {}).get(b"fer_vit") for footer in footers}) > 1:
            raise FerVitError(
                f"{path} holds shards of more than one `prepare`. Copy the whole folder again."
            )
        self.sizes = np.array([footer.num_rows for footer in footers])  # (K,)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def __getitem__(self, draw: Draw) -> Sample:
        assert draw.face is not None
        return make_sample(draw.face, draw, self.spec, self.augment)

    def read(self, index: int) -> FaceDataset:
        """Reads a shard; raises FerVitError when it is invalid or has changed,
        or a row lacks the label it needs.
        """
        shard = self.shards[index]
        faces = FaceDataset(Manifest.read_shard(shard, self.names), self.spec)
        if len(faces) != self.sizes[index]:
            raise FerVitError(
                f"{shard.location} has changed. Resume when nothing writes to the shards."
            )
        if faces.targets is None and not self.unlabelled:
            raise no_label(shard.location, "train")
        return faces

    def read_ahead(self, shards: Iterable[int]) -> Iterator[FaceDataset]:
        """Yields one shard after another; while one is in use, a thread reads the next."""
        with ThreadPoolExecutor(1) as pool:
            futures = (pool.submit(self.read, shard) for shard in shards)
            coming = next(futures, None)
            while coming:
                ready, coming = coming, next(futures, None)
                yield ready.result()


def make_sample(
    face: EncodedFace, draw: Draw, spec: CropSpec, augment: Cropping | None = None
) -> Sample:
    """Decodes, crops and augments a face; raises FerVitError when its image cannot be decoded."""
    note_in_worker(face.path)
    with named_in_errors(face.manifest, face.path):
        image = decode_image(face.image)
    landmarks = None if np.isnan(face.landmarks).any() else face.landmarks
    if augment is None:
        cropped = Cropped(*crop_face(image, landmarks, spec, framed=True))
    else:
        cropped = augment(image, landmarks, spec, draw.seed)
    boxes, valid = place_regions(cropped.landmarks, spec)
    return Sample(
        image=cropped.image,
        boxes=boxes,
        valid=valid,
        target=face.target,
        row=-1 if draw.repeat else draw.row,
        path=face.path,
        to_crop=cropped.to_crop,
        targets={
            head: targets_in_crop(head, face.outputs[head], values, cropped)
            for head, values in face.targets.items()
        },
    )


def targets_in_crop(head: str, names: Sequence[str], values: Array, cropped: Cropped) -> Array:
    """Returns targets of a head (K,) for a crop:
    they change as the face is rotated and mirrored.
    """
    degrees = np.array([rotation(cropped.to_crop)])
    values = HEADS[head].rotate(values[None], names, degrees)[0]
    if not cropped.mirrored:
        return values
    source, sign = HEADS[head].mirror(names)
    return np.asarray(values[source] * sign)


def crop_mirrored(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
    """Crops a face and mirrors the crop; the matrix maps to the crop before mirroring."""
    crop, points, to_crop = crop_face(image, landmarks, spec, framed=True)
    crop, points = mirror(crop, points)
    return Cropped(crop, points, to_crop, mirrored=True)


def face_batches(
    dataset: FaceDataset, chosen: Sequence[int], size: int, device: torch.device
) -> Iterator[Batch]:
    """Yields the chosen rows in batches that are ready for a model on the device,
    under a progress bar.
    """
    loader = DataLoader(Subset(dataset, chosen), size, collate_fn=collate)
    return (
        batch.ready(device) for batch in tqdm(loader, unit=" batches", disable=None, leave=False)
    )


class TrainSampler(DistributedSampler[Draw]):
    """Deals the rows of an epoch out to processes in a random order, each with the seed of its
    augmentation.

    A single process has the same order: the batches of all ranks together are its batch. Processes
    get equally many rows; the remainder is skipped, different rows in every epoch. With fewer rows
    than processes some are repeated.
    """

    def __init__(
        self,
        dataset: Dataset[Sample],
        # probability of each of M rows (M,), drawn with replacement; None: each row once
        weights: Array | None = None,
        num_replicas: int = 1,
        rank: int = 0,
        # the epoch in which a run resumes, and how many of its rows have been read
        start: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(dataset, num_replicas, rank, seed=run_seed(), drop_last=True)
        self.num_samples = max(1, len(dataset) // num_replicas)  # type: ignore[arg-type]
        self.weights, self.start, self.epoch = weights, start, start[0]

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, at least to `start`:
        Lightning sets 0 before it has read the checkpoint.
        """
        self.epoch = max(epoch, self.start[0])

    @property
    def done(self) -> int:
        """How many rows of the epoch have been read already, by all processes together."""
        return self.start[1] if self.epoch == self.start[0] else 0

    def __iter__(self) -> Iterator[Draw]:
        rows = len(self.dataset)  # type: ignore[arg-type]
        rng = np.random.default_rng((self.seed, self.epoch))
        order = (
            rng.permutation(rows)
            if self.weights is None
            else rng.choice(rows, rows, p=self.weights)
        )
        seeds = rng.integers(2**31, size=rows)

        first = self.done + self.rank
        stop = self.num_samples * self.num_replicas
        mine = np.arange(first, stop, self.num_replicas) % rows
        return (Draw(int(order[index]), int(seeds[index])) for index in mine)


class EvalSampler(DistributedSampler[Draw]):
    """Deals rows out to processes in order; rows that only pad the last round are marked,
    to be counted once.
    """

    def __iter__(self) -> Iterator[Draw]:
        rows = len(self.dataset)  # type: ignore[arg-type]
        mine = range(self.rank, self.total_size, self.num_replicas)
        return (Draw(index % rows, repeat=index >= rows) for index in mine)


class ShardSampler(TrainSampler):
    """Deals a `ShardDataset` out to processes in equal stretches;
    each epoch shuffles shards and the rows of each.
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
            rng = np.random.default_rng(
                (self.seed, self.epoch, shard + 1)
            )  # 0 would repeat the order of the shards
            order, seeds = rng.permutation(len(faces)), rng.integers(2**31, size=len(faces))
            for row in order[first:last].tolist():
                yield Draw(int(first_rows[shard]) + row, int(seeds[row]), face=faces.read_row(row))
