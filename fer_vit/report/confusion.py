"""The confusion matrix as a picture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fer_vit.geometry import Image
from fer_vit.report.rasterize import rasterize


def draw_confusion(confusion: NDArray[np.int64], labels: Sequence[str], path: Path | None = None) -> Image:
    """Draws a confusion matrix: counts, coloured by their share of the row.

    Args:
        confusion: Counts (C, C), a row per true class, a column per predicted one.
        labels: The classes in order.
        path: Where to save the picture as well, or None.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    classes = len(labels)
    figure = Figure(figsize=(2.2 + 0.6 * classes, 1.8 + 0.55 * classes), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    shares = confusion / confusion.sum(1, keepdims=True).clip(1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row in range(classes):
        for column in range(classes):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{confusion[row, column]}", ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(classes), labels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(classes), labels)
    axes.set(xlabel="predicted", ylabel="true")
    accuracy = confusion.trace() / max(1, confusion.sum())
    axes.set_title(f"{confusion.sum()} images, accuracy {accuracy:.1%}", fontsize=10)
    if path is not None:
        figure.savefig(path)
    return rasterize(figure)
