"""Results with their intervals as lines that the browser draws: names may have any script."""

from collections.abc import Mapping
from typing import NamedTuple

from fer_vit.report.table import Interval, interval_text


class IntervalRow(NamedTuple):
    """A result as parts of the width of a chart, in [0, 1]."""

    name: str
    low: float
    mean: float
    high: float
    text: str


class IntervalChart(NamedTuple):
    """Results on one scale."""

    rows: list[IntervalRow]
    zero: float | None  # where 0 is; None: outside the scale


def interval_chart(results: Mapping[str, Interval], form: str) -> IntervalChart | None:
    """Returns a chart of results whose numbers have a format such as ".3f"; None without any.

    A result without a mean has no row, one without an interval is a dot.
    """
    known = {name: result for name, result in results.items() if result["mean"] is not None}
    bounds = [value for result in known.values() for value in _numbers(result)]
    if not bounds:
        return None
    least = min(bounds)
    width = max(bounds) - least or 1.0
    rows = []
    for name, result in known.items():
        low, mean, high = ((value - least) / width for value in _numbers(result))
        rows.append(IntervalRow(name, low, mean, high, interval_text(result, form)))
    zero = -least / width
    return IntervalChart(rows, zero if 0 <= zero <= 1 else None)


def _numbers(result: Interval) -> tuple[float, float, float]:
    """Returns the low bound, the mean and the high bound; the mean where there is no interval."""
    mean = result["mean"] or 0.0
    low = mean if result["low"] is None else result["low"]
    high = mean if result["high"] is None else result["high"]
    return low, mean, high
