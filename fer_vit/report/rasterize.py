"""A matplotlib figure as an image, without a window."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fer_vit.geometry import Image


def rasterize(figure: Figure) -> Image:
    """Returns a figure as an image (H, W, 3), RGB uint8."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
