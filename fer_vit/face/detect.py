"""Faces of an image by the built-in network, YuNet or another `Detector`, their landmarks, and the pose of a head.

benchmarks/landmarks.py trained the landmark network on rotated, covered, blurred and small faces with YuNet's landmarks
of clear ones.
"""

import os
from pathlib import Path
from threading import local
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urljoin

import cv2
import numpy as np
from numpy.typing import ArrayLike

from fer_vit.errors import FerVitError
from fer_vit.face.crop import CUT, mirror, warp
from fer_vit.geometry import (
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

BUILTIN = Path(__file__).with_name(
    "detector.onnx"
)  # trained by benchmarks/detector.py; its card is detector.md
YUNET_NAME = "face_detection_yunet_2026may.onnx"
ZOO = "https://github.com/opencv/opencv_zoo/raw/47534e27c9851bb1128ccc0102f1145e27f23f98/models"
YUNET_URL = f"{ZOO}/face_detection_yunet/{YUNET_NAME}"
YUNET_SHA256 = "ebafce4e3c118d6554634be5c27ab333b4c047a9a8c3faf1d7cf93101c22f0f0"
LANDMARKS, SIDE = (
    Path(__file__).with_name("landmarks.onnx"),
    64,
)  # the landmark network, and its input's side in pixels
_own = local()  # a network of OpenCV is for one thread

MIN_SIDE, MAX_SIDE = 224, 1280
"""The longer side of the images that a detector gets, in pixels.

At 224 YuNet finds as many of FERPlus' 48-pixel crops as at any size from 128 to 320, and its landmarks, from which the
landmark network learned, lie on the eyes of the mean aligned face; at 160 they are 11 % too far apart. At 1280 it finds
faces down to about a hundredth of a photo's longer side.
"""
PHOTO_SCORE, CROP_SCORE = 0.6, 0.3
"""Minimum score in photos, and in crops of a face: 0.3 finds one in 99.8 % of FERPlus' crops, 0.6 in 98.8 %."""
FILL = 0.98
"""Longer side of a face's box in FERPlus' crops, as a fraction of the crop: median of 1,500; half have 0.92 to 1.01."""
FOLLOWED = (
    0.75  # the same for the search in a video's next frame: a turned or moving face stays inside
)
SAME = 0.3  # boxes with a larger IoU are of the same face

DetectorName = Literal["auto", "builtin", "yunet", "landmarks", "none"]
FINDERS = ("auto", "builtin", "yunet")  # the detectors that find faces in photos


class Face(NamedTuple):
    """A face in an image, in the image's pixels."""

    box: Array  # xyxy (4,); may extend beyond the image
    landmarks: Array  # (5, 2) in the order of `geometry.LANDMARKS`
    score: float  # in [0, 1]; 0 for a full-image face because none was found, NaN without detection

    def moved(self, scale: float | Array, shift: float | Array = 0.0) -> "Face":
        """Returns the face in the pixels of another image, where x and y are multiplied by `scale`, then shifted."""
        corners = self.box.reshape(2, 2) * scale + shift
        return Face(corners.ravel(), self.landmarks * scale + shift, self.score)


class Detector(Protocol):
    """Finds the faces in an image (H, W, 3), best score first. Picklable for worker processes."""

    def __call__(self, image: Image) -> list[Face]: ...  # noqa: D102


class NoDetector:
    """Finds no face: every image is one face."""

    def __call__(self, image: Image) -> list[Face]:  # noqa: D102
        return []


class FaceDetector:
    """The built-in network or YuNet, through `cv2.FaceDetectorYN`; drops faces with a score below `min_score`.

    Wu et al. 2023, "YuNet: A Tiny Millisecond-level Face Detector"; the built-in network was distilled from it.
    """

    def __init__(self, path: Path = BUILTIN, min_score: float = PHOTO_SCORE) -> None:
        self.path, self.min_score = path, min_score
        self._own = local()  # a network of OpenCV is for one thread, and cannot be pickled

    def __reduce__(self) -> tuple[type["FaceDetector"], tuple[Path, float]]:
        """Leaves the networks out; another process loads them again."""
        return type(self), (self.path, self.min_score)

    def __call__(self, image: Image) -> list[Face]:
        """Returns the faces of an image (H, W, 3), best score first, ties from left to right."""
        longest = max(image.shape[:2])
        fine = resized(image, min(max(longest, MIN_SIDE), MAX_SIDE))
        faces = self._detect(fine, image)
        if longest > MIN_SIDE:
            # A face of more than about 500 pixels is detected in fragments, so large ones are taken from a small copy.
            large = [
                face
                for face in self._detect(resized(fine, MIN_SIDE), image)
                if _side(face) > longest / 3
            ]
            faces = large + [
                face for face in faces if not any(_centre_within(face, other) for other in large)
            ]
        return sorted(faces, key=lambda face: (-face.score, *face.box))

    def _detect(self, small: Image, image: Image) -> list[Face]:
        """Returns the faces in a resized copy of an image, in the image's pixels."""
        if not hasattr(self._own, "net"):
            self._own.net = self._load()
        self._own.net.setInputSize((small.shape[1], small.shape[0]))
        found = self._own.net.detect(np.ascontiguousarray(small[..., ::-1]))[
            1
        ]  # (F, 15): x, y, w, h, points, score
        if found is None:
            return []
        # Mirrored images show no constant offset between OpenCV's coordinates and ours, so no half pixel is added.
        points, scores = found[:, :14].reshape(-1, 7, 2).astype(float), found[:, 14].tolist()
        points[:, 1] += points[:, 0]  # from width and height to the other corner
        faces = (
            Face(some[:2].ravel(), some[2:], score)
            for some, score in zip(points, scores, strict=True)
        )
        return [face.moved(_scale(small, image)) for face in faces]

    def _load(self) -> Any:
        # OpenCV 5 warns that its new engine has no targets, although only the default one is requested.
        level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
        try:
            return cv2.FaceDetectorYN.create(
                str(self.path), "", (MIN_SIDE, MIN_SIDE), self.min_score
            )
        except cv2.error as error:
            raise FerVitError(
                f"Expected a face detector at {self.path}, but OpenCV cannot read it."
            ) from error
        finally:
            cv2.utils.logging.setLogLevel(level)


def choose_detector(name: DetectorName) -> DetectorName:
    """Returns YuNet for "auto" if its file is named or in the cache, else the built-in detector."""
    if name != "auto":
        return name
    return (
        "yunet"
        if os.environ.get("FER_VIT_YUNET") or (cache_folder() / YUNET_NAME).is_file()
        else "builtin"
    )


def make_detector(name: DetectorName, min_score: float) -> Detector | None:
    """Returns a detector by its name; None for "none", which leaves landmarks out."""
    if name in FINDERS:
        return FaceDetector(
            yunet_path() if choose_detector(name) == "yunet" else BUILTIN, min_score
        )
    return NoDetector() if name == "landmarks" else None


def detect_in_crop(detector: Detector, image: Image) -> Face:
    """Finds the face in an image (H, W, 3) that is a crop of it: the face with the greatest score times side.

    The detector gets a grey copy at 224 pixels, because colour alone would move the face, without padding, which only
    lost faces. If the face is small, the image may be a photo and is searched at full size, in colour. Landmarks are
    searched in the full image if there is no face, or if its box and the image have an IoU of 0.5 or more: covered eyes
    or a mask mislead the detector's box more than the landmarks.
    """
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    grey = np.asarray(cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB), np.uint8)
    if isinstance(detector, NoDetector):
        return full_image_face(grey)
    small = resized(grey, MIN_SIDE)
    face = best([face.moved(_scale(small, image)) for face in detector(small)])
    if face is None or 2 * _side(face) < min(image.shape[:2]):
        face = best(detector(image))
    if face and box_iou(face, face._replace(box=full_box(image))) < 0.5:
        return refine_landmarks(grey, [face])[0]
    full = full_image_face(grey)
    return face._replace(landmarks=full.landmarks) if face else full._replace(score=0.0)


def full_image_face(image: Image) -> Face:
    """Returns a face that fills the image (H, W, 3), with score NaN. Without a face, its landmarks are arbitrary."""
    return Face(full_box(image), find_landmarks(image, fit_matrix(image, SIDE)), np.nan)


def is_photo(image: Image) -> bool:
    """Returns whether an image of more than `CUT` pixels shows several faces, or a face that fills less than half."""
    if max(image.shape[:2]) <= CUT:
        return False
    faces = FaceDetector()(image)
    return len(faces) > 1 or any(2 * _side(face) < min(image.shape[:2]) for face in faces)


def refine_landmarks(image: Image, faces: list[Face]) -> list[Face]:
    """Finds landmarks, which in detectors depend on size, surroundings and colours, in cuts framed as in training."""
    cuts = [
        box_matrix(face.box, SIDE, FILL * SIDE / max(face.box[2:] - face.box[:2])) for face in faces
    ]
    return [
        face._replace(landmarks=find_landmarks(image, cut))
        for face, cut in zip(faces, cuts, strict=True)
    ]


def find_landmarks(image: Image, to_cut: Array) -> Array:
    """Finds the landmarks (5, 2) of a face that fills a square of SIDE pixels, given the matrix (2, 3) to it."""
    return refine_points(image, _find_in_cut(image, to_cut))


def refine_points(image: Image, landmarks: Array) -> Array:
    """Refines approximate landmarks (5, 2) in the upright face at its usual size and place."""
    return _find_in_cut(image, crop_matrix(landmarks, SIDE))


def network_input(cut: Image) -> Float32Array:
    """Returns the network's input (1, SIDE, SIDE) from a face (SIDE, SIDE, 3): grey, mean 0, deviation 1."""
    grey = np.asarray(cv2.cvtColor(cut, cv2.COLOR_RGB2GRAY), np.float32)
    return np.asarray((grey - grey.mean()) / (grey.std() + 2))[None]


def _find_in_cut(image: Image, to_cut: Array) -> Array:
    """Averages the landmarks in a cut and in its mirror image, so a mirrored face has mirrored landmarks."""
    cut = warp(image, to_cut, SIDE)
    mirrored, points = mirror(cut, _predict_points(cut))
    return apply(invert(to_cut), mirror(mirrored, (points + _predict_points(mirrored)) / 2)[1])


def _predict_points(cut: Image) -> Array:
    if not hasattr(_own, "network"):
        _own.network = cv2.dnn.readNetFromONNX(np.frombuffer(LANDMARKS.read_bytes(), np.uint8))
    _own.network.setInput(network_input(cut)[None])
    return np.array(_own.network.forward().reshape(5, 2) * SIDE, float)


def search_frame(detector: Detector, image: Image, coarse: bool) -> list[Face]:
    """Finds the faces of a video frame; `coarse` searches at a third of the size, and finds only large ones."""
    longest = max(image.shape)
    side = max(MIN_SIDE, min(longest, MAX_SIDE) // 3)
    if not coarse or side >= longest:
        return refine_landmarks(image, detector(image))
    small = resized(image, side)
    return refine_landmarks(image, [face.moved(_scale(small, image)) for face in detector(small)])


def follow_faces(detector: Detector, image: Image, faces: list[Face]) -> list[Face]:
    """Re-detects each face of a video where it is expected in the next frame.

    A box keeps its size and moves with the landmarks, so that all searches have the same framing. Faces that are not
    found, or found twice, are left out. Landmarks are refined from the expected ones, moved to the detection.
    """
    found: list[Face] = []
    for face in faces:
        cut, scale, shift = _cut_square(image, face)
        expected = face.moved(scale, shift)
        nearest = max(detector(cut), key=lambda other: box_iou(other, expected), default=None)
        if nearest is None or box_iou(nearest, expected) <= SAME:
            continue
        near = expected.landmarks + (nearest.landmarks - expected.landmarks).mean(0)
        landmarks = (refine_points(cut, near) - shift) / scale
        again = Face(
            face.moved(1.0, (landmarks - face.landmarks).mean(0)).box, landmarks, nearest.score
        )
        if all(box_iou(again, other) <= SAME for other in found):
            found.append(again)
    return found


def _cut_square(image: Image, face: Face) -> tuple[Image, float, Array]:
    """Cuts a grey square around a face, faster than `warp`: the cut, scale and shift (2,) from image to cut pixels."""
    half = 2 * round(max(face.box[2:] - face.box[:2]) / FOLLOWED / 4) + 2
    start = np.round((face.box[:2] + face.box[2:]) / 2).astype(int) - half
    stop, end = start + 2 * half, np.array(image.shape[1::-1])
    inner, outer = np.clip(start, 0, end - 1), np.clip(stop, 1, end)
    cut = cv2.cvtColor(image[inner[1] : outer[1], inner[0] : outer[0]], cv2.COLOR_RGB2GRAY)
    (left, top), (right, bottom) = (inner - start).tolist(), (stop - outer).tolist()
    cut = cv2.copyMakeBorder(cut, top, bottom, left, right, cv2.BORDER_REPLICATE)
    while (
        len(cut) >= 2 * MIN_SIDE
    ):  # OpenCV halves ten times as fast as it averages over parts of pixels
        cut = cv2.resize(cut, (len(cut) // 2, len(cut) // 2), interpolation=cv2.INTER_AREA)
    scale = MIN_SIDE / (2 * half)
    grey = resized(np.asarray(cut, np.uint8), MIN_SIDE)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), np.uint8), scale, -scale * start


def best(faces: list[Face]) -> Face | None:
    """Returns the face with the greatest score times side."""
    return max(faces, key=lambda face: face.score * _side(face), default=None)


def box_iou(face: Face, other: Face) -> float:
    """Returns the intersection over union of two faces' boxes."""
    sides = np.minimum(face.box[2:], other.box[2:]) - np.maximum(face.box[:2], other.box[:2])
    common = float(np.prod(sides.clip(0)))
    return common / (_side(face) ** 2 + _side(other) ** 2 - common)


def _side(face: Face) -> float:
    """Returns the side of a square as large as the face's box, in pixels."""
    return float(np.sqrt(np.prod(face.box[2:] - face.box[:2])))


def _centre_within(face: Face, other: Face) -> bool:
    centre = (face.box[:2] + face.box[2:]) / 2
    return bool((other.box[:2] <= centre).all() and (centre <= other.box[2:]).all())


def _scale(small: Image, image: Image) -> Array:
    """Returns the factors (2,) for x and y that map points of a resized image back to the image."""
    return np.array([image.shape[1] / small.shape[1], image.shape[0] / small.shape[0]])


def resized(image: Image, side: int) -> Image:
    """Scales the longer side to `side` pixels: enlarged by bicubic interpolation, reduced by area averaging."""
    scale = side / max(image.shape[:2])
    height, width = (max(1, round(length * scale)) for length in image.shape[:2])
    method = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
    return np.asarray(cv2.resize(image, (width, height), interpolation=method), np.uint8)


EYE, NOSE, MOUTH = np.array([(3.177, -2.629, -3.826), (0.0, 1.127, -7.476), (2.456, 4.343, -4.284)])
HEAD = np.array([EYE * (-1, 1, 1), EYE, NOSE, MOUTH * (-1, 1, 1), MOUTH])
"""The mean head's landmarks (5, 3) in cm: x to the right of the picture, y down, z away from the camera.

Source: the canonical face model of MediaPipe (`canonical_face_model.obj`, Google, Apache-2.0): the means of the lids'
vertices 145 and 159, and of 374 and 386; nose 1; mouth 61 and 291.
"""
DISTANCE = 60.0  # of the camera in cm, which photos do not contain; 30 or 600 changes a yaw of 30 degrees by 1.4


class Pose(NamedTuple):
    """Angles in degrees, relative to the line from the camera to the face; 0 for a frontal, upright face."""

    yaw: float  # [-90, 90], positive if the face turns to the right of the picture (the person's left)
    pitch: float  # [-180, 180], positive if the face looks up
    roll: float  # [-180, 180], positive if the face is turned clockwise in the picture


def head_pose(landmarks: ArrayLike) -> Pose:
    """Returns the pose of a mean head whose projection fits landmarks (5, 2) in pixels best, the y axis down."""
    points, head = np.asarray(landmarks, float), HEAD - HEAD.mean(0)
    points = points - points.mean(0)
    points *= np.linalg.norm(head[:, :2]) / (DISTANCE * max(float(np.linalg.norm(points)), 1e-9))
    turn = cv2.Rodrigues(cv2.solvePnP(head, points, np.eye(3), None, flags=cv2.SOLVEPNP_SQPNP)[1])[
        0
    ]
    # The turn is roll after yaw after pitch, so that a turned picture changes only the roll.
    angles = (
        np.arcsin(turn[2, 0]),
        -np.arctan2(turn[2, 1], turn[2, 2]),
        np.arctan2(turn[1, 0], turn[0, 0]),
    )
    return Pose(*np.degrees(angles).tolist())


def cache_folder() -> Path:
    """Returns the folder for downloads: `$FER_VIT_CACHE`, else the user's cache (`~/.cache/fer-vit` on Linux)."""
    import pooch  # takes time to import

    return Path(os.environ.get("FER_VIT_CACHE") or pooch.os_cache("fer-vit"))


def yunet_path() -> Path:
    """Returns the checked YuNet file: `$FER_VIT_YUNET`, else the cached one, else downloaded into the cache."""
    import pooch  # takes time to import

    if named := os.environ.get("FER_VIT_YUNET"):
        path = Path(named).absolute()  # the working directory may change
        if not path.is_file():
            raise FerVitError(
                f"Expected the YuNet model at FER_VIT_YUNET={path}, but there is no file."
            )
        if (came := pooch.file_hash(path)) != YUNET_SHA256:
            raise FerVitError(
                f"Expected sha256 {YUNET_SHA256} of {path}, but got {came}. Fetch {YUNET_URL}."
            )
        return path
    cache = cache_folder()
    https = pooch.HTTPDownloader(hooks={"response": _stay_on_https})
    try:
        return Path(
            pooch.retrieve(YUNET_URL, f"sha256:{YUNET_SHA256}", YUNET_NAME, cache, downloader=https)
        )
    except (OSError, ValueError) as error:
        remedy = (
            f"Fetch {YUNET_URL} and set FER_VIT_YUNET=path/to/file, or use `--detector builtin`."
        )
        raise FerVitError(
            f"Cannot download YuNet to {cache}, see FER_VIT_CACHE ({error}). {remedy}"
        ) from error


def _stay_on_https(response: Any, **_: Any) -> None:
    """Refuses a redirect away from https, which `requests` would follow."""
    if response.is_redirect and not (
        goal := urljoin(response.url, response.headers["location"])
    ).startswith("https:"):
        raise OSError(f"{response.url} redirects to {goal}, which is not https")
