"""Augmentation: how a training face is cropped and changed. The only file
that imports albumentations.
"""

import os
import random
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from fer_vit.errors import check_number
from fer_vit.face.crop import (
    INTERPOLATION,
    REDUCTION,
    Cropped,
    CropSpec,
    cover_regions,
    crop_face,
    face_matrix,
    mirror,
)
from fer_vit.geometry import Array, Image, move

os.environ.setdefault(
    "NO_ALBUMENTATIONS_UPDATE", "1"
)  # else its import looks for updates on the network
import albumentations as A

COVERS = (
    ("right_eye", "left_eye"),
    ("mouth",),
    ("nose", "mouth", "chin"),
    ("right_eye", "nose"),
    ("left_eye", "nose"),
)
"""Regions that sunglasses, hands and masks hide together."""


@dataclass(frozen=True)
class AugmentConfig:
    """How strongly training faces are changed; 0 switches a change off.

    Attributes:
        jitter: Standard deviation of the noise on each landmark, as a fraction of the crop's side.
            It moves crop and regions as a detector's errors do.
        blind: Probability that the landmarks count as unknown, as without a detector.
        mirror: Probability of a horizontal flip.
        degrees: Largest rotation to either side, in degrees.
        scale: Largest relative change of size.
        shift: Largest shift as a fraction of the crop's side.
        brightness: Largest relative change of brightness.
        contrast: Largest relative change of contrast.
        gamma: Largest relative change of gamma, up or down.
        colour: Largest relative change of saturation, and of the balance of colours.
        blur: Largest standard deviation of a Gaussian blur, as a fraction of the crop's side.
        shrink: Largest loss of resolution, as a fraction of the crop's side.
        jpeg: Largest loss of JPEG quality; 0.8 is quality 20.
        erase: Probability that a rectangle is erased.
        cover: Probability that eyes, mouth or half of the face are covered by a rectangle.
    """

    jitter: float = 0.0
    blind: float = 0.0
    mirror: float = 0.5
    degrees: float = 12.0
    scale: float = 0.12
    shift: float = 0.06
    brightness: float = 0.2
    contrast: float = 0.2
    gamma: float = 0.0
    colour: float = 0.0
    blur: float = 0.0
    shrink: float = 0.0
    jpeg: float = 0.0
    erase: float = 0.25
    cover: float = 0.0


HIGHEST = {
    "degrees": 180,
    "scale": 0.9,
    "shrink": 0.9,
    "jpeg": 0.99,
}  # the largest allowed values other than 1
OFTEN, RARELY = (
    0.8,
    0.3,
)  # probability of a change of light and of quality; others always happen or have an option


class Augment:
    """Crops and changes faces as configured; raises FerVitError when a number is out of range."""

    def __init__(self, config: AugmentConfig) -> None:
        for field in fields(config):
            check_number(
                f"augment.{field.name}", getattr(config, field.name), 0, HIGHEST.get(field.name, 1)
            )
        self.config = config

    def __call__(self, image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
        """Crops and changes a face, given its landmarks (5, 2) if they are known;
        the seed determines the result.
        """
        config, rng = self.config, np.random.default_rng(seed)
        # All are drawn, also for changes that are off, so that one option does not change the
        # numbers of another.
        amounts = rng.uniform(-1, 1, 4) * (config.degrees, config.scale, config.shift, config.shift)
        degrees, scale, right, down = amounts.tolist()
        change = move(spec.size, degrees, 1 + scale, right, down)
        noise = rng.normal(0, config.jitter * spec.size, (5, 2))  # in crop pixels
        mirrored, covered, blind = rng.random(3) < (config.mirror, config.cover, config.blind)
        landmarks = None if blind else landmarks
        if landmarks is not None:
            scale = np.linalg.norm(face_matrix(image, landmarks, spec, True)[0, :2])
            landmarks = landmarks + noise / scale
        crop, points, to_crop = crop_face(image, landmarks, spec, True, change)
        if mirrored:
            crop, points = mirror(crop, points)
        if covered:
            regions = COVERS[rng.integers(len(COVERS))]
            crop = cover_regions(
                crop, points, regions, int(rng.integers(256)) if rng.random() < 0.5 else None
            )
        steps = pipeline(config, spec.size)
        steps.set_random_state(rng, random.Random(seed))  # noqa: S311 - augmentation, no secret
        return Cropped(steps(image=crop)["image"], points, to_crop, bool(mirrored))


@lru_cache
def pipeline(config: AugmentConfig, size: int) -> A.Compose:
    """Returns the changes of colours and quality for crops of `size` pixels."""
    steps: list[A.BasicTransform] = []
    if config.gamma:
        steps.append(
            A.RandomGamma(
                (round(100 / (1 + config.gamma)), round(100 * (1 + config.gamma))), p=RARELY
            )
        )
    if config.brightness or config.contrast:
        steps.append(A.RandomBrightnessContrast(config.brightness, config.contrast, p=OFTEN))
    if config.colour:
        gains = (1 - config.colour, 1 + config.colour)
        steps.append(
            A.ColorJitter((1, 1), (1, 1), gains, (-config.colour / 10, config.colour / 10), p=OFTEN)
        )
    if config.blur:
        steps.append(A.GaussianBlur(blur_limit=0, sigma_limit=(0.01, config.blur * size), p=RARELY))
    if config.shrink:
        ways = {"downscale": REDUCTION, "upscale": INTERPOLATION}
        steps.append(A.Downscale((1 - config.shrink, max(0.99, 1 - config.shrink)), ways, p=RARELY))
    if config.jpeg:
        quality = round(100 - 100 * config.jpeg)
        steps.append(A.ImageCompression("jpeg", (quality, max(95, quality)), p=RARELY))
    if config.erase:
        steps.append(
            A.CoarseDropout((1, 1), (0.1, 0.35), (0.1, 0.35), fill="random_uniform", p=config.erase)
        )
    return A.Compose(steps)
