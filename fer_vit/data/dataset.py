"""Faces of a manifest as samples.

Their order and augmentation depend only on the run's seed and the epoch: an interrupted run resumes as if it had never
stopped, and any number of processes or workers sees the same faces, augmented in the same way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
from torch.utils.data import Dataset

from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Draw, EncodedFace, Sample
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.face.image import ImageError, decode_image
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
        return make_sample(self.encoded(draw.row), draw, self.spec, self.augment)

    def encoded(self, row: int) -> EncodedFace:
        """Returns a row as it is stored in the manifest."""
        path, name = self.manifest.path, self.manifest.name(row)
        with named_in_errors(path, name):
            image = self.manifest.image_bytes(row)
        target = None if self.targets is None else self.targets[row]
        return EncodedFace(path, name, image, self.landmarks[row], target)


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


@contextmanager
def named_in_errors(manifest: str | Path, path: str) -> Iterator[None]:
    """Adds manifest and path to an ImageError."""
    try:
        yield
    except ImageError as error:
        raise FerVitError(f"{manifest}, image {path}: {error}.") from error
