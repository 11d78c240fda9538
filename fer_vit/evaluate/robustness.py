"""Accuracy on corrupted images: faces covered, turned, blurred, small; landmarks wrong or missing.

Every corrupted image is processed like by `fer-vit predict --face crop`: face and landmarks are detected again.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.manifest import Manifest
from fer_vit.evaluate.scores import mean_intervals
from fer_vit.face.crop import cover_regions
from fer_vit.face.detect import CROP_SCORE, Detector, Face, FaceDetector, NoDetector, resized
from fer_vit.face.image import decode_image
from fer_vit.face.landmarks import head_pose
from fer_vit.geometry import TEMPLATE, Array, Image, IntArray
from fer_vit.predict.photos import PhotoDataset, Source, photo_loader
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.stages import CHUNK
from fer_vit.processes import cores

EYES, MOUTH = ("right_eye", "left_eye"), ("mouth",)
UNALTERED, MOST_TURNED = "unaltered", "heads turned most"
TURNED = 0.1
"""Fraction of the faces that count as turned heads."""
SIDE = 48
"""Blur and landmark shifts are given for a longer side of SIDE pixels and scaled to the image."""

Change = Callable[[Image, Array], Image]
"""Changes an image, given its landmarks (5, 2)."""


@dataclass(eq=False)
class ShiftedLandmarks(PhotoDataset):
    """Crops with every landmark shifted in a random direction by `distance`, a fraction of the longer side."""

    distance: float = 0.0

    def read(self, source: Source) -> tuple[Image, int, list[Face | None]]:
        """Returns an image, its reduction, and its face; the same image gets the same shifts."""
        image, reduction, faces = super().read(source)
        if not self.distance:
            return image, reduction, faces
        angle = np.random.default_rng(zlib.crc32(image.tobytes())).uniform(0, 2 * np.pi, 5)
        step = self.distance * max(image.shape[:2]) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return image, reduction, [face and face._replace(landmarks=face.landmarks + step) for face in faces]


def turn(image: Image, landmarks: Array, degrees: float) -> Image:
    """Turns an image about its middle, counter-clockwise; the border is repeated."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    return np.asarray(cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE), np.uint8)


def blur(image: Image, landmarks: Array, sigma: float) -> Image:
    """Blurs an image by a Gaussian of `sigma` pixels of `SIDE`."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma * max(image.shape[:2]) / SIDE), np.uint8)


def shrink(image: Image, landmarks: Array, side: int) -> Image:
    """Makes an image's longer side `side` pixels long."""
    return resized(image, side)


class Corruption(NamedTuple):
    """How images are corrupted and processed."""

    changes: Sequence[Change | None]  # their results are averaged; None changes nothing
    detector: Detector | None
    shift: float = 0.0  # the distance by which landmarks are shifted


def corruptions(detector: Detector) -> dict[str, Corruption]:
    """Returns every corruption by name; `detector` is used unless the name excludes it."""
    changes: dict[str, list[Change | None]] = {
        UNALTERED: [None],
        "eyes covered": [partial(cover_regions, regions=EYES)],
        "mouth covered": [partial(cover_regions, regions=MOUTH)],
        "turned by 15 degrees": [partial(turn, degrees=15), partial(turn, degrees=-15)],
        "turned by 30 degrees": [partial(turn, degrees=30), partial(turn, degrees=-30)],
        "blurred (sigma 1.5 px)": [partial(blur, sigma=1.5)],
        "24 px": [partial(shrink, side=24)],
    }
    return {name: Corruption(change, detector) for name, change in changes.items()} | {
        "no detector": Corruption([None], NoDetector()),
        "landmarks 2 px off": Corruption([None], detector, 2 / SIDE),
        "landmarks 4 px off": Corruption([None], detector, 4 / SIDE),
        "no landmarks": Corruption([None], None),
    }


@dataclass(eq=False)
class CorruptedImages(Sequence[Image]):
    """The images of a manifest, changed when they are read; unknown landmarks default to an average face's."""

    rows: Manifest
    landmarks: Array
    change: Change | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> Any:
        image, points = decode_image(self.rows.image_bytes(row)), self.landmarks[row]
        if self.change is None:
            return image
        return self.change(image, points if np.isfinite(points).all() else np.array(TEMPLATE) * image.shape[1::-1])


def measure_robustness(
    model: Recognizer, rows: Manifest, truth: IntArray, only: Sequence[str] = ()
) -> dict[str, Array]:
    """Returns the accuracy on each face (N,) by corruption, all or `only` some; NaN for a face that does not count.

    `rows` are crops of one face each, `truth` (N,) the indices of their labels among the model's.
    """
    landmarks = rows.landmarks()
    hits: dict[str, Array] = {}
    chosen = corruptions(FaceDetector(min_score=CROP_SCORE)).items()
    for name, corruption in tqdm([one for one in chosen if not only or one[0] in only], "robustness", disable=None):
        images = (CorruptedImages(rows, landmarks, change) for change in corruption.changes)
        hits[name] = np.mean([predict_labels(model, one, corruption) == truth for one in images], axis=0)
        known = np.isfinite(landmarks).all((1, 2))
        if name == UNALTERED and known.any():
            yaw = np.full(len(rows), np.nan)
            yaw[known] = [abs(head_pose(points).yaw) for points in landmarks[known]]
            hits[MOST_TURNED] = np.where(yaw >= np.nanquantile(yaw, 1 - TURNED), hits[name], np.nan)
    return hits


def predict_labels(model: Recognizer, images: Sequence[Image], corruption: Corruption) -> IntArray:
    """Returns the index of the predicted label of each image, a crop of one face (N,)."""
    dataset = ShiftedLandmarks(images, model.crop_spec, "crop", corruption.detector, corruption.shift)
    batches = (batch.ready(model.device) for _, batch in photo_loader(dataset, CHUNK, cores() - 1) if batch)
    return np.array([np.argmax(face) for batch in batches for face in model.probabilities(batch)])


def summarize_robustness(hits: dict[str, Array], units: IntArray | None = None) -> dict[str, dict[str, Any]]:
    """Returns by corruption the number of faces, the accuracy, and the difference from the unaltered faces."""
    accuracies = mean_intervals(np.column_stack([*hits.values()]), units, binary=True)
    differences = mean_intervals(np.column_stack([hit - hits[UNALTERED] for hit in hits.values()]), units)
    return {
        name: {"faces": accuracy["faces"], "accuracy": accuracy}
        | ({} if name in (UNALTERED, MOST_TURNED) else {"difference": difference})
        for name, accuracy, difference in zip(hits, accuracies, differences, strict=True)
    }
