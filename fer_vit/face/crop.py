"""From an image and its landmarks to a model's crop and region boxes."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fer_vit.face.regions import DEFAULT_REGIONS, region_boxes, visible
from fer_vit.geometry import MIRRORED, TEMPLATE, Align, Array, Image, apply, compose, crop_matrix, fit_matrix, invert


@dataclass(frozen=True)
class CropSpec:
    """How a face becomes a model's input. Stored in the checkpoint."""

    size: int  # side S of the square crop in pixels
    regions: tuple[str, ...] = DEFAULT_REGIONS
    align: Align = "landmarks"  # rotate and scale faces to the template; "crop": use images unchanged
    template: tuple[tuple[float, float], ...] = TEMPLATE  # the landmarks (5, 2) as fractions of the side


UNCHANGED = np.eye(2, 3)


def crop_face(
    image: Image, landmarks: Array | None, spec: CropSpec, framed: bool, change: Array = UNCHANGED
) -> tuple[Image, Array, Array]:
    """Crops a face: the crop (S, S, 3), its landmarks (5, 2) and the matrix (2, 3) from image to crop pixels.

    Args:
        image: The image (H, W, 3), RGB uint8.
        landmarks: Points (5, 2) in the image. None: use the full image, and the template's landmarks.
        spec: Size S, regions and alignment.
        framed: Whether the image is a face crop already; models with `align` "crop" use all of it.
        change: A further matrix (2, 3) in crop pixels, for augmentation.
    """
    to_crop = face_matrix(image, landmarks, spec, framed)
    points = np.asarray(spec.template, float) * spec.size if landmarks is None else apply(to_crop, landmarks)
    to_crop, points = compose(change, to_crop), apply(change, points)
    return warp(image, to_crop, spec.size), points, to_crop


def face_matrix(image: Image, landmarks: Array | None, spec: CropSpec, framed: bool) -> Array:
    """Returns the matrix (2, 3) from image to crop pixels; arguments as for `crop_face`."""
    if landmarks is None or (framed and spec.align == "crop"):
        return fit_matrix(image, spec.size)
    return crop_matrix(landmarks, spec.size, spec.template, spec.align)


def place_regions(landmarks: Array, spec: CropSpec) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Returns region boxes (R, 4) and which are visible (R,), for landmarks (5, 2) in crop pixels."""
    boxes = region_boxes(landmarks, spec.regions)
    valid = visible(boxes, spec.size)
    boxes[~valid] = 0.0
    return boxes, valid


CUT = 384
"""Largest side in pixels of the result of `cut_out`."""


def cut_out(image: Image, box: Array) -> tuple[Image, Array]:
    """Cuts a face out of a photo (H, W, 3), given its box (4,), with half the box around it.

    Returns a square of at most CUT pixels, and the matrix (2, 3) from the photo to it.
    """
    side = 2 * max(box[2:] - box[:2])
    scale = min(1.0, CUT / side)
    size = round(scale * side)
    matrix = np.column_stack([scale * np.eye(2), size / 2 - scale * (box[:2] + box[2:]) / 2])
    return warp(image, matrix, size), matrix


BORDER = cv2.BORDER_REPLICATE
"""The border is repeated outside an image: an artificial edge would look like a contour of the face."""
INTERPOLATION, REDUCTION = cv2.INTER_CUBIC, cv2.INTER_AREA
"""Cubic, because linear interpolation blurs small faces; reductions average areas."""
SMALLER = 0.75
"""Smaller scales are reductions; averaging would blur faces of about equal size."""


def warp(image: Image, matrix: ArrayLike, size: int) -> Image:
    """Draws the crop (size, size, 3) that a matrix (2, 3) from image to crop pixels describes.

    A warp reads only neighbouring pixels, so reductions would alias: noise, subpixel shifts and compression change the
    crop. Reduced crops are drawn at twice their size and averaged; strongly reduced ones from an averaged image.
    """
    m = np.asarray(matrix, float)
    scale = float(np.sqrt(abs(np.linalg.det(m[:, :2]))))
    drawn = 2 * size if 0 < scale < SMALLER else size
    if 0 < scale < 0.5:
        image, m = _window(image, m, size, margin=2 / scale)  # a face is a small part of a photo
        height, width = (max(1, round(side * 2 * scale)) for side in image.shape[:2])
        reduced = cv2.resize(image, (width, height), interpolation=REDUCTION)
        back = np.array([[image.shape[1] / width, 0.0, 0.0], [0.0, image.shape[0] / height, 0.0]])
        image, m = np.asarray(reduced, np.uint8), compose(m, back)
    m = m * (drawn / size)
    # OpenCV puts a pixel's centre at integer coordinates; here it lies at +0.5.
    m = m + np.array([[0.0, 0.0, 0.5 * (m[0, 0] + m[0, 1]) - 0.5], [0.0, 0.0, 0.5 * (m[1, 0] + m[1, 1]) - 0.5]])
    crop = cv2.warpAffine(image, m, (drawn, drawn), flags=INTERPOLATION, borderMode=BORDER)
    return np.asarray(crop if drawn == size else cv2.resize(crop, (size, size), interpolation=REDUCTION), np.uint8)


def _window(image: Image, matrix: Array, size: int, margin: float) -> tuple[Image, Array]:
    """Cuts an image to the area of a crop plus a margin in pixels; returns it and the matrix from it to the crop."""
    corners = apply(invert(matrix), [(0, 0), (size, 0), (0, size), (size, size)])
    end = np.array(image.shape[1::-1])
    start = np.clip(np.floor(corners.min(0) - margin), 0, end - 1).astype(int)
    stop = np.clip(np.ceil(corners.max(0) + margin), start + 1, end).astype(int)
    return image[start[1] : stop[1], start[0] : stop[0]], compose(matrix, np.column_stack([np.eye(2), start]))


def mirror(image: Image, landmarks: Array) -> tuple[Image, Array]:
    """Mirrors a crop (S, S, 3) and its landmarks (5, 2), and swaps left and right landmarks."""
    mirrored: Array = landmarks * [-1.0, 1.0] + [image.shape[1], 0.0]
    return np.ascontiguousarray(image[:, ::-1]), mirrored[list(MIRRORED)]
