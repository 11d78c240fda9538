"""Charts, and attention on a face: regions as discs, arcs between them, patches as a soft map."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Affine2D

from fer_vit.errors import printable
from fer_vit.geometry import Array, Image, IntArray, Mask, invert
from fer_vit.report import draw
from fer_vit.report.draw import ACCENT_COLOUR, FAINT_COLOUR, REGION_COLOUR, Attention, FaceView
from fer_vit.report.table import Interval

BARS = 12  # probabilities beside a face, at most
PANELS = 6  # side by side, at most
ARCS = 12  # pairs of regions that are joined by an arc, at most
SHADOW_COLOUR = "#000000aa"
TEXT_HEIGHT = 0.75  # of the text below a face, in inches


def draw_confusion(confusion: IntArray, labels: Sequence[str]) -> Image:
    """Draws counts (C, C), a row for each true class, coloured by their share of the row.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    classes = len(labels)
    size = (2.2 + 0.6 * classes, 1.8 + 0.55 * classes)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    axes = figure.add_subplot()
    shares = confusion / confusion.sum(1, keepdims=True).clip(1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(confusion):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{count}", ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(
        range(classes), labels, rotation=40, ha="right", rotation_mode="anchor", parse_math=False
    )
    axes.set_yticks(range(classes), labels, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    accuracy = confusion.trace() / max(1, confusion.sum())
    axes.set_title(f"{confusion.sum()} images, accuracy {accuracy:.1%}", fontsize=10)
    return rasterize(figure)


def calibration_figure(confidence: Array, right: Mask) -> Image:
    """Draws how often predictions (N,) are right by confidence, and how many there are.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    figure = Figure(figsize=(4.2, 4.2), dpi=110, layout="constrained")
    axes, below = figure.subplots(2, sharex=True, height_ratios=[4, 1])
    edges = np.linspace(0, 1, 11)
    faces, _ = np.histogram(confidence, edges)
    hits, _ = np.histogram(confidence[right], edges)
    total, _ = np.histogram(confidence, edges, weights=confidence)
    filled = faces > 0
    middle = total[filled] / faces[filled]
    accuracy = hits[filled] / faces[filled]
    axes.plot([0, 1], [0, 1], color=FAINT_COLOUR, linewidth=1)
    axes.plot(middle, accuracy, "o-", color=ACCENT_COLOUR, clip_on=False)
    axes.set(
        ylabel="accuracy", title="Calibration: on the line, confidence equals accuracy", ylim=(0, 1)
    )
    axes.title.set_fontsize(10)
    below.bar(edges[:-1] + 0.05, faces, 0.09, color=FAINT_COLOUR)
    below.set(xlabel="confidence", ylabel="faces", xlim=(0, 1))
    return rasterize(figure)


def intervals_figure(results: Mapping[str, Interval], title: str) -> Image:
    """Draws results that are parts of 1 with their intervals, a line for each.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    rows = range(len(results))
    figure = Figure(figsize=(6, 1 + 0.3 * len(results)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    # A missing number becomes NaN, for which nothing is drawn.
    low = np.array([result["low"] for result in results.values()], float)
    mean = np.array([result["mean"] for result in results.values()], float)
    high = np.array([result["high"] for result in results.values()], float)
    axes.hlines(rows, low, high, color=FAINT_COLOUR, linewidth=3)
    axes.plot(mean, rows, "o", color=ACCENT_COLOUR)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks(rows, results, parse_math=False)
    axes.set_title(title, fontsize=10, parse_math=False)
    return rasterize(figure)


def outputs_figure(names: Sequence[str], preds: Array, target: Array, unit: str) -> Image:
    """Draws predictions over targets of K outputs, a panel for each; for binary targets a ROC curve.

    Args:
        names: Of the outputs (K,).
        preds: Of N faces (N, K).
        target: The same, NaN where unknown.
        unit: Of both; empty: there is none.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    across = min(PANELS, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(2 * across + 0.6, 2.1 * down + 0.6), dpi=90, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    for panel, name, value, truth in zip(panels, names, preds.T, target.T, strict=False):
        known = np.isfinite(truth)
        panel.set_axis_on()
        panel.tick_params(labelsize=7)
        panel.set_title(name, fontsize=8, parse_math=False)
        if set(np.unique(truth[known]).tolist()) == {0.0, 1.0}:
            _draw_roc(panel, value[known], truth[known] > 0)
        else:
            _draw_agreement(panel, value[known], truth[known])
    figure.supxlabel(f"target{f' ({unit})' if unit else ''}; false alarms where it is 0 or 1")
    figure.supylabel("prediction; hits")
    return rasterize(figure)


def _draw_agreement(panel: Axes, value: Array, truth: Array) -> None:
    """Draws values over targets (N,), which are equal on the line."""
    panel.plot(truth, value, ".", color=ACCENT_COLOUR, alpha=0.3, markersize=3)
    if len(truth):
        low = min(truth.min(), value.min())
        high = max(truth.max(), value.max())
        panel.plot([low, high], [low, high], color=FAINT_COLOUR, linewidth=1)


def _draw_roc(panel: Axes, value: Array, true: Mask) -> None:
    """Draws the hits over the false alarms of every threshold for values (N,)."""
    order = np.argsort(-value, kind="stable")
    last = np.append(np.diff(value[order]) != 0, True)  # of equal values
    hits = true[order].cumsum()[last] / true.sum()
    alarms = (~true[order]).cumsum()[last] / (~true).sum()
    panel.plot([0, 1], [0, 1], color=FAINT_COLOUR, linewidth=1)
    panel.plot(np.append(0, alarms), np.append(0, hits), color=ACCENT_COLOUR)


def rasterize(figure: Figure) -> Image:
    """Returns a figure as an image (H, W, 3), RGB uint8."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the font lacks some that file names have
        canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]


def series_figure(
    times: Array, curves: Mapping[str, Mapping[str, tuple[Array, Array, Array]]], title: str
) -> Image:
    """Draws curves over time, a panel for each measure and a line for each condition.

    Args:
        times: Seconds (T,).
        curves: A value, a low and a high bound (T,) at each time, by measure and condition; NaN
            leaves a gap.
        title: The title.

    Returns:
        The picture (H, W, 3), RGB uint8.
    """
    figure = Figure(figsize=(7, 1.2 + 1.3 * len(curves)), dpi=110, layout="constrained")
    panels = figure.subplots(len(curves), sharex=True, sharey=True, squeeze=False)[:, 0]
    for panel, (name, lines) in zip(panels, curves.items(), strict=True):
        for condition, (mean, low, high) in lines.items():
            (line,) = panel.plot(times, mean, marker=".", markersize=3, label=condition)
            panel.fill_between(times, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        panel.set_title(name, fontsize=9, loc="left", parse_math=False)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds")
    handles, names = panels[0].get_legend_handles_labels()
    legend = figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.suptitle(title, fontsize=10)
    return rasterize(figure)


def prediction_figure(view: FaceView) -> Figure:
    """Draws one face with its box and regions beside its largest probabilities."""
    figure = Figure(figsize=(6, 4.2), dpi=100)
    photo = figure.add_axes((0.03, 0.03, 0.56, 0.8))
    bars = figure.add_axes((0.77, 0.03, 0.16, 0.8))
    photo.imshow(draw.draw_boxes(draw.zoom(view, 640)))
    photo.set_axis_off()

    ranked = draw.ranked(view.probabilities)[:BARS]
    rows = range(len(ranked))
    values = [value for _, value in ranked]
    percentages = [draw.percent(value) for value in values]
    names = [draw.fitted(label, 13, 95) for label, _ in ranked]
    colours = [FAINT_COLOUR for _ in rows]
    colours[0] = ACCENT_COLOUR
    drawn = bars.barh(rows, values, 0.5, color=colours)
    bars.bar_label(drawn, percentages, padding=3, fontsize=9)
    bars.set_yticks(rows, names, fontsize=9, parse_math=False)
    bars.tick_params(length=0)
    bars.set(xlim=(0, 1), ylim=(BARS - 0.5, -0.5), xticks=[], title="probability")
    bars.title.set_fontsize(9)
    bars.spines[:].set_visible(False)

    label, value = ranked[0]
    title = draw.fitted(f"{label} {draw.percent(value)}", 24, 260)
    figure.text(0.03, 0.9, title, fontsize=16, parse_math=False)
    source = f"{draw.fitted(view.name, 13, 160)}  {view.where}"
    figure.text(0.97, 0.9, source, fontsize=9, ha="right", parse_math=False)
    return figure


class Pair(NamedTuple):
    """Attention between two regions, both directions added."""

    share: float
    first: int  # index of a region
    second: int


def strongest_pairs(relations: Array, present: Sequence[int]) -> list[Pair]:
    """Returns the pairs of regions that are present and between which attention is largest.

    `relations` (R, R) are how much each region (row) takes from each (column). The largest pair
    comes first.
    """
    pairs = []
    for first, second in combinations(present, 2):
        share = float(relations[first, second] + relations[second, first])
        if share > 0:
            pairs.append(Pair(share, first, second))
    pairs.sort(reverse=True)
    return pairs[:ARCS]


def attention_figure(view: FaceView, attention: Attention, regions: Sequence[str]) -> Figure:
    """Draws the attention of the whole encoder, the first view, on a face.

    Arcs are as wide as the attention between two regions. The area of a disc is the attention from
    a region to the output. `regions` are the model's R regions, of which the face may lack some.
    """
    relations = attention.relations[0]  # (R, R)
    output = attention.output[0]  # (R,)
    patches = attention.patches[0]  # (rows, columns)

    # The face in pale grey.
    close = draw.zoom(view, 640)
    height, width = close.photo.shape[:2]
    figure = Figure(figsize=(5, 5 * height / width + TEXT_HEIGHT), dpi=120)
    bottom = TEXT_HEIGHT / figure.get_figheight()
    axes = figure.add_axes((0, bottom, 1, 1 - bottom))
    axes.imshow(close.photo.mean(2), cmap="gray", vmin=0, vmax=330, extent=(0, width, height, 0))

    # Patches as a soft map.
    if patches.size:
        colours = np.broadcast_to(to_rgba(REGION_COLOUR), (*patches.shape, 4)).copy()
        colours[..., 3] = 0.75 * patches / max(patches.max(), 1e-12)
        place = Affine2D(np.vstack([invert(close.to_crop), [0, 0, 1]])) + axes.transData
        extent = (0, close.crop_size, close.crop_size, 0)
        axes.imshow(colours, extent=extent, interpolation="bilinear", transform=place)

    # Arcs between the centres of regions, the widest last.
    centres = {}
    for index, name in enumerate(regions):
        if name in close.regions:
            centres[index] = draw.to_photo(close, close.regions[name]).mean(0)  # (2,)
    pairs = strongest_pairs(relations, list(centres))
    for pair in reversed(pairs):
        line_width = 6 * pair.share / pairs[0].share
        arc = FancyArrowPatch(
            centres[pair.first],
            centres[pair.second],
            arrowstyle="-",
            connectionstyle="arc3,rad=0.15",
            linewidth=line_width,
        )
        shadow = withStroke(linewidth=line_width + 1.5, foreground=SHADOW_COLOUR)
        arc.set(color=REGION_COLOUR, capstyle="round", path_effects=[shadow])
        axes.add_patch(arc)

    # Discs with names.
    for index, (x, y) in centres.items():
        area = 400 * output[index] / max(output.max(), 1e-12)
        axes.scatter(x, y, area, REGION_COLOUR, edgecolors=SHADOW_COLOUR, zorder=3)
        text = f"{regions[index].replace('_', ' ')} {draw.percent(output[index])}"
        annotation = axes.annotate(
            text, (x, y), (0, -7), textcoords="offset points", ha="center", va="top", fontsize=7
        )
        outline = withStroke(linewidth=2, foreground="black")
        annotation.set(color="white", zorder=4, path_effects=[outline])
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()

    # What is drawn, in words.
    label, confidence = draw.ranked(view.probabilities)[0]
    text = f"{printable(label)} {draw.percent(confidence)}: where the model looks\n"
    text += "Arcs: attention between two regions"
    if pairs:
        widest = pairs[0]
        names = f"{regions[widest.first]} and {regions[widest.second]}".replace("_", " ")
        text += f"; widest: {names}, {draw.percent(widest.share)}"
    text += ".\nDiscs: attention from a region to the output."
    figure.text(0.02, 0.02, text, fontsize=8, va="bottom", parse_math=False)
    return figure
