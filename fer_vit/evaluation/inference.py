"""Intervals and tests of scores over faces that are not independent.

A score is a function of sums over faces, and a resample is how often each face was drawn, so that
2,000 resamples of all scores are one matrix product. Units are persons, or photos where persons are
unknown. Intervals are the percentile bootstrap of Efron & Tibshirani (1993), expanded for few units
(Hesterberg 2015, see `percentiles`); fewer units than `MIN_UNITS` have no interval. Where all faces
agree, all resamples agree, too. Shares of 0 and 1, and differences that are the same for every
face, therefore have the bounds of Clopper & Pearson (1934).

Shapes: N faces, U units, K columns, R resamples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import norm, t as student

from fer_vit.evaluation.results import FaceEstimate
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.report.estimate import Estimate

RESAMPLES = 2000  # number of bootstrap resamples
DRAWN_TOGETHER = 100  # resamples drawn at once; more would need more memory
TAIL = 0.025  # probability beyond each bound of a 95% interval

# Fewer units have no bootstrap interval: with 2, 3, 4 and 5 units, the interval would contain the
# mean of normal values in 49%, 74%, 87% and 92% of studies (`benchmarks.coverage`).
MIN_UNITS = 6

ROUNDING_ERROR = 1e-12  # smaller differences are rounding errors

# What is averaged: numbers, hits (0 or 1), or differences of hits (from -1 to 1).
Scale: TypeAlias = Literal["number", "share", "difference"]

Contributions: TypeAlias = Mapping[str, Array]  # by name: what each face adds to sums (N, K)
Sums: TypeAlias = Mapping[str, Array]  # by name: sums over faces (K,), or resampled (R, K)


def score_intervals(
    values: Contributions,
    score: Callable[[Sums], Mapping[str, Array]],
    units: IntArray | None,
    members: Mapping[str, Mask] | None = None,
) -> dict[str, FaceEstimate]:
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
    """Yields how often each unit is drawn in bootstrap resamples, in blocks (DRAWN_TOGETHER, U).

    `count` is the number of units U. The same number always has the same resamples.
    """
    rng = np.random.default_rng(0)
    chance = np.full(count, 1 / count)
    for _ in range(0, RESAMPLES, DRAWN_TOGETHER):
        yield rng.multinomial(count, chance, DRAWN_TOGETHER)


def mean_intervals(
    values: Array, units: IntArray | None = None, scale: Scale = "number"
) -> list[FaceEstimate]:
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


def bound(estimate: Estimate, member: Mask, units: IntArray | None, scale: Scale) -> FaceEstimate:
    """Returns a result with the interval that its number of units allows.

    `member` (N,) has whether each face belongs to the result. If all units agree, the bounds are
    Clopper and Pearson's for the share of units that may disagree; the scale "number" has no such
    bounds. A single unit has no interval, nor do fewer than `MIN_UNITS` units that disagree.
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
    """Returns whether all resamples had the same result, so that the interval has no width."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.high - estimate.low < ROUNDING_ERROR


def t_p(estimate: float, error: float, units: int) -> float:
    """Returns the p-value of an estimate with a standard error over U units, by a t test."""
    return float(2 * student.sf(abs(estimate) / max(error, ROUNDING_ERROR), units - 1))


def standard_error(influences: Array, units: IntArray) -> float:
    """Returns the standard error of an estimate over U >= 2 persons or photos.

    The result is the standard error of the bootstrap over units, times sqrt(U / (U - 1)). If all
    units have equally many faces, the error of a mean over faces equals the error of the mean over
    units.

    Args:
        influences: What each face adds to the estimate, minus its expected share (N,).
        units: The person or photo of each face (N,), as for `score_intervals`.
    """
    _, unit = np.unique(units, return_inverse=True)
    totals = np.bincount(unit, influences)  # (U,)
    count = len(totals)
    return float(np.sqrt((totals**2).sum() * count / (count - 1)))


def half_width_error(estimate: Estimate, units: int) -> float | None:
    """Returns the standard error whose t interval over U units is as wide as the estimate's.

    None for an estimate without an interval.
    """
    if estimate.low is None or estimate.high is None:
        return None
    return float((estimate.high - estimate.low) / (2 * student.isf(TAIL, units - 1)))


def paired_p(values: Array, units: IntArray | None = None) -> float:
    """Returns the p-value of a mean difference between two models.

    The test is a t test over U units. If all units have equally many faces, it is the paired t test
    of the means of units. The p-value is at least 2^(1 - D), where D units have a total difference
    other than 0: if both models were equal, all D totals would have the same sign with this
    probability. The p-value is 1 for fewer than two units.

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


def interval_of_test(values: Array, p: float, units: IntArray) -> FaceEstimate:
    """Returns a mean difference of hits with the interval of its test: 0 is inside if p >= 0.05.

    It is a t interval over units. Its standard error is at least the one with which a t test has
    this p-value (the test-based interval of Miettinen 1976): a p-value of an exact test is larger
    than that of the t test where few faces differ. Other bounds are those of `bound`.

    Args:
        values: The differences of hits (N,), from -1 to 1.
        p: The p-value of the mean, at least that of `paired_p`.
        units: The person or photo of each face (N,), as for `score_intervals`.
    """
    mean = float(values.mean())
    degrees = len(np.unique(units)) - 1
    low = None
    high = None
    if degrees:
        error = standard_error((values - mean) / len(values), units)
        t_of_p = max(float(student.isf(p / 2, degrees)), ROUNDING_ERROR)
        half_width = float(student.isf(TAIL, degrees)) * max(error, abs(mean) / t_of_p)
        low = max(mean - half_width, -1.0)
        high = min(mean + half_width, 1.0)
    estimate = FaceEstimate(mean, low, high, num_faces=len(values))
    return bound(estimate, np.ones(len(values), bool), units, "difference")


def hybrid_difference(first: FaceEstimate, second: FaceEstimate) -> FaceEstimate:
    """Returns the difference of two independent shares, with an interval from their intervals.

    The bootstrap of the difference would take a share of 0 or 1 for certain. Method 10 of Newcombe,
    "Interval estimation for the difference between independent proportions", 1998.
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
    """Returns the p-values of several tests, corrected for their number.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    order = np.argsort(p)
    factors = np.arange(len(p), 0, -1)
    ascending = np.asarray(p, float)[order]
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(factors * ascending).clip(max=1)
    return corrected.tolist()
