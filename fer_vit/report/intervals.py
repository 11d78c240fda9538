"""Charts of results with intervals. The browser draws them, so names may have any script."""

from collections.abc import Sequence
from typing import NamedTuple

from fer_vit.report.plots import Axis, make_axis
from fer_vit.stats.estimate import Estimate


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
