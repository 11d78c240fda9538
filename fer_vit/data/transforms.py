"""Augmentation of a face crop and its landmarks together. The only file that knows albumentations."""

import os
import random
from dataclasses import dataclass, fields

import numpy as np

from fer_vit.errors import check_number
from fer_vit.face.crop import BORDER, INTERPOLATION, mirror
from fer_vit.geometry import Array, Image

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else it looks for updates on the network when imported
import albumentations as A


@dataclass(frozen=True)
class AugmentConfig:
    """How strongly training crops are changed; 0 switches a change off.

    Attributes:
        mirror: Probability of a horizontal mirror.
        degrees: Largest rotation to either side.
        scale: Largest relative change of size.
        shift: Largest shift as a fraction of the crop's side.
        brightness: Largest relative change of brightness.
        contrast: Largest relative change of contrast.
        erase: Probability that a rectangle is erased.
        jitter: Standard deviation of noise on each landmark, as a fraction of the crop's side. It moves the regions,
            for a model that must cope with imprecise landmarks.
    """

    mirror: float = 0.5
    degrees: float = 12.0
    scale: float = 0.12
    shift: float = 0.06
    brightness: float = 0.2
    contrast: float = 0.2
    erase: float = 0.25
    jitter: float = 0.0


HIGHEST = {"degrees": 180, "scale": 0.9}
"""The largest values that make sense, where that is not 1."""


class Augment:
    """Augments crops as configured; raises FerVitError when a number is out of range."""

    def __init__(self, config: AugmentConfig) -> None:
        for field in fields(config):
            check_number(f"augment.{field.name}", getattr(config, field.name), 0, HIGHEST.get(field.name, 1))
        self.config = config
        steps: list[A.BasicTransform] = []
        if config.degrees or config.scale or config.shift:
            steps.append(
                A.Affine(
                    rotate=(-config.degrees, config.degrees),
                    scale=(1 - config.scale, 1 + config.scale),
                    translate_percent=(-config.shift, config.shift),
                    keep_ratio=True,
                    border_mode=BORDER,
                    interpolation=INTERPOLATION,
                    p=1.0,
                )
            )
        if config.brightness or config.contrast:
            steps.append(A.RandomBrightnessContrast(config.brightness, config.contrast, p=0.8))
        if config.erase:
            steps.append(
                A.CoarseDropout(
                    num_holes_range=(1, 1),
                    hole_height_range=(0.1, 0.35),
                    hole_width_range=(0.1, 0.35),
                    fill="random_uniform",
                    p=config.erase,
                )
            )
        # Landmarks that leave the crop are kept. albumentations puts a pixel's centre at integer coordinates.
        self.pipeline = A.Compose(steps, keypoint_params=A.KeypointParams(format="xy", remove_invisible=False))

    def __call__(self, image: Image, landmarks: Array, seed: int) -> tuple[Image, Array]:
        """Augments a crop (S, S, 3) and its landmarks (5, 2) in crop pixels; the same seed gives the same result."""
        rng = np.random.default_rng(seed)
        # One generator for all steps: seeded one by one, all would draw the same numbers, and erase only shifted crops.
        self.pipeline.set_random_state(rng, random.Random(seed))
        if rng.random() < self.config.mirror:
            image, landmarks = mirror(image, landmarks)
        result = self.pipeline(image=image, keypoints=landmarks - 0.5)
        landmarks = np.asarray(result["keypoints"], float) + 0.5
        return result["image"], landmarks + rng.normal(0.0, self.config.jitter * len(image), landmarks.shape)
