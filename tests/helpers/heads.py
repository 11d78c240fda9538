"""Turned heads: a frontal picture on a round head with a nose, seen from far away."""

import cv2
import numpy as np

from fer_vit.geometry import Array, Image

CM = 6.354 / 0.35
"""Width in cm of a picture in which the eyes are as far apart as in `geometry.TEMPLATE`."""


def turn_head(image: Image, yaw: float, pitch: float = 0.0) -> Image:
    """Turns the head in a square picture, its nose in the middle, by degrees: pitch first, then yaw."""
    axis = (np.arange(len(image)) + 0.5) / len(image) * CM
    x, y = np.meshgrid(axis - 0.5 * CM, axis - 0.55 * CM)
    round_head = 9.5 * np.sqrt((1 - (x / 8.5) ** 2 - (y / 11.5) ** 2).clip(0))
    nose = 2.5 * np.exp(-((x**2 + (y - 0.037 * CM) ** 2) / (2 * 1.3**2)))
    depth = round_head + nose - 8.0  # towards the camera, from axes below the eyes, so that the face stays in place
    pitched, depth = _turn_rows(np.dstack([image, depth]).swapaxes(0, 1), y.T, -pitch)
    turned, _ = _turn_rows(np.dstack([pitched, depth]).swapaxes(0, 1), x, yaw)
    return turned.round().clip(0, 255).astype(np.uint8)


def _turn_rows(layers: Array, along: Array, degrees: float) -> tuple[Array, Array]:
    """Turns colours and depth (H, W, 4), the last layer, about an axis across the rows; what lies behind is hidden."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    depth = layers[..., 3]
    target = along * cos + depth * sin
    # Looked at from the side towards which the head turns, the nearer parts cover those behind them.
    visible = np.maximum.accumulate(target, 1) if sin < 0 else np.minimum.accumulate(target[:, ::-1], 1)[:, ::-1]
    back = np.array([np.interp(row, seen, np.arange(len(row))) for row, seen in zip(along, visible, strict=True)])
    rows = np.broadcast_to(np.arange(len(along))[:, None], along.shape)
    moved = cv2.remap(
        np.dstack([layers, along]).astype(np.float32),
        back.astype(np.float32),
        rows.astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return moved[..., :3], moved[..., 3] * cos - moved[..., 4] * sin
