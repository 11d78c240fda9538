"""Tests of scores over faces: two models on the same faces, and a group against all others.

Faces of a person or photo are not independent: tests are over units, as intervals in `bootstrap`.

Shapes: N faces, U units, G groups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, fisher_exact, t as student
from scipy.stats.contingency import crosstab

from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.stats.bootstrap import (
    TAIL,
    Scale,
    Sums,
    bound,
    mean_intervals,
    score_intervals,
)
from fer_vit.stats.estimate import ROUNDING_ERROR, Estimate


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


class PairedTest(NamedTuple):
    """The means of two models over the same faces, and the test of their difference."""

    first: Estimate
    second: Estimate
    difference: Estimate  # the first minus the second
    p: float


def compare_means(
    first: Array, second: Array, units: IntArray | None = None, scale: Scale = "number"
) -> list[PairedTest]:
    """Compares K values of two models on the same faces.

    The p-values are by `paired_p`, with Holm's correction for K tests.

    Args:
        first: The values of the first model (N, K); NaN does not count, for either model.
        second: The values of the second model (N, K).
        units: The person or photo of each face (N,), as for `score_intervals`.
        scale: What the values are; "share" for hits (0 or 1).
    """
    change_scale: Scale = "difference" if scale == "share" else scale
    differences = first - second
    unknown = np.isnan(differences)
    p_values = holm([paired_p(column, units) for column in differences.T])
    of_first = mean_intervals(np.where(unknown, np.nan, first), units, scale)
    of_second = mean_intervals(np.where(unknown, np.nan, second), units, scale)
    changes = mean_intervals(differences, units, change_scale)
    tested = zip(of_first, of_second, changes, p_values, strict=True)
    return [PairedTest(*each) for each in tested]


def interval_of_test(values: Array, p: float, units: IntArray) -> Estimate:
    """Returns a mean difference of hits with the interval of its test: 0 is inside if p >= 0.05.

    It is a t interval over units. Where few faces differ, the p-value of an exact test is larger
    than that of the t test. The standard error is then the one with which a t test has this p-value
    (the test-based interval of Miettinen 1976), but no larger than what takes the interval to 0,
    since this error has no bound as p approaches 1. Other bounds are those of `bound`.

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
        t_of_p = float(student.isf(p / 2, degrees))
        t_of_tail = float(student.isf(TAIL, degrees))
        half_width = t_of_tail * max(error, abs(mean) / max(t_of_p, t_of_tail))
        low = max(mean - half_width, -1.0)
        high = min(mean + half_width, 1.0)
    estimate = Estimate(mean, low, high, n=len(values))
    return bound(estimate, np.ones(len(values), bool), units, "difference")


def hybrid_difference(first: Estimate, second: Estimate) -> Estimate:
    """Returns the difference of two independent shares, with an interval from their intervals.

    The bootstrap of the difference would take a share of 0 or 1 for certain. Method 10 of Newcombe,
    "Interval estimation for the difference between independent proportions", 1998.
    """
    n = first.n + second.n
    if first.mean is None or second.mean is None:
        return Estimate(None, n=n)
    mean = first.mean - second.mean
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Estimate(mean, n=n)
    below = np.hypot(first.mean - first.low, second.high - second.mean)
    above = np.hypot(first.high - first.mean, second.mean - second.low)
    return Estimate(mean, float(mean - below), float(mean + above), n)


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


class GroupTest(NamedTuple):
    """A difference with the p-value of no difference."""

    difference: Estimate
    p: float


def group_tests(correct: Mask, groups: Sequence[Mask], units: IntArray) -> list[GroupTest]:
    """Tests the accuracy of each group minus the accuracy of all other faces.

    P-values are corrected for the number of tests, unless two groups have all faces: they are then
    two tests of the same hypothesis.

    Args:
        correct: Whether each prediction is correct (N,).
        groups: Whether each face is in the group (N,), for each group.
        units: The person or photo of each face (N,).
    """
    tested = [group_test(correct.astype(float), group, units) for group in groups]
    if len(groups) == 2 and (groups[0] | groups[1]).all():
        return tested
    corrected = holm([test.p for test in tested])
    return [GroupTest(test.difference, p) for test, p in zip(tested, corrected, strict=True)]


def group_test(correct: Array, group: Mask, units: IntArray) -> GroupTest:
    """Tests the accuracy of one group minus the accuracy of all other faces; see `group_tests`.

    The test is Fisher's exact test. Where several faces are of one person, the p-value is at least
    the p-value of a t test over persons. It is then 1 if one side has only correct or only wrong
    faces, and either side has no interval. `correct` (N,) is 1 or 0.
    """
    sides = [np.where(group, correct, np.nan), np.where(group, np.nan, correct)]
    inside, outside = mean_intervals(np.column_stack(sides), units, "share")
    num_units = len(np.unique(units))
    error: float | None
    if inside.mean in (0, 1) or outside.mean in (0, 1):
        difference = hybrid_difference(inside, outside)
        error = half_width_error(difference, num_units)
    else:
        difference = group_difference(correct, group, units)
        error = difference_error(correct, group.astype(float), units)

    table = crosstab(correct, group, levels=((0, 1), (False, True))).count  # (2, 2)
    p = float(fisher_exact(table).pvalue)
    if num_units == len(units):
        return GroupTest(difference, p)
    # faces of a person are dependent: Fisher's p alone would be too small
    if difference.mean is None or error is None:
        return GroupTest(difference, 1.0)  # the error over persons is unknown
    return GroupTest(difference, max(p, t_p(difference.mean, error, num_units)))


def group_difference(correct: Array, group: Mask, units: IntArray) -> Estimate:
    """Returns the accuracy of a group minus the accuracy of all other faces, by bootstrap."""
    inside = group[:, None].astype(float)
    values = {"hits": correct[:, None] * inside, "size": inside}
    values |= {"all hits": correct[:, None], "all faces": np.ones_like(inside)}

    def difference(sums: Sums) -> dict[str, Array]:
        hits, size = sums["hits"], sums["size"]  # (..., 1)
        with np.errstate(invalid="ignore"):  # a resample may have no face of the group
            others = (sums["all hits"] - hits) / (sums["all faces"] - size)
            return {"difference": (hits / size - others)[..., 0]}

    return score_intervals(values, difference, units)["difference"]


def difference_error(correct: Array, group: Array, units: IntArray) -> float:
    """Returns the standard error, over units, of the accuracy in a group minus the rest's.

    Args:
        correct: Whether each prediction is correct (N,): 1 or 0.
        group: Whether each face is in the group (N,): 1 or 0.
        units: The person or photo of each face (N,).
    """
    outside = 1 - group
    hits = correct @ group / group.sum()
    others = correct @ outside / outside.sum()
    influences = group * (correct - hits) / group.sum()
    influences -= outside * (correct - others) / outside.sum()
    return standard_error(influences, units)


class McNemar(NamedTuple):
    """The test of two models on the same faces."""

    difference: Estimate  # the accuracy of the first model minus the second model's
    only_first: int  # faces that only the first model classifies correctly
    only_second: int  # faces that only the second model classifies correctly
    p: float


def mcnemar(first: Mask, second: Mask, units: IntArray) -> McNemar:
    """Tests whether two models are equally often correct: McNemar's exact test, and a t test.

    The larger p-value counts, and the difference has the interval of this test. `first` and
    `second` (N,) have whether each model is correct; `units` (N,) has each face's person or photo.
    """
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())
    p = 1.0
    if only_first + only_second:
        p = float(binomtest(only_first, only_first + only_second).pvalue)
    gains = first.astype(float) - second
    # faces of a person are dependent: McNemar's p alone would be too small
    p = max(p, paired_p(gains, units))
    return McNemar(interval_of_test(gains, p, units), only_first, only_second, p)
