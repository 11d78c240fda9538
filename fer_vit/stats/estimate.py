"""Results with 95% intervals, and their text."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

NO_RESULT = "-"  # the cell of a missing result
ROUNDING_ERROR = 1e-12  # smaller differences are rounding errors, and are shown as 0


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, in the unit of the values. A share is from 0 to 1.

    Attributes:
        mean: The number; None: no face or person has a value.
        low: The lower bound; None: there is no interval, for example with too few persons.
        high: The upper bound; None without an interval.
        n: The number of faces or persons with a value.
        over: What `n` counts: the key of `n` in JSON.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    over: Literal["faces", "persons"] = "faces"

    @property
    def numbers(self) -> dict[str, float | int | None]:
        """The numbers by their keys in JSON."""
        return {"mean": self.mean, "low": self.low, "high": self.high, self.over: self.n}


def plain_estimates(results: Mapping[str, object]) -> dict[str, object]:
    """Returns nested results for JSON; each estimate becomes `Estimate.numbers`."""
    plain: dict[str, object] = {}
    for name, result in results.items():
        if isinstance(result, Estimate):
            plain[name] = result.numbers
        elif isinstance(result, Mapping):
            plain[name] = plain_estimates(result)
        else:
            plain[name] = result
    return plain


def estimate_text(result: Estimate, form: str, named: bool = False) -> str:
    """Returns a result with its interval as text.

    Args:
        result: The result.
        form: The format of each number, such as ".3f". A format with a sign ("+.3f") is for
            differences, see `difference_text`.
        named: Whether the text names the interval, as in "0.5 (95% interval 0.4 to 0.6)".
    """
    if result.mean is None:
        return NO_RESULT
    unit = " points" if is_share_difference(form) else ""
    write = difference_text if form.startswith("+") else _number_text
    text = f"{write(result.mean, form)}{unit}"
    if result.low is None or result.high is None:
        return text
    low = write(result.low, form)
    high = write(result.high, form)
    name = "95% interval " if named else ""
    return f"{text} ({name}{low} to {high})"


def is_share_difference(form: str) -> bool:
    """Returns whether a format such as "+.1%" is for differences of shares."""
    return form.startswith("+") and form.endswith("%")


def _number_text(value: float, form: str) -> str:
    """Returns a number in a format."""
    return f"{value:z{form}}"  # z: no "-0"


def difference_text(value: float, form: str) -> str:
    """Returns a difference in a format such as "+.3f".

    A difference of shares ("+.1%") is in percentage points. A difference that would be rounded to 0
    has one significant digit instead, so that the bound of an interval shows its sign. A difference
    below `ROUNDING_ERROR` is 0, without a sign.
    """
    if is_share_difference(form):
        value = 100 * value
        form = f"{form.removesuffix('%')}f"
    if abs(value) < ROUNDING_ERROR:
        return f"{0:{form.removeprefix('+')}}"
    text = f"{value:{form}}"
    if float(text) == 0:
        return f"{Decimal(f'{value:.1g}'):+f}"
    return text


def size_text(value: float, form: str) -> str:
    """Returns the text that `difference_text` has for a value, without a plus sign."""
    return difference_text(value, f"+{form.removeprefix('+')}").removeprefix("+")


def p_text(value: float | None) -> str:
    """Returns a p-value as in papers, without the letter p; a dash without a test."""
    if value is None:
        return NO_RESULT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
