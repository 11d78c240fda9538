"""The contract between data and model: one face, and a batch of faces."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fer_vit.geometry import Array, Image


class Sample(NamedTuple):
    """One face.

    Attributes:
        image: Crop (S, S, 3), RGB uint8.
        boxes: Region boxes (R, 4), xyxy in crop pixels; anything where `valid` is False.
        valid: Which regions are there (R,).
        target: Share of every class (C,), or None.
        row: Row of the face in its data set; -1 for a repeat that only fills up a process's share.
        path: What to call the image.
        to_crop: Matrix (2, 3) from image to crop pixels, before augmentation.
    """

    image: Image
    boxes: NDArray[np.float32]
    valid: NDArray[np.bool_]
    target: Array | None
    row: int
    path: str
    to_crop: Array


class Batch(NamedTuple):
    """B faces.

    Attributes:
        image: Crops (B, 3, S, S), RGB; uint8 on the way to the device, float in [0, 1] when the model gets them.
        boxes: Region boxes (B, R, 4), xyxy in crop pixels; 0 where `valid` is False.
        valid: Which regions are there (B, R).
        target: Share of every class (B, C), or None.
        row: Rows in the data set (B,); -1 for repeats.
        path: What to call the images.
        to_crop: Matrices (B, 2, 3) from image to crop pixels.
    """

    image: Tensor
    boxes: Tensor
    valid: Tensor
    target: Tensor | None
    row: Tensor
    path: list[str]
    to_crop: Tensor

    def split(self, size: int) -> Iterator["Batch"]:
        """Yields the batch in chunks of at most `size` faces."""
        for start in range(0, len(self.path), size):
            yield Batch(*(None if field is None else field[start : start + size] for field in self))  # type: ignore[arg-type]

    def ready(self, device: torch.device) -> "Batch":
        """Brings what the model reads to its device, the images as numbers in [0, 1]."""
        image = self.image.to(device).float() / 255
        return self._replace(image=image, boxes=self.boxes.to(device), valid=self.valid.to(device))


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks samples, one or more, into a batch."""
    images = torch.from_numpy(np.stack([sample.image for sample in samples]))
    targets = [sample.target for sample in samples if sample.target is not None]
    return Batch(
        image=images.permute(0, 3, 1, 2).contiguous(),
        boxes=torch.from_numpy(np.stack([sample.boxes for sample in samples])),
        valid=torch.from_numpy(np.stack([sample.valid for sample in samples])),
        target=torch.from_numpy(np.stack(targets)).float() if targets else None,
        row=torch.tensor([sample.row for sample in samples]),
        path=[sample.path for sample in samples],
        to_crop=torch.from_numpy(np.stack([sample.to_crop for sample in samples])).float(),
    )


class EncodedFace(NamedTuple):
    """A row of a manifest, its image not decoded yet.

    Attributes:
        manifest: What to call the manifest or shard.
        path: What to call the image.
        image: The encoded image.
        landmarks: Points (5, 2) in image pixels; NaN where there are none.
        target: Share of every class (C,), or None.
    """

    manifest: str | Path
    path: str
    image: bytes
    landmarks: Array
    target: Array | None


class Draw(NamedTuple):
    """A row as a sampler asks for it.

    Attributes:
        row: The row.
        seed: Of its augmentation.
        repeat: Whether the row only fills up a process's share.
        face: What is in the row, for a data set that does not hold it.
    """

    row: int
    seed: int = 0
    repeat: bool = False
    face: EncodedFace | None = None
