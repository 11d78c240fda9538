"""Which regions take from which, as pictures. numpy and matplotlib, no torch."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fer_vit.geometry import Array, Image
from fer_vit.report.colours import TRACK
from fer_vit.report.rasterize import rasterize


def relations_figure(matrices: Mapping[str, Array], regions: Sequence[str], columns: int) -> Image:
    """Draws heat maps side by side.

    Args:
        matrices: How much each region (row) takes from each (column), (R, R), by title; NaN is left grey.
        regions: The R regions.
        columns: The most heat maps in a row.

    Returns:
        RGB uint8 (H, W, 3).
    """
    columns = min(len(matrices), columns)
    lines = math.ceil(len(matrices) / columns)
    names = [name.replace("_", " ") for name in regions]
    side = 1.6 + 0.16 * len(regions)
    figure = Figure(figsize=(columns * side + 1.2, lines * side + 0.9), dpi=110, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    # What a region takes from itself, half or more because of the residual paths, would leave the rest pale.
    apart = ~np.eye(len(regions), dtype=bool)
    highest = max(float(np.nan_to_num(matrix[apart]).max(initial=0.0)) for matrix in matrices.values())
    for axes, (title, matrix) in zip(grid.flat, matrices.items(), strict=False):
        shown = axes.imshow(np.where(apart, matrix, np.nan), cmap="magma", vmin=0, vmax=max(highest, 1e-12))
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.set_xticks(range(len(names)), names, fontsize=7, rotation=90)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_facecolor(TRACK)
    for axes in grid.flat[len(matrices) :]:
        axes.set_visible(False)
    bar = figure.colorbar(shown, ax=grid, shrink=0.8, label="share that the row takes from the column")
    bar.ax.tick_params(labelsize=7)
    return rasterize(figure)
