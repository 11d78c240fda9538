"""How far explanations can be trusted, as a table and a picture. numpy and matplotlib, no torch."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fer_vit.intervals import Interval
from fer_vit.report.colours import FAINT


def faithfulness_table(found: Mapping[str, Mapping[str, Interval]], better: Mapping[str, int]) -> str:
    """Returns a Markdown table: a row for each method, a column for each measure with an arrow for what is better."""
    arrows = {1: "↑", -1: "↓"}
    lines = ["| method | " + " | ".join(f"{name} {arrows[sign]}" for name, sign in better.items()) + " |"]
    lines.append("| --- |" + " ---: |" * len(better))
    lines += [
        f"| {method} | " + " | ".join(_cell(measures[name]) for name in better) + " |"
        for method, measures in found.items()
    ]
    return "\n".join(lines) + "\n"


def _cell(one: Interval) -> str:
    if one["mean"] is None:
        return "-"
    return f"{one['mean']:.3f}" + ("" if one["low"] is None else f" ({one['low']:.3f} to {one['high']:.3f})")


def faithfulness_figure(
    found: Mapping[str, Mapping[str, Interval]],
    better: Mapping[str, int],
    shuffled: Mapping[str, Mapping[str, Interval]],
    controls: Sequence[str],
) -> Figure:
    """Draws a panel for each measure, and how much of each explanation is left when the weights are shuffled.

    Args:
        found: Interval by method and measure.
        better: 1 for measures of which more is better, -1 for the others.
        shuffled: Rank correlation with the explanation of the intact model, by method and what was shuffled last.
        controls: Methods that know nothing of the model, drawn in grey.
    """
    figure = Figure(figsize=(12, 3 + 0.5 * len(found)), layout="constrained")
    grid = figure.add_gridspec(2, len(better))
    methods = list(found)
    colours = {method: FAINT if method in controls else f"C{row}" for row, method in enumerate(methods)}
    for column, (name, sign) in enumerate(better.items()):
        axes = figure.add_subplot(grid[0, column])
        for row, method in enumerate(methods):
            one = found[method][name]
            low, mean, high = np.array([one["low"], one["mean"], one["high"]], float)  # nothing is drawn for NaN
            axes.plot([low, high], [row, row], color=colours[method], linewidth=3)
            axes.plot(mean, row, "o", color=colours[method])
        axes.set_title(f"{name}\n{'more' if sign > 0 else 'less'} is better", fontsize=9)
        axes.set_yticks(range(len(methods)), methods if column == 0 else [])
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right", "left"]].set_visible(False)
    axes = figure.add_subplot(grid[1, :])
    for method, steps in shuffled.items():
        means = [1.0, *(np.nan if one["mean"] is None else one["mean"] for one in steps.values())]
        axes.plot(["nothing", *steps], means, "o-", color=colours[method], label=method)
    axes.axhline(0, color=FAINT, linewidth=1)
    axes.set(
        xlabel="weights shuffled, from the classifier down to", ylabel="rank correlation\nwith the explanation before"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
