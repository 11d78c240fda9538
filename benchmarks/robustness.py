"""How a model bears what real photos do to faces: covered, turned, blurred, small, landmarks wrong or missing.

Every image of a split is changed and then goes the way of `fer-vit predict --face crop`: the detector looks at the
changed image, and what it finds is what the model gets.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.face.detect import CROP_SCORE, Detector, Face, YuNet
from fer_vit.face.image import decode_image
from fer_vit.face.regions import region_boxes
from fer_vit.geometry import Array, Image
from fer_vit.predict.photos import PhotoDataset, photo_loader
from fer_vit.predict.recognizer import CHUNK, Recognizer
from fer_vit.processes import cores

EYES, MOUTH = ("right_eye", "left_eye"), ("mouth",)
TURNED = 0.1
"""Part of the faces that count as turned heads."""


class Shifted:
    """A detector whose landmarks are all wrong, each by the same distance in a direction of its own.

    Args:
        detector: Finds the faces.
        part: The distance as a part of the image's longer side.
    """

    def __init__(self, detector: Detector, part: float) -> None:
        self.detector = detector
        self.part = part

    def __call__(self, image: Image) -> list[Face]:
        """Returns the faces of an image, the same for the same image."""
        angle = np.random.default_rng(zlib.crc32(image.tobytes())).uniform(0, 2 * np.pi, 5)
        step = self.part * max(image.shape[:2]) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return [face._replace(landmarks=face.landmarks + step) for face in self.detector(image)]


def blind(image: Image) -> list[Face]:
    """A detector that finds nothing."""
    return []


class Trial(NamedTuple):
    """A change of images and the detector that looks at them; a change gets an image and its landmarks (5, 2)."""

    change: Callable[[Image, Array], Image]
    detector: Detector


def cover(image: Image, landmarks: Array, regions: tuple[str, ...]) -> Image:
    """Fills the smallest rectangle around some regions with the image's mean colour."""
    boxes = region_boxes(landmarks, regions)
    size = np.array(image.shape[1::-1])
    left, top = np.clip(np.floor(boxes[:, :2].min(0)), 0, size).astype(int)
    right, bottom = np.clip(np.ceil(boxes[:, 2:].max(0)), 0, size).astype(int)
    image = image.copy()
    image[top:bottom, left:right] = image.mean((0, 1)).round()
    return image


def turn(image: Image, degrees: float) -> Image:
    """Turns an image about its middle; the border is repeated."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    return np.asarray(cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE), np.uint8)


def blur(image: Image, sigma: float) -> Image:
    """Blurs an image by a Gaussian of `sigma` pixels."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.uint8)


def shrink(image: Image, side: int) -> Image:
    """Makes an image `side` pixels wide and high."""
    return np.asarray(cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA), np.uint8)


def trials(detector: Detector, side: int = 48) -> dict[str, Trial]:
    """Returns every change by name; pixels are those of images with `side` pixels."""
    same = lambda image, landmarks: image  # noqa: E731
    return {
        "as they are": Trial(same, detector),
        "eyes covered": Trial(lambda image, landmarks: cover(image, landmarks, EYES), detector),
        "mouth covered": Trial(lambda image, landmarks: cover(image, landmarks, MOUTH), detector),
        "turned by 15 degrees": Trial(lambda image, landmarks: turn(image, 15), detector),
        "turned by 30 degrees": Trial(lambda image, landmarks: turn(image, 30), detector),
        "blurred (sigma 1.5 px)": Trial(lambda image, landmarks: blur(image, 1.5), detector),
        "24 px": Trial(lambda image, landmarks: shrink(image, 24), detector),
        "landmarks 2 px off": Trial(same, Shifted(detector, 2 / side)),
        "landmarks 4 px off": Trial(same, Shifted(detector, 4 / side)),
        "no landmarks": Trial(same, blind),
    }


def yaw(landmarks: Array) -> Array:
    """Says how far heads are turned aside: the nose's distance from the middle of the eyes along their line, in eye
    distances; (N, 5, 2) -> (N,).
    """
    right, left, nose = landmarks[:, 0], landmarks[:, 1], landmarks[:, 2]
    line = left - right
    return np.abs(((nose - (right + left) / 2) * line).sum(1)) / (line**2).sum(1)


def robustness(
    model: Recognizer, path: Path, split: Split = "val", only: tuple[str, ...] = ()
) -> dict[str, tuple[float, int]]:
    """Returns accuracy and number of images by trial, and for the most turned heads among them as they are.

    Args:
        model: The model.
        path: A manifest with landmarks and the model's labels.
        split: Which of its rows.
        only: Names of trials; all when empty.
    """
    manifest = Manifest.read(path).split(split)
    images = [decode_image(manifest.image_bytes(row)) for row in range(len(manifest))]
    landmarks, targets = manifest.landmarks(), manifest.targets()
    assert targets is not None
    known = np.isfinite(landmarks).all((1, 2))
    landmarks[~known] = landmarks[known].mean(0)  # covered where most faces have it
    target = targets.argmax(1)
    found: dict[str, tuple[float, int]] = {}
    for name, trial in trials(YuNet(min_score=CROP_SCORE), images[0].shape[0]).items():
        if only and name not in only:
            continue
        changed = [trial.change(image, points) for image, points in zip(images, landmarks, strict=True)]
        right = predicted(model, changed, trial.detector) == target
        found[name] = (float(right.mean()), len(right))
        if name == "as they are":
            turned = known & (yaw(landmarks) >= np.quantile(yaw(landmarks[known]), 1 - TURNED))
            found["heads turned most"] = (float(right[turned].mean()), int(turned.sum()))
    return found


def predicted(model: Recognizer, images: list[Image], detector: Detector) -> NDArray[np.int64]:
    """Returns the index of the label that each image, a crop of one face, gets."""
    classes: list[int] = []
    dataset = PhotoDataset(images, model.crop_spec, "crop", detector)
    with torch.inference_mode():
        for _, batch in photo_loader(dataset, CHUNK, cores() - 1):
            part = batch.ready(model.device)
            classes += model(part.image, part.boxes, part.valid).argmax(-1).tolist()
    return np.array(classes)


def markdown(found: dict[str, tuple[float, int]]) -> str:
    """The table of a model card."""
    lines = ["| faces | images | accuracy |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {images:,} | {accuracy:.1%} |" for name, (accuracy, images) in found.items()]
    return "\n".join(lines) + "\n"
