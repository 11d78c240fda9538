"""The colours of all pictures. The page, which also has a dark theme, has its own in `page.css`."""

from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fer_vit.geometry import Image

REGIONS = {
    "right_eye": "#2f7de1",
    "left_eye": "#7db9ff",
    "right_brow": "#d9560b",
    "left_brow": "#ffa25c",
    "nose": "#1fa653",
    "mouth": "#e5254f",
    "right_cheek": "#8e3fe0",
    "left_cheek": "#c99bff",
    "glabella": "#12a3a3",
    "forehead": "#e3b505",
    "chin": "#9a6640",
}
"""Line colour of each region; the person's right is the darker of a pair."""

EXPRESSIONS = {
    "neutral": "#9aa0a8",
    "happiness": "#f0b400",
    "surprise": "#1fb5c4",
    "sadness": "#3a6fd8",
    "anger": "#d8362f",
    "disgust": "#5d9c3c",
    "fear": "#7d52c8",
    "contempt": "#b5713c",
}
"""Colour of each usual expression over time."""

PAPER, INK, MUTED, TRACK, EMPTY = "#ffffff", "#1c1c1e", "#6e6e73", "#ececef", "#d8d8dc"
ACCENT, FAINT = "#3a3a3c", "#b4b4ba"


def region_colour(region: str) -> str:
    """Returns the line colour of a region; grey for an unknown one."""
    return REGIONS.get(region, "#8a8a90")


def expression_colour(label: str) -> str:
    """Returns the colour of an expression; one that is not usual has some colour, always the same."""
    return EXPRESSIONS.get(label, f"hsl({crc32(label.encode(errors='replace')) % 360}, 45%, 55%)")


@cache
def heat_colours() -> Image:
    """Returns the colours of heat maps (256, 3), RGB uint8, from lowest to highest: magma, perceptually uniform."""
    from matplotlib import colormaps  # here: `predict` imports this file too, and need not wait for matplotlib

    colours: Image = colormaps["magma"](np.arange(256), bytes=True)[:, :3]
    return colours


@cache
def evidence_colours() -> NDArray[np.uint8]:
    """Returns the page's heat colours (256, 4), RGBA: 1 is strongly against, 128 is clear, 255 is strongly for."""
    value = (np.arange(256)[:, None] - 128) / 127
    colours = np.where(value < 0, (28, 126, 214), (232, 89, 12))
    return np.hstack([colours, 220 * np.abs(value).clip(0, 1) ** 0.7]).astype(np.uint8)
