"""Draws figures of a model's scores: its confusion matrix, and its outputs over their targets."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fer_vit.geometry import Array, Image, IntArray, Mask
from fer_vit.report.draw import ACCENT_COLOUR, FAINT_COLOUR
from fer_vit.report.rendering import rasterize
from fer_vit.stats.scores import row_shares

MAX_PANELS = 6  # the most panels side by side


def draw_confusion(confusion: IntArray, labels: Sequence[str]) -> Image:
    """Draws a confusion matrix (C, C) with a row for each true class.

    The colour of a cell is its share of the row. Cells without an image are empty.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    classes = len(labels)
    size = (2.2 + 0.6 * classes, 1.8 + 0.55 * classes)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    axes = figure.add_subplot()
    shares = row_shares(confusion)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(confusion).tolist():
        count = f"{confusion[row, column]}"
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, count, ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(
        range(classes), labels, rotation=40, ha="right", rotation_mode="anchor", parse_math=False
    )
    axes.set_yticks(range(classes), labels, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    accuracy = confusion.trace() / max(1, confusion.sum())
    axes.set_title(f"{confusion.sum()} images, accuracy {accuracy:.1%}", fontsize=10)
    return rasterize(figure)


def outputs_figure(outputs: Sequence[str], preds: Array, target: Array, unit: str) -> Image:
    """Draws predictions over targets, with a panel for each of K outputs.

    The panel of an output with binary targets is a ROC curve.

    Args:
        outputs: The names of K outputs.
        preds: The predictions (N, K) for N faces.
        target: The targets (N, K); NaN where a target is unknown.
        unit: The unit of predictions and targets; empty if they have no unit.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    across = min(MAX_PANELS, len(outputs))
    down = math.ceil(len(outputs) / across)
    figure = Figure(figsize=(2 * across + 0.6, 2.1 * down + 0.6), dpi=90, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    for panel, name, value, truth in zip(panels, outputs, preds.T, target.T, strict=False):
        valid = np.isfinite(truth)
        panel.set_axis_on()
        panel.tick_params(labelsize=7)
        panel.set_title(name, fontsize=8, parse_math=False)
        if set(np.unique(truth[valid]).tolist()) == {0.0, 1.0}:
            _draw_roc(panel, value[valid], truth[valid] > 0)
        else:
            _draw_agreement(panel, value[valid], truth[valid])
    figure.supxlabel(f"target{f' ({unit})' if unit else ''}; false alarms where it is 0 or 1")
    figure.supylabel("prediction; hits")
    return rasterize(figure)


def _draw_agreement(panel: Axes, value: Array, truth: Array) -> None:
    """Draws values (N,) over targets (N,), and a line where both are equal."""
    panel.plot(truth, value, ".", color=ACCENT_COLOUR, alpha=0.3, markersize=3)
    if len(truth):
        low = min(truth.min(), value.min())
        high = max(truth.max(), value.max())
        panel.plot([low, high], [low, high], color=FAINT_COLOUR, linewidth=1)


def _draw_roc(panel: Axes, value: Array, true: Mask) -> None:
    """Draws hits over false alarms (a ROC curve) for all thresholds of values (N,)."""
    order = np.argsort(-value, kind="stable")
    is_last = np.append(np.diff(value[order]) != 0, True)  # whether the next value differs
    hits = true[order].cumsum()[is_last] / true.sum()
    alarms = (~true[order]).cumsum()[is_last] / (~true).sum()
    panel.plot([0, 1], [0, 1], color=FAINT_COLOUR, linewidth=1)
    panel.plot(np.append(0, alarms), np.append(0, hits), color=ACCENT_COLOUR)
