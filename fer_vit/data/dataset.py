"""Faces of a manifest as samples.

Their order and augmentation depend only on the run's seed and the epoch: an interrupted run resumes with the faces it
would have continued with, and any number of processes or workers reads the same faces, augmented in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm

from fer_vit.data.manifest import Manifest, named_in_errors, no_label
from fer_vit.data.sample import Batch, Draw, EncodedFace, Sample, collate
from fer_vit.data.shards import Shard, find_shards
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, crop_face, mirror, place_regions
from fer_vit.face.image import decode_image
from fer_vit.geometry import Array, Image

Cropping: TypeAlias = Callable[[Image, Array | None, CropSpec, int], tuple[Image, Array, Array]]
"""Crops and augments a face, given its landmarks (5, 2) and a seed; returns what `crop_face` does."""


class FaceDataset(Dataset[Sample]):
    """The rows of a manifest, cropped and augmented (see `transforms.Augment`)."""

    def __init__(self, manifest: Manifest, spec: CropSpec, augment: Cropping | None = None) -> None:
        self.manifest = manifest
        self.spec = spec
        self.augment = augment
        self.landmarks = manifest.landmarks()
        self.targets = manifest.targets()

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
        target = None if self.targets is None else self.targets[row]
        return EncodedFace(path, name, image, self.landmarks[row], target)


class ShardDataset(Dataset[Sample]):
    """The training rows of a folder or URL of shards with these labels; `ShardSampler` passes the rows in.

    A process reads its shards one after the other, prefetching the next one, and passes their rows, images still
    encoded, to its workers: each row is read once, and at most three shards are in memory.

    Raises:
        FerVitError: There are none, one cannot be read, or they are from different runs of `prepare`.
    """

    def __init__(
        self,
        path: str | Path,
        names: tuple[str, ...],
        spec: CropSpec,
        augment: Cropping | None,
        unlabelled: bool = False,
    ) -> None:
        self.names = names
        self.unlabelled = unlabelled
        self.spec = spec
        self.augment = augment
        self.shards = [shard for shard in find_shards(path) if shard.split == "train"]
        if not self.shards:
            raise FerVitError(f"{path} has no rows with split train. Prepare the data set with that split.")
        with ThreadPoolExecutor() as pool:
            footers = list(pool.map(Shard.footer, self.shards))
        if len({(footer.metadata or {}).get(b"fer_vit") for footer in footers}) > 1:
            raise FerVitError(f"{path} holds shards of more than one `prepare`. Copy the whole folder again.")
        self.sizes = np.array([footer.num_rows for footer in footers])  # (K,)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def __getitem__(self, draw: Draw) -> Sample:
        assert draw.face is not None
        return make_sample(draw.face, draw, self.spec, self.augment)

    def read(self, index: int) -> FaceDataset:
        """Reads a shard; raises FerVitError when it is invalid or has changed, or a row lacks the label it needs."""
        shard = self.shards[index]
        faces = FaceDataset(Manifest.read_shard(shard, self.names), self.spec)
        if len(faces) != self.sizes[index]:
            raise FerVitError(f"{shard.location} has changed. Resume when nothing writes to the shards.")
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


def make_sample(face: EncodedFace, draw: Draw, spec: CropSpec, augment: Cropping | None = None) -> Sample:
    """Decodes, crops and augments a face; raises FerVitError when its image cannot be decoded."""
    with named_in_errors(face.manifest, face.path):
        image = decode_image(face.image)
    landmarks = None if np.isnan(face.landmarks).any() else face.landmarks
    if augment is None:
        crop, points, to_crop = crop_face(image, landmarks, spec, framed=True)
    else:
        crop, points, to_crop = augment(image, landmarks, spec, draw.seed)
    boxes, valid = place_regions(points, spec)
    return Sample(crop, boxes, valid, face.target, -1 if draw.repeat else draw.row, face.path, to_crop)


def face_batches(dataset: FaceDataset, chosen: Sequence[int], size: int, device: torch.device) -> Iterator[Batch]:
    """Yields the chosen rows in batches that are ready for a model on the device, under a progress bar."""
    loader = DataLoader(Subset(dataset, chosen), size, collate_fn=collate)
    return (batch.ready(device) for batch in tqdm(loader, unit=" batches", disable=None, leave=False))


def crop_mirrored(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> tuple[Image, Array, Array]:
    """Crops a face and mirrors the crop; the matrix maps to the crop before mirroring."""
    crop, points, to_crop = crop_face(image, landmarks, spec, framed=True)
    return *mirror(crop, points), to_crop
