"""The result of a detector for a face: a box, five landmarks and a score."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fer_vit.faces import NOT_FOUND, Faces, PhotoInfo, found_faces
from fer_vit.geometry import Array


class Detection(NamedTuple):
    """A detected face, in pixels of the image; `to_faces` turns detections into `Faces`."""

    box: Array  # (4,), xyxy; may extend beyond the image
    landmarks: Array  # (5, 2) in the order of `geometry.LANDMARKS`
    score: float  # in [0, 1]; `NOT_FOUND` for a full image, NaN without a detector

    @property
    def not_found(self) -> bool:
        """Whether a detector found no face, so that the full image counts as a face."""
        return self.score == NOT_FOUND

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

    def moved(self, scale: float | Array, shift: float | Array = 0.0) -> "Detection":
        """Returns the face with x and y multiplied by `scale`, then shifted.

        Scale and shift are numbers for both axes, or arrays (2,) with one number for each axis.
        """
        corners = self.box.reshape(2, 2) * scale + shift
        return Detection(corners.ravel(), self.landmarks * scale + shift, self.score)


def best(faces: list[Detection]) -> Detection | None:
    """Returns the face with the greatest score times side; None without a face."""
    return max(faces, key=lambda face: face.score * face.side, default=None)


def box_iou(first: Detection, second: Detection) -> float:
    """Returns the intersection over union (IoU) of the boxes of two faces."""
    sides = np.minimum(first.box[2:], second.box[2:]) - np.maximum(first.box[:2], second.box[:2])
    common = float(np.prod(sides.clip(0)))
    return common / (first.side**2 + second.side**2 - common)


def to_faces(
    info: PhotoInfo, faces: Sequence[Detection | None], tracks: Sequence[int] | None = None
) -> Faces:
    """Turns the detections of one photo or frame into faces.

    Args:
        info: The photo or frame.
        faces: The N detections; None stands for a crop that was not searched.
        tracks: The track (N,) of each face in a video. None: a photo.
    """
    box = np.full((len(faces), 4), np.nan)
    landmarks = np.full((len(faces), 5, 2), np.nan)
    score = np.full(len(faces), np.nan)
    for row, face in enumerate(faces):
        if face is not None:
            box[row] = face.box
            landmarks[row] = face.landmarks
            score[row] = face.score
    photo = np.zeros(len(faces), np.int64)
    return found_faces([info], photo, box=box, landmarks=landmarks, score=score, track=tracks)
