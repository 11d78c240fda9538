"""Charts of results with intervals. The browser draws them, so names may have any script."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from fer_vit.report.plots import Axis, make_axis
from fer_vit.stats.estimate import Estimate, estimate_text
from fer_vit.wording import counted


class Mark(StrEnum):
    """The mark of a result on the line of its interval."""

    CLEAR = "clear"  # a dot: a significant difference
    UNCLEAR = "unclear"  # a circle: a difference that is not significant
    ESTIMATE = "estimate"  # a short bar: there is no test
    NONE = "none"  # no mark: without an interval, the position means little


class Named(NamedTuple):
    """A result with its name."""

    name: str
    result: Estimate
    group: str = ""  # the heading of several results: a measure, if the names are conditions


class IntervalRow(NamedTuple):
    """A result as a row of a chart; positions are fractions of the chart's width, in [0, 1]."""

    name: str
    group: str  # the heading, which neighbours share; empty: no heading
    faces: str  # the number of faces; empty: the same for all rows, or unknown
    low: float
    mean: float
    high: float
    text: str  # the result in numbers
    mark: Mark


class Direction(NamedTuple):
    """The meanings of numbers below and above 0."""

    below: str
    above: str


class IntervalChart(NamedTuple):
    """Results on one scale."""

    rows: list[IntervalRow]
    axis: Axis
    zero: float | None  # the position of 0; None: 0 is outside the scale
    direction: Direction | None  # None: the results are no differences


def interval_chart(
    results: Mapping[str, Estimate],
    form: str,
    title: str,
    faces: Mapping[str, int] | None = None,
) -> IntervalChart | None:
    """Returns a chart of results without tests; None if no result has a mean.

    A result without a mean has no row. A result without an interval has no mark.

    Args:
        results: The results by name.
        form: The format of the numbers, such as ".3f".
        title: What the numbers are.
        faces: The number of faces of each result, by name of the result.
    """
    counts = faces or {}
    if len(set(counts.values())) < 2:  # the page shows a number that all results share elsewhere
        counts = {}
    named = [Named(name, result) for name, result in results.items()]
    return _chart(named, form, title, counts=counts)


def grouped_chart(
    results: Mapping[str, Mapping[str, Estimate]], form: str, title: str
) -> IntervalChart | None:
    """Returns a chart of results without tests, with a heading for each group.

    Args:
        results: The results by group and name, such as measure and condition.
        form: The format of the numbers, such as ".3f".
        title: What the numbers are.
    """
    named = []
    for group, members in results.items():
        for name, result in members.items():
            named.append(Named(name, result, group))
    return _chart(named, form, title)


def difference_chart(
    differences: Mapping[str, Estimate],
    form: str,
    title: str,
    unclear: Collection[str],
    direction: Direction,
) -> IntervalChart | None:
    """Returns a chart of tested differences; None if no difference has a mean.

    The scale includes 0.

    Args:
        differences: The differences by name.
        form: The format of the numbers, such as "+.3f".
        title: What the numbers are.
        unclear: The names of the differences that have a circle instead of a dot.
        direction: The meanings of negative and positive numbers.
    """
    named = [Named(name, result) for name, result in differences.items()]
    return _chart(named, form, title, unclear=unclear, direction=direction)


def _chart(
    named: Sequence[Named],
    form: str,
    title: str,
    counts: Mapping[str, int] | None = None,
    unclear: Collection[str] = (),
    direction: Direction | None = None,
) -> IntervalChart | None:
    """Returns a chart of results; None if no result has a mean.

    With a `direction`, the results are tested differences.
    """
    with_mean = [item for item in named if item.result.mean is not None]
    bounds: list[float] = []
    for item in with_mean:
        bounds += _drawn_numbers(item.result)
    if not bounds:
        return None
    if direction is not None:
        bounds.append(0.0)
    axis = make_axis(title, min(bounds), max(bounds), form)
    rows = []
    for name, result, group in with_mean:
        numbers = _drawn_numbers(result)
        if result.low is None:
            mark = Mark.NONE
        elif direction is None:
            mark = Mark.ESTIMATE
        else:
            mark = Mark.UNCLEAR if name in unclear else Mark.CLEAR
        row = IntervalRow(
            name=name,
            group=group,
            faces=counted(counts[name], "face") if counts else "",
            low=axis.place(numbers.low),
            mean=axis.place(numbers.mean),
            high=axis.place(numbers.high),
            text=estimate_text(result, form),
            mark=mark,
        )
        rows.append(row)
    zero = axis.place(0.0)
    return IntervalChart(rows, axis, zero if 0 <= zero <= 1 else None, direction)


class _DrawnNumbers(NamedTuple):
    """The numbers of a result; without an interval, both bounds are the mean."""

    low: float
    mean: float
    high: float


def _drawn_numbers(result: Estimate) -> _DrawnNumbers:
    """Returns the numbers of a result with a mean."""
    mean = result.mean or 0.0
    low = mean if result.low is None else result.low
    high = mean if result.high is None else result.high
    return _DrawnNumbers(low, mean, high)
