"""Statistics against scipy, pingouin and statsmodels, and their coverage by simulation."""

import numpy as np
import pandas as pd
import pingouin as pg
import pytest
from statsmodels.formula.api import mixedlm
from statsmodels.stats.weightstats import DescrStatsW

from fer_vit.compare.statistics import (
    compare_pair,
    intraclass_correlation,
    mixed_model,
    person_mean,
)
from fer_vit.report.table import Interval

NAN = np.nan


def bounds(one: Interval) -> list[float | None]:
    return [one["low"], one["high"]]


def test_means_equal_statsmodels(rng: np.random.Generator) -> None:
    values = np.append(rng.uniform(0.2, 0.6, 12), NAN)
    found = person_mean(values)
    assert found["mean"] == pytest.approx(values[:12].mean())
    assert bounds(found) == pytest.approx(DescrStatsW(values[:12]).tconfint_mean(), abs=1e-9)
    assert dict(found)["persons"] == 12
    assert person_mean(np.eye(8)[0], 1)["low"] == 0  # no share is lower
    assert person_mean(1 - np.eye(8)[0], 1)["high"] == 1


def test_without_spread_or_persons_there_is_no_interval_and_no_test(
    rng: np.random.Generator,
) -> None:
    few, many = rng.uniform(size=5), rng.uniform(size=9)
    assert bounds(person_mean(few)) == bounds(person_mean(np.zeros(9))) == [None, None]
    assert person_mean(np.array([NAN]))["mean"] is None
    assert compare_pair(few, few + rng.uniform(size=5), paired=True) is None
    assert compare_pair(few, many, paired=False) is None
    assert compare_pair(many, many, paired=True) is None
    assert intraclass_correlation(np.tile(few, 2), np.tile(np.arange(5), 2))["mean"] is None
    assert intraclass_correlation(many, np.arange(9))["mean"] is None
    assert mixed_model(np.tile(few, 2), np.tile(np.arange(5), 2), np.repeat([0, 1], 5)) == []
    assert mixed_model(np.zeros(18), np.tile(np.arange(9), 2), np.repeat([0, 1], 9)) == []
    # No person is in the second condition and in another: a singular matrix
    person = np.repeat(np.arange(12), 3)
    assert (
        mixed_model(rng.uniform(size=36), person, np.where(person < 6, 1, np.tile([0, 2, 2], 12)))
        == []
    )


@pytest.mark.parametrize("paired", [True, False])
def test_tests_equal_pingouin_and_intervals_statsmodels(
    paired: bool, rng: np.random.Generator
) -> None:
    first, second = rng.gamma(2, size=15), rng.gamma(3, size=15 if paired else 22)
    apart = (
        [np.append(first, [NAN, 0.5]), np.append(second, [0.5, NAN])] if paired else [first, second]
    )
    found = compare_pair(*apart, paired=paired)
    expected = pg.ttest(second, first, paired=paired, correction=True).iloc[0]
    ranks = (pg.wilcoxon if paired else pg.mwu)(second, first).iloc[0]
    assert found is not None
    assert found["difference"]["mean"] == pytest.approx(second.mean() - first.mean())
    if paired:
        interval = DescrStatsW(second - first).tconfint_mean()
    else:
        interval = (
            DescrStatsW(second).get_compare(DescrStatsW(first)).tconfint_diff(usevar="unequal")
        )
    assert bounds(found["difference"]) == pytest.approx(interval, abs=1e-9)
    names = {name.lower().replace("-", "_"): value for name, value in expected.items()}
    for name, value in (("t", names["t"]), ("df", names["dof"]), ("p", names["p_val"])):
        assert found[name] == pytest.approx(value, abs=1e-6)
    assert found["p by ranks"] == pytest.approx(
        next(v for k, v in ranks.items() if k.startswith("p")), abs=1e-6
    )
    assert found["g"] == pytest.approx(
        pg.compute_effsize(second, first, paired, "hedges"), abs=1e-6
    )
    assert found["persons"] == [len(first), len(second)]


def test_intraclass_correlation_equals_pingouin(rng: np.random.Generator) -> None:
    person = np.repeat(np.arange(12), 4)
    values = rng.normal(size=12)[person] + rng.normal(size=48)
    found = intraclass_correlation(values, person)
    table = pd.DataFrame({"person": person, "time": np.tile(np.arange(4), 12), "value": values})
    expected = pg.intraclass_corr(table, "person", "time", "value").iloc[0]
    assert found["mean"] == pytest.approx(expected["ICC"], abs=1e-6)
    low_high = next(value for name, value in expected.items() if name.upper().startswith("CI95"))
    assert bounds(found) == pytest.approx(low_high, abs=0.0051)


def test_intraclass_correlation_of_unequal_numbers(rng: np.random.Generator) -> None:
    """The mean over studies is the true value."""
    person = np.repeat(np.arange(20), np.tile([2, 3, 4, 9], 5))
    studies = [rng.normal(size=20)[person] + rng.normal(0, 1.5, len(person)) for _ in range(300)]
    found = np.array([intraclass_correlation(values, person)["mean"] for values in studies], float)
    assert found.mean() == pytest.approx(1 / (1 + 1.5**2), abs=0.03)


@pytest.mark.parametrize("photos", [1, 3])
def test_mixed_model_equals_statsmodels(photos: int, rng: np.random.Generator) -> None:
    person, condition = np.repeat(np.arange(15), 2 * photos), np.tile(np.repeat([0, 1], photos), 15)
    values = rng.normal(size=15)[person] + 0.7 * rng.normal(size=(15, 2))[person, condition]
    values += 0.4 * condition + rng.normal(0, 0.5, len(person))
    (found,) = mixed_model(values, person, condition)
    table = pd.DataFrame({"person": person, "condition": condition, "value": values})
    slopes = "condition" if photos > 1 else None
    expected = mixedlm("value ~ condition", table, groups="person", re_formula=slopes).fit(
        reml=True
    )
    assert found["difference"]["mean"] == pytest.approx(expected.params["condition"], abs=1e-6)
    assert bounds(found["difference"]) == pytest.approx(
        [*expected.conf_int().loc["condition"]], abs=1e-6
    )
    assert found["p"] == pytest.approx(expected.pvalues["condition"], abs=1e-6)


@pytest.mark.slow
def test_coverage_of_intervals(rng: np.random.Generator) -> None:
    """In 1,000 studies of 24 persons, 95 % intervals contain the true mean (1/3, 2/5), difference and correlation."""
    person, hits = np.repeat(np.arange(24), 4), []
    for _ in range(1000):
        first, second = rng.beta(2, 4, 24), rng.beta(4, 6, 24)
        paired, apart = (
            compare_pair(first, second, paired=True),
            compare_pair(first[:16], second, paired=False),
        )
        assert paired is not None
        assert apart is not None
        correlation = intraclass_correlation(
            rng.normal(size=24)[person] + rng.normal(size=96), person
        )
        truth = [(person_mean(first), 1 / 3), (paired["difference"], 2 / 5 - 1 / 3)]
        truth += [(apart["difference"], 2 / 5 - 1 / 3), (correlation, 0.5)]
        hits.append([one["low"] <= true <= one["high"] for one, true in truth])
    coverage = np.mean(hits, axis=0)
    print(coverage)
    assert (coverage >= 0.93).all(), coverage
    assert (coverage <= 0.97).all(), coverage


@pytest.mark.slow
def test_coverage_of_the_mixed_model(rng: np.random.Generator) -> None:
    """In 1,000 studies of 30 persons who differ in their response to the condition."""
    person, condition = np.repeat(np.arange(30), 6), np.tile(np.repeat([0, 1], 3), 30)
    hits = []
    for _ in range(1000):
        values = rng.normal(size=30)[person] + 0.5 * rng.normal(size=(30, 2))[person, condition]
        found = mixed_model(values + 0.3 * condition + rng.normal(size=180), person, condition)
        hits += [one["difference"]["low"] <= 0.3 <= one["difference"]["high"] for one in found]
    assert len(hits) >= 950  # the others do not converge
    print(len(hits), np.mean(hits))
    assert 0.93 <= np.mean(hits) <= 0.97
