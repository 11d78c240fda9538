"""Results over faces with their intervals: the percentile bootstrap of Efron & Tibshirani (1993).

Where all faces agree, all resamples do, however few there are: shares of 0 and 1 have the bounds of Clopper & Pearson
(1934) instead.
"""

from collections.abc import Callable, Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
NOTHING = "-"
"""What tables show where there is no result."""


class Interval(TypedDict):
    """A result over faces with its 95 % interval; null where no face has a value, or a single one."""

    mean: float | None
    low: float | None
    high: float | None
    faces: int


def resampled_sums(values: NDArray[np.float64], units: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Sums the values (N, M) of N faces in bootstrap resamples; returns (RESAMPLES, M).

    A resample is stored as how often each face was drawn, so all sums are one matrix product, and hundreds of values
    take no longer than one. `units` (N,), counted from 0, are the persons or photos that faces belong to: these are
    drawn whole, since their faces are alike.
    """
    if units is not None:
        each, values = values, np.zeros((units.max() + 1, values.shape[1]))
        np.add.at(values, units, each)
    random, chance = np.random.default_rng(0), np.full(len(values), 1 / len(values))
    # 100 resamples at once, to save memory
    draws = (random.multinomial(len(values), chance, 100).astype(float) for _ in range(0, RESAMPLES, 100))
    return np.concatenate([drawn @ values for drawn in draws])


def score_intervals(
    values: NDArray[np.float64],
    score: Callable[[NDArray[np.float64]], Mapping[str, NDArray[np.float64]]],
    units: NDArray[np.int64] | None = None,
) -> dict[str, Interval]:
    """Returns results that are functions of sums over N faces, with their intervals.

    Args:
        values: What each face adds to the sums (N, M).
        score: The results (...) by name, NaN where there is none, of sums (..., M).
        units: See `resampled_sums`.
    """
    drawn = score(resampled_sums(values, units)) if _drawn(np.ones(len(values), bool), units) > 1 else {}
    return {name: _interval(value, drawn.get(name), len(values)) for name, value in score(values.sum(0)).items()}


def mean_intervals(
    values: NDArray[np.float64], units: NDArray[np.int64] | None = None, shares: bool = False
) -> list[Interval]:
    """Returns the mean of each of M values over N faces (N, M) and its interval; values that are NaN do not count.

    `shares` says that the values are 0 or 1, so that a mean of 0 or 1 is no certainty.
    """
    present, width = ~np.isnan(values), values.shape[1]
    sums = np.hstack([np.where(present, values, 0.0), present])

    def means(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        total, count = sums[..., :width], sums[..., width:]
        mean: NDArray[np.float64] = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
        return mean

    several = _drawn(np.ones(len(values), bool), units) > 1
    drawn = means(resampled_sums(sums, units)).T if several else [None] * width
    found = [_interval(*one) for one in zip(means(sums.sum(0)), drawn, present.sum(0).tolist(), strict=True)]
    bounded = exact if shares else of_several
    return [bounded(one, mine, units) for one, mine in zip(found, present.T, strict=True)]


def exact(share: Interval, mine: NDArray[np.bool_], units: NDArray[np.int64] | None = None) -> Interval:
    """Returns a share over those faces that count (`mine` (N,)); if it is 0 or 1, with the bounds of a binomial's."""
    share = of_several(Interval(**share | {"faces": int(mine.sum())}), mine, units)
    if share["low"] is None or share["mean"] not in (0, 1):
        return share
    bound = 0.025 ** (1 / _drawn(mine, units))
    low, high = (bound, 1.0) if share["mean"] else (0.0, 1 - bound)
    return Interval(mean=share["mean"], low=low, high=high, faces=share["faces"])


def of_several(one: Interval, mine: NDArray[np.bool_], units: NDArray[np.int64] | None) -> Interval:
    """Returns a result without its interval if those faces that count (`mine` (N,)) are all of one person or image."""
    return one if _drawn(mine, units) > 1 else Interval(**one | {"low": None, "high": None})


def _drawn(mine: NDArray[np.bool_], units: NDArray[np.int64] | None) -> int:
    """How many persons or images those faces that count are of."""
    return int(mine.sum()) if units is None else len(np.unique(units[mine]))


def _interval(value: NDArray[np.float64], drawn: NDArray[np.float64] | None, faces: int) -> Interval:
    known = bool(np.isfinite(value))
    low = high = None
    if drawn is not None and known:
        low, high = np.nanpercentile(drawn, [2.5, 97.5]).tolist()
    return Interval(mean=float(value) if known else None, low=low, high=high, faces=faces)


def interval_text(one: Interval, form: str) -> str:
    """Returns a result with its interval as text, each number in a format such as ".3f"."""
    if one["mean"] is None:
        return NOTHING
    spread = "" if one["low"] is None else f" ({one['low']:{form}} to {one['high']:{form}})"
    return f"{one['mean']:{form}}{spread}"
