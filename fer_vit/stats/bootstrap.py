"""Intervals and tests of scores over faces that are not independent.

A score is a function of sums over faces, and a resample is how often each face was drawn, so that
2,000 resamples of all scores are one matrix product. Units are persons, or photos where persons are
unknown. Intervals are the percentile bootstrap of Efron & Tibshirani (1993), expanded for few units
(Hesterberg 2015, see `percentiles`); fewer units than `MIN_UNITS` have no interval. Where all faces
agree, all resamples agree, too. Shares of 0 and 1, and differences that are the same for every
face, therefore have the bounds of Clopper & Pearson (1934).

Shapes: N faces, U units, K columns, R resamples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.stats.estimate import ROUNDING_ERROR, Estimate

RESAMPLES = 2000  # number of bootstrap resamples
DRAWN_TOGETHER = 100  # resamples drawn at once; more would need more memory
MAX_KEPT = 50_000_000  # most numbers of resamples that are kept in memory, of one byte each
TAIL = 0.025  # probability beyond each bound of a 95% interval

# Fewer units have no bootstrap interval: with 2, 3, 4 and 5 units, the interval would contain the
# mean of normal values in 49%, 74%, 87% and 92% of studies (`benchmarks.coverage`).
MIN_UNITS = 6

# What is averaged: numbers, hits (0 or 1), or differences of hits (from -1 to 1).
Scale: TypeAlias = Literal["number", "share", "difference"]

Contributions: TypeAlias = Mapping[str, Array]  # by name: what each face adds to sums (N, K)
Sums: TypeAlias = Mapping[str, Array]  # by name: sums over faces (K,), or resampled (R, K)


def score_intervals(
    values: Contributions,
    score: Callable[[Sums], Mapping[str, Array]],
    units: IntArray | None,
    members: Mapping[str, Mask] | None = None,
) -> dict[str, Estimate]:
    """Returns results that are functions of sums over N faces, with their intervals.

    Args:
        values: What each face adds to the sums (N, K), by name.
        score: Computes results (...) from sums (..., K); NaN where there is no result.
        units: The index of the person or photo of each face (N,); None: each face is a unit. All
            faces of a unit are drawn together, since they are similar. A single unit has no
            interval; `bound` decides which results of few units have one.
        members: By the name of a result, whether each face (N,) belongs to the result. A result
            without an entry uses all faces.
    """
    packed = np.hstack([*values.values()])  # (N, all K)
    ends = np.cumsum([column.shape[1] for column in values.values()])

    def unpack(sums: Array) -> Sums:
        return dict(zip(values, np.split(sums, ends[:-1], axis=-1), strict=True))

    every = np.ones(len(packed), bool)
    drawn = None
    if count_units(every, units) > 1:
        drawn = score(unpack(resample_sums(packed, units)))

    results = {}
    for name, value in score(unpack(packed.sum(0))).items():
        member = (members or {}).get(name, every)
        resamples = None if drawn is None else drawn[name]
        results[name] = percentile_interval(value, resamples, count_units(member, units))
        results[name] = replace(results[name], n=len(packed))
    return results


def percentile_interval(value: Array | float, drawn: Array | None, units: int) -> Estimate:
    """Returns a result with the interval of its resamples (R,); NaN is no result.

    `units` is the number of persons or photos of the result. There is no interval without resamples
    or with a single unit.
    """
    if not np.isfinite(value):
        return Estimate(None)
    if drawn is None or units < 2:
        return Estimate(float(value))
    low, high = np.nanpercentile(drawn, percentiles(units)).tolist()
    return Estimate(float(value), low, high)


def count_units(member: Mask, units: IntArray | None) -> int:
    """Returns the number of units among some faces.

    `member` (N,) has whether each face counts; `units` is as for `score_intervals`.
    """
    return int(member.sum()) if units is None else len(np.unique(units[member]))


def percentiles(units: int) -> tuple[float, float]:
    """Returns the percentiles of resamples that bound a 95% interval, for U >= 2 units.

    They are near 2.5 and 97.5 for many units. Few units need wider bounds: the variance of
    resamples is the variance of a mean times (U - 1) / U, and resamples have normal tails where a
    mean has t tails. With these percentiles, normal resamples would give a mean the width of its
    t interval: Hesterberg, "What teachers should know about the bootstrap", 2015. Resamples of few
    units have shorter tails than normal ones.
    """
    from scipy.special import ndtr, stdtrit  # not at the top: reports of few faces need no SciPy

    quantile = np.sqrt(units / (units - 1)) * stdtrit(units - 1, TAIL)  # of the lower tail
    tail = float(ndtr(quantile))
    return 100 * tail, 100 * (1 - tail)


def resample_sums(values: Array, units: IntArray | None) -> Array:
    """Returns the sums of bootstrap resamples (R, K) of values (N, K)."""
    if units is not None:
        sums = np.zeros((units.max() + 1, values.shape[1]))
        np.add.at(sums, units, values)
        values = sums  # (units, K)
    return resample(lambda draws: draws @ values, len(values))


def resample(statistic: Callable[[Array], Array], units: int) -> Array:
    """Returns a statistic of bootstrap resamples (R, ...).

    `statistic` computes it (B, ...) from how often each of U units is drawn (B, U), for a block of
    resamples.
    """
    return np.concatenate([statistic(draws.astype(float)) for draws in draw_units(units)])


def draw_units(count: int) -> Iterable[NDArray[np.uint8]]:
    """Returns how often each unit is drawn in bootstrap resamples, in blocks (DRAWN_TOGETHER, U).

    `count` is the number of units U. The same number always has the same resamples.
    """
    if count * RESAMPLES > MAX_KEPT:
        return _draw(count, RESAMPLES)
    return _draw_once(count, RESAMPLES)


@lru_cache(maxsize=4)
def _draw_once(count: int, resamples: int) -> list[NDArray[np.uint8]]:
    """Returns what `_draw` yields; all scores of the same faces use the same resamples."""
    return list(_draw(count, resamples))


def _draw(count: int, resamples: int) -> Iterator[NDArray[np.uint8]]:
    """Yields resamples in blocks. No unit of many is drawn 256 times: once is the mean."""
    rng = np.random.default_rng(0)
    chance = np.full(count, 1 / count)
    for _ in range(0, resamples, DRAWN_TOGETHER):
        yield rng.multinomial(count, chance, DRAWN_TOGETHER).astype(np.uint8)


def mean_intervals(
    values: Array, units: IntArray | None = None, scale: Scale = "number"
) -> list[Estimate]:
    """Returns the mean of each column of values (N, M) with its interval; NaN does not count."""
    present = ~np.isnan(values)  # (N, M)

    def means(sums: Sums) -> dict[str, Array]:
        count = sums["count"]  # (..., M)
        missing = np.full(count.shape, np.nan)
        mean = np.divide(sums["total"], count, out=missing, where=count > 0)
        return {str(index): mean[..., index] for index in range(values.shape[1])}

    sums = {"total": np.where(present, values, 0.0), "count": present.astype(float)}
    members = {str(index): member for index, member in enumerate(present.T)}
    intervals = score_intervals(sums, means, units, members)
    bounded = []
    for interval, member in zip(intervals.values(), present.T, strict=True):
        bounded.append(bound(interval, member, units, scale))
    return bounded


def bound(estimate: Estimate, member: Mask, units: IntArray | None, scale: Scale) -> Estimate:
    """Returns a result with the interval that its number of units allows.

    `member` (N,) has whether each face belongs to the result. If all units agree, the bounds are
    Clopper and Pearson's for the share of units that may disagree; the scale "number" has no such
    bounds. A single unit has no interval, nor do fewer than `MIN_UNITS` units that disagree.
    """
    n = int(member.sum())
    count = count_units(member, units)
    mean = estimate.mean
    low = estimate.low
    high = estimate.high
    unbounded = Estimate(mean, n=n)
    if count < 2 or mean is None or low is None or high is None:
        return unbounded
    if scale != "number" and has_no_width(estimate):
        disagree = 1 - TAIL ** (1 / count)
        least = -1.0 if scale == "difference" else 0.0
        low = max(mean - disagree, least)
        high = min(mean + disagree, 1.0)
    elif count < MIN_UNITS:
        return unbounded
    return Estimate(mean, low, high, n)


def has_no_width(estimate: Estimate) -> bool:
    """Returns whether all resamples had the same result, so that the interval has no width."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.high - estimate.low < ROUNDING_ERROR
