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
from fer_vit.face.detect import CROP_SCORE, Detector, Face, FaceDetector, NoDetector, head_pose, resized
from fer_vit.geometry import TEMPLATE, Array, Image, IntArray
from fer_vit.predict.photos import PhotoDataset, photo_loader
from fer_vit.predict.recognizer import CHUNK, Recognizer
from fer_vit.processes import cores

EYES, MOUTH = ("right_eye", "left_eye"), ("mouth",)
UNALTERED, MOST_TURNED = "unaltered", "heads turned most"
TURNED = 0.1  # fraction of the faces that count as turned heads
SIDE = 48  # blur and landmark shifts are given for a longer side of SIDE pixels and scaled to the image

Change = Callable[[Image, Array], Image]  # changes an image, given its landmarks (5, 2)


@dataclass(eq=False)
class CorruptedPhotos(PhotoDataset):
    """The crops of a manifest, by the index of their row, changed when they are read."""

    rows: Manifest
    landmarks: Array  # (M, 5, 2); an average face replaces NaN
    change: Change | None = None
    shift: float = 0.0  # moves each found landmark in a random direction, as a fraction of the longer side

    def read(self, source: Any) -> tuple[Image, int, list[Face | None]]:
        """Returns the image of a row, its reduction, and its face; the same image gets the same shifts."""
        image, points = self.rows.image(source), self.landmarks[source]
        if self.change:
            known = np.isfinite(points).all()
            image = self.change(image, points if known else np.array(TEMPLATE) * image.shape[1::-1])
        image, reduction, faces = super().read(image)
        if not self.shift:
            return image, reduction, faces
        angle = np.random.default_rng(zlib.crc32(image.tobytes())).uniform(0, 2 * np.pi, 5)
        step = self.shift * max(image.shape[:2]) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
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
    shift: float = 0.0  # see `CorruptedPhotos`


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


def measure_robustness(
    model: Recognizer, rows: Manifest, truth: IntArray, only: Sequence[str] = ()
) -> dict[str, Array]:
    """Returns the accuracy on each face (N,) by corruption, all or `only` some; NaN for a face that does not count.

    `rows` are crops of one face each, `truth` (N,) the indices of their labels among the model's.
    """
    landmarks, hits = rows.landmarks(), dict[str, Array]()
    known, every = np.isfinite(landmarks).all((1, 2)), corruptions(FaceDetector(min_score=CROP_SCORE))
    for name in tqdm([name for name in every if not only or name in only], "robustness", disable=None):
        changes, detector, shift = every[name]
        crops: dict[str, Any] = {"sources": range(len(rows)), "spec": model.crop_spec, "face": "crop"}
        crops |= {"detector": detector, "rows": rows, "landmarks": landmarks, "shift": shift}
        photos = (CorruptedPhotos(**crops, change=change) for change in changes)
        hits[name] = np.mean([predict_labels(model, one) == truth for one in photos], axis=0)
        if name == UNALTERED and known.any():
            yaw = np.full(len(rows), np.nan)
            yaw[known] = [abs(head_pose(points).yaw) for points in landmarks[known]]
            hits[MOST_TURNED] = np.where(yaw >= np.nanquantile(yaw, 1 - TURNED), hits[name], np.nan)
    return hits


def predict_labels(model: Recognizer, photos: PhotoDataset) -> IntArray:
    """Returns the index of the predicted label of each photo, a crop of one face (N,)."""
    batches = (batch.ready(model.device) for _, batch in photo_loader(photos, CHUNK, cores() - 1) if batch)
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
