"""Statistics over persons: means, differences, intraclass correlation and the mixed model.

A test that is impossible is a `Missing` with its reason, never NaN.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
Test = dict[str, Any]  # results by name, such as `t`, `df` and `p`


@dataclass(frozen=True)
class PersonEstimate(Estimate):
    """A result over persons with its 95% interval."""

    persons: int  # number of persons with a value


@dataclass(frozen=True)
class PersonMean(PersonEstimate):
    """The mean of a measure over persons."""

    sd: float | None  # standard deviation of the persons; None: it needs two of them


class Missing(NamedTuple):
    """A test that is impossible."""

    reason: str


def interval(mean: float | None, bounds: Any, persons: int) -> PersonEstimate:
    """Returns a result with its low and high bound (NaN: none)."""
    low, high = bounds
    return PersonEstimate(mean, finite_or_none(low), finite_or_none(high), persons)


def finite_or_none(value: float | np.floating[Any]) -> float | None:
    """Returns a number of Python; None for one that is not finite."""
    return float(value) if np.isfinite(value) else None


def person_mean(values: Array, least: float = -np.inf, most: float = np.inf) -> PersonMean:
    """Returns the mean over persons (P,) of a measure, without NaN, and its t interval.

    No value of the measure is below `least` or above `most`.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return PersonMean(mean=None, low=None, high=None, persons=0, sd=None)
    mean = float(known.mean())
    deviation = float(known.std(ddof=1)) if len(known) > 1 else None
    if len(known) < LEAST_PERSONS or np.ptp(known) <= ROUNDING_ERROR:
        return PersonMean(mean, low=None, high=None, persons=len(known), sd=deviation)
    bounds = stats.ttest_1samp(known, 0).confidence_interval()
    low, high = np.clip(bounds, least, most).tolist()
    return PersonMean(mean, low, high, len(known), deviation)


def compare_pair(first: Array, second: Array, paired: bool) -> Test | Missing:
    """Compares a measure of persons (P,) in two conditions, second minus first; NaN: no value.

    Returns the t test, paired or Welch's, with the interval of the `difference`; `p by ranks`
    (Wilcoxon, or Mann and Whitney); Hedges' `g` by the pooled deviation of the conditions; and the
    number of `persons` in each.
    """
    x_known = np.isfinite(first)
    y_known = np.isfinite(second)
    if paired:
        both = x_known & y_known
        x = first[both]
        y = second[both]
    else:
        x = first[x_known]
        y = second[y_known]

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

    difference = float(y.mean() - x.mean())
    deviation = np.sqrt(np.average([x.var(ddof=1), y.var(ddof=1)], weights=sizes - 1))
    small_sample = 1 - 3 / (4 * sizes.sum() - 9)  # Hedges' correction
    return {
        "difference": interval(difference, bounds, int(sizes.min())),
        "t": float(test.statistic),
        "df": float(test.df),
        "p": float(test.pvalue),
        "p by ranks": float(ranks.pvalue),
        "g": float(difference / deviation * small_sample),
        "persons": sizes.tolist(),
    }


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
        return interval(None, (np.nan, np.nan), len(sizes))

    # degrees of freedom, the adjusted mean of the sizes, and F with its interval
    between = len(sizes) - 1
    within = len(values) - len(sizes)
    size = (len(values) - (sizes**2).sum() / len(values)) / between
    ratio = stats.f_oneway(*groups).statistic
    low = ratio / stats.f.ppf(0.975, between, within)
    high = ratio * stats.f.ppf(0.975, within, between)

    ratios = np.array([ratio, low, high])
    mean, *bounds = (ratios - 1) / (ratios + size - 1)
    return interval(float(mean), bounds, len(sizes))


class Cells(NamedTuple):
    """Observations averaged by person and condition: K cells of P persons under C conditions."""

    person: IntArray  # (K,), an index; ascending
    condition: IntArray  # (K,)
    mean: Array  # (K,)
    observations: Array  # (K,), their number
    effects: Array  # (K, C), the intercept and an indicator of each condition but the first


def mixed_model(values: Array, person: IntArray, condition: IntArray) -> list[Test | Missing]:
    """Fits values (O,) by condition (O,) with random effects of persons (O,): REML of statsmodels.

    Persons with several values in a condition have random slopes besides intercepts: without
    slopes, 19 of 100 simulated studies without a difference, in which persons respond differently,
    had p < 0.05.

    Standard errors are cluster-robust by person, with the bias reduction CR2 and the Satterthwaite
    degrees of freedom of Bell & McCaffrey (2002). They need no correct estimate of the variances,
    which have a bound at 0 and are uncertain for few persons. With equal numbers of values in two
    conditions, the test equals the paired t test of the means of persons.

    Returns for each condition but the first the `difference` from the first with its interval, `t`,
    `df` and `p`.
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
    results = robust_tests(cells, covariance, scale)
    for index in compared:
        if min(persons[0], persons[index]) < LEAST_PERSONS:
            results[index - 1] = Missing(_few_persons(persons, index))
    return results


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


def robust_tests(cells: Cells, covariance: Array, scale: float) -> list[Test | Missing]:
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

    results: list[Test | Missing] = []
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

        difference = float(estimate[effect])
        reach = error * stats.t.ppf(0.975, df)
        bounds = (difference - reach, difference + reach)
        results.append(
            {
                "difference": interval(difference, bounds, len(persons)),
                "t": difference / error,
                "df": df,
                "p": float(2 * stats.t.sf(abs(difference) / error, df)),
            }
        )
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
