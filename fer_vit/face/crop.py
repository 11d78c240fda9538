"""From an image with landmarks to the crop of a face and the facial regions in the crop.

Regions are square boxes, placed by five landmarks in a frame of the face. The unit of the frame is
the larger of eye distance and eye-to-mouth distance; this is stable for turned and nodding heads.
The axes of the frame are parallel and perpendicular to the line through the eyes. Left and right
are the person's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike

import fer_vit.geometry as geometry
from fer_vit.errors import FerVitError
from fer_vit.geometry import Align, Array, Float32Array, Image, Mask


class Region(NamedTuple):
    """A square in the frame of the face; lengths are in units of the frame."""

    anchors: tuple[int, ...]  # rows of landmarks; the centre is their mean plus `offset`
    offset: tuple[float, float]  # (towards the person's left, towards the chin)
    side: float


REGIONS = {  # all regions by name
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
DEFAULT_REGIONS = tuple(REGIONS)[:8]  # eyes, brows, nose, mouth and cheeks


def region_boxes(landmarks: ArrayLike, regions: Sequence[str] = DEFAULT_REGIONS) -> Float32Array:
    """Returns the boxes (R, 4), xyxy, of regions in the pixels of the landmarks (5, 2).

    A box may lie outside of the image. Raises FerVitError for wrong names.
    """
    weights, offsets, sides = _region_geometry(tuple(regions))
    points = np.asarray(landmarks, float)
    across = points[1] - points[0]  # from eye to eye
    down = (points[3] + points[4] - points[0] - points[1]) / 2  # from the eyes to the mouth
    eye_distance = np.hypot(*across)
    unit = max(eye_distance, np.hypot(*down))
    x, y = across / max(eye_distance, 1e-9)  # towards the person's left
    centres = weights @ points + unit * offsets @ np.array([[x, y], [-y, x]])  # (R, 2)
    half = unit * sides[:, None] / 2
    return np.hstack([centres - half, centres + half]).astype(np.float32)


class RegionGeometry(NamedTuple):
    """The fields of R regions as arrays."""

    weights: Array  # (R, 5), the weight of each landmark in the centre of a region
    offsets: Array  # (R, 2)
    sides: Array  # (R,)


@lru_cache
def _region_geometry(names: tuple[str, ...]) -> RegionGeometry:
    check_regions(names)
    regions = [REGIONS[name] for name in names]
    weights = np.zeros((len(regions), len(geometry.LANDMARKS)))
    for row, region in zip(weights, regions, strict=True):
        row[list(region.anchors)] = 1 / len(region.anchors)
    offsets = np.array([region.offset for region in regions]).reshape(-1, 2)
    sides = np.array([region.side for region in regions])
    return RegionGeometry(weights, offsets, sides)


def cover_regions(
    image: Image, landmarks: Array, regions: Sequence[str], grey: int | None = None
) -> Image:
    """Fills the smallest rectangle around regions of an image (H, W, 3) with a grey from 0 to 255.

    Landmarks (5, 2) place the regions. If `grey` is None, the rectangle gets the mean colour of the
    image.
    """
    boxes = region_boxes(landmarks, regions)  # (R, 4)
    size = image.shape[1::-1]  # width and height
    left, top = np.clip(np.floor(boxes[:, :2].min(0)), 0, size).astype(int)
    right, bottom = np.clip(np.ceil(boxes[:, 2:].max(0)), 0, size).astype(int)
    image = image.copy()
    image[top:bottom, left:right] = image.mean((0, 1)).round() if grey is None else grey
    return image


def visible(boxes: Float32Array, size: int) -> Mask:
    """Returns a mask (R,) of the boxes (R, 4), xyxy, that are visible in a crop of `size` pixels.

    A visible box has its centre in the crop, and is at least two pixels wide.
    """
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return ((centres >= 0) & (centres < size)).all(1) & (boxes[:, 2] - boxes[:, 0] >= 2)


def check_regions(regions: Sequence[str]) -> None:
    """Raises FerVitError for unknown or repeated names of regions."""
    unknown = [name for name in regions if name not in REGIONS]
    if unknown:
        raise FerVitError(f"Expected regions from {', '.join(REGIONS)}, but got `{unknown[0]}`.")
    if len(set(regions)) < len(regions):
        raise FerVitError(f"Expected every region once, but got {', '.join(regions)}.")


MAX_CROP = 2048  # largest side of a crop in pixels


@dataclass(frozen=True)
class CropSpec:
    """How a face becomes the input of a model."""

    size: int  # side S of the square crop in pixels
    regions: tuple[str, ...] = DEFAULT_REGIONS
    # "landmarks": rotate and scale faces to the template; "crop": use images unchanged
    align: Align = "landmarks"
    # the landmarks (5, 2) of an aligned face, (x, y) as fractions of the side
    template: tuple[tuple[float, float], ...] = geometry.TEMPLATE


def crop_for(
    img_size: int,
    regions: Iterable[str],
    align: Align | None,
    template: Iterable[Sequence[float]] | None,
) -> CropSpec:
    """Returns how faces are cropped, by the settings in a model's file or of a training.

    Args:
        img_size: The side of the crop in pixels.
        regions: The names of the regions.
        align: As in `CropSpec`. None: the default of `CropSpec`.
        template: Five points, as in `CropSpec`. None or empty: the default of `CropSpec`.
    """
    points = tuple((x, y) for x, y in template or ())
    return CropSpec(
        size=img_size,
        regions=tuple(regions),
        align=align or CropSpec.align,
        template=points or CropSpec.template,
    )


UNCHANGED = np.eye(2, 3)


class Cropped(NamedTuple):
    """A face as a crop."""

    image: Image  # (S, S, 3)
    landmarks: Array  # (5, 2) in crop pixels
    to_crop: Array  # (2, 3), the matrix from image to crop pixels, before mirroring
    mirrored: bool = False


def crop_face(
    image: Image, landmarks: Array | None, spec: CropSpec, framed: bool, change: Array = UNCHANGED
) -> Cropped:
    """Returns the crop of a face.

    Args:
        image: The image (H, W, 3).
        landmarks: The landmarks (5, 2) in image pixels. None: the crop is the full image, and gets
            the landmarks of the template.
        spec: How the face is cropped.
        framed: Whether the image is a face crop already: with `align` "crop", the crop is the full
            image.
        change: A further motion (2, 3) in crop pixels, such as a rotation.
    """
    to_crop = face_matrix(image, landmarks, spec, framed)
    if landmarks is None:
        points = np.asarray(spec.template, float) * spec.size
    else:
        points = geometry.apply(to_crop, landmarks)
    to_crop = geometry.compose(change, to_crop)
    points = geometry.apply(change, points)
    return Cropped(warp(image, to_crop, spec.size), points, to_crop)


def face_matrix(image: Image, landmarks: Array | None, spec: CropSpec, framed: bool) -> Array:
    """Returns the matrix (2, 3) from image to crop pixels; arguments as for `crop_face`."""
    if landmarks is None or (framed and spec.align == "crop"):
        return geometry.fit_matrix(image, spec.size)
    return geometry.crop_matrix(landmarks, spec.size, spec.template, spec.align)


def place_regions(landmarks: Array, spec: CropSpec) -> tuple[Float32Array, Mask]:
    """Returns the boxes of the regions in a crop (R, 4), xyxy, and which are visible (R,).

    Landmarks (5, 2) are in crop pixels. The boxes of regions that are not visible are 0.
    """
    boxes = region_boxes(landmarks, spec.regions)
    valid = visible(boxes, spec.size)
    boxes[~valid] = 0.0
    return boxes, valid


MAX_CUT_SIDE = 384  # largest side of the result of `cut_out`, in pixels


def cut_out(image: Image, box: Array) -> tuple[Image, Array]:
    """Cuts a square around the box (4,), xyxy, of a face out of an image (H, W, 3).

    The square has twice the side of the box. Returns the cut, with at most MAX_CUT_SIDE x
    MAX_CUT_SIDE pixels, and the matrix (2, 3) from image to cut pixels.
    """
    side = 2 * max(box[2:] - box[:2])
    scale = min(1.0, MAX_CUT_SIDE / side)
    size = round(scale * side)
    matrix = geometry.box_matrix(box, size, scale)
    return warp(image, matrix, size), matrix


BORDER = cv2.BORDER_REPLICATE  # an artificial edge would look like a contour of the face
INTERPOLATION = cv2.INTER_CUBIC  # linear interpolation blurs small faces
REDUCTION = cv2.INTER_AREA  # each pixel is the average of the pixels that it covers
# below this scale, a crop is drawn at twice the size and averaged; above, that would only add blur
REDUCED_SCALE = 0.75
# below this scale, a crop at twice the size would alias, too, so the image is averaged first
STRONGLY_REDUCED_SCALE = 0.5


def warp(image: Image, matrix: ArrayLike, size: int) -> Image:
    """Draws the crop (size, size, 3) of an image, by a matrix (2, 3) from image to crop pixels.

    A grey image (H, W) gives a grey crop (size, size).

    A warp reads only neighbouring pixels. A reduced crop would alias: noise, subpixel shifts and
    compression would change it. So a reduced crop is drawn at twice the size and averaged. For a
    strongly reduced crop, the image is averaged before.
    """
    to_crop = np.asarray(matrix, float)
    scale = float(np.sqrt(abs(np.linalg.det(to_crop[:, :2]))))
    if 0 < scale < STRONGLY_REDUCED_SCALE:
        image, to_crop = _reduce(image, to_crop, size, scale)

    drawn = 2 * size if 0 < scale < REDUCED_SCALE else size
    to_drawn = to_crop * (drawn / size)
    # OpenCV puts a pixel's centre at integer coordinates; here, the centre lies at +0.5
    to_drawn[:, 2] += 0.5 * to_drawn[:, :2].sum(1) - 0.5
    crop = cv2.warpAffine(image, to_drawn, (drawn, drawn), flags=INTERPOLATION, borderMode=BORDER)
    if drawn > size:
        crop = cv2.resize(crop, (size, size), interpolation=REDUCTION)
    return np.asarray(crop, np.uint8)


def _reduce(image: Image, to_crop: Array, size: int, scale: float) -> tuple[Image, Array]:
    """Reduces the part of an image that a crop shows, to twice the resolution of the crop.

    `to_crop` (2, 3) is the matrix from image to crop pixels, and `scale` the scale of the matrix.

    Returns the reduced part (H', W', 3), and the matrix (2, 3) from pixels of the part to crop
    pixels.
    """
    # the part that the crop shows, with a margin; only this part is averaged, to save time
    corners = [(0, 0), (size, 0), (0, size), (size, size)]
    shown = geometry.apply(geometry.invert(to_crop), corners)  # (4, 2)
    margin = 2 / scale
    image_size = np.array(image.shape[1::-1])  # width and height
    start = np.clip(np.floor(shown.min(0) - margin), 0, image_size - 1).astype(int)
    stop = np.clip(np.ceil(shown.max(0) + margin), start + 1, image_size).astype(int)
    part = image[start[1] : stop[1], start[0] : stop[0]]
    part_to_crop = geometry.compose(to_crop, np.column_stack([np.eye(2), start]))

    # first fast steps by half; at least a factor of 2 is left for the exact average
    height, width = (max(1, round(side * 2 * scale)) for side in part.shape[:2])
    halved = part
    while min(halved.shape[0] / height, halved.shape[1] / width) >= 4:
        halved = halve(halved)
    reduced = cv2.resize(halved, (width, height), interpolation=REDUCTION)

    to_part = np.diag([part.shape[1] / width, part.shape[0] / height, 1.0])[:2]
    return np.asarray(reduced, np.uint8), geometry.compose(part_to_crop, to_part)


def halve(image: Image) -> Image:
    """Averages 2 x 2 pixels of an image (H, W, 3); returns (H / 2, W / 2, 3), rounded down.

    These averages are ten times as fast as averages over parts of pixels.
    """
    half = (image.shape[1] // 2, image.shape[0] // 2)
    return np.asarray(cv2.resize(image, half, interpolation=cv2.INTER_LINEAR), np.uint8)


def mirror(image: Image, landmarks: Array) -> tuple[Image, Array]:
    """Mirrors a crop (S, S, 3) and its landmarks (5, 2); left and right landmarks are swapped."""
    mirrored = landmarks[list(geometry.MIRRORED)] * [-1.0, 1.0] + [image.shape[1], 0.0]
    return np.ascontiguousarray(image[:, ::-1]), mirrored
