"""Coordinates in a face image: landmarks and 2x3 matrices.

Points are (x, y) in pixels with the origin at the upper left corner of the upper left pixel, so
that a pixel's centre lies at +0.5 and scaling an image by s multiplies every coordinate by s. Boxes
are xyxy in the same coordinates. Images are RGB uint8 (H, W, 3).
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Image = NDArray[np.uint8]
Array = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
Mask = NDArray[np.bool_]
Align = Literal["landmarks", "crop"]

# The landmarks in order: the person's right comes first and has the smaller x in an upright photo.
LANDMARKS = ("right_eye", "left_eye", "nose", "right_mouth", "left_mouth")

# The order of the rows of landmarks after mirroring: the person's right and left swap.
MIRRORED = (1, 0, 2, 4, 3)

# Landmarks of the standard crop as fractions of its side: FERPlus' mean face, made symmetric.
TEMPLATE = ((0.325, 0.381), (0.675, 0.381), (0.500, 0.587), (0.362, 0.751), (0.638, 0.751))


def similarity(source: ArrayLike, target: ArrayLike, rotate: bool = True) -> Array:
    """Returns the similarity (2, 3), without reflection, that maps points (L, 2) to points (L, 2).

    This is the least-squares fit (Umeyama 1991). Without rotation, the similarity shifts and scales
    the points to the mean and the standard deviation of the target points.
    """
    # With points as complex numbers x + iy, rotation and scale together are one factor.
    src, dst = (np.asarray(points, float) @ [1, 1j] for points in (source, target))
    a = src - src.sum() / len(src)
    b = dst - dst.sum() / len(dst)
    norm = max(np.vdot(a, a).real, 1e-12)
    # Without rotation, a least-squares fit would shrink a tilted face. An equal spread does not.
    turn = np.vdot(a, b) / norm if rotate else complex(np.sqrt(np.vdot(b, b).real / norm))
    shift = (dst.sum() - turn * src.sum()) / len(src)
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def compose(second: ArrayLike, first: ArrayLike) -> Array:
    """Returns the (2, 3) matrix that applies `first`, then `second`."""
    both: Array = np.asarray(second, float) @ np.vstack([np.asarray(first, float), [0.0, 0.0, 1.0]])
    return both


def invert(matrix: ArrayLike) -> Array:
    """Returns the inverse of a (2, 3) matrix."""
    m: Array = np.asarray(matrix, float)
    back = np.linalg.inv(m[:, :2])
    return np.column_stack([back, -back @ m[:, 2]])


def rotation(matrix: ArrayLike) -> float:
    """Returns the angle in degrees, clockwise, by which a (2, 3) matrix rotates."""
    m = np.asarray(matrix, float)
    return float(np.degrees(np.arctan2(m[1, 0], m[0, 0])))


def apply(matrix: ArrayLike, points: ArrayLike) -> Array:
    """Maps points (..., 2) by a (2, 3) matrix."""
    m: Array = np.asarray(matrix, float)
    mapped: Array = np.asarray(points, float) @ m[:, :2].T + m[:, 2]
    return mapped


def box_matrix(box: Array, size: int, scale: float) -> Array:
    """Returns the matrix (2, 3) that scales and centres a box (4,) in a square of `size` pixels."""
    return np.column_stack([scale * np.eye(2), size / 2 - scale * (box[:2] + box[2:]) / 2])


def full_box(image: Image) -> Array:
    """Returns the box (4,) of a full image."""
    return np.array([0, 0, image.shape[1], image.shape[0]], float)


def fit_matrix(image: Image, size: int) -> Array:
    """Returns the matrix (2, 3) that fits an image, undistorted, into a square of `size` pixels."""
    return box_matrix(full_box(image), size, size / max(image.shape[:2]))


def crop_matrix(
    landmarks: ArrayLike, size: int, template: ArrayLike = TEMPLATE, align: Align = "landmarks"
) -> Array:
    """Returns the matrix (2, 3) from landmarks (5, 2) to a template in fractions of `size`.

    With `align` "crop", the matrix does not rotate.
    """
    return similarity(landmarks, np.asarray(template, float) * size, rotate=align == "landmarks")


def move(size: int, degrees: float, scale: float, right: float, down: float) -> Array:
    """Returns the matrix (2, 3) that rotates, scales and shifts a square.

    The matrix rotates clockwise (degrees) and scales about the centre, then shifts by fractions of
    `size`.
    """
    turn = scale * np.exp(1j * np.deg2rad(degrees))
    shift = size * (complex(right, down) + (0.5 + 0.5j) - turn * (0.5 + 0.5j))
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])
