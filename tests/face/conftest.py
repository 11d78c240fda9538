"""A real face whose landmarks are known."""

import numpy as np
import pytest

from fer_vit.geometry import Image

ASTRONAUT = np.array([[203.0, 101.5], [247.0, 103.5], [223.0, 126.5], [202.0, 140.0], [244.0, 140.0]])
"""The landmarks of scikit-image's astronaut, read off the photo by eye."""


@pytest.fixture(scope="module")
def astronaut() -> Image:
    """A photo (512, 512, 3) of one smiling woman, whose face is 90 pixels wide."""
    return np.asarray(pytest.importorskip("skimage.data").astronaut())
