"""Charts of intervals, and plots with lines, areas and dots.

The browser draws them, so names may have any script.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fer_vit.geometry import Array, Mask
from fer_vit.report.draw import percent
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.series import MeanCourse

UNITS = 1000  # the width and the height of a plot in SVG units
MAX_AXIS_STEPS = 5  # the most steps between the ticks of an axis
CURVE_COLOURS = 6  # the number of colours; further curves have the same colours with dashes
DASHES = 3  # the number of kinds of lines: one without dashes, two with dashes
CONFIDENCE_BINS = 10  # the number of bins in a calibration plot
DOT = 6  # the diameter of the smallest dot in pixels
GROWTH = 16  # the diameter of a dot for all faces is larger by this number of pixels


class Tick(NamedTuple):
    """A number beside an axis."""

    place: float  # the position in [0, 1] along the axis
    text: str


class Axis(NamedTuple):
    """A scale from `low` to `high`."""

    name: str
    low: float
    high: float
    ticks: list[Tick]

    def place(self, value: float) -> float:
        """Returns the position of a value along the axis; values on the scale are in [0, 1]."""
        return (value - self.low) / (self.high - self.low)

    def places(self, values: Array) -> Array:
        """Returns the positions (N,) of values (N,) along the axis; see `place`."""
        return (values - self.low) / (self.high - self.low)


def make_axis(name: str, low: float, high: float, form: str = "") -> Axis:
    """Returns an axis from `low` to `high` with round ticks.

    Args:
        name: The name.
        low: The smallest number.
        high: The largest number. If `low` and `high` are equal, the axis is one unit long.
        form: The format of the numbers, such as "+.1%"; see `tick_text`.
    """
    if low == high:
        high = low + 1.0
    ticks = []
    for value in round_numbers(low, high):
        ticks.append(Tick((value - low) / (high - low), tick_text(value, form)))
    return Axis(name, low, high, ticks)


def round_numbers(low: float, high: float) -> list[float]:
    """Returns the multiples of a round step in a range, at most `MAX_AXIS_STEPS` + 1 of them.

    The step is 1, 2 or 5 times a power of ten.
    """
    min_step = (high - low) / MAX_AXIS_STEPS
    power = 10.0 ** math.floor(math.log10(min_step))
    for factor in (1, 2, 5, 10):
        step = factor * power
        if step >= min_step * (1 - 1e-9):
            break
    first_multiple = math.ceil(low / step - 1e-9)
    last_multiple = math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first_multiple, last_multiple + 1)]


def tick_text(value: float, form: str) -> str:
    """Returns a round number as text.

    "+" in `form` adds the sign, and "%" shows percent. With both, the number is in percentage
    points without a unit. The digits of `form` are ignored.
    """
    # Rounding removes the errors of floats. "+ 0.0" turns -0.0 into 0.0.
    sign = "+" if form.startswith("+") and round(value, 9) != 0 else ""
    if form.endswith("%"):
        unit = "" if form.startswith("+") else "%"
        return f"{round(100 * value, 7) + 0.0:{sign}g}{unit}"
    return f"{round(value, 9) + 0.0:{sign}g}"


# -------------------------------------------------------------------------------------- intervals


class ChartRow(NamedTuple):
    """A result in a chart or figure."""

    name: str
    estimate: Estimate
    group: str = ""  # the heading that neighbours share: a measure, if the names are conditions
    faces: int | None = None  # the number of faces beside the name; None: no number
    is_clear: bool | None = None  # whether a difference is significant; None: there is no test

    @property
    def mark(self) -> str:
        """The mark on the line of the interval: a class of the page's style.

        Without an interval there is no mark, since the position means little.
        """
        if self.estimate.low is None:
            return "none"
        if self.is_clear is None:
            return "estimate"
        return "clear" if self.is_clear else "unclear"


class IntervalChart(NamedTuple):
    """Results on one scale."""

    rows: Sequence[ChartRow]  # each has a mean
    form: str  # the format of the numbers
    axis: Axis
    below: str  # the meaning of numbers below 0; empty: the results are no differences
    above: str  # the meaning of numbers above 0

    @property
    def zero(self) -> float | None:
        """The position of 0; None: 0 is outside the scale."""
        zero = self.axis.place(0.0)
        return zero if 0 <= zero <= 1 else None

    def place(self, number: float | None, mean: float) -> float:
        """Returns the position in [0, 1] of a bound, or of the mean without bounds."""
        return self.axis.place(mean if number is None else number)


def interval_chart(
    rows: Sequence[ChartRow], form: str, title: str, below: str = "", above: str = ""
) -> IntervalChart | None:
    """Returns a chart of results; None if no result has a mean.

    A result without a mean has no row. The page shows a number of faces that all results share
    elsewhere.

    Args:
        rows: The results.
        form: The format of the numbers, such as ".3f".
        title: What the numbers are.
        below: The meaning of numbers below 0. With it, the scale includes 0.
        above: The meaning of numbers above 0.
    """
    drawn = [row for row in rows if row.estimate.mean is not None]
    if not drawn:
        return None
    if len({row.faces for row in rows}) < 2:
        drawn = [row._replace(faces=None) for row in drawn]
    numbers = [0.0] if below else []
    for row in drawn:
        bounds = (row.estimate.mean, row.estimate.low, row.estimate.high)
        numbers += [number for number in bounds if number is not None]
    axis = make_axis(title, min(numbers), max(numbers), form)
    return IntervalChart(drawn, form, axis, below, above)


# ------------------------------------------------------------------------------------------ plots


class Dot(NamedTuple):
    """A dot on a curve."""

    x: float  # the position in [0, 1] along the width
    y: float  # the position in [0, 1] along the height, from the bottom
    size: float  # the diameter in pixels
    title: str


class Curve(NamedTuple):
    """A line, the area between its bounds, and dots."""

    colour: int  # in [0, CURVE_COLOURS)
    dashes: int  # the kind of line in [0, DASHES); 0: no dashes
    line: str  # an SVG path
    area: str  # an SVG path; empty: no area
    dots: Sequence[Dot]


class Plot(NamedTuple):
    """Curves on two axes."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    diagonal: bool = False  # whether the line x = y is drawn


def series_plots(
    times: Array, courses: Mapping[str, Sequence[MeanCourse]], form: str
) -> list[Plot]:
    """Returns a plot for each measure, with a curve for each condition, all on one scale.

    Args:
        times: The ascending times (T,) in seconds.
        courses: The means over time of each condition, by measure.
        form: The format of the values, as for `make_axis`.
    """
    arrays: list[Array] = []
    for of_measure in courses.values():
        for course in of_measure:
            arrays += [course.mean, course.low, course.high]
    values = np.concatenate(arrays)
    values = values[np.isfinite(values)]
    x = make_axis("seconds", float(times[0]), float(times[-1]))
    y = make_axis("", float(values.min()), float(values.max()), form)
    across = x.places(times)
    plots = []
    for measure, of_measure in courses.items():
        curves = []
        for index, course in enumerate(of_measure):
            curve = Curve(
                colour=index % CURVE_COLOURS,
                dashes=index // CURVE_COLOURS % DASHES,
                line=line_path(across, y.places(course.mean)),
                area=area_path(across, y.places(course.low), y.places(course.high)),
                dots=(),
            )
            curves.append(curve)
        plots.append(Plot(measure, x, y, curves))
    return plots


def calibration_plot(confidence: Array, correct: Mask) -> Plot:
    """Returns a plot of accuracy over confidence, with a dot for each bin that has faces.

    The area of a dot increases with its number of faces. `confidence` (N,) is the confidence of
    each prediction. `correct` (N,) is whether the prediction is correct.
    """
    edges = np.linspace(0, 1, CONFIDENCE_BINS + 1)
    faces, _ = np.histogram(confidence, edges)
    hits, _ = np.histogram(confidence[correct], edges)
    sums, _ = np.histogram(confidence, edges, weights=confidence)
    dots = []
    for count, num_correct, total in zip(faces.tolist(), hits, sums, strict=True):
        if not count:
            continue
        middle = float(total / count)  # the mean confidence
        accuracy = float(num_correct / count)
        size = DOT + GROWTH * math.sqrt(count / len(confidence))
        noun = "face" if count == 1 else "faces"
        title = (
            f"{count:,} {noun} with a mean confidence of {percent(middle)}: "
            f"accuracy {percent(accuracy)}"
        )
        dots.append(Dot(middle, accuracy, size, title))
    x = np.array([dot.x for dot in dots])
    y = np.array([dot.y for dot in dots])
    curve = Curve(colour=0, dashes=0, line=line_path(x, y), area="", dots=dots)
    return Plot(
        title="Accuracy by confidence",
        x=make_axis("confidence", 0, 1, ".0%"),
        y=make_axis("", 0, 1, ".0%"),
        curves=[curve],
        diagonal=True,
    )


def line_path(x: Array, y: Array) -> str:
    """Returns an SVG path through points, with gaps where `y` is NaN.

    `x` and `y` (N,) are positions in [0, 1]. A point between two gaps is a dot as wide as the line.
    """
    segments = []
    for run in _runs(y):
        points = _points(x[run], y[run])
        if len(points) == 1:
            points.append(points[0])
        segments.append(f"M{'L'.join(points)}")
    return "".join(segments)


def area_path(x: Array, low: Array, high: Array) -> str:
    """Returns an SVG path around the area between two lines, with gaps where either line is NaN.

    `x`, `low` and `high` (N,) are positions in [0, 1].
    """
    segments = []
    for run in _runs(low + high):  # the sum is NaN where either line has a gap
        # along `high`, and back along `low`
        around = _points(x[run], high[run]) + _points(x[run], low[run])[::-1]
        segments.append(f"M{'L'.join(around)}Z")
    return "".join(segments)


def _runs(values: Array) -> list[slice]:
    """Returns the slices of values (N,) without NaN."""
    masked = np.ma.masked_invalid(values)
    runs: list[slice] = np.ma.clump_unmasked(masked)  # type: ignore[no-untyped-call]
    return runs


def _points(x: Array, y: Array) -> list[str]:
    """Returns points with positions (N,) in [0, 1] as "x y" in SVG units; y points down in SVG."""
    across = (UNITS * x).round(1).tolist()
    down = (UNITS * (1 - y)).round(1).tolist()
    return [f"{left:g} {top:g}" for left, top in zip(across, down, strict=True)]
