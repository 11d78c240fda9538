"""Which regions take from which, as pictures. numpy and matplotlib, no torch."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]


def relations_figure(means: Mapping[str, Array], counts: Mapping[str, int], regions: Sequence[str]) -> Figure:
    """Draws a heat map for each predicted expression.

    Args:
        means: How much each region (row) takes from each (column), (R, R), rows summing to 1; by expression.
        counts: How many faces each is the mean of.
        regions: The R regions.
    """
    columns = min(len(means), 4)
    lines = math.ceil(len(means) / columns)
    names = [name.replace("_", " ") for name in regions]
    side = 1.6 + 0.16 * len(regions)
    figure = Figure(figsize=(columns * side + 1.2, lines * side + 0.9), dpi=110, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    # What a region takes from itself, by the residual paths half or more of all, would leave the rest pale.
    apart = ~np.eye(len(regions), dtype=bool)
    highest = max(float(mean[apart].max(initial=0.0)) for mean in means.values())
    for axes, (label, mean) in zip(grid.flat, means.items(), strict=False):
        shown = axes.imshow(np.where(apart, mean, np.nan), cmap="magma", vmin=0, vmax=max(highest, 1e-12))
        axes.set_title(f"{label}, {counts[label]:,} face{'s' * (counts[label] != 1)}", fontsize=9, parse_math=False)
        axes.set_xticks(range(len(names)), names, fontsize=7, rotation=90)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_facecolor("#ececef")
    for axes in grid.flat[len(means) :]:
        axes.set_visible(False)
    bar = figure.colorbar(shown, ax=grid, shrink=0.8, label="share that the row takes from the column")
    bar.ax.tick_params(labelsize=7)
    return figure
