"""Detectors: what finds the faces in a photo, in the crop of a face, or in a video's next frame."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import cv2
import numpy as np

from fer_vit.errors import FerVitError, short
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

# The smallest longer side of the images that a detector gets, in pixels. At 224 YuNet finds as many
# of FERPlus' 48-pixel crops as at any size from 128 to 320, and its landmarks, from which the
# landmark network learned, lie on the eyes of the mean aligned face; at 160 they are 11 % too far
# apart.
MIN_SIDE = 224

# The largest longer side. At 1280 YuNet finds faces down to about a hundredth of a photo's longer
# side.
MAX_SIDE = 1280

# side in pixels of the largest face that is detected as one, not in fragments
FRAGMENTED_SIDE = 448

PHOTO_SCORE = 0.7  # YuNet's minimum score in photos, by docs/results/benchmarks.md
CROP_SCORE = 0.3  # in crops of a face: YuNet finds one in 99.8% of FERPlus' crops

# YuNet's score below which a face is uncertain. In docs/results/benchmarks.md, nearly all false
# faces are below it.
SURE_SCORE = 0.8

# Longer side of a face's box, as a share of the square that is searched in a video's next frame: a
# turned or moving face stays inside.
FOLLOWED_SHARE = 0.75

SAME_FACE_IOU = 0.3  # boxes with a larger IoU are of the same face

DetectorName = Literal["yunet", "landmarks", "none"]
DEFAULT_DETECTOR: DetectorName = "yunet"


class FindsFaces(Protocol):
    """What Python users can pass as a detector. It must be picklable for worker processes."""

    def find(self, image: Image) -> list[Detection]:
        """Returns the faces in an image (H, W, 3), RGB uint8, in any order.

        Boxes are in pixels, scores are above 0 and at most 1. Approximate landmarks suffice: the
        landmarks of results are from fer-vit's network, which looks into the boxes.
        """


if TYPE_CHECKING:
    ChosenDetector: TypeAlias = DetectorName | FindsFaces
else:  # options of the command line are made of this: it takes names alone
    ChosenDetector = DetectorName


class Detector(ABC):
    """Finds faces; `DETECTORS` has the instances that options name.

    Each detector has its own scale of scores, in [0, 1].

    Attributes:
        meaning: What it finds, for the help.
        min_score: Faces with a lower score are left out.
        photo_score: Faces with a lower score do not make a photo of what should be the crop of one.
        crop_score: `min_score` in crops of one face.
        sure_score: Faces with a lower score have the warning "uncertain face". None: no face has.
        searches: Whether it finds faces in photos.
    """

    meaning: str = ""
    min_score: float = 0.0
    photo_score: float = 0.0
    crop_score: float = 0.0
    sure_score: float | None = None
    searches: bool = True

    @abstractmethod
    def detect(self, image: Image) -> list[Detection]:
        """Returns all faces in an image (H, W, 3), RGB uint8, best score first.

        It may leave out faces below `min_score`, which `find` does not return.
        """

    def find(self, image: Image) -> list[Detection]:
        """Returns the faces in an image (H, W, 3), RGB uint8, best score first.

        Faces below `min_score` are left out; a face without a score (NaN) is not below it.
        """
        # a score of a network is a float32: its 0.7 is a little less than 0.7
        lowest = min(self.min_score, float(np.float32(self.min_score)))
        return [face for face in self.detect(image) if not face.score < lowest]

    def confirm(self, image: Image, faces: Sequence[Detection]) -> list[Detection]:
        """Returns found faces of an image (H, W, 3) with landmarks by fer-vit's network.

        A detector may leave out faces here.
        """
        return refine_landmarks(image, faces)

    def find_in_crop(self, image: Image) -> Detection | None:
        """Returns the face of a crop (H, W, 3); None if the detector searches no crops."""
        return detect_in_crop(self, image)

    def load(self, min_score: float) -> "Detector":
        """Returns the detector, with its files, for faces with this score or more.

        It is a copy if its `min_score` is different. Raises FerVitError when a file is missing.
        """
        if min_score == self.min_score:
            return self
        loaded = copy(self)
        loaded.min_score = min_score
        return loaded


class YuNet(Detector):
    """YuNet at the sizes that find small and large faces."""

    meaning = "finds faces, also in crops"
    photo_score = PHOTO_SCORE
    crop_score = CROP_SCORE
    sure_score = SURE_SCORE

    def __init__(self, path: Path | None = None, min_score: float = PHOTO_SCORE) -> None:
        self.path = path  # of its file, which each process opens once; None: not searched yet
        self.min_score = min_score

    def load(self, min_score: float) -> "YuNet":  # noqa: D102
        return YuNet(yunet_path(), min_score)

    def confirm(self, image: Image, faces: Sequence[Detection]) -> list[Detection]:
        """Refines landmarks, and leaves out uncertain faces that are none in a second look.

        The network of the second look was trained on YuNet's mistakes.
        """
        return confirm_faces(image, faces, self.sure_score)

    def detect(self, image: Image) -> list[Detection]:
        """Returns the faces of an image (H, W, 3), best score first, ties from left to right."""
        fine, coarse = self.search(image)
        return join_sizes(fine, coarse, longest=max(image.shape[:2]))

    def search(self, image: Image) -> tuple[list[Detection], list[Detection]]:
        """Returns the faces found at up to MAX_SIDE pixels, and those found in a small copy.

        All are in pixels of the image (H, W, 3).
        """
        longest = max(image.shape[:2])
        large = resized(image, min(max(longest, MIN_SIDE), MAX_SIDE))
        fine = self._detect_in_copy(large, image)
        coarse = []
        if longest > FRAGMENTED_SIDE:
            coarse = self._detect_in_copy(resized(large, MIN_SIDE), image)
        return fine, coarse

    def _detect_in_copy(self, resized_copy: Image, image: Image) -> list[Detection]:
        """Returns the faces in a resized copy of an image, in the image's pixels."""
        network_rows = find_by_network(self.path or yunet_path(), resized_copy, self.min_score)
        rows = network_rows.astype(float)  # (F, 15): x, y, width, height, five points, score
        scale = _scale(resized_copy, image)  # (2,)
        # Mirrored images show no constant offset between the network's coordinates and ours, so no
        # half pixel is added.
        corners = np.stack([rows[:, :2], rows[:, :2] + rows[:, 2:4]], 1)  # (F, 2, 2)
        boxes = (corners * scale).reshape(-1, 4)
        landmarks = rows[:, 4:14].reshape(-1, 5, 2) * scale
        scores = rows[:, 14].tolist()
        return list(map(Detection, boxes, landmarks, scores))


class LandmarksOnly(Detector):
    """Takes each image as one face and finds its landmarks."""

    meaning = "treats each image as one face and finds its landmarks"
    searches = False

    def detect(self, image: Image) -> list[Detection]:  # noqa: D102
        return [full_image_face(grey_copy(image))]

    def find_in_crop(self, image: Image) -> Detection:  # noqa: D102
        return full_image_face(grey_copy(image))


class NoDetector(Detector):
    """Finds nothing: each image is framed like the crops of training."""

    meaning = "finds nothing, so images must be framed like the training crops"
    searches = False

    def detect(self, image: Image) -> list[Detection]:  # noqa: D102
        return []

    def find_in_crop(self, image: Image) -> None:  # noqa: D102
        return None


class CustomDetector(Detector):
    """A detector of a Python user, whose scale of scores is unknown: no face is uncertain."""

    def __init__(self, detector: FindsFaces) -> None:
        self.detector = detector

    def detect(self, image: Image) -> list[Detection]:
        """Returns the faces that the detector of the user finds, best score first.

        Raises FerVitError when it does not return faces as `FindsFaces.find` describes them.
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
    """Returns a face that the detector `name` of a user finds in an image (H, W, 3), as arrays.

    Raises FerVitError when it is no `Detection`, or its values are none of a face in the image.
    """
    expected = f"Expected `{name}.find` to return"
    if not isinstance(face, Detection):
        raise FerVitError(
            f"{expected} objects of fer_vit.face.detection.Detection, but got a "
            f"{type(face).__name__}."
        )
    box = np.asarray(face.box, float)
    if not _is_box_in(image, box):
        raise FerVitError(
            f"{expected} boxes in the image, as left, top, right and bottom in pixels, but got "
            f"{short(box)} in an image of {image.shape[1]} x {image.shape[0]}."
        )
    landmarks = np.asarray(face.landmarks, float)
    if landmarks.shape != (5, 2) or not np.isfinite(landmarks).all():
        raise FerVitError(
            f"{expected} five landmarks (5, 2) for each face, but got {short(face.landmarks)}."
        )
    if not 0 < face.score <= 1:
        raise FerVitError(f"{expected} scores above 0 and at most 1, but got {face.score:g}.")
    return Detection(box, landmarks, float(face.score))


def _is_box_in(image: Image, box: Array) -> bool:
    """Returns whether a box, xyxy, of a pixel or more overlaps with an image (H, W, 3)."""
    if box.shape != (4,) or not np.isfinite(box).all():
        return False
    sides = box[2:] - box[:2]
    visible = np.minimum(box[2:], image.shape[1::-1]) - np.maximum(box[:2], 0)
    return bool((sides >= 1).all() and (visible > 0).all())


# The detectors by name. A new one is a subclass of `Detector`, an entry here and in `DetectorName`:
# the type of an option cannot be made of a dictionary.
DETECTORS: dict[DetectorName, Detector] = {
    "yunet": YuNet(),
    "landmarks": LandmarksOnly(),
    "none": NoDetector(),
}

# The detectors with their meanings, for the help.
DETECTORS_HELP = describe_entries({name: entry.meaning for name, entry in DETECTORS.items()})


def describe_scores() -> str:
    """Returns the default scores of the detectors that leave out faces by default."""
    descriptions = []
    for name, detector in DETECTORS.items():
        if detector.min_score > 0:
            details = f"{detector.crop_score:g} in crops of a face"
            if detector.sure_score is not None:
                warning = 'a face has the warning "uncertain face"'
                details += f"; below {detector.sure_score:g}, {warning}"
            descriptions.append(f"{detector.min_score:g} for {name} ({details})")
    return ", ".join(descriptions)


SCORES_HELP = describe_scores()  # the default scores of the detectors, for the help


def find_detector(detector: ChosenDetector) -> Detector:
    """Returns a detector, without its files, by its name or object.

    Raises:
        FerVitError: There is no detector of this name, or the object is a class or has no method
            `find`.
    """
    if isinstance(detector, Detector):
        return detector
    if isinstance(detector, str):
        if detector not in DETECTORS:
            raise FerVitError(
                f"Expected detector {', '.join(DETECTORS)}, but got {detector}. The default is "
                f"{DEFAULT_DETECTOR}."
            )
        return DETECTORS[detector]
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


def detector_name(detector: ChosenDetector) -> str:
    """Returns the name of a detector in tables: of an object, its class."""
    return detector if isinstance(detector, str) else type(detector).__name__


def join_sizes(fine: list[Detection], coarse: list[Detection], longest: int) -> list[Detection]:
    """Returns the large faces of a small copy and the other faces, best score first.

    At full size, a face of more than FRAGMENTED_SIDE pixels is found in fragments. Faces inside a
    large face are dropped.

    Args:
        fine: The faces at full size.
        coarse: The faces in a small copy, in pixels of the full size.
        longest: The longer side of the full size in pixels.
    """
    large = [face for face in coarse if face.side > longest / 3]
    others = []
    for face in fine:
        if not any(_centre_within(face, around) for around in large):
            others.append(face)
    return sorted(large + others, key=lambda face: (-face.score, *face.box))


def detect_in_crop(detector: Detector, image: Image) -> Detection:
    """Finds the face of a crop (H, W, 3): the one with the greatest score times side.

    The detector gets a grey copy at 224 pixels, because colour alone would move the face, without
    padding, which only lost faces. If the face is small, the image may be a photo and is searched
    at full size, in colour. Landmarks are searched in the full image if there is no face, or if its
    box and the image have an IoU of 0.5 or more: covered eyes or a mask mislead the detector's box
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
    """Returns whether an image (H, W, 3) above `MAX_CUT_SIDE` shows several faces, or a small one.

    A face is small if it fills less than half of the image. Faces below the detector's minimum
    score of photos do not count.
    """
    if max(image.shape[:2]) <= MAX_CUT_SIDE:
        return False
    faces = [face for face in detector.find(image) if face.score >= detector.photo_score]
    return len(faces) > 1 or any(2 * face.side < min(image.shape[:2]) for face in faces)


def follow_faces(detector: Detector, image: Image, faces: list[Detection]) -> list[Detection]:
    """Re-detects each face of a video where it is expected in the next frame (H, W, 3).

    A box keeps its size and moves with the landmarks, so that all searches have the same framing.
    Faces that are not found, or found twice, are left out. Landmarks are refined from the expected
    ones, moved to the detection.
    """
    followed: list[Detection] = []
    for face in faces:
        cut, scale, shift = _cut_square(image, face)
        expected = face.moved(scale, shift)
        candidates = detector.find(cut)
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
    """Cuts a grey square around a face, faster than `warp`.

    Returns the cut (MIN_SIDE, MIN_SIDE, 3), and scale and shift (2,) from image to cut pixels.
    """
    half = 2 * round(face.longer_side / FOLLOWED_SHARE / 4) + 2  # half the side, an even number
    start = np.round(face.centre).astype(int) - half  # (x, y)
    stop = start + 2 * half

    # The part of the square inside the image, and the widths of its margins outside.
    image_size = np.array(image.shape[1::-1])  # width and height
    part_start = np.clip(start, 0, image_size - 1)
    part_stop = np.clip(stop, 1, image_size)
    left, top = (part_start - start).tolist()
    right, bottom = (stop - part_stop).tolist()
    part = image[part_start[1] : part_stop[1], part_start[0] : part_stop[0]]
    cut = cv2.cvtColor(part, cv2.COLOR_RGB2GRAY)
    cut = cv2.copyMakeBorder(cut, top, bottom, left, right, cv2.BORDER_REPLICATE)
    scale = MIN_SIDE / (2 * half)
    grey = resized(np.asarray(cut, np.uint8), MIN_SIDE)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), np.uint8), scale, -scale * start


def _centre_within(face: Detection, around: Detection) -> bool:
    """Returns whether the centre of a face is inside the box of another."""
    return bool((around.box[:2] <= face.centre).all() and (face.centre <= around.box[2:]).all())


def _scale(small: Image, image: Image) -> Array:
    """Returns the factors (2,) for x and y that map points of a resized image back to the image."""
    return np.array([image.shape[1] / small.shape[1], image.shape[0] / small.shape[0]])


def resized(image: Image, side: int) -> Image:
    """Scales the longer side of an image (H, W, 3) to `side` pixels.

    The image is enlarged by bicubic interpolation, or reduced by halves, then averaged.

    Averages over parts of pixels take ten times as long as bilinear interpolation, which does not
    alias where the last reduction is slight, or to a half, which it computes as the mean of four
    pixels.
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
