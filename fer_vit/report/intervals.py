"""Results with their intervals as lines that the browser draws: names may have any script."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from fer_vit.report.plots import Axis, make_axis
from fer_vit.report.table import Interval, interval_text


class IntervalRow(NamedTuple):
    """A result as parts of the width of a chart, in [0, 1]."""

    name: str
    low: float
    mean: float
    high: float
    text: str
    hollow: bool  # drawn as a circle instead of a dot


class IntervalChart(NamedTuple):
    """Results on one scale."""

    rows: list[IntervalRow]
    axis: Axis
    zero: float | None  # where 0 is; None: outside the scale


def interval_chart(
    results: Mapping[str, Interval],
    form: str,
    hollow: Collection[str] = (),
    with_zero: bool = False,
) -> IntervalChart | None:
    """Returns a chart of results; None without any.

    A result without a mean has no row, one without an interval is a dot.

    Args:
        results: By name.
        form: The format of their numbers, such as ".3f".
        hollow: The names of results that have a circle instead of a dot.
        with_zero: Whether the scale reaches 0.
    """
    known = {name: result for name, result in results.items() if result["mean"] is not None}
    bounds: list[float] = []
    for result in known.values():
        bounds += _numbers(result)
    if not bounds:
        return None
    if with_zero:
        bounds.append(0.0)
    axis = make_axis("", min(bounds), max(bounds), form)
    rows = []
    for name, result in known.items():
        low, mean, high = (axis.place(value) for value in _numbers(result))
        row = IntervalRow(
            name=name,
            low=low,
            mean=mean,
            high=high,
            text=interval_text(result, form),
            hollow=name in hollow,
        )
        rows.append(row)
    zero = axis.place(0.0)
    return IntervalChart(rows, axis, zero if 0 <= zero <= 1 else None)


def _numbers(result: Interval) -> tuple[float, float, float]:
    """Returns the low bound, the mean and the high bound; the mean where there is no interval."""
    mean = result["mean"] or 0.0
    low = mean if result["low"] is None else result["low"]
    high = mean if result["high"] is None else result["high"]
    return low, mean, high
