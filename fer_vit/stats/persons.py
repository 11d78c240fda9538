"""Statistics over persons: means, differences and the intraclass correlation.

An impossible test is a `NoTest` with a reason; results are never NaN.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from fer_vit.geometry import Array, IntArray
from fer_vit.stats.estimate import Estimate

# Intervals and tests need this many persons: with five pairs, no rank test reaches p < 0.05.
MIN_PERSONS = 6

ALL_EQUAL = "the differences of all persons are equal in this table"  # a reason for a missing test
EQUAL_WITHIN = 1e-9  # values with at most this difference are equal

# Values are rounded to this many digits before ranking, so that 0.3 - 0.2 and 0.2 - 0.1 tie.
RANK_DIGITS = 12


@dataclass(frozen=True)
class PersonMean(Estimate):
    """The mean of a measure over persons."""

    sd: float | None = None  # standard deviation over persons; None for fewer than two persons


@dataclass(frozen=True)
class Difference(Estimate):
    """A difference between two conditions, the second minus the first, with an interval.

    The numbers are in the unit of the measure.
    """

    mean: float
    low: float
    high: float
    over: Literal["faces", "persons"] = "persons"


@dataclass(frozen=True)
class MeansTest:
    """A two-sided t test of the means of persons, with a rank test and the size of the effect.

    Attributes:
        difference: The second condition minus the first.
        t: The difference divided by its standard error.
        df: The degrees of freedom of t: the number of pairs - 1; for different persons by Welch
            (1947).
        p: The p-value of no difference, not corrected for the number of tests.
        paired: Whether the same persons are in both conditions.
        num_first: The number of persons in the first condition.
        num_second: The number of persons in the second condition; if paired, as `num_first`.
        p_by_ranks: The two-sided p-value of a rank test: of signed ranks for pairs (Wilcoxon 1945),
            of ranks for different persons (Mann & Whitney 1947).
        g: The difference in pooled standard deviations of the two conditions, with the correction
            for few persons by Hedges (1981); for pairs, this is d_av by Cumming (2012), corrected.
    """

    difference: Difference
    t: float
    df: float
    p: float
    paired: bool
    num_first: int
    num_second: int
    p_by_ranks: float
    g: float


@dataclass(frozen=True)
class NoTest:
    """The reason why a test is impossible."""

    reason: str


def is_constant(values: Array) -> bool:
    """Returns whether all values are equal."""
    return bool(np.ptp(values) <= EQUAL_WITHIN)


def person_mean(values: Array, minimum: float = -np.inf, maximum: float = np.inf) -> PersonMean:
    """Returns the mean of a measure over persons (P,), with its t interval.

    NaN values do not count. The interval is clipped to `minimum` and `maximum`.
    """
    values = values[np.isfinite(values)]
    num_persons = len(values)
    if num_persons == 0:
        return PersonMean(None, over="persons")
    mean = float(values.mean())
    sd = float(values.std(ddof=1)) if num_persons > 1 else None
    if num_persons < MIN_PERSONS or is_constant(values):
        return PersonMean(mean, n=num_persons, over="persons", sd=sd)
    bounds = stats.ttest_1samp(values, 0).confidence_interval()
    low, high = np.clip(bounds, minimum, maximum).tolist()
    return PersonMean(mean, low, high, num_persons, "persons", sd)


def compare_pair(first: Array, second: Array, paired: bool) -> MeansTest | NoTest:
    """Compares a measure of persons (P,) in two conditions; NaN where a person has no value."""
    in_first = np.isfinite(first)
    in_second = np.isfinite(second)
    with warnings.catch_warnings(action="ignore"):  # one group may be constant
        if paired:
            in_both = in_first & in_second
            return _compare_paired(first[in_both], second[in_both])
        return _compare_independent(first[in_first], second[in_second])


def _compare_paired(first: Array, second: Array) -> MeansTest | NoTest:
    """Compares the values of the same persons (P,) in two conditions."""
    if len(first) < MIN_PERSONS:
        return NoTest(explain_few_persons(len(first), len(second), paired=True))
    changes = second - first
    if is_constant(changes):
        return NoTest(ALL_EQUAL)
    t_test = stats.ttest_rel(second, first)
    rank_test = stats.wilcoxon(changes.round(RANK_DIGITS))
    return _means_test(first, second, t_test, rank_test, paired=True)


def _compare_independent(first: Array, second: Array) -> MeansTest | NoTest:
    """Compares the values of different persons, (P1,) and (P2,), in two conditions."""
    if min(len(first), len(second)) < MIN_PERSONS:
        return NoTest(explain_few_persons(len(first), len(second), paired=False))
    if is_constant(first) and is_constant(second):
        return NoTest("no variance")
    t_test = stats.ttest_ind(second, first, equal_var=False)
    rank_test = stats.mannwhitneyu(second.round(RANK_DIGITS), first.round(RANK_DIGITS))
    return _means_test(first, second, t_test, rank_test, paired=False)


def _means_test(
    first: Array, second: Array, t_test: Any, rank_test: Any, paired: bool
) -> MeansTest:
    """Returns the results of SciPy's tests as a `MeansTest`."""
    low, high = t_test.confidence_interval()
    return MeansTest(
        difference=Difference(
            mean=float(second.mean() - first.mean()),
            low=float(low),
            high=float(high),
            n=min(len(first), len(second)),  # the smaller number limits the precision
        ),
        t=float(t_test.statistic),
        df=float(t_test.df),
        p=float(t_test.pvalue),
        paired=paired,
        num_first=len(first),
        num_second=len(second),
        p_by_ranks=float(rank_test.pvalue),
        g=hedges_g(first, second),
    )


def explain_few_persons(first: int, second: int, paired: bool) -> str:
    """Returns why conditions with values of `first` and `second` persons are not compared."""
    if paired:
        return f"fewer than {MIN_PERSONS} persons have values in both conditions ({first})"
    return f"fewer than {MIN_PERSONS} persons have values in a condition ({first} and {second})"


def hedges_g(first: Array, second: Array) -> float:
    """Returns the difference of two means, second minus first, in pooled standard deviations.

    Pairs are treated as different persons, so that g is comparable between designs.
    """
    df = np.array([len(first) - 1, len(second) - 1])
    variances = [first.var(ddof=1), second.var(ddof=1)]
    pooled = np.sqrt(np.average(variances, weights=df))
    correction = 1 - 3 / (4 * df.sum() - 1)  # for few persons: Hedges 1981
    return float((second.mean() - first.mean()) / pooled * correction)


def intraclass_correlation(values: Array, person: IntArray) -> Estimate:
    """Returns the ICC(1) of values (O,): the share of the variance that is between persons.

    `person` (O,) is the index of each value's person. Shrout & Fleiss 1979; unequal numbers of
    values enter by an adjusted mean. The ICC is None if fewer than `MIN_PERSONS` persons have
    several values, or if the values of each person are equal.
    """
    order = np.argsort(person, kind="stable")
    starts = np.flatnonzero(np.diff(person[order])) + 1
    groups = np.split(values[order], starts)  # the values of each person
    num_persons = len(groups)
    sizes = np.array([len(group) for group in groups])  # (P,)
    range_within = sum(np.ptp(group) for group in groups)
    if (sizes > 1).sum() < MIN_PERSONS or range_within < EQUAL_WITHIN:
        return Estimate(None, n=num_persons, over="persons")

    # F of the one-way analysis of variance, with its interval
    df_between = num_persons - 1
    df_within = len(values) - num_persons
    f = stats.f_oneway(*groups).statistic
    if not np.isfinite(f):  # the values of persons are nearly equal
        return Estimate(None, n=num_persons, over="persons")
    f_low = f / stats.f.ppf(0.975, df_between, df_within)
    f_high = f * stats.f.ppf(0.975, df_within, df_between)

    n0 = (len(values) - (sizes**2).sum() / len(values)) / df_between  # adjusted mean of the sizes
    ratios = np.array([f, f_low, f_high])
    mean, low, high = ((ratios - 1) / (ratios + n0 - 1)).tolist()
    return Estimate(mean, low, high, num_persons, "persons")
