"""The contract between data and model: one face, and a batch of faces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fer_vit.face.geometry import TEMPLATE, Align, Array, Image
from fer_vit.face.regions import DEFAULT_REGIONS, region_boxes, visible


@dataclass(frozen=True)
class CropSpec:
    """How a face becomes a model's input. It travels in the checkpoint.

    Attributes:
        size: Side S of the square crop in pixels.
        regions: Names of the regions.
        align: "landmarks" turns and scales every face onto the template; "crop" takes images as they are framed.
        template: Where the landmarks belong in the crop (5, 2), as fractions of its side.
    """

    size: int
    regions: tuple[str, ...] = DEFAULT_REGIONS
    align: Align = "landmarks"
    template: tuple[tuple[float, float], ...] = TEMPLATE


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


def place_regions(landmarks: Array | None, spec: CropSpec) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Returns region boxes (R, 4) and which are there (R,), for landmarks (5, 2) in crop pixels or None."""
    if landmarks is None:
        return np.zeros((len(spec.regions), 4), np.float32), np.zeros(len(spec.regions), bool)
    boxes = region_boxes(landmarks, spec.regions)
    valid = visible(boxes, spec.size)
    boxes[~valid] = 0.0
    return boxes, valid
