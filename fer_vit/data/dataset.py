"""Faces of a manifest as samples, and the order in which they come.

Order and augmentation of a run follow from its seed and the epoch alone, so that it goes on as if nothing had happened,
and any number of processes or workers sees the same faces, changed in the same way.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from torch.utils.data import Dataset

from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Draw, Sample
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.face.image import ImageError, decode_image
from fer_vit.geometry import Array, Image

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
