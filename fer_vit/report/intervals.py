"""Results with their intervals as lines that the browser draws: names may have any script."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from fer_vit.report.estimate import Estimate, estimate_text
from fer_vit.report.plots import Axis, make_axis
from fer_vit.wording import counted


class Mark(StrEnum):
    """How a result is drawn on the line of its interval."""

    CLEAR = "clear"  # a dot
    UNCLEAR = "unclear"  # a circle
    ESTIMATE = "estimate"  # a short bar: there is no test
    NONE = "none"  # there is no interval, so that the place of the result means little


class Named(NamedTuple):
    """A result with its name."""

    name: str
    result: Estimate
    group: str = ""  # above several results, such as the measure of which these are the conditions


class IntervalRow(NamedTuple):
    """A result as parts of the width of a chart, in [0, 1]."""

    name: str
    group: str  # empty, or the same for neighbours
    faces: str  # how many faces it is of; empty: all rows have as many, or this is unknown
    low: float
    mean: float
    high: float
    text: str
    mark: Mark


class Direction(NamedTuple):
    """What numbers below and above 0 mean."""

    below: str
    above: str


class IntervalChart(NamedTuple):
    """Results on one scale."""

    rows: list[IntervalRow]
    axis: Axis
    zero: float | None  # where 0 is; None: outside the scale
    direction: Direction | None


def interval_chart(
    results: Mapping[str, Estimate],
    form: str,
    title: str,
    faces: Mapping[str, int] | None = None,
) -> IntervalChart | None:
    """Returns a chart of results that are no tests; None without any.

    A result without a mean has no row, one without an interval no mark.

    Args:
        results: By name.
        form: The format of their numbers, such as ".3f".
        title: What the numbers are.
        faces: How many faces each result is of, by name.
    """
    counts = faces or {}
    if len(set(counts.values())) < 2:  # the page has this number elsewhere
        counts = {}
    named = [Named(name, result) for name, result in results.items()]
    return _chart(named, form, title, counts=counts)


def grouped_chart(
    results: Mapping[str, Mapping[str, Estimate]], form: str, title: str
) -> IntervalChart | None:
    """Returns a chart of results by group and name, such as measure and condition.

    The results of a group are neighbours. The rest is as in `interval_chart`.
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
    """Returns a chart of tested differences, whose scale reaches 0; None without any.

    Args:
        differences: By name.
        form: The format of their numbers, such as "+.3f".
        title: What the numbers are.
        unclear: The names of differences that have a circle instead of a dot.
        direction: What negative and positive numbers mean.
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
    """Returns a chart of results; None without any. With a `direction`, these are tests."""
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
    """The numbers of a result; the bounds are the mean where there is no interval."""

    low: float
    mean: float
    high: float


def _drawn_numbers(result: Estimate) -> _DrawnNumbers:
    """Returns the numbers of a result with a mean."""
    mean = result.mean or 0.0
    low = mean if result.low is None else result.low
    high = mean if result.high is None else result.high
    return _DrawnNumbers(low, mean, high)
