"""Statistics against scipy, pingouin and statsmodels, and their coverage by simulation."""

import numpy as np
import pandas as pd
import pingouin as pg
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from fer_vit.stats.estimate import Estimate
from fer_vit.stats.persons import (
    ALL_EQUAL,
    MeansTest,
    NoTest,
    PersonMean,
    compare_pair,
    intraclass_correlation,
    person_mean,
)

NAN = np.nan


def bounds(interval: Estimate) -> list[float | None]:
    return [interval.low, interval.high]


def test_means_equal_statsmodels(rng: np.random.Generator) -> None:
    values = np.append(rng.uniform(0.2, 0.6, 12), NAN)
    interval = person_mean(values)
    assert interval.mean == pytest.approx(values[:12].mean())
    assert bounds(interval) == pytest.approx(DescrStatsW(values[:12]).tconfint_mean(), abs=1e-9)
    assert interval.n == 12
    assert interval.sd == pytest.approx(pd.Series(values).std())
    assert person_mean(np.eye(8)[0], 0, 1).low == 0  # no share is lower
    assert person_mean(1 - np.eye(8)[0], 0, 1).high == 1


def known(test: MeansTest | NoTest) -> MeansTest:
    assert not isinstance(test, NoTest), test.reason
    return test


def test_without_spread_or_persons_there_is_no_interval(rng: np.random.Generator) -> None:
    few = rng.uniform(size=5)
    many = rng.uniform(size=9)
    assert bounds(person_mean(few)) == bounds(person_mean(np.zeros(9))) == [None, None]
    none = PersonMean(None, over="persons")
    assert person_mean(np.array([NAN])) == none
    assert person_mean(np.array([0.5])).sd is None
    assert intraclass_correlation(np.tile(few, 2), np.tile(np.arange(5), 2)).mean is None
    assert intraclass_correlation(many, np.arange(9)).mean is None


def test_a_missing_test_has_its_reason(rng: np.random.Generator) -> None:
    few = rng.uniform(size=5)
    many = rng.uniform(size=9)
    flat = np.full(9, 0.3)
    gaps = np.where(np.arange(9) < 4, NAN, many)
    reasons = {
        "both conditions (5)": compare_pair(few, few + rng.uniform(size=5), paired=True),
        "a condition (5 and 9)": compare_pair(few, many, paired=False),
        "a condition (9 and 0)": compare_pair(many, np.full(9, NAN), paired=False),
        ALL_EQUAL: compare_pair(many, many + 0.1, paired=True),
        "no variance": compare_pair(flat, flat, paired=False),
    }
    reasons["in both conditions (5)"] = compare_pair(many, gaps, paired=True)
    for reason, test in reasons.items():
        assert isinstance(test, NoTest)
        assert reason in test.reason


@pytest.mark.parametrize("paired", [True, False])
def test_results_are_finite_where_one_condition_is_constant(
    paired: bool, rng: np.random.Generator
) -> None:
    test = known(compare_pair(np.full(9, 0.3), rng.uniform(size=9), paired))
    assert np.isfinite([test.t, test.df, test.p, test.p_by_ranks, test.g]).all()


@pytest.mark.parametrize("paired", [True, False])
def test_ranks_of_shares_have_ties_despite_rounding(paired: bool) -> None:
    """0.3 - 0.2 is less than 0.2 - 0.1 in binary, and 0.1 + 0.2 more than 0.3."""
    tenths = np.array([1, 2, 3, 4, 5, 6, 7, 2])
    changes = np.array([1, 1, 1, 1, 1, -1, -1, 2])
    noise = 1e-16 * np.arange(8)
    first = tenths / 10
    test = known(compare_pair(first, first + changes / 10 + noise, paired))
    if paired:
        expected = stats.wilcoxon(changes).pvalue
    else:
        expected = stats.mannwhitneyu(tenths + changes, tenths).pvalue
    assert test.p_by_ranks == pytest.approx(expected)


@pytest.mark.parametrize("paired", [True, False])
def test_tests_equal_pingouin_and_intervals_statsmodels(
    paired: bool, rng: np.random.Generator
) -> None:
    first = rng.gamma(2, size=15)
    size = 15 if paired else 22
    second = rng.gamma(3, size=size)
    apart = (
        [np.append(first, [NAN, 0.5]), np.append(second, [0.5, NAN])] if paired else [first, second]
    )
    comparison = known(compare_pair(*apart, paired=paired))
    expected = pg.ttest(second, first, paired=paired, correction=True).iloc[0]
    test_ranks = pg.wilcoxon if paired else pg.mwu
    ranks = test_ranks(second, first).iloc[0]
    assert comparison.difference.mean == pytest.approx(second.mean() - first.mean())
    if paired:
        interval = DescrStatsW(second - first).tconfint_mean()
    else:
        interval = (
            DescrStatsW(second).get_compare(DescrStatsW(first)).tconfint_diff(usevar="unequal")
        )
    assert bounds(comparison.difference) == pytest.approx(interval, abs=1e-9)
    names = {name.lower().replace("-", "_"): value for name, value in expected.items()}
    assert comparison.t == pytest.approx(names["t"], abs=1e-6)
    assert comparison.df == pytest.approx(names["dof"], abs=1e-6)
    assert comparison.p == pytest.approx(names["p_val"], abs=1e-6)
    assert comparison.p_by_ranks == pytest.approx(
        next(v for k, v in ranks.items() if k.startswith("p")), abs=1e-6
    )
    assert comparison.g == pytest.approx(
        pg.compute_effsize(second, first, paired, "hedges"), abs=1e-6
    )
    assert comparison.num_first == len(first)
    assert comparison.num_second == len(second)


def test_intraclass_correlation_of_nearly_equal_values_is_unknown() -> None:
    person = np.repeat(np.arange(8), 2)
    values = person.astype(float)
    values[1] += 1e-8
    correlation = intraclass_correlation(values, person)
    assert correlation == Estimate(None, n=8, over="persons")


def test_intraclass_correlation_equals_pingouin(rng: np.random.Generator) -> None:
    person = np.repeat(np.arange(12), 4)
    values = rng.normal(size=12)[person] + rng.normal(size=48)
    correlation = intraclass_correlation(values, person)
    table = pd.DataFrame({"person": person, "time": np.tile(np.arange(4), 12), "value": values})
    expected = pg.intraclass_corr(table, "person", "time", "value").iloc[0]
    assert correlation.mean == pytest.approx(expected["ICC"], abs=1e-6)
    low_high = next(value for name, value in expected.items() if name.upper().startswith("CI95"))
    assert bounds(correlation) == pytest.approx(low_high, abs=0.0051)


def test_intraclass_correlation_of_unequal_numbers(rng: np.random.Generator) -> None:
    """The mean over studies is the true value."""
    person = np.repeat(np.arange(20), np.tile([2, 3, 4, 9], 5))
    studies = [rng.normal(size=20)[person] + rng.normal(0, 1.5, len(person)) for _ in range(300)]
    correlations = np.array(
        [intraclass_correlation(values, person).mean for values in studies], float
    )
    assert correlations.mean() == pytest.approx(1 / (1 + 1.5**2), abs=0.03)


@pytest.mark.slow
def test_coverage_of_intervals(rng: np.random.Generator) -> None:
    """In 1,000 studies of 24 persons, 95% intervals contain the true mean (1/3, 2/5),
    difference and correlation.
    """
    person = np.repeat(np.arange(24), 4)
    hits = []
    for _ in range(1000):
        first = rng.beta(2, 4, 24)
        second = rng.beta(4, 6, 24)
        paired = known(compare_pair(first, second, paired=True))
        apart = known(compare_pair(first[:16], second, paired=False))
        correlation = intraclass_correlation(
            rng.normal(size=24)[person] + rng.normal(size=96), person
        )
        truth = [(person_mean(first), 1 / 3), (paired.difference, 2 / 5 - 1 / 3)]
        truth += [(apart.difference, 2 / 5 - 1 / 3), (correlation, 0.5)]
        hits.append([interval.low <= true <= interval.high for interval, true in truth])
    coverage = np.mean(hits, axis=0)
    print(coverage)
    assert (coverage >= 0.93).all(), coverage
    assert (coverage <= 0.97).all(), coverage
