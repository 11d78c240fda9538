"""Faces of a manifest as samples."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler

from fer_vit.data.crop import CropSpec, crop_face, place_regions
from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Sample
from fer_vit.errors import FerVitError
from fer_vit.face.geometry import Array, Image
from fer_vit.face.image import ImageError, decode_image

Change: TypeAlias = Callable[[Image, Array, int], tuple[Image, Array]]
"""Changes a crop (S, S, 3) and its landmarks (5, 2) in crop pixels, given a seed."""


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

    def __getitem__(self, index: int) -> Sample:
        """Returns the sample of a row; a negative number -1 - row is that row as a repeat (see `EvalSampler`)."""
        row = index if index >= 0 else -1 - index
        name = self.manifest.name(row)
        try:
            image = decode_image(self.manifest.image_bytes(row))
        except ImageError as error:
            raise FerVitError(f"{self.manifest.path}, image {name}: {error}.") from error
        landmarks = None if np.isnan(self.landmarks[row]).any() else self.landmarks[row]
        crop, points, to_crop = crop_face(image, landmarks, self.spec, framed=True)
        if self.augment is not None:
            crop, points = self.augment(crop, points, int(torch.randint(2**31, ())))
        boxes, valid = place_regions(points, self.spec)
        target = None if self.targets is None else self.targets[row]
        return Sample(crop, boxes, valid, target, max(index, -1), name, to_crop)


class EvalSampler(DistributedSampler[int]):
    """Deals rows out to processes in order; rows that only fill up the last round are marked as repeats.

    A plain `DistributedSampler` repeats rows so that every process gets as many, and they would count twice in the
    figures. Here a repeat of a row comes as -1 - row.
    """

    def __init__(self, dataset: FaceDataset, num_replicas: int | None = None, rank: int | None = None) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)

    def __iter__(self) -> Iterator[int]:
        for place, row in zip(range(self.rank, self.total_size, self.num_replicas), super().__iter__(), strict=True):
            yield row if place < len(self.dataset) else -1 - row  # type: ignore[arg-type]
