"""Finds five landmarks of a face by a small network, which also checks uncertain faces.

benchmarks/landmarks.py trained the network on rotated, covered, blurred and small faces; the
targets were YuNet's landmarks of the clear originals. benchmarks/second_look.py added the check,
called second look: a linear output of the last features, with the landmarks unchanged.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from fer_vit.face.crop import warp
from fer_vit.face.detection import Detection
from fer_vit.face.network import open_network
from fer_vit.faces import are_uncertain
from fer_vit.geometry import (
    MIRRORED,
    Array,
    Float32Array,
    Image,
    apply,
    box_matrix,
    crop_matrix,
    fit_matrix,
    full_box,
    invert,
)

LANDMARKS_FILE = Path(__file__).with_name("landmarks.onnx")
INPUT_SIDE = 64  # side of the network's input in pixels

# Longer side of a face's box in FERPlus' crops, as a fraction of the crop's side: the median of
# 1,500 crops; half of the crops have 0.92 to 1.01.
FACE_SHARE = 0.98

# How many faces the network gets at once: a crowd of faces needs no more memory.
MAX_FACES_AT_ONCE = 64

# The names of the network's outputs.
POINTS_OUTPUT = "linear"  # x and y of the landmarks, as fractions of the cut's side
FACE_OUTPUT = "face"  # the logit that a cut shows a face

# An uncertain face with a lower logit is rejected (see docs/results/benchmarks.md).
MIN_FACE_LOGIT = -1.5


class Look(NamedTuple):
    """The outputs of the network for the cuts of F faces."""

    landmarks: Array  # (F, 5, 2) in image pixels
    logits: Array  # (F,), the logit that the cut shows a face


def look(image: Image, to_cuts: Sequence[Array]) -> Look:
    """Runs the network on squares of an image (H, W, 3), then again on the same faces, upright.

    The matrices `to_cuts` (2, 3) map image pixels to the pixels of the squares. Returns the outputs
    of the second run.
    """
    landmarks = _look_in_cuts(image, to_cuts).landmarks
    return _look_in_cuts(image, [crop_matrix(points, INPUT_SIDE) for points in landmarks])


def detect_landmarks(image: Image, to_cuts: Sequence[Array]) -> Array:
    """Returns the landmarks (F, 5, 2) of faces in squares; arguments as for `look`."""
    return look(image, to_cuts).landmarks


def refine_points(image: Image, landmarks: Array) -> Array:
    """Refines approximate landmarks (F, 5, 2) in an image (H, W, 3) or a grey one (H, W).

    The network gets cuts in which the approximate landmarks are upright.
    """
    return _look_in_cuts(image, [crop_matrix(points, INPUT_SIDE) for points in landmarks]).landmarks


def refine_landmarks(image: Image, faces: Sequence[Detection]) -> list[Detection]:
    """Returns the faces of an image (H, W, 3) with landmarks from the network.

    Landmarks from detectors depend more on size, surroundings and colours.
    """
    refined = []
    for face, landmarks in zip(faces, _look_at(image, faces).landmarks, strict=True):
        refined.append(face._replace(landmarks=landmarks))
    return refined


def confirm_faces(
    image: Image, faces: Sequence[Detection], sure_score: float | None
) -> list[Detection]:
    """Refines the landmarks of faces, and leaves out uncertain faces that the network rejects.

    The image is (H, W, 3). Faces with a score below `sure_score` are uncertain; None: no face is
    uncertain.
    """
    scores = np.array([face.score for face in faces])
    uncertain = are_uncertain(scores, sure_score)
    looks = _look_at(image, faces)
    is_face = (looks.logits >= MIN_FACE_LOGIT) | ~uncertain
    confirmed = []
    for face, landmarks, keep in zip(faces, looks.landmarks, is_face.tolist(), strict=True):
        if keep:
            confirmed.append(face._replace(landmarks=landmarks))
    return confirmed


def _look_at(image: Image, faces: Sequence[Detection]) -> Look:
    """Runs the network on the faces in an image (H, W, 3), in cuts framed as in training."""
    return look(
        image,
        [
            box_matrix(face.box, INPUT_SIDE, FACE_SHARE * INPUT_SIDE / face.longer_side)
            for face in faces
        ],
    )


def full_image_face(image: Image) -> Detection:
    """Returns a face that fills the image (H, W, 3), with score NaN.

    If the image shows no face, the landmarks are arbitrary.
    """
    (landmarks,) = detect_landmarks(image, [fit_matrix(image, INPUT_SIDE)])
    return Detection(full_box(image), landmarks, np.nan)


def network_input(cut: Image) -> Float32Array:
    """Returns the network's input (1, S, S) for a cut (S, S, 3) or a grey one (S, S).

    The input is grey, with mean 0 and deviation 1.
    """
    luma = cv2.cvtColor(cut, cv2.COLOR_RGB2GRAY) if cut.ndim == 3 else cut
    grey = np.asarray(luma, np.float32)
    return np.asarray((grey - grey.mean()) / (grey.std() + 2))[None]


def _look_in_cuts(image: Image, to_cuts: Sequence[Array]) -> Look:
    """Runs the network on cuts and on their mirror images, and averages the outputs.

    So a mirrored face gets mirrored landmarks. Arguments are as for `look`.
    """
    landmarks = np.empty((len(to_cuts), 5, 2))
    logits = np.empty(len(to_cuts))
    for first in range(0, len(to_cuts), MAX_FACES_AT_ONCE):
        matrices = to_cuts[first : first + MAX_FACES_AT_ONCE]
        cuts = np.stack([network_input(warp(image, matrix, INPUT_SIDE)) for matrix in matrices])
        points, face_logits = _run_network(
            np.concatenate([cuts, cuts[..., ::-1]])
        )  # (2 F, 5, 2), (2 F,)
        plain, mirrored = np.split(points, 2)
        averaged = (plain + mirrored[:, list(MIRRORED)] * [-1.0, 1.0] + [INPUT_SIDE, 0.0]) / 2
        logits[first : first + MAX_FACES_AT_ONCE] = face_logits.reshape(2, -1).mean(0)
        for row, matrix in enumerate(matrices):
            landmarks[first + row] = apply(invert(matrix), averaged[row])
    return Look(landmarks, logits)


@cache
def _network() -> Any:
    return open_network(LANDMARKS_FILE.read_bytes())


def _run_network(cuts: Float32Array) -> tuple[Array, Array]:
    """Returns landmarks (B, 5, 2) in pixels of the cuts (B, 1, S, S), and the face logits (B,)."""
    points, logits = _network().run([POINTS_OUTPUT, FACE_OUTPUT], {"image": cuts})
    return np.asarray(points.reshape(-1, 5, 2) * INPUT_SIDE, float), np.asarray(logits[:, 0], float)
