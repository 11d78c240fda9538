"""Statistics over persons: means, differences, intraclass correlation and the mixed model, as functions of arrays."""

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from scipy import stats

from fer_vit.geometry import Array, IntArray
from fer_vit.report.table import Interval

LEAST, EQUAL = 6, 1e-9
"""Fewer persons (with five pairs, no rank test reaches p < 0.05) and smaller differences have no intervals or tests."""


def interval(mean: float | None, bounds: Any, persons: int) -> Interval:
    """Returns a result with its low and high bound; it counts persons, not faces."""
    low, high = (float(bound) if np.isfinite(bound) else None for bound in bounds)
    return Interval(mean=mean, low=low, high=high, persons=persons)


def person_mean(values: Array, most: float = np.inf) -> Interval:
    """Returns the mean over persons (P,) of a measure from 0 to `most`, and its t interval; NaN do not count."""
    known = values[np.isfinite(values)]
    spread = len(known) >= LEAST and np.ptp(known) > EQUAL
    bounds = (
        np.clip(stats.ttest_1samp(known, 0).confidence_interval(), 0, most)
        if spread
        else (np.nan, np.nan)
    )
    return interval(float(known.mean()) if len(known) else None, bounds, len(known))


def compare_pair(first: Array, second: Array, paired: bool) -> dict[str, Any] | None:
    """Compares a measure of persons (P,) in two conditions, second minus first; NaN where a person has none.

    Returns the t test, paired or Welch's, with the interval of the `difference`; `p by ranks` (Wilcoxon, or Mann and
    Whitney); Hedges' `g` by the pooled deviation of the conditions; and the number of `persons` in each. None: too few
    persons, or no differences.
    """
    known = np.isfinite(first), np.isfinite(second)
    x, y = (
        (first[known[0] & known[1]], second[known[0] & known[1]])
        if paired
        else (first[known[0]], second[known[1]])
    )
    sizes = np.array([len(x), len(y)])
    if sizes.min() < LEAST or (np.ptp(y - x) if paired else max(np.ptp(x), np.ptp(y))) < EQUAL:
        return None
    test = stats.ttest_rel(y, x) if paired else stats.ttest_ind(y, x, equal_var=False)
    ranks = stats.wilcoxon(y, x) if paired else stats.mannwhitneyu(y, x)
    deviation = np.sqrt(np.average([x.var(ddof=1), y.var(ddof=1)], weights=sizes - 1))
    difference = float(y.mean() - x.mean())
    return {
        "difference": interval(difference, test.confidence_interval(), int(sizes.min())),
        "t": float(test.statistic),
        "df": float(test.df),
        "p": float(test.pvalue),
        "p by ranks": float(ranks.pvalue),
        "g": float(difference / deviation * (1 - 3 / (4 * sizes.sum() - 9))),
        "persons": sizes.tolist(),
    }


def intraclass_correlation(values: Array, person: IntArray) -> Interval:
    """Returns ICC(1) of values (O,) of persons (O,): the share of the variance that lies between persons.

    Shrout & Fleiss 1979; for unequal numbers of values with their adjusted mean. Unknown when fewer than `LEAST`
    persons have several values, or the values of each person are equal.
    """
    groups = [values[person == one] for one in np.unique(person)]
    sizes = np.array([len(group) for group in groups])
    if (sizes > 1).sum() < LEAST or sum(map(np.ptp, groups)) < EQUAL:
        return interval(None, (np.nan, np.nan), len(sizes))
    between, within = len(sizes) - 1, len(values) - len(sizes)
    size = (len(values) - (sizes**2).sum() / len(values)) / between
    ratio = stats.f_oneway(*groups).statistic
    ratios = ratio / np.array(
        [1, stats.f.ppf(0.975, between, within), 1 / stats.f.ppf(0.975, within, between)]
    )
    mean, *bounds = (ratios - 1) / (ratios + size - 1)
    return interval(float(mean), bounds, len(sizes))


def mixed_model(values: Array, person: IntArray, condition: IntArray) -> list[dict[str, Any]]:
    """Fits values (O,) by the condition (O,) with random effects of the person (O,), by REML with statsmodels.

    Persons with several values in a condition have random slopes besides intercepts: without slopes, 19 of 100
    simulated studies without a difference, in which persons respond differently, had p < 0.05.

    Returns for each condition but the first the `difference` from the first with its Wald interval, and its `p`. Empty:
    too few values, no spread, or the fit does not converge.
    """
    from statsmodels.regression.mixed_linear_model import (
        MixedLM,
    )  # only here: it may not be installed

    persons, cells = len(np.unique(person)), len({*zip(person, condition, strict=True)})
    if persons < LEAST or len(values) == persons or np.ptp(values) < EQUAL:
        return []
    effects = np.array([condition == index for index in range(condition.max() + 1)], float).T
    effects[:, 0] = 1
    # A variance between persons of 0 is a valid result. Effects that cannot be separated make a singular matrix.
    with warnings.catch_warnings(action="ignore"), suppress(np.linalg.LinAlgError):
        fit = MixedLM(
            values, effects, person, effects if persons < cells < len(values) else None
        ).fit(reml=True)
        rows = (
            [*zip(fit.fe_params, fit.conf_int(), fit.pvalues, strict=False)][1:]
            if fit.converged
            else []
        )
        return [
            {"difference": interval(float(mean), bounds, persons), "p": float(p)}
            for mean, bounds, p in rows
        ]
    return []
