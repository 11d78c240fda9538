"""Which regions take from which, as pictures. numpy and matplotlib, no torch."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]
Image = NDArray[np.uint8]


def relations_figure(matrices: Mapping[str, Array], regions: Sequence[str], columns: int) -> Image:
    """Draws heat maps side by side. -> RGB uint8 (H, W, 3).

    Args:
        matrices: How much each region (row) takes from each (column), (R, R), by what stands above; NaN is left grey.
        regions: The R regions.
        columns: How many stand in a row.
    """
    columns = min(len(matrices), columns)
    lines = math.ceil(len(matrices) / columns)
    names = [name.replace("_", " ") for name in regions]
    side = 1.6 + 0.16 * len(regions)
    figure = Figure(figsize=(columns * side + 1.2, lines * side + 0.9), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    # What a region takes from itself, by the residual paths half or more of all, would leave the rest pale.
    apart = ~np.eye(len(regions), dtype=bool)
    highest = max(float(np.nan_to_num(matrix[apart]).max(initial=0.0)) for matrix in matrices.values())
    for axes, (title, matrix) in zip(grid.flat, matrices.items(), strict=False):
        shown = axes.imshow(np.where(apart, matrix, np.nan), cmap="magma", vmin=0, vmax=max(highest, 1e-12))
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.set_xticks(range(len(names)), names, fontsize=7, rotation=90)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_facecolor("#ececef")
    for axes in grid.flat[len(matrices) :]:
        axes.set_visible(False)
    bar = figure.colorbar(shown, ax=grid, shrink=0.8, label="share that the row takes from the column")
    bar.ax.tick_params(labelsize=7)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
