"""Faces as samples and batches, read from a manifest, and the order in which training reads them.

Order and augmentation depend only on the run's seed and the epoch: an interrupted run resumes with
the faces it would have continued with, and any number of processes or workers reads the same faces,
augmented in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from tqdm import tqdm

from fer_vit.data.manifest import Manifest, named_in_errors, no_label
from fer_vit.data.shards import Shard, find_shards
from fer_vit.errors import FerVitError
from fer_vit.face.crop import Cropped, CropSpec, crop_face, mirror, place_regions
from fer_vit.face.image import decode_image
from fer_vit.geometry import Array, Float32Array, Image, Mask, rotation
from fer_vit.heads import HEADS
from fer_vit.processes import note_in_worker, run_seed

PADDING = -1  # the row of a sample that is a repeat


class Sample(NamedTuple):
    """One face."""

    image: Image  # crop (S, S, 3)
    boxes: Float32Array  # of the regions (R, 4), xyxy in crop pixels; 0 where not `valid`
    valid: Mask  # which regions are present (R,)
    target: Array | None  # share of every class (C,)
    row: int  # in the data set; PADDING for a repeat that only fills a rank's share
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
            chunk = slice(start, start + size)
            target = None if self.target is None else self.target[chunk]
            yield Batch(
                image=self.image[chunk],
                boxes=self.boxes[chunk],
                valid=self.valid[chunk],
                target=target,
                row=self.row[chunk],
                path=self.path[chunk],
                to_crop=self.to_crop[chunk],
                targets={head: values[chunk] for head, values in self.targets.items()},
            )

    def ready(self, device: torch.device) -> "Batch":
        """Moves the model's inputs to its device, the images as float in [0, 1]."""
        image = self.image.to(device).float() / 255
        return self._replace(image=image, boxes=self.boxes.to(device), valid=self.valid.to(device))


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks samples, one or more, into a batch."""
    images = np.stack([sample.image for sample in samples])  # (B, S, S, 3)
    boxes = np.stack([sample.boxes for sample in samples])  # (B, R, 4)
    valid = np.stack([sample.valid for sample in samples])  # (B, R)
    to_crop = np.stack([sample.to_crop for sample in samples])  # (B, 2, 3)

    # all samples of a data set have a target, or none
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
        self.manifest = manifest
        self.spec = spec
        self.augment = augment
        # read once: a lookup in the table costs more than the rest of a row
        self.landmarks = manifest.landmarks()
        self.targets = manifest.targets(partial)
        self.outputs = manifest.outputs
        self.head_targets = manifest.head_targets()

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int | Draw) -> Sample:
        draw = index if isinstance(index, Draw) else Draw(index)
        face = self.read_row(draw.row)
        return make_sample(face, draw, self.spec, self.augment)

    def read_row(self, row: int) -> EncodedFace:
        """Returns a row with its image still encoded."""
        name = self.manifest.name(row)
        with named_in_errors(self.manifest.path, name):
            image = self.manifest.image_bytes(row)
        target = None if self.targets is None else self.targets[row]
        return EncodedFace(
            manifest=self.manifest.path,
            path=name,
            image=image,
            landmarks=self.landmarks[row],
            target=target,
            outputs=self.outputs,
            targets={head: values[row] for head, values in self.head_targets.items()},
        )


class ShardDataset(Dataset[Sample]):
    """The training rows of a folder or URL of shards; `ShardSampler` passes the rows in.

    A process reads its shards one after the other, prefetching the next one, and passes their rows,
    images still encoded, to its workers: each row is read once, and at most three shards are in
    memory. `partial` is as for `FaceDataset`; with `unlabelled`, rows may lack labels. Raises
    FerVitError when there are no shards, one cannot be read, one has other labels than `labels`, or
    they are from different runs of `prepare`.
    """

    def __init__(
        self,
        path: str | Path,
        labels: tuple[str, ...],
        spec: CropSpec,
        augment: Cropping | None,
        unlabelled: bool,
        partial: bool = False,
    ) -> None:
        self.labels = labels
        self.spec = spec
        self.augment = augment
        self.unlabelled = unlabelled
        self.partial = partial

        self.shards = [shard for shard in find_shards(path) if shard.split == "train"]
        if not self.shards:
            raise FerVitError(
                f"{path} has no rows with split train. Prepare the data set with that split."
            )
        with ThreadPoolExecutor() as pool:
            footers = list(pool.map(Shard.footer, self.shards))
        runs = {(footer.metadata or {}).get(b"fer_vit") for footer in footers}
        if len(runs) > 1:
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
        """Reads a shard.

        Raises FerVitError if it is invalid, has changed, or lacks labels that are needed.
        """
        shard = self.shards[index]
        manifest = Manifest.read_shard(shard, self.labels)
        faces = FaceDataset(manifest, self.spec, partial=self.partial)
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
            waiting: Future[FaceDataset] | None = None
            for shard in shards:
                following = pool.submit(self.read, shard)
                if waiting:
                    yield waiting.result()
                waiting = following
            if waiting:
                yield waiting.result()


def make_sample(face: EncodedFace, draw: Draw, spec: CropSpec, augment: Cropping | None) -> Sample:
    """Decodes, crops and augments a face; raises FerVitError when its image cannot be decoded."""
    note_in_worker(face.path)
    with named_in_errors(face.manifest, face.path):
        image = decode_image(face.image)
    landmarks = None if np.isnan(face.landmarks).any() else face.landmarks

    if augment is None:
        cropped = crop_face(image, landmarks, spec, framed=True)
    else:
        cropped = augment(image, landmarks, spec, draw.seed)
    boxes, valid = place_regions(cropped.landmarks, spec)  # (R, 4), (R,)

    targets = {}
    for head, values in face.targets.items():
        targets[head] = targets_in_crop(head, face.outputs[head], values, cropped)
    return Sample(
        image=cropped.image,
        boxes=boxes,
        valid=valid,
        target=face.target,
        row=PADDING if draw.repeat else draw.row,
        path=face.path,
        to_crop=cropped.to_crop,
        targets=targets,
    )


def targets_in_crop(head: str, outputs: Sequence[str], values: Array, cropped: Cropped) -> Array:
    """Returns targets of a head (K,) for a crop, rotated and mirrored with the face."""
    degrees = np.array([rotation(cropped.to_crop)])
    values = HEADS[head].rotate(values[None], outputs, degrees)[0]
    if not cropped.mirrored:
        return values
    source, sign = HEADS[head].mirror(outputs)
    return np.asarray(values[source] * sign)


def crop_mirrored(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
    """Crops a face with landmarks (5, 2) of an image (H, W, 3), and mirrors the crop.

    The matrix maps to the crop before mirroring. The seed has no effect.
    """
    cropped = crop_face(image, landmarks, spec, framed=True)
    crop, points = mirror(cropped.image, cropped.landmarks)
    return Cropped(crop, points, cropped.to_crop, mirrored=True)


def face_batches(
    dataset: FaceDataset, rows: Sequence[int], size: int, device: torch.device
) -> Iterator[Batch]:
    """Yields rows in batches that are ready for a model on the device."""
    loader = DataLoader(Subset(dataset, rows), size, collate_fn=collate)
    for batch in tqdm(loader, unit=" batches", disable=None, leave=False):
        yield batch.ready(device)


class Position(NamedTuple):
    """Where a run resumes."""

    epoch: int = 0
    done: int = 0  # rows of this epoch that have been read, by all processes together


class TrainSampler(DistributedSampler[Draw]):
    """Splits the rows of an epoch between processes, in a random order and with augmentation seeds.

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
        start: Position = Position(),  # noqa: B008 - a tuple
    ) -> None:
        super().__init__(dataset, num_replicas, rank, seed=run_seed(), drop_last=True)
        self.num_samples = max(1, len(dataset) // num_replicas)  # type: ignore[arg-type]
        self.weights = weights
        self.start = start
        self.epoch = start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, at least `start`: Lightning sets 0 before it reads the checkpoint."""
        self.epoch = max(epoch, self.start.epoch)

    @property
    def done(self) -> int:
        """How many rows of the epoch have been read already, by all processes together."""
        return self.start.done if self.epoch == self.start.epoch else 0

    def __iter__(self) -> Iterator[Draw]:
        num_rows = len(self.dataset)  # type: ignore[arg-type]
        rng = np.random.default_rng((self.seed, self.epoch))
        if self.weights is None:
            order = rng.permutation(num_rows)
        else:
            order = rng.choice(num_rows, num_rows, p=self.weights)
        seeds = rng.integers(2**31, size=num_rows)

        # this process takes every `num_replicas`-th row, and begins again if there are too few
        first = self.done + self.rank
        stop = self.num_samples * self.num_replicas
        indices = np.arange(first, stop, self.num_replicas) % num_rows
        return (Draw(int(order[index]), int(seeds[index])) for index in indices)


class EvalSampler(DistributedSampler[Draw]):
    """Splits rows between processes in order; rows that pad the last round are repeats."""

    def __iter__(self) -> Iterator[Draw]:
        num_rows = len(self.dataset)  # type: ignore[arg-type]
        indices = range(self.rank, self.total_size, self.num_replicas)
        return (Draw(index % num_rows, repeat=index >= num_rows) for index in indices)


class ShardRange(NamedTuple):
    """The part of a shard's shuffled rows that one process reads."""

    shard: int
    start: int
    stop: int  # may lie beyond the last row


class ShardSampler(TrainSampler):
    """Splits a `ShardDataset` into equal contiguous ranges, one per process.

    Each epoch shuffles the shards, and the rows of each shard.

    It is a sampler, not an `IterableDataset`, for two reasons. Each worker would have its own
    iterator over shards, so the number of workers would change which faces form a batch, and each
    worker would have shards in memory. Besides, a sampler has a position from which a run resumes.
    The cost: the main process reads the shards, and each encoded image goes through a queue to its
    worker, some kilobytes for a face.
    """

    dataset: ShardDataset

    def __iter__(self) -> Iterator[Draw]:
        ranges = self._shard_ranges()
        sizes = self.dataset.sizes  # (K,)
        first_rows = sizes.cumsum() - sizes  # (K,)
        shards = self.dataset.read_ahead(shard_range.shard for shard_range in ranges)
        for shard_range, faces in zip(ranges, shards, strict=True):
            # + 1: 0 would repeat the random numbers of the order of the shards
            rng = np.random.default_rng((self.seed, self.epoch, shard_range.shard + 1))
            order = rng.permutation(len(faces))
            seeds = rng.integers(2**31, size=len(faces))
            for row in order[shard_range.start : shard_range.stop].tolist():
                row_of_all = int(first_rows[shard_range.shard]) + row
                yield Draw(row_of_all, int(seeds[row]), face=faces.read_row(row))

    def _shard_ranges(self) -> list[ShardRange]:
        """Returns what this process reads of every shard in this epoch, in order."""
        sizes = self.dataset.sizes
        rng = np.random.default_rng((self.seed, self.epoch))

        # positions in the row of all shuffled shards, one after the other
        stop = (self.rank + 1) * self.num_samples
        start = stop - self.num_samples + self.done // self.num_replicas
        ranges = []
        first = 0  # of the shard
        for shard in rng.permutation(len(sizes)).tolist():
            end = first + int(sizes[shard])
            if first < stop and start < end:
                ranges.append(ShardRange(shard, max(start - first, 0), stop - first))
            first = end
        return ranges
