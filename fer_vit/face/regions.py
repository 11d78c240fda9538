"""Facial regions: square boxes placed by five landmarks in a coordinate frame of the face.

Its unit is the larger of eye distance and eye-to-mouth distance, which is stable for turned and nodding heads. Its axes
are parallel and perpendicular to the line through the eyes. Left and right are the person's.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fer_vit.errors import FerVitError
from fer_vit.geometry import LANDMARKS, Array, Image


class Region(NamedTuple):
    """A square: centred on the mean of `anchors` (landmark rows) plus `offset`, with `side`, in units of the face.

    `offset` is (towards the person's left, towards the chin).
    """

    anchors: tuple[int, ...]
    offset: tuple[float, float]
    side: float


REGIONS = {
    "right_eye": Region((0,), (0.0, 0.0), 0.60),
    "left_eye": Region((1,), (0.0, 0.0), 0.60),
    "right_brow": Region((0,), (0.0, -0.36), 0.65),
    "left_brow": Region((1,), (0.0, -0.36), 0.65),
    "nose": Region((2,), (0.0, -0.10), 0.75),
    "mouth": Region((3, 4), (0.0, 0.05), 0.95),
    "right_cheek": Region((0, 3), (-0.18, 0.05), 0.65),
    "left_cheek": Region((1, 4), (0.18, 0.05), 0.65),
    "glabella": Region((0, 1), (0.0, -0.25), 0.55),
    "forehead": Region((0, 1), (0.0, -0.75), 0.80),
    "chin": Region((3, 4), (0.0, 0.50), 0.70),
}
"""All regions by name."""

DEFAULT_REGIONS = tuple(REGIONS)[:8]
"""Eyes, brows, nose, mouth and cheeks."""


def region_boxes(landmarks: ArrayLike, names: Sequence[str] = DEFAULT_REGIONS) -> NDArray[np.float32]:
    """Places R regions on a face with landmarks (5, 2) in pixels: boxes (R, 4), xyxy, perhaps beyond the image.

    Raises FerVitError when a name is unknown or repeated.
    """
    weights, offsets, sides = _tables(tuple(names))
    points = np.asarray(landmarks, float)
    across, down = points[1] - points[0], (points[3] + points[4] - points[0] - points[1]) / 2
    eye_distance = np.hypot(*across)
    unit = max(eye_distance, np.hypot(*down))
    x, y = across / max(eye_distance, 1e-9)  # towards the person's left
    centres = weights @ points + unit * offsets @ np.array([[x, y], [-y, x]])  # (R, 2)
    half = unit * sides[:, None] / 2
    return np.hstack([centres - half, centres + half]).astype(np.float32)


@lru_cache
def _tables(names: tuple[str, ...]) -> tuple[Array, Array, Array]:
    """Landmark weights (R, 5), offsets (R, 2) and sides (R,) of regions."""
    check_regions(names)
    regions = [REGIONS[name] for name in names]
    weights = np.zeros((len(regions), len(LANDMARKS)))
    for row, region in zip(weights, regions, strict=True):
        row[list(region.anchors)] = 1 / len(region.anchors)
    return weights, np.array([r.offset for r in regions]).reshape(-1, 2), np.array([r.side for r in regions])


def cover_regions(image: Image, landmarks: Array, regions: Sequence[str], grey: int | None = None) -> Image:
    """Fills the smallest rectangle around regions of an image (H, W, 3) with a grey; None: with the mean colour."""
    boxes, size = region_boxes(landmarks, regions), image.shape[1::-1]
    left, top = np.clip(np.floor(boxes[:, :2].min(0)), 0, size).astype(int)
    right, bottom = np.clip(np.ceil(boxes[:, 2:].max(0)), 0, size).astype(int)
    image = image.copy()
    image[top:bottom, left:right] = image.mean((0, 1)).round() if grey is None else grey
    return image


def visible(boxes: NDArray[np.float32], size: int) -> NDArray[np.bool_]:
    """Returns (R,) which finite boxes (R, 4) are at least two pixels wide, with the centre inside a square image."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return ((centres >= 0) & (centres < size)).all(1) & (boxes[:, 2] - boxes[:, 0] >= 2)


def check_regions(names: Sequence[str]) -> None:
    """Raises FerVitError for unknown and repeated names."""
    unknown = [name for name in names if name not in REGIONS]
    if unknown:
        raise FerVitError(f"Expected regions from {', '.join(REGIONS)}, but got `{unknown[0]}`.")
    if len(set(names)) < len(names):
        raise FerVitError(f"Expected every region once, but got {', '.join(names)}.")
