"""Statistics over persons: means, differences, intraclass correlation and the mixed model.

A test that is impossible is a `Missing` with its reason, never NaN.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

from fer_vit.geometry import Array, IntArray
from fer_vit.report.estimate import Estimate

LEAST_PERSONS = 6
"""Fewer persons have no intervals or tests: with five pairs, no rank test reaches p < 0.05."""
ALL_EQUAL = "the differences of all persons are equal"
"""Why there is no test."""
ROUNDING_ERROR = 1e-9
"""Smaller differences are none."""
DIGITS = 12
"""Ranks are of values rounded to so many digits: 0.3 - 0.2 and 0.2 - 0.1 are a tie."""


@dataclass(frozen=True)
class PersonEstimate(Estimate):
    """A result over persons with its 95% interval."""

    persons: int  # number of persons with a value


@dataclass(frozen=True)
class PersonMean(PersonEstimate):
    """The mean of a measure over persons."""

    sd: float | None  # standard deviation of the persons; None: it needs two of them


@dataclass(frozen=True)
class Difference(PersonEstimate):
    """A difference between two conditions, the second minus the first, in the unit of the measure.

    It always has an interval.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class TTest:
    """A two-sided t test of the difference of a measure between two conditions.

    Attributes:
        difference: The second condition minus the first.
        t: The difference divided by its standard error.
        df: Degrees of freedom of t: number of pairs - 1; of different persons by Welch (1947); in a
            mixed model by Bell & McCaffrey (2002).
        p: Chance of a t as far from 0 if conditions do not differ, not corrected for the number of
            tests.
    """

    difference: Difference
    t: float
    df: float
    p: float


@dataclass(frozen=True)
class MeansTest(TTest):
    """A t test of the means of persons, beside a test of their ranks and the size of the effect.

    Attributes:
        paired: Whether the same persons are in both conditions.
        persons_first: Number of persons in the first condition.
        persons_second: Number of persons in the second condition; if paired, the same.
        p_by_ranks: Two-sided, of the signed ranks of pairs (Wilcoxon 1945), or of the ranks of
            different persons (Mann & Whitney 1947).
        g: The difference in pooled standard deviations of the two conditions, with the correction
            for few persons of Hedges (1981); of pairs, g_av of Lakens (2013).
    """

    paired: bool
    persons_first: int
    persons_second: int
    p_by_ranks: float
    g: float


@dataclass(frozen=True)
class Missing:
    """A test that is impossible."""

    reason: str


AnyTest = TypeVar("AnyTest", bound=TTest, covariant=True)
"""A kind of test."""


def without_interval(mean: float | None, persons: int) -> PersonEstimate:
    """Returns a result that has no interval, such as one of few persons."""
    return PersonEstimate(mean, low=None, high=None, persons=persons)


def person_mean(values: Array, lowest: float = -np.inf, highest: float = np.inf) -> PersonMean:
    """Returns the mean over persons (P,) of a measure, and its t interval; NaN do not count.

    No value of the measure is below `lowest` or above `highest`.
    """
    present = values[np.isfinite(values)]
    persons = len(present)
    if persons == 0:
        return PersonMean(mean=None, low=None, high=None, persons=0, sd=None)
    mean = float(present.mean())
    sd = float(present.std(ddof=1)) if persons > 1 else None
    if persons < LEAST_PERSONS or np.ptp(present) <= ROUNDING_ERROR:
        return PersonMean(mean, low=None, high=None, persons=persons, sd=sd)
    bounds = stats.ttest_1samp(present, 0).confidence_interval()
    low, high = np.clip(bounds, lowest, highest).tolist()
    return PersonMean(mean, low, high, persons, sd)


def compare_pair(first: Array, second: Array, paired: bool) -> MeansTest | Missing:
    """Compares a measure of persons (P,) in two conditions; NaN: the person has no value."""
    in_first = np.isfinite(first)
    in_second = np.isfinite(second)
    if paired:
        in_both = in_first & in_second
        in_first = in_both
        in_second = in_both
    x = first[in_first]
    y = second[in_second]

    sizes = np.array([len(x), len(y)])
    if sizes.min() < LEAST_PERSONS:
        return Missing(_too_few(sizes, paired))
    if paired and np.ptp(y - x) < ROUNDING_ERROR:
        return Missing(ALL_EQUAL)
    if not paired and max(np.ptp(x), np.ptp(y)) < ROUNDING_ERROR:
        return Missing("no variance")

    with warnings.catch_warnings(action="ignore"):  # one group may be constant
        if paired:
            test = stats.ttest_rel(y, x)
            ranks = stats.wilcoxon((y - x).round(DIGITS))
        else:
            test = stats.ttest_ind(y, x, equal_var=False)
            ranks = stats.mannwhitneyu(y.round(DIGITS), x.round(DIGITS))
        bounds = test.confidence_interval()

    low, high = bounds
    difference = Difference(
        mean=float(y.mean() - x.mean()),
        low=float(low),
        high=float(high),
        persons=int(sizes.min()),
    )
    deviation = np.sqrt(np.average([x.var(ddof=1), y.var(ddof=1)], weights=sizes - 1))
    small_sample = 1 - 3 / (4 * sizes.sum() - 9)  # Hedges' correction
    return MeansTest(
        difference=difference,
        t=float(test.statistic),
        df=float(test.df),
        p=float(test.pvalue),
        paired=paired,
        persons_first=len(x),
        persons_second=len(y),
        p_by_ranks=float(ranks.pvalue),
        g=float(difference.mean / deviation * small_sample),
    )


def _too_few(sizes: IntArray, paired: bool) -> str:
    """Returns why two conditions with values of so many persons (2,) are not compared."""
    if paired:
        return f"fewer than {LEAST_PERSONS} persons have values in both conditions ({sizes[0]})"
    return (
        f"fewer than {LEAST_PERSONS} persons have values in a condition ({sizes[0]} and {sizes[1]})"
    )


def intraclass_correlation(values: Array, person: IntArray) -> PersonEstimate:
    """Returns ICC(1) of values (O,) of persons (O,): the share of the variance between persons.

    Shrout & Fleiss 1979; for unequal numbers of values with their adjusted mean. Unknown when fewer
    than `LEAST_PERSONS` persons have several values, or the values of each person are equal.
    """
    groups = [values[person == index] for index in np.unique(person)]
    sizes = np.array([len(group) for group in groups])  # (P,)
    range_within = sum(np.ptp(group) for group in groups)
    if (sizes > 1).sum() < LEAST_PERSONS or range_within < ROUNDING_ERROR:
        return without_interval(None, persons=len(sizes))

    # degrees of freedom, the adjusted mean of the sizes, and F with its interval
    between = len(sizes) - 1
    within = len(values) - len(sizes)
    size = (len(values) - (sizes**2).sum() / len(values)) / between
    ratio = stats.f_oneway(*groups).statistic
    low_ratio = ratio / stats.f.ppf(0.975, between, within)
    high_ratio = ratio * stats.f.ppf(0.975, within, between)

    ratios = np.array([ratio, low_ratio, high_ratio])
    mean, low, high = ((ratios - 1) / (ratios + size - 1)).tolist()
    return PersonEstimate(mean, low, high, persons=len(sizes))


class Cells(NamedTuple):
    """Observations averaged by person and condition: K cells of P persons under C conditions."""

    person: IntArray  # (K,), an index; ascending
    condition: IntArray  # (K,)
    mean: Array  # (K,)
    observations: Array  # (K,), their number
    effects: Array  # (K, C), the intercept and an indicator of each condition but the first


def mixed_model(values: Array, person: IntArray, condition: IntArray) -> list[TTest | Missing]:
    """Fits values (O,) by condition (O,) with random effects of persons (O,): REML of statsmodels.

    Persons with several values in a condition have random slopes besides intercepts: without
    slopes, 19 of 100 simulated studies without a difference, in which persons respond differently,
    had p < 0.05.

    Standard errors are cluster-robust by person, with the bias reduction CR2 and the Satterthwaite
    degrees of freedom of Bell & McCaffrey (2002). They need no correct estimate of the variances,
    which have a bound at 0 and are uncertain for few persons. With equal numbers of values in two
    conditions, the test equals the paired t test of the means of persons.

    Returns a test of each condition but the first, minus the first.
    """
    conditions = range(condition.max() + 1)
    compared = conditions[1:]  # with the first
    persons = [len(np.unique(person[condition == index])) for index in conditions]
    if len(values) == len(np.unique(person)):
        return [Missing("every person has one value only")] * len(compared)
    if np.ptp(values) < ROUNDING_ERROR:
        return [Missing("no variance")] * len(compared)
    if min(persons[0], max(persons[1:])) < LEAST_PERSONS:
        return [Missing(_few_persons(persons, index)) for index in compared]

    cells = average_cells(values, person, condition)
    covariance, scale = fit_variances(values, person, condition, cells)
    tests: list[TTest | Missing] = []
    for index, test in zip(compared, robust_tests(cells, covariance, scale), strict=True):
        if min(persons[0], persons[index]) < LEAST_PERSONS:
            tests.append(Missing(_few_persons(persons, index)))
        else:
            tests.append(test)
    return tests


def _few_persons(persons: Sequence[int], index: int) -> str:
    """Returns why a condition is not compared with the first; `persons` has the number in each."""
    return _too_few(np.array([persons[0], persons[index]]), paired=False)


def average_cells(values: Array, person: IntArray, condition: IntArray) -> Cells:
    """Averages values (O,) by person (O,) and condition (O,)."""
    keys = np.column_stack([person, condition])  # (O, 2)
    cells, index, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return Cells(
        person=cells[:, 0],
        condition=cells[:, 1],
        mean=np.bincount(index, values) / count,
        observations=count.astype(float),
        effects=_effects(cells[:, 1]),
    )


def _effects(condition: IntArray) -> Array:
    """Returns (K, C): the intercept, and an indicator of each condition but the first."""
    effects = np.eye(condition.max() + 1)[condition]
    effects[:, 0] = 1
    return effects


def fit_variances(
    values: Array, person: IntArray, condition: IntArray, cells: Cells
) -> tuple[Array, float]:
    """Returns the covariance of the random effects (C, C), or 0, and the residual variance.

    Both are relative to the variance of the values (O,). The first model that converges is used:
    with slopes, with intercepts, without random effects. The last is also the estimate where
    persons do not differ.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM  # it may not be installed

    effects = _effects(condition)
    designs = [effects[:, :1]]
    if len(np.unique(person)) < len(cells.mean) < len(values):
        designs.insert(0, effects)  # slopes

    covariance = np.zeros((effects.shape[1], effects.shape[1]))
    standard = values / values.std()  # the optimizers stop by absolute changes
    for random in designs:
        with warnings.catch_warnings(action="ignore"):  # a variance of 0 is a valid result
            try:
                model = MixedLM(standard, effects, person, random)
                fit = model.fit(reml=True, method=["lbfgs", "powell"])
            except np.linalg.LinAlgError:  # effects that cannot be separated
                continue
        scale = float(fit.scale)
        if fit.converged and np.isfinite(fit.cov_re).all() and scale > ROUNDING_ERROR:
            size = random.shape[1]
            covariance[:size, :size] = fit.cov_re
            return covariance, scale
    return covariance, 1.0


def robust_tests(cells: Cells, covariance: Array, scale: float) -> list[TTest | Missing]:
    """Tests the effects of C - 1 conditions with the errors of `mixed_model`.

    `covariance` (C, C) is of the random effects, `scale` the residual variance. Each person's means
    are divided by the root of their covariance, after which the model is least squares with
    independent errors.
    """
    count = cells.effects.shape[1]
    persons = _decorrelate(cells, covariance, scale)

    # weighted least squares
    information = sum(person.design.T @ person.design for person in persons)  # (C, C)
    if np.linalg.cond(information) > 1 / ROUNDING_ERROR:
        return [Missing("the conditions cannot be separated")] * (count - 1)
    bread = np.asarray(np.linalg.inv(information), float)  # (C, C)
    moments = sum(person.design.T @ person.target for person in persons)  # (C,)
    estimate = bread @ moments  # (C,)

    # the weights of each person's values in the estimate, adjusted by CR2, and the residuals
    weights = []  # P times (R, C)
    scores = np.empty((len(persons), count))
    for index, (design, target) in enumerate(persons):
        weight = _inverse_root(design @ bread @ design.T) @ design @ bread
        weights.append(weight)
        scores[index] = weight.T @ (target - design @ estimate)

    results: list[TTest | Missing] = []
    for effect in range(1, count):
        error = float(np.sqrt((scores[:, effect] ** 2).sum()))
        if error < ROUNDING_ERROR:
            results.append(Missing(ALL_EQUAL))
            continue
        shares = np.empty(len(persons))
        overlap = np.empty((len(persons), count))
        for index, (weight, person) in enumerate(zip(weights, persons, strict=True)):
            shares[index] = weight[:, effect] @ weight[:, effect]
            overlap[index] = weight[:, effect] @ person.design
        df = _satterthwaite(shares, overlap, bread)

        mean = float(estimate[effect])
        t = mean / error
        reach = error * float(stats.t.ppf(0.975, df))
        difference = Difference(mean, low=mean - reach, high=mean + reach, persons=len(persons))
        p = 2 * float(stats.t.sf(abs(t), df))
        results.append(TTest(difference, t, df, p))
    return results


class WeightedPerson(NamedTuple):
    """A person's R cells, divided by the root of their covariance."""

    design: Array  # (R, C)
    target: Array  # (R,)


def _decorrelate(cells: Cells, covariance: Array, scale: float) -> list[WeightedPerson]:
    """Divides each person's means and effects by the root of their covariance."""
    _, starts = np.unique(cells.person, return_index=True)
    persons = []
    for rows in np.split(np.arange(len(cells.mean)), starts[1:]):
        effects = cells.effects[rows]  # (R, C)
        variance = effects @ covariance @ effects.T + np.diag(scale / cells.observations[rows])
        root = np.linalg.cholesky(variance)
        design = np.linalg.solve(root, effects)
        target = np.linalg.solve(root, cells.mean[rows])
        persons.append(WeightedPerson(design, target))
    return persons


def _inverse_root(leverage: Array) -> Array:
    """Returns (I - leverage)^(-1/2) (R, R), the adjustment CR2; 0 where no residual is left."""
    values, vectors = np.linalg.eigh(np.eye(len(leverage)) - leverage)
    roots = np.zeros(len(values))
    positive = values > ROUNDING_ERROR
    roots[positive] = values[positive] ** -0.5
    return np.asarray(vectors * roots @ vectors.T)


def _satterthwaite(shares: Array, overlap: Array, bread: Array) -> float:
    """Returns trace(G)^2 / trace(G^2) of G = diag(shares) - overlap bread overlap'.

    Shares are (P,), overlap (P, C), bread (C, C). The expectation of the squared error is trace(G),
    and G^2 gives its variance: Bell & McCaffrey 2002.
    """
    inner = bread @ (overlap.T @ overlap)  # (C, C)
    diagonal = ((overlap @ bread) * overlap).sum(1)  # (P,), of overlap bread overlap'
    trace = shares.sum() - np.trace(inner)
    square = (shares**2).sum() - 2 * shares @ diagonal + np.trace(inner @ inner)
    return float(trace**2 / square)
