"""Augmentation of a face crop and its landmarks together. The only file that knows albumentations."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fer_vit.face.geometry import BORDER, INTERPOLATION, MIRRORED, Array, Image

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for a newer version when imported
import albumentations as A

Augment = Callable[[Image, Array | None, int], tuple[Image, Array | None]]


@dataclass(frozen=True)
class AugmentConfig:
    """How strongly training crops are changed; 0 switches a change off.

    Attributes:
        mirror: Probability of a horizontal mirror.
        degrees: Largest turn to either side.
        scale: Largest relative change of size.
        shift: Largest shift as a fraction of the crop's side.
        brightness: Largest relative change of brightness.
        contrast: Largest relative change of contrast.
        blur: Probability of a slight Gaussian blur.
        erase: Probability that a rectangle is erased.
    """

    mirror: float = 0.5
    degrees: float = 12.0
    scale: float = 0.12
    shift: float = 0.06
    brightness: float = 0.2
    contrast: float = 0.2
    blur: float = 0.0
    erase: float = 0.25


def mirror(image: Image, landmarks: Array | None) -> tuple[Image, Array | None]:
    """Mirrors a crop (S, S, 3) and its landmarks (5, 2): their coordinates, and which row is left and which right."""
    if landmarks is not None:
        landmarks = (landmarks * [-1.0, 1.0] + [image.shape[1], 0.0])[list(MIRRORED)]
    return np.ascontiguousarray(image[:, ::-1]), landmarks


def build_augment(config: AugmentConfig) -> Augment:
    """Makes the function that augments one crop.

    Returns:
        A function of a crop (S, S, 3) RGB uint8, its landmarks (5, 2) in crop pixels or None, and a seed; the same seed
        gives the same result.
    """
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
    if config.blur:
        steps.append(A.GaussianBlur(blur_limit=(3, 3), p=config.blur))
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
    # Landmarks that leave the crop stay, in their rows. albumentations puts a pixel's centre at whole numbers.
    pipeline = A.Compose(steps, keypoint_params=A.KeypointParams(format="xy", remove_invisible=False))

    def augment(image: Image, landmarks: Array | None, seed: int) -> tuple[Image, Array | None]:
        # A stream of its own: with the pipeline's seed the mirror would foretell its first draw.
        if np.random.default_rng((seed, 1)).random() < config.mirror:
            image, landmarks = mirror(image, landmarks)
        pipeline.set_random_seed(seed)
        points = np.zeros((0, 2)) if landmarks is None else landmarks - 0.5
        result = pipeline(image=image, keypoints=points)
        return result["image"], None if landmarks is None else np.asarray(result["keypoints"], float) + 0.5

    return augment
