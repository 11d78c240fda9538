"""Results over faces with their intervals: the percentile bootstrap of Efron & Tibshirani (1993).

Where all faces agree, all resamples do, so fractions of 0 and 1 have the bounds of Clopper & Pearson (1934) instead.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fer_vit.report.table import Interval

RESAMPLES = 2000
"""Bootstrap resamples."""


def resampled_sums(values: NDArray[np.float64], units: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Sums the values (N, M) of N faces in bootstrap resamples; returns (RESAMPLES, M).

    A resample is stored as how often each face was drawn, so all sums are one matrix product, and hundreds of values
    take no longer than one. `units` (N,), counted from 0, are the persons or photos that faces belong to. All faces of
    a unit are drawn together, since they are similar.
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
    drawn = score(resampled_sums(values, units)) if _count(np.ones(len(values), bool), units) > 1 else {}
    return {name: _interval(value, drawn.get(name), len(values)) for name, value in score(values.sum(0)).items()}


def mean_intervals(
    values: NDArray[np.float64], units: NDArray[np.int64] | None = None, binary: bool = False
) -> list[Interval]:
    """Returns the mean of each of M values over N faces (N, M) and its interval; values that are NaN do not count.

    `binary`: values are 0 or 1; means of exactly 0 or 1 get Clopper-Pearson bounds.
    """
    present, width = ~np.isnan(values), values.shape[1]
    sums = np.hstack([np.where(present, values, 0.0), present])

    def means(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        total, count = sums[..., :width], sums[..., width:]
        mean: NDArray[np.float64] = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
        return mean

    several = _count(np.ones(len(values), bool), units) > 1
    drawn = means(resampled_sums(sums, units)).T if several else [None] * width
    intervals = [_interval(*one) for one in zip(means(sums.sum(0)), drawn, present.sum(0).tolist(), strict=True)]
    limit = clopper_pearson if binary else drop_single
    return [limit(one, member, units) for one, member in zip(intervals, present.T, strict=True)]


def clopper_pearson(one: Interval, member: NDArray[np.bool_], units: NDArray[np.int64] | None = None) -> Interval:
    """Returns a fraction of the faces in `member` (N,); one of exactly 0 or 1 gets the bounds of Clopper & Pearson."""
    one = drop_single(Interval(**one | {"faces": int(member.sum())}), member, units)
    if one["low"] is None or one["mean"] not in (0, 1):
        return one
    bound = 0.025 ** (1 / _count(member, units))
    low, high = (bound, 1.0) if one["mean"] else (0.0, 1 - bound)
    return Interval(mean=one["mean"], low=low, high=high, faces=one["faces"])


def drop_single(one: Interval, member: NDArray[np.bool_], units: NDArray[np.int64] | None) -> Interval:
    """Returns a result without its interval if all faces in `member` (N,) are of one person or image."""
    return one if _count(member, units) > 1 else Interval(**one | {"low": None, "high": None})


def _count(member: NDArray[np.bool_], units: NDArray[np.int64] | None) -> int:
    """Counts the persons or images of the faces in `member`."""
    return int(member.sum()) if units is None else len(np.unique(units[member]))


def _interval(value: NDArray[np.float64], drawn: NDArray[np.float64] | None, faces: int) -> Interval:
    known = bool(np.isfinite(value))
    low = high = None
    if drawn is not None and known:
        low, high = np.nanpercentile(drawn, [2.5, 97.5]).tolist()
    return Interval(mean=float(value) if known else None, low=low, high=high, faces=faces)
