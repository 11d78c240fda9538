"""Facial regions: square boxes placed by five landmarks in the face's own frame.

The frame's unit is the larger of eye distance and eye-to-mouth distance, so that neither a turned nor a nodding head
shrinks it; its axes lie along and across the line through the eyes. Left and right are the person's.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fer_vit.errors import FerVitError
from fer_vit.geometry import LANDMARKS, Array


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
"""Every region there is, by name."""

DEFAULT_REGIONS = tuple(REGIONS)[:8]
"""Eyes, brows, nose, mouth and cheeks."""


def region_boxes(landmarks: ArrayLike, names: Sequence[str] = DEFAULT_REGIONS) -> NDArray[np.float32]:
    """Places R regions on a face with landmarks (5, 2) in pixels.

    Returns:
        Boxes (R, 4), xyxy in pixels. They may extend beyond the image.

    Raises:
        FerVitError: A name is not a region, or is there twice.
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


def visible(boxes: NDArray[np.float32], size: int) -> NDArray[np.bool_]:
    """Tells (R,) which boxes (R, 4) show part of a square image: at least two pixels wide, with the centre inside.

    A box that is not finite is not visible.
    """
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return ((centres >= 0) & (centres < size)).all(1) & (boxes[:, 2] - boxes[:, 0] >= 2)


def check_regions(names: Sequence[str]) -> None:
    """Raises FerVitError when a name is not a region or is there twice."""
    unknown = [name for name in names if name not in REGIONS]
    if unknown:
        raise FerVitError(f"Expected regions from {', '.join(REGIONS)}, but got `{unknown[0]}`.")
    if len(set(names)) < len(names):
        raise FerVitError(f"Expected every region once, but got {', '.join(names)}.")
