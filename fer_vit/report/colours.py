"""The colours of all pictures. The page, which also has a dark theme, has its own in `page.css`."""

from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import ImageColor

REGION = "#c3ffa5"
"""Colour of regions and attention. Regions have names, so one colour is enough; it is far from all others, also for
people with colour-blindness."""

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

FOR, AGAINST = "#e8590c", "#1c7ed6"
"""Colours of heat maps."""
PAPER, INK, MUTED, TRACK, EMPTY = "#ffffff", "#1c1c1e", "#6e6e73", "#ececef", "#d8d8dc"
ACCENT, FAINT = "#3a3a3c", "#b4b4ba"


def expression_colour(label: str) -> str:
    """Returns the colour of an expression; one that is not usual has some colour, always the same."""
    return EXPRESSIONS.get(label, f"hsl({crc32(label.encode(errors='replace')) % 360}, 45%, 55%)")


@cache
def evidence_colours() -> NDArray[np.uint8]:
    """Returns the page's heat colours (256, 4), RGBA: 1 is strongly against, 128 is clear, 255 is strongly for."""
    value = (np.arange(256)[:, None] - 128) / 127
    colours = np.where(value < 0, *(np.array(ImageColor.getrgb(colour)) for colour in (AGAINST, FOR)))
    return np.hstack([colours, 220 * np.abs(value).clip(0, 1) ** 0.7]).astype(np.uint8)
