"""The accuracy of a model on corrupted images.

Corruptions cover, turn, blur or shrink faces, or change or remove landmarks. Every corrupted image
is processed like by `fer-vit predict --face crop`: face and landmarks are detected again.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import cover_regions
from fer_vit.face.detectors import (
    DEFAULT,
    DETECTORS,
    Detector,
    LandmarksOnly,
    NoDetector,
    resized,
)
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import ImageError
from fer_vit.face.pose import head_pose
from fer_vit.faces import READ, PhotoInfo, no_faces
from fer_vit.geometry import TEMPLATE, Array, Image, IntArray
from fer_vit.labels import Merge, merge_names, merge_probabilities
from fer_vit.predict.photos import Item, Reader, as_samples, read_batches
from fer_vit.predict.recognizer import CHUNK, Recognizer
from fer_vit.processes import cores

EYES = ("right_eye", "left_eye")
MOUTH = ("mouth",)
UNALTERED = "unaltered"
MOST_TURNED = "heads turned most"
TURNED = 0.1  # fraction of the faces that count as turned heads
SIDE = 48  # blur and shifts of landmarks are given for a longer side of SIDE pixels, and scaled

Change = Callable[[Image, Array], Image]  # changes an image, given its landmarks (5, 2)


@dataclass(frozen=True, eq=False)
class CorruptedCrops:
    """Reads the crops of a manifest by the index of their row, changes them and finds their faces.

    Attributes:
        rows: The manifest.
        landmarks: Of its rows (M, 5, 2); an average face replaces NaN.
        finder: Finds the face in a crop.
        change: Changes the image.
        shift: Of each landmark in a random direction, as a fraction of the image's longer side.
    """

    rows: Manifest
    landmarks: Array
    finder: FaceFinder
    change: Change | None = None
    shift: float = 0.0

    def name(self, index: int) -> str:
        """Returns the name of a row in messages."""
        return f"image {index}"

    def read_items(self, index: int) -> Iterator[Item]:
        """Yields the face of a row as a crop; the status has the reason if there is none."""
        info = PhotoInfo(self.name(index), index=index)
        try:
            yield self.read(info)
        except ImageError as error:
            yield no_faces([replace(info, status=str(error))]), []
        except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
            yield no_faces([replace(info, status="the image cannot be processed")]), []

    def read(self, info: PhotoInfo) -> Item:
        """Returns the face of a row, and its crop. The same image gets the same shifts."""
        image = self.changed_image(info.index)
        faces = self.finder.find(image, info)
        if self.shift:
            rng = np.random.default_rng(zlib.crc32(image.tobytes()))
            angle = rng.uniform(0, 2 * np.pi, 5)
            direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (5, 2)
            steps = self.shift * max(image.shape[:2]) * direction
            faces = replace(faces, landmarks=faces.landmarks + steps)
        return faces, as_samples(self.finder.crop(image, faces), info.path)

    def changed_image(self, index: int) -> Image:
        """Returns the image of a row after the change."""
        image = self.rows.image(index)
        if self.change is None:
            return image
        points = self.landmarks[index]  # (5, 2)
        if not np.isfinite(points).all():
            points = np.array(TEMPLATE) * image.shape[1::-1]
        return self.change(image, points)


def turn(image: Image, landmarks: Array, degrees: float) -> Image:
    """Turns an image about its middle, counter-clockwise; the border is repeated."""
    height, width = image.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, degrees, 1.0)
    turned = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(turned, np.uint8)


def blur(image: Image, landmarks: Array, sigma: float) -> Image:
    """Blurs an image by a Gaussian of `sigma` pixels of `SIDE`."""
    pixels = sigma * max(image.shape[:2]) / SIDE
    return np.asarray(cv2.GaussianBlur(image, (0, 0), pixels), np.uint8)


def shrink(image: Image, landmarks: Array, side: int) -> Image:
    """Makes an image's longer side `side` pixels long."""
    return resized(image, side)


class Corruption(NamedTuple):
    """How images are corrupted and processed."""

    changes: Sequence[Change | None]  # their results are averaged; None changes nothing
    detector: Detector
    shift: float = 0.0  # see `CorruptedCrops`


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
    table = {name: Corruption(change, detector) for name, change in changes.items()}
    table["no detector"] = Corruption([None], LandmarksOnly())
    table["landmarks 2 px off"] = Corruption([None], detector, shift=2 / SIDE)
    table["landmarks 4 px off"] = Corruption([None], detector, shift=4 / SIDE)
    table["no landmarks"] = Corruption([None], NoDetector())
    return table


def measure_robustness(
    model: Recognizer,
    rows: Manifest,
    truth: IntArray,
    only: Sequence[str] = (),
    merge: Merge | None = None,
) -> dict[str, Array]:
    """Returns the accuracy on crops by corruption: (N,), NaN where a face does not count.

    Args:
        model: The model.
        rows: The crops.
        truth: The index of the label of each crop (N,).
        only: The names of the corruptions. Default: all.
        merge: New labels of the model's, see `predict_manifest`.
    """
    landmarks = rows.landmarks()  # (N, 5, 2)
    known = np.isfinite(landmarks).all((1, 2))  # (N,)
    matrix = None
    if merge is not None:
        _, matrix = merge_names(model.labels, merge)  # (C, M)
    table = corruptions(DETECTORS[DEFAULT].load(DETECTORS[DEFAULT].crop_score))
    names = [name for name in table if not only or name in only]

    hits: dict[str, Array] = {}
    for name in tqdm(names, "robustness", disable=None):
        corruption = table[name]
        correct = []
        for change in corruption.changes:
            finder = FaceFinder(model.crop_spec, "crop", corruption.detector)
            crops = CorruptedCrops(rows, landmarks, finder, change, corruption.shift)
            correct.append(predict_labels(model, crops, len(rows), matrix) == truth)
        hits[name] = np.mean(correct, axis=0)

        if name == UNALTERED and known.any():
            yaw = np.full(len(rows), np.nan)
            yaw[known] = [_yaw(points) for points in landmarks[known]]
            most_turned = yaw >= np.nanquantile(yaw, 1 - TURNED)
            hits[MOST_TURNED] = np.where(most_turned, hits[name], np.nan)
    return hits


def _yaw(landmarks: Array) -> float:
    """Returns by how many degrees a head with landmarks (5, 2) is turned to either side.

    NaN: it has no pose.
    """
    pose = head_pose(landmarks)
    return np.nan if pose is None else abs(pose.yaw)


def predict_labels(
    model: Recognizer, reader: Reader, number: int, matrix: Array | None = None
) -> IntArray:
    """Returns the index of the predicted label of each of N crops of one face (N,).

    `matrix` merges the model's labels, see `labels.merge_names`; None: they stay.
    """
    labels: list[int] = []
    for faces, batch in read_batches(reader, range(number), CHUNK, cores() - 1):
        for info in faces.infos:
            if info.status not in READ:
                raise FerVitError(f"{info.path}: {info.status}.")
        if batch is not None:
            probabilities = np.array(model.probabilities(batch.ready(model.device)))  # (B, C)
            if matrix is not None:
                probabilities = merge_probabilities(probabilities, matrix)
            labels += probabilities.argmax(1).tolist()
    return np.array(labels)
