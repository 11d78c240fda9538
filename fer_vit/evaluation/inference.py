"""Intervals and tests of scores over faces that are not independent.

A score is a function of sums over faces, and a resample is how often each face was drawn, so that
2,000 resamples of all scores are one matrix product. Intervals are the percentile bootstrap of
Efron & Tibshirani (1993), expanded for few units (Hesterberg 2015, see `percentiles`); fewer than
`MIN_UNITS` have none. Where all faces agree, all resamples do, so shares of 0 and 1, and shares
minus others that no face changes, have the bounds of Clopper & Pearson (1934) instead.

Shapes: N faces, K columns, R resamples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import norm, t as student

from fer_vit.evaluation.results import FaceEstimate
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.report.estimate import Estimate

RESAMPLES = 2000  # bootstrap resamples
DRAWN_TOGETHER = 100  # resamples that are drawn at once, to save memory
TAIL = 0.025  # chance beyond each bound of a 95% interval

# Fewer persons or photos have no bootstrap interval: it would contain the mean of normal values in
# 49%, 74%, 87% and 92% of studies with 2, 3, 4 and 5 (`benchmarks.coverage`).
MIN_UNITS = 6

ROUNDING_ERROR = 1e-12  # smaller differences are of rounding

# What is averaged: numbers, hits (0 or 1), or hits minus others (from -1 to 1).
Scale: TypeAlias = Literal["number", "share", "difference"]

Contributions: TypeAlias = Mapping[str, Array]  # by name, what each face adds to a sum (N, K)
Sums: TypeAlias = Mapping[str, Array]  # by name, sums over faces (K,), or of resamples (R, K)


def score_intervals(
    values: Contributions,
    score: Callable[[Sums], Mapping[str, Array]],
    units: IntArray | None,
    members: Mapping[str, Mask] | None = None,
) -> dict[str, FaceEstimate]:
    """Returns results that are functions of sums over N faces, with their intervals.

    Args:
        values: What each face adds to the sums (N, K), by name.
        score: Returns results (...), or NaN, of sums (..., K).
        units: The person or photo of each face, counted from 0 (N,). All faces of a unit are drawn
            together, since they are similar. There is no interval of one; `bound` decides which
            results of a few have one.
        members: The faces of which a result is (N,), by its name; other results are of all faces.
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
        mean = None
        low = None
        high = None
        if np.isfinite(value):
            mean = float(value)
            count = count_units((members or {}).get(name, every), units)
            if drawn is not None and count > 1:
                low, high = np.nanpercentile(drawn[name], percentiles(count)).tolist()
        results[name] = FaceEstimate(mean, low, high, num_faces=len(packed))
    return results


def count_units(member: Mask, units: IntArray | None) -> int:
    """Returns the number of persons or photos, see `score_intervals`, of some faces (N,)."""
    return int(member.sum()) if units is None else len(np.unique(units[member]))


def percentiles(units: int) -> tuple[float, float]:
    """Returns the percentiles of the resamples of U units, at least 2, that bound a 95% interval.

    2.5 and 97.5 for many units. Few ones need wider bounds: resamples have the variance of a mean
    times (U - 1) / U, and normal tails where a mean has t tails. If resamples were normal, the
    interval of a mean would have the width of its t interval: Hesterberg, "What teachers should
    know about the bootstrap", 2015. Resamples of few units have shorter tails.
    """
    quantile = np.sqrt(units / (units - 1)) * student.isf(TAIL, units - 1)
    tail = float(norm.sf(quantile))
    return 100 * tail, 100 * (1 - tail)


def resample_sums(values: Array, units: IntArray | None) -> Array:
    """Returns the sums of bootstrap resamples (R, K) of values (N, K)."""
    if units is not None:
        sums = np.zeros((units.max() + 1, values.shape[1]))
        np.add.at(sums, units, values)
        values = sums  # (units, K)
    parts = [draws.astype(float) @ values for draws in draw_units(len(values))]
    return np.concatenate(parts)  # (R, K)


def draw_units(count: int) -> Iterator[IntArray]:
    """Yields how often each of `count` units U is drawn in bootstrap resamples, (R, U) at a time.

    The same number of units always has the same resamples.
    """
    rng = np.random.default_rng(0)
    chance = np.full(count, 1 / count)
    for _ in range(0, RESAMPLES, DRAWN_TOGETHER):
        yield rng.multinomial(count, chance, DRAWN_TOGETHER)


def mean_intervals(
    values: Array, units: IntArray | None = None, scale: Scale = "number"
) -> list[FaceEstimate]:
    """Returns the means of values (N, M), without NaN, over N faces with intervals."""
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


def bound(estimate: Estimate, member: Mask, units: IntArray | None, scale: Scale) -> FaceEstimate:
    """Returns a result of the faces in `member` (N,) with the interval that their number allows.

    Where all units agree, the bounds are by Clopper and Pearson for the share of units that may
    disagree; numbers of any size have no such bounds. There is no interval for one unit, and for
    fewer than `MIN_UNITS` that disagree.
    """
    num_faces = int(member.sum())
    count = count_units(member, units)
    mean = estimate.mean
    low = estimate.low
    high = estimate.high
    unbounded = FaceEstimate(mean, low=None, high=None, num_faces=num_faces)
    if count < 2 or mean is None or low is None or high is None:
        return unbounded
    if scale != "number" and has_no_width(estimate):
        disagree = 1 - TAIL ** (1 / count)
        least = -1.0 if scale == "difference" else 0.0
        low = max(mean - disagree, least)
        high = min(mean + disagree, 1.0)
    elif count < MIN_UNITS:
        return unbounded
    return FaceEstimate(mean, low, high, num_faces)


def has_no_width(estimate: Estimate) -> bool:
    """Returns whether all resamples have the same result."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.high - estimate.low < ROUNDING_ERROR


def t_p(estimate: float, error: float, units: int) -> float:
    """Returns the p-value of an estimate with a standard error over U units, by a t test."""
    return float(2 * student.sf(abs(estimate) / max(error, ROUNDING_ERROR), units - 1))


def standard_error(influences: Array, units: IntArray) -> float:
    """Returns the standard error of an estimate over U >= 2 persons or photos.

    It is the one of the bootstrap over units, times sqrt(U / (U - 1)). With equal numbers of faces,
    the error of their mean is the one of the mean over units.

    Args:
        influences: What each face adds to the estimate, less its expected share (N,).
        units: The person or photo of each face (N,), as for `score_intervals`.
    """
    _, unit = np.unique(units, return_inverse=True)
    totals = np.bincount(unit, influences)  # (U,)
    count = len(totals)
    return float(np.sqrt((totals**2).sum() * count / (count - 1)))


def half_width_error(estimate: Estimate, units: int) -> float | None:
    """Returns the standard error for which a t interval over U units is as wide, else None."""
    if estimate.low is None or estimate.high is None:
        return None
    return float((estimate.high - estimate.low) / (2 * student.isf(TAIL, units - 1)))


def paired_p(values: Array, units: IntArray | None = None) -> float:
    """Returns the p-value of the mean of values (N,), differences of two models.

    It is the chance of a mean as far from 0 if there is no difference, by a t test over U persons
    or photos; for equal numbers of faces it is the paired t test of
    their means. But not below 2^(1 - D), where the values of D units do not add up to 0: if both
    models were equal, all of these would have the same sign as often by chance. 1 for fewer than
    two units.

    Args:
        values: The differences (N,), NaN where a face does not count.
        units: The person or photo of each face (N,), as for `score_intervals`.
    """
    if units is None:
        units = np.arange(len(values))
    known = ~np.isnan(values)
    values = values[known]
    units = units[known]
    names, unit = np.unique(units, return_inverse=True)
    totals = np.bincount(unit, values, len(names))  # (U,)
    differing = int((np.abs(totals) > ROUNDING_ERROR).sum())
    if len(names) < 2 or not differing:
        return 1.0

    mean = float(values.mean())
    error = standard_error((values - mean) / len(values), units)
    return max(t_p(mean, error, len(names)), 2.0 ** (1 - differing))


def hybrid_difference(first: FaceEstimate, second: FaceEstimate) -> FaceEstimate:
    """Returns the difference of two independent shares, with an interval from their intervals.

    Newcombe, "Interval estimation for the difference between independent proportions", 1998, method
    10: where one share is 0 or 1, the bootstrap of the difference would take it for certain.
    """
    num_faces = first.num_faces + second.num_faces
    if first.mean is None or second.mean is None:
        return FaceEstimate(mean=None, low=None, high=None, num_faces=num_faces)

    mean = first.mean - second.mean
    unbounded = FaceEstimate(mean, low=None, high=None, num_faces=num_faces)
    if first.low is None or first.high is None:
        return unbounded
    if second.low is None or second.high is None:
        return unbounded
    below = np.hypot(first.mean - first.low, second.high - second.mean)
    above = np.hypot(first.high - first.mean, second.mean - second.low)
    return FaceEstimate(mean, float(mean - below), float(mean + above), num_faces)


def holm(p: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    order = np.argsort(p)
    factors = np.arange(len(p), 0, -1)
    ascending = np.asarray(p, float)[order]
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(factors * ascending).clip(max=1)
    return corrected.tolist()
