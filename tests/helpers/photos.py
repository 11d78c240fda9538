"""A photo in the public domain, where its face is, and changed copies of it."""

import cv2
import numpy as np

from fer_vit.geometry import Array, Image

ASTRONAUT = np.array(
    [[203.0, 101.5], [247.0, 103.5], [223.0, 126.5], [202.0, 140.0], [244.0, 140.0]]
)
"""The landmarks of scikit-image's astronaut, read off the photo by eye."""


def resized(image: Image, scale: float) -> Image:
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, None, fx=scale, fy=scale, interpolation=method), np.uint8)


def error(landmarks: Array, true: Array) -> float:
    """Mean distance of landmarks in units of the eyes' distance."""
    return float(
        np.linalg.norm(landmarks - true, axis=1).mean() / np.linalg.norm(true[1] - true[0])
    )
