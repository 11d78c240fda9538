"""How a model bears what real photos do to faces: covered, turned, blurred, small, landmarks wrong or missing.

Every image is changed and then goes the way of `fer-vit predict --face crop`: the detector looks at the changed image,
and what it finds is what the model gets.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fer_vit.data.manifest import Manifest
from fer_vit.face.detect import CROP_SCORE, Detector, Face, YuNet, nothing, resized
from fer_vit.face.image import decode_image
from fer_vit.face.regions import region_boxes
from fer_vit.geometry import TEMPLATE, Array, Image
from fer_vit.intervals import exact, mean_intervals
from fer_vit.predict.inputs import Source
from fer_vit.predict.photos import PhotoDataset, photo_loader
from fer_vit.predict.recognizer import CHUNK, Recognizer
from fer_vit.processes import cores

EYES, MOUTH = ("right_eye", "left_eye"), ("mouth",)
AS_THEY_ARE, MOST_TURNED = "as they are", "heads turned most"
TURNED = 0.1
"""Part of the faces that count as turned heads."""
SIDE = 48
"""Blur and shifts of landmarks are those of images with so many pixels on the longer side, whatever theirs."""

Change = Callable[[Image, Array], Image]
"""Changes an image, given its landmarks (5, 2)."""


@dataclass(eq=False)
class Shifted(PhotoDataset):
    """Crops whose landmarks are all wrong, each by the same distance in a direction of its own.

    `part` is the distance as a part of the image's longer side.
    """

    part: float = 0.0

    def read(self, source: Source) -> tuple[Image, int, list[Face | None]]:
        """Returns an image, its reduction, and its face, the same for the same image."""
        image, reduction, faces = super().read(source)
        if not self.part:
            return image, reduction, faces
        angle = np.random.default_rng(zlib.crc32(image.tobytes())).uniform(0, 2 * np.pi, 5)
        step = self.part * max(image.shape[:2]) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return image, reduction, [face and face._replace(landmarks=face.landmarks + step) for face in faces]


def same(image: Image, landmarks: Array) -> Image:
    """Returns the image."""
    return image


def cover(image: Image, landmarks: Array, regions: tuple[str, ...]) -> Image:
    """Fills the smallest rectangle around some regions with the image's mean colour."""
    boxes = region_boxes(landmarks, regions)
    size = np.array(image.shape[1::-1])
    left, top = np.clip(np.floor(boxes[:, :2].min(0)), 0, size).astype(int)
    right, bottom = np.clip(np.ceil(boxes[:, 2:].max(0)), 0, size).astype(int)
    image = image.copy()
    image[top:bottom, left:right] = image.mean((0, 1)).round()
    return image


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


class Trial(NamedTuple):
    """Changes, over which the result is averaged, the detector that looks at them, and how far off landmarks are."""

    changes: Sequence[Change]
    detector: Detector | None
    off: float = 0.0


def trials(detector: Detector) -> dict[str, Trial]:
    """Returns every trial by name, given the detector of most."""
    return {
        AS_THEY_ARE: Trial([same], detector),
        "eyes covered": Trial([partial(cover, regions=EYES)], detector),
        "mouth covered": Trial([partial(cover, regions=MOUTH)], detector),
        "turned by 15 degrees": Trial([partial(turn, degrees=15), partial(turn, degrees=-15)], detector),
        "turned by 30 degrees": Trial([partial(turn, degrees=30), partial(turn, degrees=-30)], detector),
        "blurred (sigma 1.5 px)": Trial([partial(blur, sigma=1.5)], detector),
        "24 px": Trial([partial(shrink, side=24)], detector),
        "no detector": Trial([same], nothing),
        "landmarks 2 px off": Trial([same], detector, 2 / SIDE),
        "landmarks 4 px off": Trial([same], detector, 4 / SIDE),
        "no landmarks": Trial([same], None),
    }


@dataclass(eq=False)
class Changed(Sequence[Image]):
    """The images of a manifest, changed when they are read. Unknown landmarks are taken to be an average face's."""

    rows: Manifest
    landmarks: Array
    change: Change

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> Any:
        image, points = decode_image(self.rows.image_bytes(row)), self.landmarks[row]
        usual = np.array(TEMPLATE) * image.shape[1::-1]
        return self.change(image, points if np.isfinite(points).all() else usual)


def yaw(landmarks: Array) -> Array:
    """Says how far heads are turned aside: the nose's distance from the middle of the eyes along their line, in eye
    distances; (N, 5, 2) -> (N,).
    """
    right, left, nose = landmarks[:, 0], landmarks[:, 1], landmarks[:, 2]
    line = left - right
    aside: Array = np.abs(((nose - (right + left) / 2) * line).sum(1)) / (line**2).sum(1)
    return aside


def hard_faces(
    model: Recognizer, rows: Manifest, truth: NDArray[np.int64], only: Sequence[str] = ()
) -> dict[str, Array]:
    """Returns how often the model is right about each face (N,) by trial; NaN for a face that is not part of one.

    Args:
        model: The model.
        rows: Images, each the crop of one face. The most turned heads are known where they have landmarks.
        truth: Index of the true label among the model's (N,).
        only: Names of trials; all when empty.
    """
    landmarks = rows.landmarks()
    found: dict[str, Array] = {}
    chosen = {name: trial for name, trial in trials(YuNet(min_score=CROP_SCORE)).items() if name in (only or (name,))}
    for name, trial in tqdm(chosen.items(), desc="hard faces", disable=None, leave=False):
        guesses = [predicted(model, Changed(rows, landmarks, change), trial) for change in trial.changes]
        found[name] = (np.array(guesses) == truth).mean(0)
        if name == AS_THEY_ARE and np.isfinite(aside := yaw(landmarks)).any():
            most = np.nanquantile(aside, 1 - TURNED)
            found[MOST_TURNED] = np.where(aside >= most, found[name], np.nan)
    return found


def predicted(model: Recognizer, images: Sequence[Image], trial: Trial) -> NDArray[np.int64]:
    """Returns the index of the label that each image, a crop of one face, gets."""
    dataset = Shifted(images, model.crop_spec, "crop", trial.detector, trial.off)
    batches = (batch.ready(model.device) for _, batch in photo_loader(dataset, CHUNK, cores() - 1) if batch)
    return np.array([np.argmax(face) for batch in batches for face in model.probabilities(batch)])


def hard_results(hits: dict[str, Array], units: NDArray[np.int64] | None = None) -> dict[str, dict[str, Any]]:
    """Returns by trial the number of faces, the accuracy, and the difference from the same faces as they are."""
    values = np.column_stack([*hits.values(), *(hit - hits[AS_THEY_ARE] for hit in hits.values())])
    means = mean_intervals(values, units)
    return {
        name: {"faces": accuracy["faces"], "accuracy": exact(accuracy, ~np.isnan(hits[name]), units)}
        | ({} if name in (AS_THEY_ARE, MOST_TURNED) else {"difference": difference})
        for name, accuracy, difference in zip(hits, means[: len(hits)], means[len(hits) :], strict=True)
    }
