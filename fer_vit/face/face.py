"""A face in an image: its box, five landmarks and the detector's score."""

from typing import NamedTuple

import numpy as np

from fer_vit.geometry import Array

SURE = 0.8
"""Score below which a face is uncertain: in docs/results/benchmarks.md, nearly all false faces are below it."""


def is_uncertain(score: float | None) -> bool:
    """Returns whether a detector found a face, but may be wrong; not without a detector, or where it found none."""
    return score is not None and 0 < score < SURE


class Face(NamedTuple):
    """A face in an image, in the image's pixels."""

    box: Array  # xyxy (4,); may extend beyond the image
    landmarks: Array  # (5, 2) in the order of `geometry.LANDMARKS`
    score: float  # in [0, 1]; 0 for a full-image face because none was found, NaN without detection

    @property
    def side(self) -> float:
        """The side of a square as large as the box, in pixels."""
        return float(np.sqrt(np.prod(self.box[2:] - self.box[:2])))

    @property
    def longer_side(self) -> float:
        """The longer side of the box in pixels."""
        return float(np.max(self.box[2:] - self.box[:2]))

    @property
    def centre(self) -> Array:
        """The centre (2,) of the box."""
        return (self.box[:2] + self.box[2:]) / 2

    def moved(self, scale: float | Array, shift: float | Array = 0.0) -> "Face":
        """Returns the face in the pixels of another image, where x and y are multiplied by `scale`, then shifted."""
        corners = self.box.reshape(2, 2) * scale + shift
        return Face(corners.ravel(), self.landmarks * scale + shift, self.score)


def best(faces: list[Face]) -> Face | None:
    """Returns the face with the greatest score times side; None without a face."""
    return max(faces, key=lambda face: face.score * face.side, default=None)


def box_iou(face: Face, other: Face) -> float:
    """Returns the intersection over union of two faces' boxes."""
    sides = np.minimum(face.box[2:], other.box[2:]) - np.maximum(face.box[:2], other.box[:2])
    common = float(np.prod(sides.clip(0)))
    return common / (face.side**2 + other.side**2 - common)
