"""Draws figures of a face, its prediction and its explanations, for files and papers.

Shapes: R regions.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D

from fer_vit.errors import printable
from fer_vit.geometry import Array, invert
from fer_vit.report import draw
from fer_vit.report.draw import (
    ACCENT_COLOUR,
    AGAINST_COLOUR,
    FAINT_COLOUR,
    FOR_COLOUR,
    REGION_COLOUR,
)
from fer_vit.report.explained_face import Attention, Attributed, FaceView
from fer_vit.report.records import heat_palette

# The most items in a figure, and the smallest movement.
MAX_BARS = 12  # bars of probabilities
MAX_ARCS = 12  # arcs between pairs of regions
MAX_NAMED_DISCS = 6  # region names in a figure of attention
MAX_NAMED_REGIONS = 3  # region names in a figure with a heat map
MAX_MOVEMENTS = 8  # movements
MIN_MOVEMENT = 0.1  # movements below this intensity are not drawn

SHADOW_COLOUR = "#000000aa"
MINUS = "\u2212"

# Sizes in inches.
FIGURE_WIDTH = 85 / 25.4  # the width of a figure: a column of a journal has 85 mm
MARGIN_WIDTH = 1.4  # the width of the names beside a face
LINE_HEIGHT = 0.14  # the height of a line of text
NAME_GAP = 0.12  # the gap between a picture and the names beside the picture
LINE_GAP = 0.02  # the gap at both ends of the horizontal part of a line to a name
BAR_WIDTH = 0.75  # the width of a bar with the value 1
BAR_HEIGHT = 0.05  # the height of a bar
BAR_BELOW = 0.95 * LINE_HEIGHT  # the distance between the centres of a name and its bar

FONT_POINTS = 7  # the size of text
FIGURE_SIDE = 640  # the longer side of a photo in a figure, in pixels
FIGURE_DPI = 200


class Label(NamedTuple):
    """A name beside a face; a line joins the name with a point of the face."""

    point: Array  # (x, y) in pixels of the picture
    text: str
    bar: float | None = None  # the value in [0, 1] of a bar below the name; None: no bar


class RegionPair(NamedTuple):
    """Attention between two regions."""

    share: float  # the sum of both directions
    first: int  # index of a region
    second: int  # index of the other region


def prediction_figure(view: FaceView) -> Figure:
    """Draws a face with its box and regions, and bars of the largest probabilities."""
    figure = Figure(figsize=(6, 4.2), dpi=100)
    photo = figure.add_axes((0.03, 0.03, 0.56, 0.8))
    bars = figure.add_axes((0.77, 0.03, 0.16, 0.8))
    photo.imshow(draw.draw_boxes(draw.zoom(view, FIGURE_SIDE)))
    photo.set_axis_off()

    ranked = draw.ranked(view.face.probabilities)[:MAX_BARS]
    rows = range(len(ranked))
    values = [value for _, value in ranked]
    percentages = [draw.probability_text(value) for value in values]
    names = [draw.fitted(label, 13, 95) for label, _ in ranked]
    colours = [FAINT_COLOUR for _ in rows]
    colours[0] = ACCENT_COLOUR
    drawn = bars.barh(rows, values, 0.5, color=colours)
    bars.bar_label(drawn, percentages, padding=3, fontsize=9)
    bars.set_yticks(rows, names, fontsize=9, parse_math=False)
    bars.tick_params(length=0)
    bars.set(xlim=(0, 1), ylim=(MAX_BARS - 0.5, -0.5), xticks=[], title="probability")
    bars.title.set_fontsize(9)
    bars.spines[:].set_visible(False)

    label, value = ranked[0]
    title = draw.fitted(f"{label} {draw.probability_text(value)}", 24, 260)
    figure.text(0.03, 0.9, title, fontsize=16, parse_math=False)
    source = f"{draw.fitted(view.name, 13, 160)}  {view.where}"
    figure.text(0.97, 0.9, source, fontsize=9, ha="right", parse_math=False)
    return figure


def attribution_figure(view: FaceView, target: Attributed, regions: Sequence[str]) -> Figure:
    """Draws what drives the prediction: a heat map, and names of regions with the largest shares.

    `regions` are the names of the model's regions.
    """
    zoomed = draw.zoom(view, FIGURE_SIDE)
    centres = _centres(zoomed, regions)
    named = sorted(centres, key=lambda index: -abs(target.shares[index]))[:MAX_NAMED_REGIONS]
    labels = []
    for index in named:
        share = signed_percent(float(target.shares[index]))
        labels.append(Label(centres[index], f"{regions[index].replace('_', ' ')} {share}"))
    score = draw.fitted(target.name, 14, 250)
    if target.probability is not None:
        score += f" {draw.probability_text(target.probability)}"
    text = (
        f"{score}: what drives the prediction.\n"
        "Orange is for it, blue against it. Numbers are the largest shares of regions."
    )
    figure, axes = face_figure(zoomed, labels, text)
    strength = target.heat / max(np.abs(target.heat).max(), 1e-12)
    indices = (128 + 127 * strength).round().astype(int)
    _draw_over_crop(axes, zoomed, heat_palette()[indices] / 255)
    for index in named:
        corners = draw.to_photo(zoomed, zoomed.regions[regions[index]])
        axes.add_patch(Polygon(corners, fill=False, edgecolor=ACCENT_COLOUR, linewidth=0.7))
    return figure


def shares_figure(view: FaceView, target: Attributed, regions: Sequence[str]) -> Figure:
    """Draws a bar for the signed share of each region that a face has.

    `regions` are the names of the model's regions.
    """
    shown = [index for index, name in enumerate(regions) if name in view.regions]
    shares = [float(target.shares[index]) for index in shown]
    names = [regions[index].replace("_", " ") for index in shown]
    end = share_end(shares)
    height = 0.35 + LINE_HEIGHT * (len(shown) + 2.5)
    figure = Figure(figsize=(FIGURE_WIDTH, height), dpi=FIGURE_DPI, layout="constrained")
    axes = figure.add_subplot()
    rows = range(len(shown))
    colours = [FOR_COLOUR if share > 0 else AGAINST_COLOUR for share in shares]
    axes.barh(rows, shares, 0.6, color=colours)
    axes.axvline(0, color=ACCENT_COLOUR, linewidth=0.7)
    axes.set(xlim=(-1.05 * end, 1.05 * end), ylim=(len(shown) - 0.5, -0.5))
    ends = (-end, 0.0, end)
    axes.set_xticks(ends, [signed_percent(share) for share in ends], fontsize=FONT_POINTS)
    axes.set_yticks(rows, names, fontsize=FONT_POINTS, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    values = axes.secondary_yaxis("right")
    values.set_yticks(rows, [signed_percent(share) for share in shares], fontsize=FONT_POINTS)
    values.tick_params(length=0)
    values.spines[:].set_visible(False)
    axes.set_title(
        f"{draw.fitted(target.name, 14, 250)}: contribution of regions",
        fontsize=FONT_POINTS,
        loc="left",
        parse_math=False,
    )
    return figure


def attention_figure(view: FaceView, attention: Attention, regions: Sequence[str]) -> Figure:
    """Draws the attention of the whole encoder on a face.

    The width of an arc is the attention between two regions. The area of a disc is the attention
    from a region to the output. A patch is coloured if its attention is above the uniform share of
    a token.

    Args:
        view: The face, which may lack regions.
        attention: The attention; the first view is drawn.
        regions: The names of the model's R regions.
    """
    relations = attention.relations[0]  # (R, R)
    output = attention.output[0]  # (R,)
    patches = attention.patches[0]  # (rows, columns)
    zoomed = draw.zoom(view, FIGURE_SIDE)
    centres = _centres(zoomed, regions)
    pairs = strongest_pairs(relations, list(centres))

    # The text below the figure.
    label, confidence = draw.ranked(view.face.probabilities)[0]
    result = f"{printable(label)} {draw.probability_text(confidence)}"
    text = f"{result}: how regions exchange information.\n"
    text += "Discs: attention from a region to the output.\nArcs: attention between two regions"
    if pairs:
        names = f"{regions[pairs[0].first]} and {regions[pairs[0].second]}".replace("_", " ")
        text += f", widest {names}, {draw.percent(pairs[0].share)}"
    text += "."
    labels = []
    for index in sorted(centres, key=lambda index: -output[index])[:MAX_NAMED_DISCS]:
        share = draw.percent(float(output[index]))
        labels.append(Label(centres[index], f"{regions[index].replace('_', ' ')} {share}"))
    figure, axes = face_figure(zoomed, labels, text)

    if patches.size:
        uniform = 1 / (patches.size + attention.region_tokens * len(centres))
        above = (patches - uniform).clip(min=0)
        colours = np.broadcast_to(to_rgba(REGION_COLOUR), (*patches.shape, 4)).copy()
        colours[..., 3] = 0.75 * above / max(above.max(), 1e-6)
        _draw_over_crop(axes, zoomed, colours)

    # Draw the widest arc last, on top.
    for pair in reversed(pairs):
        line_width = 4 * pair.share / pairs[0].share
        arc = FancyArrowPatch(
            tuple(centres[pair.first]),
            tuple(centres[pair.second]),
            arrowstyle="-",
            connectionstyle="arc3,rad=0.15",
            linewidth=line_width,
        )
        shadow = withStroke(linewidth=line_width + 1, foreground=SHADOW_COLOUR)
        arc.set(color=REGION_COLOUR, capstyle="round", path_effects=[shadow], zorder=2.5)
        axes.add_patch(arc)
    for index, (x, y) in centres.items():
        area = 150 * output[index] / max(output.max(), 1e-12)
        axes.scatter(x, y, area, REGION_COLOUR, edgecolors=SHADOW_COLOUR, linewidths=0.5, zorder=3)
    return figure


def movements_figure(
    view: FaceView,
    names: Sequence[str],
    values: Sequence[float],
    moving: Sequence[int | None],
    regions: Sequence[str],
) -> Figure:
    """Draws bars of the strongest movements of a face; a line joins each bar with its region.

    Args:
        view: The face.
        names: The names of K movements.
        values: The intensities (K,) of the movements, in [0, 1].
        moving: The index (K,) in `regions` of the region that each movement moves; None if the
            model has no such region.
        regions: The names of the model's regions.
    """
    zoomed = draw.zoom(view, FIGURE_SIDE)
    centres = _centres(zoomed, regions)
    labels: list[Label] = []
    for index in sorted(range(len(names)), key=lambda index: -values[index]):
        region = moving[index]
        if region is None or region not in centres or values[index] < MIN_MOVEMENT:
            continue
        if len(labels) < MAX_MOVEMENTS:
            labels.append(Label(centres[region], names[index], values[index]))
    text = "The strongest movements, from 0 to 1."
    if not labels:
        text = f"No movement reaches {MIN_MOVEMENT}."
    figure, axes = face_figure(zoomed, labels, text)
    for label in labels:
        x, y = label.point
        axes.scatter(x, y, 6, ACCENT_COLOUR, linewidths=0, zorder=6)
    return figure


def strongest_pairs(relations: Array, present: Sequence[int]) -> list[RegionPair]:
    """Returns the pairs of regions with the largest attention, in descending order.

    Args:
        relations: How much each region (row) takes from each region (column) (R, R).
        present: The indices of the regions that the face has.
    """
    pairs = []
    for first, second in combinations(present, 2):
        share = float(relations[first, second] + relations[second, first])
        if share > 0:
            pairs.append(RegionPair(share, first, second))
    pairs.sort(reverse=True)
    return pairs[:MAX_ARCS]


def share_end(shares: Sequence[float]) -> float:
    """Returns the end of the scale of shares: 1 if an absolute share is above 0.5, otherwise 0.5.

    Faces without a share above 0.5 have the same scale, so that their figures can be compared.
    """
    return 1.0 if any(abs(share) > 0.5 for share in shares) else 0.5


def signed_percent(share: float) -> str:
    """Returns a share as a percentage with a sign: +12%, \u221212% or 0%."""
    rounded = round(100 * share)
    if rounded == 0:
        return "0%"
    return f"{'+' if rounded > 0 else MINUS}{abs(rounded)}%"


def face_figure(zoomed: FaceView, labels: Sequence[Label], text: str) -> tuple[Figure, Axes]:
    """Draws a face in pale grey, names in a margin beside the face, and a text below.

    Args:
        zoomed: The face, as `draw.zoom` returns it.
        labels: The names; a line joins each name with its point.
        text: The text, which is broken into lines.

    Returns:
        The figure, and the axes of the face; coordinates are pixels of the picture.
    """
    text = wrap(text)
    height, width = zoomed.photo.shape[:2]
    photo_width = FIGURE_WIDTH - MARGIN_WIDTH
    photo_height = photo_width * height / width
    below = LINE_HEIGHT * (text.count("\n") + 1.5)
    step = LINE_HEIGHT * (1.2 if all(label.bar is None for label in labels) else 1.9)
    # many names may need more height than the photo
    above = max(0.0, step * (len(labels) - 1) + 2 * LINE_HEIGHT - photo_height)
    whole_height = above + photo_height + below
    figure = Figure(figsize=(FIGURE_WIDTH, whole_height), dpi=FIGURE_DPI)
    axes = figure.add_axes(
        (0, below / whole_height, photo_width / FIGURE_WIDTH, photo_height / whole_height)
    )
    axes.imshow(
        zoomed.photo.mean(2), cmap="gray", vmin=-130, vmax=255, extent=(0, width, height, 0)
    )
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()

    # Draw the names from top to bottom; names do not overlap.
    pixels_per_inch = width / photo_width
    line = LINE_HEIGHT * pixels_per_inch
    rows = sorted(labels, key=lambda label: float(label.point[1]))
    heights = spread_out(
        [float(label.point[1]) for label in rows],
        step=step * pixels_per_inch,
        low=line - above * pixels_per_inch,
        high=height - line,
    )
    for label, y in zip(rows, heights, strict=True):
        _margin_label(axes, label, width, y, pixels_per_inch)
    figure.text(
        0.01,
        0.2 * LINE_HEIGHT / whole_height,
        text,
        fontsize=FONT_POINTS,
        va="bottom",
        parse_math=False,
    )
    return figure, axes


def _margin_label(axes: Axes, label: Label, width: float, y: float, pixels_per_inch: float) -> None:
    """Draws a name right of a picture, a line to the name's point, and a bar below the name.

    `width` is the width of the picture. `y` is the vertical position of the name. Both are in
    pixels of the picture.
    """
    name_left = width + NAME_GAP * pixels_per_inch
    line_gap = LINE_GAP * pixels_per_inch
    axes.plot(
        [label.point[0], width + line_gap, name_left - line_gap],
        [label.point[1], y, y],
        color=ACCENT_COLOUR,
        linewidth=0.5,
        clip_on=False,
        zorder=2,  # below arcs and discs
        path_effects=[withStroke(linewidth=1.5, foreground="white")],
    )
    axes.text(
        name_left,
        y,
        draw.fitted(label.text, 14, 190),
        fontsize=FONT_POINTS,
        va="center",
        parse_math=False,
    )
    if label.bar is None:
        return

    # Draw the full length of the bar, then the bar in front, then the value.
    bar_width = BAR_WIDTH * pixels_per_inch
    bar_height = BAR_HEIGHT * pixels_per_inch
    bar_y = y + BAR_BELOW * pixels_per_inch
    for fraction, colour in ((1.0, FAINT_COLOUR), (label.bar, FOR_COLOUR)):
        corner = (name_left, bar_y - bar_height / 2)
        rectangle = Rectangle(corner, bar_width * fraction, bar_height, color=colour, linewidth=0)
        rectangle.set_clip_on(False)
        axes.add_patch(rectangle)
    value = f"{label.bar:.2f}"
    axes.text(name_left + 1.07 * bar_width, bar_y, value, fontsize=FONT_POINTS, va="center")


def wrap(text: str) -> str:
    """Returns a text with line breaks between words where a line is wider than a figure."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if line and _line_width(longer) > 0.98 * FIGURE_WIDTH:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return "\n".join(lines)


def _line_width(line: str) -> float:
    """Returns the width of a line of text in inches, at `FONT_POINTS`."""
    font = FontProperties(size=FONT_POINTS)
    points, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return float(points) / 72


def spread_out(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Moves ascending values apart until neighbours differ by at least `step`.

    The moved values lie between `low` and `high` if there is room for all values.
    """
    spread: list[float] = []
    for value in values:
        min_value = spread[-1] + step if spread else low
        spread.append(max(value, min_value))
    max_value = high
    for index in reversed(range(len(spread))):
        spread[index] = min(spread[index], max_value)
        max_value = spread[index] - step
    return spread


def _centres(zoomed: FaceView, regions: Sequence[str]) -> dict[int, Array]:
    """Returns the centre (2,) of each region that a face has, by index in `regions`.

    A centre is (x, y) in pixels of the picture.
    """
    centres = {}
    for index, name in enumerate(regions):
        if name in zoomed.regions:
            centres[index] = draw.to_photo(zoomed, zoomed.regions[name]).mean(0)
    return centres


def _draw_over_crop(axes: Axes, zoomed: FaceView, colours: Array) -> None:
    """Draws an RGBA image (rows, columns, 4) over the crop of a face."""
    crop_to_picture = Affine2D(np.vstack([invert(zoomed.to_crop), [0, 0, 1]]))
    axes.imshow(
        colours,
        extent=(0, zoomed.face.crop_size, zoomed.face.crop_size, 0),
        interpolation="bilinear",
        transform=crop_to_picture + axes.transData,
    )
