"""Landmarks of a face, and how to move them."""

import numpy as np

from fer_vit.geometry import Array

FACE = np.array([[60.0, 80.0], [120.0, 70.0], [95.0, 110.0], [75.0, 140.0], [125.0, 130.0]])


def turned(angle: float, scale: float, shift: tuple[float, float]) -> Array:
    """The matrix (2, 3) that turns by so many radians, scales and shifts."""
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    return np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])
