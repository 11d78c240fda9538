"""The contract between data and model: one face, and a batch of faces."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fer_vit.geometry import Array, Float32Array, Image, Mask


class Sample(NamedTuple):
    """One face."""

    image: Image  # crop (S, S, 3)
    boxes: Float32Array  # of the regions (R, 4), xyxy in crop pixels; 0 where not `valid`
    valid: Mask  # which regions are present (R,)
    target: Array | None  # share of every class (C,)
    row: int  # in the data set; -1 for a repeat that only pads a rank's share
    path: str  # the name of the image
    to_crop: Array  # matrix (2, 3) from image to crop pixels, before a mirror


class Batch(NamedTuple):
    """B samples, stacked."""

    image: Tensor  # (B, 3, S, S); uint8 on the way to the device, float in [0, 1] for the model
    boxes: Tensor  # (B, R, 4); 0 where `valid` is False
    valid: Tensor  # (B, R)
    target: Tensor | None  # (B, C)
    row: Tensor  # (B,)
    path: list[str]
    to_crop: Tensor  # (B, 2, 3)

    def split(self, size: int) -> Iterator["Batch"]:
        """Yields the batch in chunks of at most `size` faces."""
        for start in range(0, len(self.path), size):
            yield Batch(*(None if field is None else field[start : start + size] for field in self))  # type: ignore[arg-type]

    def ready(self, device: torch.device) -> "Batch":
        """Moves the model's inputs to its device, the images as float in [0, 1]."""
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
    """A row of a manifest, with its image still encoded."""

    manifest: str | Path  # the name of the manifest or shard
    path: str  # the name of the image
    image: bytes
    landmarks: Array  # (5, 2) in image pixels; NaN where there are none
    target: Array | None  # share of every class (C,)


class Draw(NamedTuple):
    """A row that a sampler has drawn."""

    row: int
    seed: int = 0  # of its augmentation
    repeat: bool = False  # the row only pads a rank's share
    face: EncodedFace | None = None  # the contents of the row, for a data set of shards
