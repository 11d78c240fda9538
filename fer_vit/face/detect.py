"""Face detection: the faces of an image by YuNet or another `Detector`, and the way to each one's five landmarks."""

import os
from pathlib import Path
from threading import local
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urljoin

import cv2
import numpy as np

from fer_vit.errors import FerVitError
from fer_vit.face.crop import warp
from fer_vit.face.landmarks import SIDE, find_landmarks
from fer_vit.geometry import Array, Image, fit_matrix

YUNET_URL = (
    "https://github.com/opencv/opencv_zoo/raw/47534e27c9851bb1128ccc0102f1145e27f23f98/"
    "models/face_detection_yunet/face_detection_yunet_2026may.onnx"
)
YUNET_SHA256 = "ebafce4e3c118d6554634be5c27ab333b4c047a9a8c3faf1d7cf93101c22f0f0"

MIN_SIDE, MAX_SIDE = 224, 1280
"""The longer side of the images that YuNet gets, in pixels.

At 224 it finds as many of FERPlus' 48-pixel crops as at any size from 128 to 320, and its landmarks, from which ours
have been learned, lie on the eyes of the mean aligned face; at 160 they come out 11 % too far apart. At 1280 it finds
faces down to about a hundredth of a photo's longer side.
"""

PHOTO_SCORE, CROP_SCORE = 0.6, 0.3
"""Minimum score in photos, and in images known to hold a face: 0.3 finds one in 99.8 % of FERPlus' crops; 0.6 does in
98.8 %.
"""
FILL = 0.98
"""The longer side of a face's box in FERPlus' crops, in units of theirs: median of 1,500; half have 0.92 to 1.01."""
SAME = 0.3
"""Boxes that overlap more than this are of the same face, for YuNet as for us."""


DetectorName = Literal["yunet", "landmarks", "none"]


class Face(NamedTuple):
    """A face in an image, in the image's own pixels."""

    box: Array  # xyxy (4,); may extend beyond the image
    landmarks: Array  # (5, 2) in the order of `geometry.LANDMARKS`
    score: float  # in [0, 1]; 0 for an image taken whole because no face was found, NaN where none was looked for

    def moved(self, scale: float | Array, shift: float | Array = 0.0) -> "Face":
        """Returns the face in the pixels of another image, where x and y are multiplied by `scale`, then shifted."""
        corners = self.box.reshape(2, 2) * scale + shift
        return Face(corners.ravel(), self.landmarks * scale + shift, self.score)


class Detector(Protocol):
    """Finds the faces in an image. Picklable, so that it can be sent to worker processes."""

    def __call__(self, image: Image) -> list[Face]:
        """Returns the faces of an image (H, W, 3), best score first."""
        ...


class YuNet:
    """YuNet (Wu et al. 2023, "YuNet: A Tiny Millisecond-level Face Detector") through `cv2.FaceDetectorYN`.

    It drops faces with a score below `min_score`; for crops that hold a face see `CROP_SCORE`.
    """

    def __init__(self, path: Path | None = None, min_score: float = PHOTO_SCORE) -> None:
        self.path = path or yunet_path()
        self.min_score = min_score
        self._own = local()  # a network of OpenCV is for one thread, and cannot be pickled

    def __reduce__(self) -> tuple[type["YuNet"], tuple[Path, float]]:
        """Leaves the networks here; they are loaded again where they are needed."""
        return type(self), (self.path, self.min_score)

    def __call__(self, image: Image) -> list[Face]:
        """Returns the faces of an image (H, W, 3), best score first, ties from left to right."""
        longest = max(image.shape[:2])
        fine = resized(image, min(max(longest, MIN_SIDE), MAX_SIDE))
        faces = self._detect(fine, image)
        if longest > MIN_SIDE:
            # A face of more than about 500 pixels is detected in fragments, so large ones are taken from a small copy.
            large = [face for face in self._detect(resized(fine, MIN_SIDE), image) if _side(face) > longest / 3]
            faces = large + [face for face in faces if not any(_centre_within(face, other) for other in large)]
        return sorted(faces, key=lambda face: (-face.score, *face.box))

    def _detect(self, small: Image, image: Image) -> list[Face]:
        """Returns the faces that are found in a resized copy of an image, in the image's own pixels."""
        if not hasattr(self._own, "net"):
            self._own.net = self._load()
        self._own.net.setInputSize((small.shape[1], small.shape[0]))
        found = self._own.net.detect(np.ascontiguousarray(small[..., ::-1]))[1]  # (F, 15): x, y, w, h, points, score
        if found is None:
            return []
        # Mirrored images show no constant offset between YuNet's coordinates and ours, so no half pixel is added.
        points, scale = found[:, :14].reshape(-1, 7, 2).astype(float), _scale(small, image)
        return [
            Face(np.concatenate([p[0], p[0] + p[1]]), p[2:], float(score)).moved(scale)
            for p, score in zip(points, found[:, 14], strict=True)
        ]

    def _load(self) -> Any:
        # OpenCV 5 warns that its new engine has no targets, though only the default one is asked for.
        level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
        try:
            return cv2.FaceDetectorYN.create(str(self.path), "", (MIN_SIDE, MIN_SIDE), self.min_score)
        except cv2.error as error:
            raise FerVitError(f"Expected the YuNet model at {self.path}, but OpenCV cannot read it.") from error
        finally:
            cv2.utils.logging.setLogLevel(level)


def detect_in_crop(detector: Detector, image: Image) -> Face:
    """Finds the face that an image (H, W, 3) is a crop of: the one with the greatest score times side.

    It is looked for in grey, because colour alone would move the face, and at 224 pixels without padding: grey,
    replicated or reflected, the detector only lost faces. An image that turns out to be a photo with a small face is
    searched as a photo, in colour. Without a face, and where a face's box and the image overlap by half, landmarks are
    looked for in the whole image.
    """
    grey = _grey(image)
    if detector is nothing:
        return whole(grey)
    small = resized(grey, MIN_SIDE)
    face = best([face.moved(_scale(small, image)) for face in detector(small)])
    if face is None or 2 * _side(face) < min(image.shape[:2]):
        face = best(detector(image))
    if face and overlap(face, face._replace(box=_all_of(image))) < 0.5:
        return look_closer(grey, [face])[0]
    # Covered eyes or a mask mislead the detector's box more than the landmarks.
    found = whole(grey)
    return face._replace(landmarks=found.landmarks) if face else found._replace(score=0.0)


def nothing(image: Image) -> list[Face]:
    """A detector that does not look: every image is taken whole."""
    return []


def make_detector(name: DetectorName, min_score: float) -> Detector | None:
    """Returns the detector of a name: YuNet, one that takes images whole, or None, for no landmarks at all."""
    if name == "yunet":
        return YuNet(min_score=min_score)
    return nothing if name == "landmarks" else None


def whole(image: Image) -> Face:
    """Takes all of an image (H, W, 3) as a face with score NaN. If it is none, its landmarks mean nothing."""
    return Face(_all_of(image), find_landmarks(image, fit_matrix(image, SIDE)), np.nan)


def look_closer(image: Image, faces: list[Face]) -> list[Face]:
    """Finds the landmarks of faces in an image again, each in a cut framed like FERPlus' crops.

    A detector's own depend on the size, surroundings and colours that it sees; in training and prediction they have to
    be found in the same way.
    """
    return [face._replace(landmarks=find_landmarks(image, _frame(face, SIDE))) for face in faces]


def follow(detector: Detector, image: Image, faces: list[Face]) -> list[Face]:
    """Finds faces of a video again, each by a closer look at the place in the next frame where it is expected.

    A box keeps its size and goes with the landmarks, so that all searches are framed alike. Faces that are not found,
    or found twice, are left out.
    """
    found: list[Face] = []
    for face in faces:
        if again := _look(detector, image, face):
            (again,) = look_closer(image, [again])
            box = face.moved(1.0, (again.landmarks - face.landmarks).mean(0)).box
            again = again._replace(box=box)
            found += [again] if all(overlap(again, other) <= SAME for other in found) else []
    return found


def _look(detector: Detector, image: Image, face: Face) -> Face | None:
    """Returns a face as it is found in a grey cut of 224 pixels, framed like FERPlus' crops, if it is."""
    to_cut = _frame(face, MIN_SIDE)
    scale, shift = to_cut[0, 0], to_cut[:, 2]
    found = [other.moved(1 / scale, -shift / scale) for other in detector(_grey(warp(image, to_cut, MIN_SIDE)))]
    nearest = max(found, key=lambda other: overlap(other, face), default=None)
    return nearest if nearest and overlap(nearest, face) > SAME else None


def _frame(face: Face, side: int) -> Array:
    """Returns the matrix (2, 3) from an image to a cut of `side` pixels that shows a face as FERPlus' crops do."""
    scale = FILL * side / max(face.box[2:] - face.box[:2])
    return np.column_stack([scale * np.eye(2), side / 2 - scale * (face.box[:2] + face.box[2:]) / 2])


def best(faces: list[Face]) -> Face | None:
    """Returns the face with the greatest score times side."""
    return max(faces, key=lambda face: face.score * _side(face), default=None)


def overlap(face: Face, other: Face) -> float:
    """Returns the intersection of two boxes over their union."""
    sides = np.minimum(face.box[2:], other.box[2:]) - np.maximum(face.box[:2], other.box[:2])
    common = float(np.prod(sides.clip(0)))
    return common / (_side(face) ** 2 + _side(other) ** 2 - common)


def _grey(image: Image) -> Image:
    """Returns an image's luma (ITU-R BT.601), still in three channels."""
    return np.asarray(cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), np.uint8)


def _all_of(image: Image) -> Array:
    """Returns the box (4,) of a whole image."""
    return np.array([0, 0, image.shape[1], image.shape[0]], float)


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


def yunet_path() -> Path:
    """Returns the checked YuNet file: `$FER_VIT_YUNET`, else the cached one, else downloaded into the cache.

    The cache is `$FER_VIT_CACHE`, else the user's (`~/.cache/fer-vit` on Linux). Several processes may download at
    once; only a file with the right hash is kept, and a damaged one is fetched again.

    Raises:
        FerVitError: The file named is missing or has another hash, or the download failed.
    """
    import pooch  # only here: it takes time to import

    name = YUNET_URL.rpartition("/")[2]
    if named := os.environ.get("FER_VIT_YUNET"):
        path = Path(named).absolute()  # the working directory may change
        if not path.is_file():
            raise FerVitError(f"Expected the YuNet model at FER_VIT_YUNET={path}, but there is no file.")
        if (came := pooch.file_hash(path)) != YUNET_SHA256:
            raise FerVitError(
                f"Expected sha256 {YUNET_SHA256} of FER_VIT_YUNET={path}, but got {came}. Fetch {YUNET_URL}."
            )
        return path
    cache = os.environ.get("FER_VIT_CACHE") or pooch.os_cache("fer-vit")
    https = pooch.HTTPDownloader(hooks={"response": _stay_on_https})
    try:
        return Path(pooch.retrieve(YUNET_URL, f"sha256:{YUNET_SHA256}", name, cache, _readable_by_all, https))
    except (OSError, ValueError) as error:
        raise FerVitError(
            f"Cannot download the face detector to {cache}. Fetch {YUNET_URL} elsewhere and set "
            "FER_VIT_YUNET=path/to/file, or take images that are crops of faces as they are (`--detector landmarks`). "
            f"FER_VIT_CACHE=folder replaces a folder that cannot be written. ({error})"
        ) from error


def _stay_on_https(response: Any, **_: Any) -> None:
    """Refuses a redirect away from https, which `requests` would follow."""
    if response.is_redirect and not (goal := urljoin(response.url, response.headers["location"])).startswith("https:"):
        raise OSError(f"{response.url} redirects to {goal}, which is not https")


def _readable_by_all(path: str, action: str, _: object) -> str:
    """Lets other users of a shared cache read a new download, which pooch makes private to this user."""
    if action != "fetch":
        os.chmod(path, 0o644)
    return path
