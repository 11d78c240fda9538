"""Draws results with their intervals for papers: differences, and means of several conditions."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fer_vit.errors import printable
from fer_vit.report.draw import ACCENT_COLOUR, FAINT_COLOUR, fitted
from fer_vit.report.face_figures import FIGURE_DPI, FIGURE_WIDTH, FONT_POINTS
from fer_vit.report.plots import ChartRow
from fer_vit.stats.estimate import Estimate

LINE_HEIGHT = 0.17  # the height of a result, in inches
MARGIN_HEIGHT = 0.7  # the height of the axis with its name, in inches
NAME_WIDTH = 170  # the most pixels of a name
# Of conditions. The numbers of markers and colours have no common divisor, so 42 conditions differ.
MARKERS = "osD^vPX"
COLOURS = ("#3a3a3c", "#e8590c", "#1c7ed6", "#2f9e44", "#9c36b5", "#868e96")
SPREAD = 0.6  # the height of the conditions of a measure, where the next measure is 1 away


def differences_figure(rows: Sequence[ChartRow], title: str, scale: float = 1) -> Figure:
    """Draws differences with their intervals, the first at the top, and a line at 0.

    Args:
        rows: The differences. Those that are clear have a filled dot.
        title: What the numbers are.
        scale: The factor of the numbers: 100 for percentage points.
    """
    figure, axes = _figure(len(rows), title)
    axes.axvline(0, color=FAINT_COLOUR, linewidth=0.7)
    for place, row in enumerate(rows):
        face = ACCENT_COLOUR if row.is_clear else "white"
        _draw_interval(axes, row.estimate, place, scale, "o", ACCENT_COLOUR, face)
    _name_rows(axes, [row.name for row in rows])
    return figure


def means_figure(rows: Sequence[ChartRow], title: str, scale: float = 1) -> Figure:
    """Draws the means of measures by condition with their intervals.

    Args:
        rows: The means: names are conditions, and groups measures that have the same conditions.
        title: What the numbers are.
        scale: The factor of the numbers: 100 for percent.
    """
    measures = list(dict.fromkeys(row.group for row in rows))
    conditions = list(dict.fromkeys(row.name for row in rows))
    lines = len(measures) * (1 + (len(conditions) - 1) / 3)
    figure, axes = _figure(lines, title)
    step = SPREAD / len(conditions)
    for row in rows:
        index = conditions.index(row.name)
        height = measures.index(row.group) + (index - (len(conditions) - 1) / 2) * step
        colour = COLOURS[index % len(COLOURS)]
        marker = MARKERS[index % len(MARKERS)]
        _draw_interval(axes, row.estimate, height, scale, marker, colour, colour)
    for index, condition in enumerate(conditions):
        axes.plot(
            [],
            [],
            MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markersize=3,
            label=fitted(condition, FONT_POINTS, NAME_WIDTH),
        )
    legend = figure.legend(loc="outside upper center", ncols=3, fontsize=FONT_POINTS, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    _name_rows(axes, measures)
    return figure


def _figure(lines: float, title: str) -> tuple[Figure, Axes]:
    """Returns an empty figure for a number of lines, with its axes; `title` names the numbers."""
    height = MARGIN_HEIGHT + LINE_HEIGHT * lines
    figure = Figure(figsize=(FIGURE_WIDTH, height), dpi=FIGURE_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(printable(title), fontsize=FONT_POINTS, parse_math=False, wrap=True)
    axes.tick_params(labelsize=FONT_POINTS)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
    return figure, axes


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Writes the names of rows beside them, the first at the top."""
    fitting = [fitted(printable(name), FONT_POINTS, NAME_WIDTH) for name in names]
    axes.set_yticks(range(len(fitting)), fitting, parse_math=False)
    axes.set_ylim(len(fitting) - 0.5, -0.5)


def _draw_interval(
    axes: Axes,
    estimate: Estimate,
    height: float,
    scale: float,
    marker: str,
    colour: str,
    face: str,
) -> None:
    """Draws a mean at a height with its interval; `face` is the colour inside of the marker."""
    if estimate.mean is None:
        return
    if estimate.low is not None and estimate.high is not None:
        bounds = [scale * estimate.low, scale * estimate.high]
        axes.plot(bounds, [height, height], color=colour, linewidth=0.8)
    axes.plot(
        [scale * estimate.mean],
        [height],
        marker,
        color=colour,
        markerfacecolor=face,
        markersize=3,
        markeredgewidth=0.8,
    )
