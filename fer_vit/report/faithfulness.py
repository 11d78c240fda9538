"""How far explanations can be trusted, as a table and a picture. numpy and matplotlib, no torch."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fer_vit.intervals import Interval


def markdown(found: Mapping[str, Mapping[str, Interval]], better: Mapping[str, int]) -> str:
    """Returns a table with a row for each method and a column for each measure; arrows say which way is better."""
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


def draw(
    found: Mapping[str, Mapping[str, Interval]],
    better: Mapping[str, int],
    forgotten: Mapping[str, Mapping[str, Interval]],
    controls: Sequence[str],
) -> Figure:
    """Draws a panel for each measure, a line for each method, and what is left when the weights are shuffled.

    Args:
        found: Interval by method and measure.
        better: 1 for measures of which more is better, -1 for the others.
        forgotten: Rank correlation with the explanation of the whole model, by method and what was shuffled last.
        controls: Methods that know nothing of the model.
    """
    figure = Figure(figsize=(12, 3 + 0.5 * len(found)), layout="constrained")
    grid = figure.add_gridspec(2, len(better))
    methods = list(found)
    colours = {method: "#9a9aa0" if method in controls else f"C{place}" for place, method in enumerate(methods)}
    for column, (name, sign) in enumerate(better.items()):
        axes = figure.add_subplot(grid[0, column])
        for place, method in enumerate(methods):
            one = found[method][name]
            low, mean, high = np.array([one["low"], one["mean"], one["high"]], float)  # nothing is drawn for NaN
            axes.plot([low, high], [place, place], color=colours[method], linewidth=3)
            axes.plot(mean, place, "o", color=colours[method])
        axes.set_title(f"{name}\n{'more' if sign > 0 else 'less'} is better", fontsize=9)
        axes.set_yticks(range(len(methods)), methods if column == 0 else [])
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right", "left"]].set_visible(False)
    axes = figure.add_subplot(grid[1, :])
    for method, steps in forgotten.items():
        means = [1.0, *(np.nan if one["mean"] is None else one["mean"] for one in steps.values())]
        axes.plot(["nothing", *steps], means, "o-", color=colours[method], label=method)
    axes.axhline(0, color="#9a9aa0", linewidth=1)
    axes.set(
        xlabel="weights shuffled, from the classifier down to", ylabel="rank correlation\nwith the explanation before"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
