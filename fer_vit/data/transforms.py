"""Augmentation of training faces. This is the only file that imports albumentations."""

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

# without this, the import of albumentations looks for updates on the network
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
import albumentations as A

COVERS = (  # regions that sunglasses, hands and masks hide together
    ("right_eye", "left_eye"),
    ("mouth",),
    ("nose", "mouth", "chin"),
    ("right_eye", "nose"),
    ("left_eye", "nose"),
)


@dataclass(frozen=True)
class AugmentConfig:
    """How strongly training faces are changed; 0 switches a change off.

    The amount of a change is uniform between none and the largest amount, in both directions where
    there are two. Brightness, contrast and colour change in 80% of the faces; gamma, blur,
    resolution and JPEG quality in 30%.

    Attributes:
        jitter: Standard deviation of the noise on each landmark, as a fraction of the crop's side.
            The noise moves crop and regions as a detector's errors do.
        blind: Probability that the landmarks count as unknown, as without a detector.
        mirror: Probability of a horizontal flip.
        degrees: Largest rotation to either side, in degrees.
        scale: Largest relative change of size.
        shift: Largest shift as a fraction of the crop's side.
        brightness: Largest value that is added to all pixels or subtracted, as a fraction of the
            range of values; 0.2 is 51 of 255.
        contrast: Largest relative change of all pixel values: 0.2 multiplies them by 0.8 to 1.2.
            The crop also becomes brighter or darker.
        gamma: Largest relative change of gamma, up or down; 0.5 is from 1 / 1.5 to 1.5.
        colour: Largest relative change of saturation. Hues turn by up to 36 degrees times this.
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


# The largest allowed values of `AugmentConfig`, for fields whose largest value is not 1.
MAX_VALUES = {"degrees": 180, "scale": 0.9, "shrink": 0.9, "jpeg": 0.99}

# How often a change is made for which `AugmentConfig` has no probability.
FREQUENT_CHANGE = 0.8  # brightness, contrast and colour
RARE_CHANGE = 0.3  # gamma, blur, resolution (`shrink`) and JPEG quality


class Augment:
    """Crops and changes faces as configured; raises FerVitError when a number is out of range."""

    def __init__(self, config: AugmentConfig) -> None:
        for field in fields(config):
            max_value = MAX_VALUES.get(field.name, 1)
            check_number(f"data.augment.{field.name}", getattr(config, field.name), 0, max_value)
        self.config = config

    def __call__(self, image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
        """Crops and changes a face of an image (H, W, 3); the same seed gives the same result.

        The landmarks are (5, 2) in image pixels, or None. The image counts as a face crop already
        (`framed`), as images of data sets do.
        """
        config = self.config
        rng = np.random.default_rng(seed)

        # All random numbers of the geometry are drawn here, also for changes that are off: so one
        # option does not alter the random numbers of another. The changes of pixels draw later.
        amounts = rng.uniform(-1, 1, 4) * (config.degrees, config.scale, config.shift, config.shift)
        degrees, scale, right, down = amounts.tolist()
        noise = rng.normal(0, config.jitter * spec.size, (5, 2))  # in crop pixels
        mirrored, covered, blind = rng.random(3) < (config.mirror, config.cover, config.blind)

        # geometry
        if blind:
            landmarks = None
        if landmarks is not None:
            matrix = face_matrix(image, landmarks, spec, framed=True)
            # crop pixels per image pixel: the norm of a row, as the matrix is a similarity
            pixel_ratio = np.linalg.norm(matrix[0, :2])
            landmarks = landmarks + noise / pixel_ratio
        motion = move(spec.size, degrees, 1 + scale, right, down)
        cropped = crop_face(image, landmarks, spec, framed=True, change=motion)
        crop = cropped.image
        points = cropped.landmarks
        if mirrored:
            crop, points = mirror(crop, points)

        # pixels
        if covered:
            regions = COVERS[rng.integers(len(COVERS))]
            # None: the mean colour of the crop
            grey = int(rng.integers(256)) if rng.random() < 0.5 else None
            crop = cover_regions(crop, points, regions, grey)
        # the pipeline is cached, so each face sets both random generators of albumentations
        steps = pipeline(config, spec.size)
        steps.set_random_state(rng, random.Random(seed))  # noqa: S311 - augmentation, no secret
        crop = steps(image=crop)["image"]
        return Cropped(crop, points, cropped.to_crop, bool(mirrored))


@lru_cache
def pipeline(config: AugmentConfig, size: int) -> A.Compose:
    """Creates the changes of colours and quality, for crops with a side of `size` pixels."""
    steps: list[A.BasicTransform] = []
    if config.gamma:
        factor = 1 + config.gamma
        percent = (round(100 / factor), round(100 * factor))
        steps.append(A.RandomGamma(percent, p=RARE_CHANGE))
    if config.brightness or config.contrast:
        steps.append(
            A.RandomBrightnessContrast(config.brightness, config.contrast, p=FREQUENT_CHANGE)
        )
    if config.colour:
        step = A.ColorJitter(
            brightness=(1, 1),
            contrast=(1, 1),
            saturation=(1 - config.colour, 1 + config.colour),
            hue=(-config.colour / 10, config.colour / 10),
            p=FREQUENT_CHANGE,
        )
        steps.append(step)
    if config.blur:
        sigmas = (0.01, config.blur * size)  # in pixels; 0.01 changes nothing
        # blur_limit 0: sigma sets the size of the kernel
        steps.append(A.GaussianBlur(blur_limit=0, sigma_limit=sigmas, p=RARE_CHANGE))
    if config.shrink:
        smallest = 1 - config.shrink
        scales = (smallest, max(0.99, smallest))  # at 1, nothing is lost
        interpolations = {"downscale": REDUCTION, "upscale": INTERPOLATION}
        steps.append(A.Downscale(scales, interpolations, p=RARE_CHANGE))
    if config.jpeg:
        lowest = round(100 - 100 * config.jpeg)
        qualities = (lowest, max(95, lowest))  # at 95, hardly anything is lost
        steps.append(A.ImageCompression("jpeg", qualities, p=RARE_CHANGE))
    if config.erase:
        sides = (0.1, 0.35)  # height and width of the rectangle, as fractions of the crop's side
        step = A.CoarseDropout(
            num_holes_range=(1, 1),
            hole_height_range=sides,
            hole_width_range=sides,
            fill="random_uniform",
            p=config.erase,
        )
        steps.append(step)
    return A.Compose(steps)
