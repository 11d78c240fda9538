"""Charts, and attention drawn on a face: regions as discs, arcs between them, patches as a soft map."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Affine2D

from fer_vit.errors import printable
from fer_vit.geometry import Array, Image, IntArray, Mask, invert
from fer_vit.report import draw
from fer_vit.report.draw import ACCENT, FAINT, REGION, Attention, FaceView
from fer_vit.report.table import Interval


def draw_confusion(confusion: IntArray, labels: Sequence[str]) -> Image:
    """Draws counts (C, C), a row for each true class, coloured by their share of the row; RGB uint8 (H, W, 3)."""
    classes = len(labels)
    figure = Figure(
        figsize=(2.2 + 0.6 * classes, 1.8 + 0.55 * classes), dpi=110, layout="constrained"
    )
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
    """Draws how often predictions (N,) are right by confidence, and how many there are; RGB uint8 (H, W, 3)."""
    figure = Figure(figsize=(4.2, 4.2), dpi=110, layout="constrained")
    axes, below = figure.subplots(2, sharex=True, height_ratios=[4, 1])
    edges = np.linspace(0, 1, 11)
    faces, _ = np.histogram(confidence, edges)
    hits, _ = np.histogram(confidence[right], edges)
    some = faces > 0
    middle = np.histogram(confidence, edges, weights=confidence)[0][some] / faces[some]
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1)
    axes.plot(middle, hits[some] / faces[some], "o-", color=ACCENT, clip_on=False)
    axes.set(
        ylabel="accuracy", title="Calibration: on the line, confidence equals accuracy", ylim=(0, 1)
    )
    axes.title.set_fontsize(10)
    below.bar(edges[:-1] + 0.05, faces, 0.09, color=FAINT)
    below.set(xlabel="confidence", ylabel="faces", xlim=(0, 1))
    return rasterize(figure)


def intervals_figure(found: Mapping[str, Interval], title: str) -> Image:
    """Draws results that are parts of 1 with their intervals, a line for each; RGB uint8 (H, W, 3)."""
    figure = Figure(figsize=(6, 1 + 0.3 * len(found)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    low, mean, high = np.array(
        [[one["low"], one["mean"], one["high"]] for one in found.values()], float
    ).T
    axes.hlines(range(len(found)), low, high, color=FAINT, linewidth=3)  # nothing is drawn for NaN
    axes.plot(mean, range(len(found)), "o", color=ACCENT)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks(range(len(found)), found, parse_math=False)
    axes.set_title(title, fontsize=10, parse_math=False)
    return rasterize(figure)


def rasterize(figure: Figure) -> Image:
    """Returns a figure as an image (H, W, 3), RGB uint8."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the font lacks some that file names have
        canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]


BARS = 12  # probabilities beside a face, at most


def series_figure(
    times: Array, curves: Mapping[str, Mapping[str, tuple[Array, Array, Array]]], title: str
) -> Image:
    """Draws curves over time, a panel for each measure and a line for each condition; RGB uint8 (H, W, 3).

    A curve has a value, a low and a high bound (T,) at each of the `times` (T,) in seconds; NaN leaves a gap.
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
    photo, bars = figure.add_axes((0.03, 0.03, 0.56, 0.8)), figure.add_axes((0.77, 0.03, 0.16, 0.8))
    photo.imshow(draw.draw_boxes(draw.zoom(view, 640)))
    photo.set_axis_off()
    labels, values = zip(*draw.ranked(view.probabilities)[:BARS], strict=True)
    drawn = bars.barh(range(len(values)), values, 0.5, color=[ACCENT, *[FAINT] * (len(values) - 1)])
    bars.bar_label(drawn, [draw.percent(value) for value in values], padding=3, fontsize=9)
    bars.set_yticks(
        range(len(labels)),
        [draw.fitted(label, 13, 95) for label in labels],
        fontsize=9,
        parse_math=False,
    )
    bars.tick_params(length=0)
    bars.set(xlim=(0, 1), ylim=(BARS - 0.5, -0.5), xticks=[], title="probability")
    bars.title.set_fontsize(9)
    bars.spines[:].set_visible(False)
    title = draw.fitted(f"{labels[0]} {draw.percent(values[0])}", 24, 260)
    figure.text(0.03, 0.9, title, fontsize=16, parse_math=False)
    figure.text(
        0.97,
        0.9,
        f"{draw.fitted(view.name, 13, 160)}  {view.where}",
        fontsize=9,
        ha="right",
        parse_math=False,
    )
    return figure


ARCS = 12  # pairs of regions that are joined by an arc, at most
SHADOW = "#000000aa"
FOOT = 0.75  # height of the text below the face, in inches


def strongest_pairs(relations: Array, present: Sequence[int]) -> list[tuple[float, int, int]]:
    """Returns the attention between two of the regions that are present, both directions added, largest first."""
    pairs = [
        (float(relations[a, b] + relations[b, a]), a, b) for a in present for b in present if a < b
    ]
    return [pair for pair in sorted(pairs, reverse=True)[:ARCS] if pair[0] > 0]


def attention_figure(view: FaceView, attention: Attention, regions: Sequence[str]) -> Figure:
    """Draws the attention of the whole encoder, the first view, on a face.

    Arcs are as wide as the attention between two regions. The area of a disc is the attention from a region to the
    output. `regions` are the model's R regions, of which the face may lack some.
    """
    close = draw.zoom(view, 640)
    height, width = close.photo.shape[:2]
    figure = Figure(figsize=(5, 5 * height / width + FOOT), dpi=120)
    foot = FOOT / figure.get_figheight()
    axes = figure.add_axes((0, foot, 1, 1 - foot))
    axes.imshow(close.photo.mean(2), cmap="gray", vmin=0, vmax=330, extent=(0, width, height, 0))
    relations, output, patches = (values[0] for values in attention[:3])
    if patches.size:
        colours = np.broadcast_to(to_rgba(REGION), (*patches.shape, 4)).copy()
        colours[..., 3] = 0.75 * patches / max(patches.max(), 1e-12)
        place = Affine2D(np.vstack([invert(close.to_crop), [0, 0, 1]])) + axes.transData
        extent = (0, close.crop_size, close.crop_size, 0)
        axes.imshow(colours, extent=extent, interpolation="bilinear", transform=place)
    present = [index for index, name in enumerate(regions) if name in close.regions]
    centres = {
        index: draw.to_photo(close, close.regions[regions[index]]).mean(0) for index in present
    }
    pairs = strongest_pairs(relations, present)
    for share, a, b in reversed(pairs):
        wide = 6 * share / pairs[0][0]
        arc = FancyArrowPatch(
            centres[a], centres[b], arrowstyle="-", connectionstyle="arc3,rad=0.15", linewidth=wide
        )
        arc.set(
            color=REGION,
            capstyle="round",
            path_effects=[withStroke(linewidth=wide + 1.5, foreground=SHADOW)],
        )
        axes.add_patch(arc)
    for index, (x, y) in centres.items():
        axes.scatter(
            x,
            y,
            400 * output[index] / max(output.max(), 1e-12),
            REGION,
            edgecolors=SHADOW,
            zorder=3,
        )
        text = f"{regions[index].replace('_', ' ')} {draw.percent(output[index])}"
        name = axes.annotate(
            text, (x, y), (0, -7), textcoords="offset points", ha="center", va="top", fontsize=7
        )
        name.set(
            color="white", zorder=4, path_effects=[withStroke(linewidth=2, foreground="black")]
        )
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    label, confidence = draw.ranked(view.probabilities)[0]
    text = f"{printable(label)} {draw.percent(confidence)}: where the model looks\n"
    text += "Arcs: attention between two regions"
    for share, a, b in pairs[:1]:
        text += f"; widest: {regions[a]} and {regions[b]}, {draw.percent(share)}".replace("_", " ")
    text += ".\nDiscs: attention from a region to the output."
    figure.text(0.02, 0.02, text, fontsize=8, va="bottom", parse_math=False)
    return figure
