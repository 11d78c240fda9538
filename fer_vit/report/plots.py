"""Lines, areas and dots on axes that the browser draws: names may have any script."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fer_vit.geometry import Array, Mask
from fer_vit.report.draw import percent

UNITS = 1000  # of a drawing along each axis
MAX_AXIS_STEPS = 5  # between ticks
CURVE_COLOURS = 6  # of curves; further ones have the same colours with dashes
DASHES = 3  # kinds of lines, of which the first has no dashes
CONFIDENCE_BINS = 10  # of a calibration plot
DOT = 6  # diameter of the smallest dot in pixels
GROWTH = 16  # by how many pixels the diameter of a dot of all faces is larger


class Tick(NamedTuple):
    """A number beside an axis."""

    place: float  # in [0, 1] along the axis
    text: str


class Axis(NamedTuple):
    """A scale from a low to a high number."""

    name: str
    low: float
    high: float
    ticks: list[Tick]

    def place(self, value: float) -> float:
        """Returns where a value lies in [0, 1] along the axis."""
        return (value - self.low) / (self.high - self.low)

    def places(self, values: Array) -> Array:
        """Returns where values (N,) lie in [0, 1] along the axis (N,)."""
        return (values - self.low) / (self.high - self.low)


class Dot(NamedTuple):
    """A dot on a curve, as parts of the width and height."""

    x: float
    y: float
    size: float  # diameter in pixels
    title: str


class Curve(NamedTuple):
    """A line with the area between its bounds, as paths of SVG, and dots."""

    colour: int  # in [0, CURVE_COLOURS)
    dashes: int  # in [0, 2]; 0: none
    line: str
    area: str
    dots: Sequence[Dot]


class Plot(NamedTuple):
    """Curves on two axes."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    diagonal: bool = False  # a line where both are equal


def make_axis(name: str, low: float, high: float, form: str = "") -> Axis:
    """Returns an axis from `low` to `high` with round ticks.

    Args:
        name: The name.
        low: The smallest number.
        high: The largest number; the same one makes the axis one unit long.
        form: The format of the numbers, such as "+.1%", of which the sign and the percent count.
    """
    if low == high:
        high = low + 1.0
    ticks = []
    for value in round_numbers(low, high):
        ticks.append(Tick((value - low) / (high - low), tick_text(value, form)))
    return Axis(name, low, high, ticks)


def round_numbers(low: float, high: float) -> list[float]:
    """Returns multiples of 1, 2 or 5 times a power of ten in a range.

    There are at most `MAX_AXIS_STEPS` + 1.
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
    """Returns a round number as text, with the sign and the percent of a format."""
    sign = "+" if form.startswith("+") and round(value, 9) != 0 else ""
    if form.endswith("%"):
        unit = "" if form.startswith("+") else "%"  # differences are in points
        return f"{round(100 * value, 7) + 0.0:{sign}g}{unit}"
    return f"{round(value, 9) + 0.0:{sign}g}"


class Course(NamedTuple):
    """Values over time with their bounds (T,); NaN leaves a gap."""

    mean: Array
    low: Array
    high: Array


def series_plots(
    times: Array, courses: Mapping[str, Mapping[str, Course]], form: str
) -> list[Plot]:
    """Returns a plot for each measure with a curve for each condition, all on one scale.

    Args:
        times: Ascending, in seconds (T,).
        courses: By measure and condition.
        form: The format of the values, as for `make_axis`.
    """
    arrays: list[Array] = []
    for by_condition in courses.values():
        for course in by_condition.values():
            arrays += course
    values = np.concatenate(arrays)
    values = values[np.isfinite(values)]
    x = make_axis("seconds", float(times[0]), float(times[-1]))
    y = make_axis("", float(values.min()), float(values.max()), form)
    across = x.places(times)
    plots = []
    for measure, by_condition in courses.items():
        curves = []
        for index, course in enumerate(by_condition.values()):
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
    """Returns the accuracy of predictions (N,) by confidence (N,), a dot for each tenth with faces.

    The area of a dot grows with the number of its faces; `correct` (N,) are correct predictions.
    """
    edges = np.linspace(0, 1, CONFIDENCE_BINS + 1)
    faces, _ = np.histogram(confidence, edges)
    hits, _ = np.histogram(confidence[correct], edges)
    confidences, _ = np.histogram(confidence, edges, weights=confidence)  # their sums
    dots = []
    for count, num_correct, total in zip(faces.tolist(), hits, confidences, strict=True):
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
    """Returns the path through points (N,) in [0, 1]; a single one is a dot of the line's width."""
    segments = []
    for run in _runs(y):
        points = _points(x[run], y[run])
        if len(points) == 1:
            points.append(points[0])
        segments.append(f"M{'L'.join(points)}")
    return "".join(segments)


def area_path(x: Array, low: Array, high: Array) -> str:
    """Returns the path around the area between two lines (N,) in [0, 1]."""
    segments = []
    for run in _runs(low + high):
        around = _points(x[run], high[run]) + _points(x[run], low[run])[::-1]
        segments.append(f"M{'L'.join(around)}Z")
    return "".join(segments)


def _runs(values: Array) -> list[slice]:
    """Returns where values (N,) are numbers without a gap."""
    masked = np.ma.masked_invalid(values)
    runs: list[slice] = np.ma.clump_unmasked(masked)  # type: ignore[no-untyped-call]
    return runs


def _points(x: Array, y: Array) -> list[str]:
    """Returns points (N,) in [0, 1] as text, y from above to below."""
    across = (UNITS * x).round(1).tolist()
    down = (UNITS * (1 - y)).round(1).tolist()
    return [f"{left:g} {top:g}" for left, top in zip(across, down, strict=True)]
