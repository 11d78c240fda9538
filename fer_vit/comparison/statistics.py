"""Statistics over persons: means, differences, intraclass correlation and the mixed model, as
functions of arrays.

A test that is impossible is a `Missing` with its reason, never NaN.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fer_vit.geometry import Array, IntArray
from fer_vit.report.table import Interval

LEAST = 6
"""Fewer persons have no intervals or tests: with five pairs, no rank test reaches p < 0.05."""
EQUAL = 1e-9
"""Smaller differences are none."""
Test = dict[str, Any]  # results by name, such as `t`, `df` and `p`


class Missing(NamedTuple):
    """A test that is impossible."""

    reason: str


def interval(mean: float | None, bounds: Any, persons: int) -> Interval:
    """Returns a result with its low and high bound; it counts persons, not faces."""
    low, high = (float(bound) if np.isfinite(bound) else None for bound in bounds)
    return Interval(mean=mean, low=low, high=high, persons=persons)


def person_mean(values: Array, least: float = -np.inf, most: float = np.inf) -> Interval:
    """Returns the mean over persons (P,) of a measure from `least` to `most`, and its t interval;
    NaN do not count.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return interval(None, (np.nan, np.nan), 0)
    mean = float(known.mean())
    if len(known) < LEAST or np.ptp(known) <= EQUAL:
        return interval(mean, (np.nan, np.nan), len(known))
    bounds = stats.ttest_1samp(known, 0).confidence_interval()
    return interval(mean, np.clip(bounds, least, most), len(known))


def compare_pair(first: Array, second: Array, paired: bool) -> Test | Missing:
    """Compares a measure of persons (P,) in two conditions, second minus first; NaN where a person
    has none.

    Returns the t test, paired or Welch's, with the interval of the `difference`; `p by ranks`
    (Wilcoxon, or Mann and Whitney); Hedges' `g` by the pooled deviation of the conditions; and the
    number of `persons` in each.
    """
    if paired:
        known = np.isfinite(first) & np.isfinite(second)
        x, y = first[known], second[known]
        spread = np.ptp(y - x) if len(x) else 0
    else:
        x, y = first[np.isfinite(first)], second[np.isfinite(second)]
        spread = max(np.ptp(group) if len(group) else 0 for group in (x, y))

    sizes = np.array([len(x), len(y)])
    if sizes.min() < LEAST:
        return Missing(_too_few(sizes, paired))
    if spread < EQUAL:
        return Missing("the differences of all persons are equal" if paired else "no variance")

    with warnings.catch_warnings(action="ignore"):  # one group may be constant
        test = stats.ttest_rel(y, x) if paired else stats.ttest_ind(y, x, equal_var=False)
        ranks = stats.wilcoxon(y, x) if paired else stats.mannwhitneyu(y, x)
        bounds = test.confidence_interval()
    deviation = np.sqrt(np.average([x.var(ddof=1), y.var(ddof=1)], weights=sizes - 1))
    difference = float(y.mean() - x.mean())
    return {
        "difference": interval(difference, bounds, int(sizes.min())),
        "t": float(test.statistic),
        "df": float(test.df),
        "p": float(test.pvalue),
        "p by ranks": float(ranks.pvalue),
        "g": float(difference / deviation * (1 - 3 / (4 * sizes.sum() - 9))),
        "persons": sizes.tolist(),
    }


def _too_few(sizes: IntArray, paired: bool) -> str:
    """Returns the reason that two conditions with values
    of so many persons (2,) are not compared.
    """
    if paired:
        return f"fewer than {LEAST} persons have values in both conditions ({sizes[0]})"
    return f"fewer than {LEAST} persons have values in a condition ({sizes[0]} and {sizes[1]})"


def intraclass_correlation(values: Array, person: IntArray) -> Interval:
    """Returns ICC(1) of values (O,) of persons (O,): the share of the variance that lies between
    persons.

    Shrout & Fleiss 1979; for unequal numbers of values with their adjusted mean. Unknown when fewer
    than `LEAST` persons have several values, or the values of each person are equal.
    """
    groups = [values[person == index] for index in np.unique(person)]
    sizes = np.array([len(group) for group in groups])
    if (sizes > 1).sum() < LEAST or sum(map(np.ptp, groups)) < EQUAL:
        return interval(None, (np.nan, np.nan), len(sizes))
    between, within = len(sizes) - 1, len(values) - len(sizes)
    size = (len(values) - (sizes**2).sum() / len(values)) / between
    ratio = stats.f_oneway(*groups).statistic
    low = ratio / stats.f.ppf(0.975, between, within)
    high = ratio * stats.f.ppf(0.975, within, between)
    mean, *bounds = ((x - 1) / (x + size - 1) for x in (ratio, low, high))
    return interval(float(mean), bounds, len(sizes))


class Cells(NamedTuple):
    """Observations averaged by person and condition: K cells of P persons under C conditions."""

    person: IntArray  # (K,), an index; ascending
    condition: IntArray  # (K,)
    mean: Array  # (K,)
    observations: Array  # (K,), their number
    effects: Array  # (K, C), the intercept and an indicator of each condition but the first


def mixed_model(values: Array, person: IntArray, condition: IntArray) -> list[Test | Missing]:
    """Fits values (O,) by the condition (O,) with random effects of the person (O,), by REML with
    statsmodels.

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
    others = range(1, condition.max() + 1)
    persons = [len(np.unique(person[condition == index])) for index in (0, *others)]
    total = len(np.unique(person))
    if len(values) == total:
        return [Missing("every person has one value only")] * len(others)
    if np.ptp(values) < EQUAL:
        return [Missing("no variance")] * len(others)
    if min(persons[0], max(persons[1:])) < LEAST:
        return [Missing(_few_persons(persons, index)) for index in others]

    cells = average_cells(values, person, condition)
    covariance, scale = fit_variances(values, person, condition, cells)
    results = robust_tests(cells, covariance, scale)
    for index in others:
        if min(persons[0], persons[index]) < LEAST:
            results[index - 1] = Missing(_few_persons(persons, index))
    return results


def _few_persons(persons: Sequence[int], index: int) -> str:
    """Returns the reason that a condition is not compared with the first,
    by the number of persons in each (C,).
    """
    return _too_few(np.array([persons[0], persons[index]]), paired=False)


def average_cells(values: Array, person: IntArray, condition: IntArray) -> Cells:
    """Averages values (O,) by person (O,) and condition (O,)."""
    keys = np.column_stack([person, condition])
    cells, index, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    mean = np.bincount(index, values) / count
    return Cells(cells[:, 0], cells[:, 1], mean, count.astype(float), _effects(cells[:, 1]))


def _effects(condition: IntArray) -> Array:
    """Returns the intercept and an indicator of each condition but the first (K, C)
    for conditions (K,).
    """
    effects = np.eye(condition.max() + 1)[condition]
    effects[:, 0] = 1
    return effects


def fit_variances(
    values: Array, person: IntArray, condition: IntArray, cells: Cells
) -> tuple[Array, float]:
    """Returns the covariance of the random effects (C, C), 0 where there is none, and the residual
    variance.

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
        if fit.converged and np.isfinite(fit.cov_re).all() and scale > EQUAL:
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
    starts = np.unique(cells.person, return_index=True)[1][1:]
    designs, targets = [], []
    for rows in np.split(np.arange(len(cells.mean)), starts):
        effects = cells.effects[rows]  # (R, C)
        variance = effects @ covariance @ effects.T + np.diag(scale / cells.observations[rows])
        root = np.linalg.cholesky(variance)
        designs.append(np.linalg.solve(root, effects))
        targets.append(np.linalg.solve(root, cells.mean[rows]))
    information = sum(design.T @ design for design in designs)
    if np.linalg.cond(information) > 1 / EQUAL:
        return [Missing("the conditions cannot be separated")] * (count - 1)
    bread = np.linalg.inv(information)  # (C, C)
    estimate = bread @ sum(
        design.T @ target for design, target in zip(designs, targets, strict=True)
    )

    # The weights of each person's values in the estimate, adjusted by CR2: (P, R, C)
    weights = [_inverse_root(design @ bread @ design.T) @ design @ bread for design in designs]
    scores = np.array(
        [
            weight.T @ (target - design @ estimate)
            for weight, target, design in zip(weights, targets, designs, strict=True)
        ]
    )  # (P, C)
    results: list[Test | Missing] = []
    persons = len(designs)
    for index in range(1, count):
        error = float(np.sqrt((scores[:, index] ** 2).sum()))
        if error < EQUAL:
            results.append(Missing("the differences of all persons are equal"))
            continue
        shares = np.array([weight[:, index] @ weight[:, index] for weight in weights])  # (P,)
        overlap = np.array(
            [weight[:, index] @ design for weight, design in zip(weights, designs, strict=True)]
        )  # (P, C)
        df = _satterthwaite(shares, overlap, bread)
        difference = float(estimate[index])
        reach = error * stats.t.ppf(0.975, df)
        results.append(
            {
                "difference": interval(
                    difference, (difference - reach, difference + reach), persons
                ),
                "t": difference / error,
                "df": df,
                "p": float(2 * stats.t.sf(abs(difference) / error, df)),
            }
        )
    return results


def _inverse_root(leverage: Array) -> Array:
    """Returns (I - leverage)^(-1/2) (R, R), the adjustment CR2;
    0 where the fit leaves no residual.
    """
    values, vectors = np.linalg.eigh(np.eye(len(leverage)) - leverage)
    roots = np.zeros(len(values))
    positive = values > EQUAL
    roots[positive] = values[positive] ** -0.5
    return np.asarray(vectors * roots @ vectors.T)


def _satterthwaite(shares: Array, overlap: Array, bread: Array) -> float:
    """Returns trace(G)^2 / trace(G^2) of G = diag(shares) - overlap bread overlap', for shares
    (P,), overlap (P, C).

    The expectation of the squared error is trace(G), and G^2 gives its variance: Bell & McCaffrey
    2002.
    """
    inner = bread @ (overlap.T @ overlap)  # (C, C)
    diagonal = ((overlap @ bread) * overlap).sum(1)  # (P,), of overlap bread overlap'
    trace = shares.sum() - np.trace(inner)
    square = (shares**2).sum() - 2 * shares @ diagonal + np.trace(inner @ inner)
    return float(trace**2 / square)
