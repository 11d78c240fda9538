"""Detectors find faces in a photo, in the crop of a face, or in the next frame of a video."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Protocol, TypeAlias

import cv2
import numpy as np

from fer_vit.errors import FerVitError, short
from fer_vit.extras import load_plugin, plugin_names
from fer_vit.face.crop import MAX_CUT_SIDE, REDUCED_SCALE
from fer_vit.face.detection import Detection, best, box_iou
from fer_vit.face.landmarks import (
    confirm_faces,
    full_image_face,
    refine_landmarks,
    refine_points,
)
from fer_vit.face.yunet import find_by_network, yunet_path
from fer_vit.faces import NOT_FOUND
from fer_vit.geometry import Array, Image, full_box
from fer_vit.wording import describe_entries

# The smallest longer side of the images that a detector gets, in pixels. At 224, YuNet finds faces
# in as many of FERPlus' 48-pixel crops as at any size from 128 to 320. YuNet's landmarks at 224,
# which were targets for the landmark network, lie on the eyes of the mean aligned face; at 160, the
# landmarks of the eyes are 11% too far apart.
MIN_SIDE = 224

# The largest longer side of the images that YuNet gets, in pixels. At 1280, YuNet finds faces down
# to about a hundredth of a photo's longer side.
MAX_SIDE = 1280

# side in pixels of the largest face that is detected as a whole, not in fragments
FRAGMENTED_SIDE = 448

PHOTO_SCORE = 0.7  # YuNet's minimum score in photos, by docs/results/benchmarks.md
CROP_SCORE = 0.3  # YuNet's minimum score in crops: it finds a face in 99.8% of FERPlus' crops

# YuNet's score below which a face is uncertain. In docs/results/benchmarks.md, nearly all false
# faces have lower scores.
SURE_SCORE = 0.8

# Longer side of a face's box, as a share of the side of the square that is searched in the next
# frame of a video. A turned or moving face stays inside the square.
FOLLOWED_SHARE = 0.75

SAME_FACE_IOU = 0.3  # two boxes with a larger IoU belong to the same face

DEFAULT_DETECTOR = "yunet"
PLUGINS = "fer_vit.detectors"  # the group of entry points that are classes of detectors


class FindsFaces(Protocol):
    """An object that Python users can pass as a detector; picklable, for worker processes."""

    def find(self, image: Image) -> list[Detection]:
        """Returns the faces in an image (H, W, 3), RGB uint8, in any order.

        Boxes are in pixels, scores are above 0 and at most 1. Approximate landmarks suffice: the
        landmarks of results are from fer-vit's network, which looks into the boxes.
        """


ChosenDetector: TypeAlias = str | FindsFaces


class Detector(ABC):
    """Finds faces; `DETECTORS` has the instances that options name.

    Each detector has a separate scale of scores, in [0, 1].

    Attributes:
        meaning: What the detector finds, for the help.
        min_score: Faces with a lower score are left out.
        photo_score: Faces with a lower score do not count when `is_photo` decides whether an image
            is a photo or the crop of a face.
        crop_score: The minimum score in crops of one face.
        sure_score: Faces with a lower score get the warning "uncertain face". None: no face does.
        searches: Whether the detector finds faces in photos.
        parallel: Whether several threads may search at the same time.
    """

    meaning: str = ""
    min_score: float = 0.0
    photo_score: float = 0.0
    crop_score: float = 0.0
    sure_score: float | None = None
    searches: bool = True
    parallel: bool = False

    @abstractmethod
    def detect(self, image: Image) -> list[Detection]:
        """Returns all faces in an image (H, W, 3), RGB uint8, best score first.

        Faces below `min_score` may be missing, since `find` does not return them.
        """

    def find(self, image: Image) -> list[Detection]:
        """Returns the faces in an image (H, W, 3), RGB uint8, best score first.

        Faces below `min_score` are left out. A face without a score (NaN) is kept.
        """
        # networks return float32 scores, and 0.7 as float32 is a little less than 0.7
        lowest = min(self.min_score, float(np.float32(self.min_score)))
        return [face for face in self.detect(image) if not face.score < lowest]

    def confirm(self, image: Image, faces: Sequence[Detection]) -> list[Detection]:
        """Returns detected faces of an image (H, W, 3) with landmarks from fer-vit's network.

        A detector may leave out faces here.
        """
        return refine_landmarks(image, faces)

    def find_in_crop(self, image: Image) -> Detection | None:
        """Returns the face of a crop (H, W, 3); None if the detector does not search crops."""
        return detect_in_crop(self, image)

    def load(self, min_score: float) -> "Detector":
        """Returns the detector, or a copy with another `min_score`, with all files found.

        Raises FerVitError when a file is missing.
        """
        if min_score == self.min_score:
            return self
        loaded = copy(self)
        loaded.min_score = min_score
        return loaded


class YuNet(Detector):
    """YuNet at two sizes of the image, for small and for large faces."""

    meaning = "finds faces"
    photo_score = PHOTO_SCORE
    crop_score = CROP_SCORE
    sure_score = SURE_SCORE
    parallel = True

    def __init__(self, path: Path | None = None, min_score: float = PHOTO_SCORE) -> None:
        self.path = path  # the file of the network; None: `yunet_path` finds it when needed
        self.min_score = min_score

    def load(self, min_score: float) -> "YuNet":  # noqa: D102
        return YuNet(yunet_path(), min_score)

    def confirm(self, image: Image, faces: Sequence[Detection]) -> list[Detection]:
        """Refines landmarks, and leaves out uncertain faces that the second look rejects.

        The network of the second look was trained on false faces of YuNet.
        """
        return confirm_faces(image, faces, self.sure_score)

    def detect(self, image: Image) -> list[Detection]:
        """Returns the faces of an image (H, W, 3), best score first, ties from left to right."""
        fine, coarse = self.search(image)
        return join_sizes(fine, coarse, longest=max(image.shape[:2]))

    def search(self, image: Image) -> tuple[list[Detection], list[Detection]]:
        """Returns the faces found at up to MAX_SIDE pixels, and the faces found in a small copy.

        All faces are in pixels of the image (H, W, 3).
        """
        longest = max(image.shape[:2])
        large = resized(image, min(max(longest, MIN_SIDE), MAX_SIDE))
        fine = self._detect_in_copy(large, image)
        coarse = []
        if longest > FRAGMENTED_SIDE:
            coarse = self._detect_in_copy(resized(large, MIN_SIDE), image)
        return fine, coarse

    def _detect_in_copy(self, resized_copy: Image, image: Image) -> list[Detection]:
        """Returns the faces in a resized copy of an image, in pixels of the image."""
        network_rows = find_by_network(self.path or yunet_path(), resized_copy, self.min_score)
        rows = network_rows.astype(float)  # (F, 15): x, y, width, height, five points, score
        scale = _scale(resized_copy, image)  # (2,)
        # No half pixel is added: detections in mirrored images show no constant offset between the
        # coordinates of the network and of fer-vit.
        corners = np.stack([rows[:, :2], rows[:, :2] + rows[:, 2:4]], 1)  # (F, 2, 2)
        boxes = (corners * scale).reshape(-1, 4)
        landmarks = rows[:, 4:14].reshape(-1, 5, 2) * scale
        scores = rows[:, 14].tolist()
        return list(map(Detection, boxes, landmarks, scores))


class LandmarksOnly(Detector):
    """Treats each image as one face, and finds the landmarks."""

    meaning = "takes each image as one face and finds its landmarks"
    searches = False

    def detect(self, image: Image) -> list[Detection]:  # noqa: D102
        return [full_image_face(grey_copy(image))]

    def find_in_crop(self, image: Image) -> Detection:  # noqa: D102
        return full_image_face(grey_copy(image))


class NoDetector(Detector):
    """Finds nothing: each image must be framed like the training crops."""

    meaning = "takes each image as a crop framed like those of training"
    searches = False

    def detect(self, image: Image) -> list[Detection]:  # noqa: D102
        return []

    def find_in_crop(self, image: Image) -> None:  # noqa: D102
        return None


class CustomDetector(Detector):
    """A detector of a Python user. The scale of scores is unknown, so no face is uncertain."""

    def __init__(self, detector: FindsFaces) -> None:
        self.detector = detector

    def detect(self, image: Image) -> list[Detection]:
        """Returns the faces that the detector of the user finds, best score first.

        Raises FerVitError when the detector does not return what `FindsFaces.find` describes.
        """
        name = detector_name(self.detector)
        returned = self.detector.find(image)
        if not isinstance(returned, Iterable):
            raise FerVitError(
                f"Expected `{name}.find` to return a list, but got a {type(returned).__name__}."
            )
        faces = [check_detection(face, image, name) for face in returned]
        return sorted(faces, key=lambda face: -face.score)


def check_detection(face: object, image: Image, name: str) -> Detection:
    """Returns a face that the detector `name` of a user found in an image (H, W, 3), as arrays.

    Raises FerVitError when the face is no `Detection`, or a value is not possible in the image.
    """
    expected = f"Expected `{name}.find` to return"
    if not isinstance(face, Detection):
        raise FerVitError(
            f"{expected} objects of fer_vit.face.detection.Detection, but got a "
            f"{type(face).__name__}."
        )
    try:
        box = np.asarray(face.box, float)
        landmarks = np.asarray(face.landmarks, float)
        score = float(face.score)
    except (TypeError, ValueError, OverflowError) as error:
        raise FerVitError(
            f"{expected} numbers as box, landmarks and score, but got {short(face)}."
        ) from error
    if not _is_box_in(image, box):
        raise FerVitError(
            f"{expected} boxes in the image, as left, top, right and bottom in pixels, but got "
            f"{short(box)} in an image of {image.shape[1]} x {image.shape[0]}."
        )
    if landmarks.shape != (5, 2) or not np.isfinite(landmarks).all():
        raise FerVitError(
            f"{expected} five landmarks (5, 2) for each face, but got {short(landmarks)}."
        )
    if not 0 < score <= 1:
        raise FerVitError(f"{expected} scores above 0 and at most 1, but got {score:g}.")
    return Detection(box, landmarks, score)


def _is_box_in(image: Image, box: Array) -> bool:
    """Returns whether a box, xyxy, has at least one pixel and overlaps with an image (H, W, 3)."""
    if box.shape != (4,) or not np.isfinite(box).all():
        return False
    sides = box[2:] - box[:2]
    visible = np.minimum(box[2:], image.shape[1::-1]) - np.maximum(box[:2], 0)
    return bool((sides >= 1).all() and (visible > 0).all())


# The detectors by name. A new detector is a subclass of `Detector` and an entry here. Another
# package names a class, whose objects have the method `find`, as an entry point of `PLUGINS`.
DETECTORS: dict[str, Detector] = {
    "yunet": YuNet(),
    "landmarks": LandmarksOnly(),
    "none": NoDetector(),
}

# The detectors with their meanings, for the help.
DETECTORS_HELP = describe_entries({name: entry.meaning for name, entry in DETECTORS.items()})


def describe_scores() -> str:
    """Returns the default minimum scores, of detectors with one, as text for the help."""
    descriptions = []
    for name, detector in DETECTORS.items():
        if detector.min_score > 0:
            details = f"{detector.crop_score:g} in crops of a face"
            if detector.sure_score is not None:
                warning = 'a face has the warning "uncertain face"'
                details += f"; below {detector.sure_score:g}, {warning}"
            descriptions.append(f"{detector.min_score:g} for {name} ({details})")
    return ", ".join(descriptions)


SCORES_HELP = describe_scores()


def find_detector(detector: ChosenDetector) -> Detector:
    """Returns the detector of a name, or for an object of a user; files are not searched yet.

    Raises:
        FerVitError: Neither fer-vit nor another package has a detector of this name, or the object
            is a class or has no method `find`.
    """
    if isinstance(detector, str):
        if detector in DETECTORS:
            return DETECTORS[detector]
        detector = installed_detector(detector)
    if isinstance(detector, Detector):
        return detector
    if isinstance(detector, type):
        name = detector.__name__
        raise FerVitError(
            f"Expected an object of a detector, but got the class {name}. Write `{name}()`."
        )
    if not callable(getattr(detector, "find", None)):
        actual = type(detector).__name__
        raise FerVitError(
            f"Expected a detector's name, or an object with the method `find`, but got a {actual}."
        )
    return CustomDetector(detector)


@cache
def installed_detector(name: str) -> FindsFaces:
    """Returns the detector that another package offers by this name; it is made once.

    Raises:
        FerVitError: No package offers it, or the package cannot be imported.
    """
    installed = plugin_names(PLUGINS)
    if name not in installed:
        names = ", ".join([*DETECTORS, *installed])
        raise FerVitError(
            f"Expected `--detector` to be one of {names}, but got {name}. "
            f"The default is {DEFAULT_DETECTOR}."
        )
    detector: FindsFaces = load_plugin(PLUGINS, name)()
    return detector


def detector_name(detector: ChosenDetector) -> str:
    """Returns the name of a detector for tables; for an object, the name of the class."""
    return detector if isinstance(detector, str) else type(detector).__name__


def join_sizes(fine: list[Detection], coarse: list[Detection], longest: int) -> list[Detection]:
    """Joins the faces found in a full-size image and in a small copy, best score first.

    At full size, a face of more than FRAGMENTED_SIDE pixels is found in fragments. So large faces
    are taken from the small copy, and full-size faces inside a large face are dropped.

    Args:
        fine: The faces found at full size.
        coarse: The faces found in the small copy, in pixels of the full-size image.
        longest: The longer side of the full-size image in pixels.
    """
    large = [face for face in coarse if face.side > longest / 3]
    others = []
    for face in fine:
        if not any(_centre_within(face, around) for around in large):
            others.append(face)
    return sorted(large + others, key=lambda face: (-face.score, *face.box))


def detect_in_crop(detector: Detector, image: Image) -> Detection:
    """Returns the face of a crop (H, W, 3) with the greatest score times side.

    The detector gets a grey copy at 224 pixels, because colours would move the detected face. The
    copy has no padding, because with padding fewer faces are found. If the face is small, the image
    may be a photo; then the image is searched at full size, in colour.

    The landmark network gets the box of the face if the IoU of box and image is below 0.5. It gets
    the full image otherwise, and if there is no face: covered eyes or a mask would shift the box
    more than the landmarks.
    """
    grey = grey_copy(image)
    small = resized(grey, MIN_SIDE)
    face = best([face.moved(_scale(small, image)) for face in detector.find(small)])
    if face is None or 2 * face.side < min(image.shape[:2]):
        face = best(detector.find(image))
    if face is not None and box_iou(face, face._replace(box=full_box(image))) < 0.5:
        return refine_landmarks(grey, [face])[0]
    full = full_image_face(grey)
    if face is None:
        return full._replace(score=NOT_FOUND)
    return face._replace(landmarks=full.landmarks)


def grey_copy(image: Image) -> Image:
    """Returns an image (H, W, 3) without colour."""
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB), np.uint8)


def is_photo(detector: Detector, image: Image) -> bool:
    """Returns whether an image (H, W, 3) is a photo rather than the crop of a face.

    A photo is larger than `MAX_CUT_SIDE`, and shows several faces or a small face, which fills less
    than half of the image's shorter side. Faces below the detector's `photo_score` do not count.
    """
    if max(image.shape[:2]) <= MAX_CUT_SIDE:
        return False
    faces = [face for face in detector.find(image) if face.score >= detector.photo_score]
    return len(faces) > 1 or any(2 * face.side < min(image.shape[:2]) for face in faces)


def follow_faces(detector: Detector, image: Image, faces: list[Detection]) -> list[Detection]:
    """Re-detects the faces of a video in the next frame (H, W, 3), around their last positions.

    A box keeps its size and moves with the landmarks, so that all searches have the same framing.
    Landmarks are refined from the last landmarks, which are first shifted to the detection. A face
    that is not found, or that is the same as an earlier one, is left out.
    """
    followed: list[Detection] = []
    for face in faces:
        cut, scale, shift = _cut_square(image, face)
        expected = face.moved(scale, shift)
        candidates = detector.find(np.asarray(cv2.cvtColor(cut, cv2.COLOR_GRAY2RGB), np.uint8))
        nearest = max(candidates, key=lambda candidate: box_iou(candidate, expected), default=None)
        if nearest is None or box_iou(nearest, expected) <= SAME_FACE_IOU:
            continue
        initial = expected.landmarks + (nearest.landmarks - expected.landmarks).mean(0)  # (5, 2)
        landmarks = (refine_points(cut, initial[None])[0] - shift) / scale
        moved = face.moved(1.0, (landmarks - face.landmarks).mean(0))
        redetected = Detection(moved.box, landmarks, nearest.score)
        if all(box_iou(redetected, earlier) <= SAME_FACE_IOU for earlier in followed):
            followed.append(redetected)
    return followed


def _cut_square(image: Image, face: Detection) -> tuple[Image, float, Array]:
    """Cuts a grey square around a face out of an image (H, W, 3), faster than `warp`.

    Returns the cut (MIN_SIDE, MIN_SIDE), and scale and shift (2,) from image to cut pixels.
    """
    half = 2 * round(face.longer_side / FOLLOWED_SHARE / 4) + 2  # half the side, an even number
    start = np.round(face.centre).astype(int) - half  # (x, y)
    stop = start + 2 * half

    # the part of the square inside the image, and the widths of the margins outside of the image
    image_size = np.array(image.shape[1::-1])  # width and height
    part_start = np.clip(start, 0, image_size - 1)
    part_stop = np.clip(stop, 1, image_size)
    left, top = (part_start - start).tolist()
    right, bottom = (stop - part_stop).tolist()
    part = image[part_start[1] : part_stop[1], part_start[0] : part_stop[0]]
    cut = cv2.cvtColor(part, cv2.COLOR_RGB2GRAY)
    cut = cv2.copyMakeBorder(cut, top, bottom, left, right, cv2.BORDER_REPLICATE)
    scale = MIN_SIDE / (2 * half)
    return resized(np.asarray(cut, np.uint8), MIN_SIDE), scale, -scale * start


def _centre_within(face: Detection, around: Detection) -> bool:
    """Returns whether the centre of a face is inside the box of the face `around`."""
    return bool((around.box[:2] <= face.centre).all() and (face.centre <= around.box[2:]).all())


def _scale(small: Image, image: Image) -> Array:
    """Returns the factors (2,) for x and y that map points of a resized image back to the image."""
    return np.array([image.shape[1] / small.shape[1], image.shape[0] / small.shape[0]])


def resized(image: Image, side: int) -> Image:
    """Scales the longer side of an image (H, W, 3) or (H, W) to `side` pixels.

    The image is enlarged by bicubic interpolation. It is reduced in steps by half, then by an
    average over parts of pixels, or, for a slight reduction, by bilinear interpolation.

    Bilinear interpolation is ten times as fast as averages over parts of pixels. It does not alias
    in a slight reduction, or in a step by half, which is the mean of four pixels.
    """
    while max(image.shape[:2]) > 2 * side:
        image = _resize_by(image, 0.5, cv2.INTER_LINEAR)
    scale = side / max(image.shape[:2])
    if scale > 1:
        return _resize_by(image, scale, cv2.INTER_CUBIC)
    return _resize_by(image, scale, cv2.INTER_AREA if scale < REDUCED_SCALE else cv2.INTER_LINEAR)


def _resize_by(image: Image, scale: float, method: int) -> Image:
    height, width = (max(1, round(length * scale)) for length in image.shape[:2])
    return np.asarray(cv2.resize(image, (width, height), interpolation=method), np.uint8)
