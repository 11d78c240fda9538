"""Renders figures of matplotlib to arrays and files, with fonts for all their characters."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from fer_vit.geometry import Image
from fer_vit.report.fonts import drawable, drawn_characters, find_font
from fer_vit.system.settings import ThreadLock

# Settings of matplotlib and filters of warnings belong to the process: one thread draws.
DRAWING_LOCK = ThreadLock()


def choose_fonts(figure: Figure) -> None:
    """Gives each text of a figure a font that has its characters, beside the usual one."""
    for text in figure.findobj(Text):
        shown = drawable(text.get_text())
        file = find_font(drawn_characters(shown))
        if shown != text.get_text():
            text.set_text(shown)
        if file is not None:
            text.set_fontfamily([*text.get_fontfamily(), file.name])


@contextmanager
def _drawing(settings: Mapping[Any, Any]) -> Iterator[None]:
    """Draws with settings of matplotlib, and without warnings about glyphs.

    Unlike `matplotlib.rc_context`, it restores these settings alone, because another thread may
    have changed others.
    """
    with DRAWING_LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # `drawable` reports missing characters
        before = {name: rcParams[name] for name in settings}
        rcParams.update(settings)
        try:
            yield
        finally:
            rcParams.update(before)


def rasterize(figure: Figure) -> Image:
    """Returns a figure as an image (H, W, 3), RGB uint8."""
    choose_fonts(figure)
    canvas = FigureCanvasAgg(figure)
    with _drawing({}):
        canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]


def save_figure(figure: Figure, path: Path) -> None:
    """Saves a figure in the format of the path's suffix.

    Text stays text in SVG, and PDF embeds its fonts.
    """
    choose_fonts(figure)
    with _drawing({"svg.fonttype": "none", "pdf.fonttype": 42}):  # 42: TrueType
        figure.savefig(path)
