"""Colours that must not be mixed up, as people with and without colour-blindness see them."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ImageColor
from skimage.color import rgb2lab

from fer_vit.report.draw import AGAINST, EXPRESSIONS, FOR, REGION

MACHADO = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Machado et al., "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1, for
linear RGB."""


def seen(colour: str, vision: str) -> NDArray[np.float64]:
    """CIELAB of a colour as it is seen."""
    value = np.array(ImageColor.getrgb(colour)) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    shown = np.clip(MACHADO[vision] @ linear, 0, 1)
    value = np.where(shown <= 0.0031308, 12.92 * shown, 1.055 * shown ** (1 / 2.4) - 0.055)
    return rgb2lab(value)


@pytest.mark.parametrize("vision", MACHADO)
def test_regions_differ_from_expressions_and_heat_maps(vision: str) -> None:
    for colour in (*EXPRESSIONS.values(), FOR, AGAINST):
        assert np.linalg.norm(seen(REGION, vision) - seen(colour, vision)) > 25, colour


def test_for_differs_from_against() -> None:
    for vision, pair in product(MACHADO, [(FOR, AGAINST)]):
        assert np.linalg.norm(np.subtract(*(seen(colour, vision) for colour in pair))) > 50, vision
