"""From an image and its landmarks to a model's crop and region boxes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fer_vit.face.geometry import TEMPLATE, Align, Array, Image, apply, crop_matrix, fit_matrix, warp
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


def crop_face(image: Image, landmarks: Array | None, spec: CropSpec, framed: bool) -> tuple[Image, Array, Array]:
    """Crops a face from its image.

    Args:
        image: The image (H, W, 3), RGB uint8.
        landmarks: Points (5, 2) in the image, or None: then the image is taken whole.
        spec: How a face becomes a crop.
        framed: The image is the crop of one face already, so that a model with `align` "crop" takes it whole.

    Returns:
        The crop (S, S, 3), the landmarks in it (5, 2), without known ones where the template has them, and the matrix
        (2, 3) from image to crop pixels.
    """
    if landmarks is None or (framed and spec.align == "crop"):
        to_crop = fit_matrix(image, spec.size)
    else:
        to_crop = crop_matrix(landmarks, spec.size, spec.template, spec.align)
    points = np.asarray(spec.template, float) * spec.size if landmarks is None else apply(to_crop, landmarks)
    return warp(image, to_crop, spec.size), points, to_crop


def place_regions(landmarks: Array, spec: CropSpec) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Returns region boxes (R, 4) and which are there (R,), for landmarks (5, 2) in crop pixels."""
    boxes = region_boxes(landmarks, spec.regions)
    valid = visible(boxes, spec.size)
    boxes[~valid] = 0.0
    return boxes, valid
