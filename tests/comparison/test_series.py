"""Change from rest and the grid against pandas, synchrony against loops of numpy."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fer_vit.comparison.averages import average
from fer_vit.comparison.series import (
    MAX_BINS,
    Rest,
    RestInClips,
    bin_values,
    count_bins,
    leave_one_out,
    mean_course,
    pair_correlations,
    parse_rest,
    synchrony,
)
from fer_vit.comparison.statistics import PersonEstimate
from fer_vit.errors import FerVitError

NAN = np.nan


def clips(rng: np.random.Generator) -> pd.DataFrame:
    """Three clips of uneven times with gaps; the last one begins after 5 s."""
    tables = []
    for clip, (start, number) in enumerate([(0, 200), (1.5, 90), (5.2, 60)]):
        seconds = np.sort(rng.choice(np.arange(400), number, replace=False)) / 25 + start
        values = rng.uniform(size=number)
        tables.append(
            pd.DataFrame({"clip": clip, "seconds": seconds, "a": values, "b": 1 - values})
        )
    return pd.concat(tables, ignore_index=True)


def arrays(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return table[["a", "b"]].to_numpy(), table["seconds"].to_numpy(), table["clip"].to_numpy()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-5", (0, 5)),
        ("1-30", (1, 30)),
        (" 0.5 - 2.25 ", (0.5, 2.25)),
        ("0:01.5-1:01", (1.5, 61)),
        ("90-00:01:40", (90, 100)),
    ],
)
def test_intervals(text: str, expected: tuple[float, float]) -> None:
    assert parse_rest(text) == expected


WRONG = [
    "5-0",
    "5-5",
    "abc",
    "",
    "-",
    "5",
    "0-",
    "-5",
    "-1-5",
    "0:5",
    "0-5-9",
    "0-nan",
    "0-inf",
    "1.2.3-5",
]


@pytest.mark.parametrize("text", [*WRONG, "0-" + "9" * 400, "0-5s", "0-1,5", "0-1:75"])
def test_wrong_intervals(text: str) -> None:
    with pytest.raises(FerVitError, match="`rest"):
        parse_rest(text)


def test_change_from_rest_equals_pandas(rng: np.random.Generator) -> None:
    table = clips(rng)
    values, seconds, clip = arrays(table)
    changes = RestInClips(Rest(1, 5), seconds, clip).change(values)
    for name, column in zip("ab", changes.T, strict=True):
        resting = table[(table["seconds"] >= 1) & (table["seconds"] < 5)]
        expected = table[name] - table["clip"].map(resting.groupby("clip")[name].mean())
        assert column == pytest.approx(expected.to_numpy(), nan_ok=True)
    assert np.isnan(changes[table["clip"] == 2]).all()  # it has no face in the interval


def test_change_from_rest_without_clips_and_times() -> None:
    values = np.array([[0.2], [0.4], [0.6]])
    resting = RestInClips(Rest(0, 1), np.array([0, NAN, 2.0]), np.array([0, 0, -1]))
    assert resting.change(values)[:, 0] == pytest.approx([0, 0.2, NAN], nan_ok=True)
    untimed = RestInClips(Rest(0, 1), np.full(3, NAN), np.full(3, -1))
    assert np.isnan(untimed.change(values)).all()


@pytest.mark.parametrize("step", [0.2, 0.5, 3.0])
def test_the_grid_equals_pandas(step: float, rng: np.random.Generator) -> None:
    table = clips(rng)
    series = bin_values(*arrays(table), step)
    bins = [*np.arange(series.shape[1] + 1) * step]
    for clip, rows in table.groupby("clip"):
        # Times and edges in steps of 0.02 s as integers, so that they compare exactly.
        place = pd.cut((rows["seconds"] * 100).round(), np.round(np.array(bins) * 100), right=False)
        expected = rows.groupby(place, observed=False)[["a", "b"]].mean().to_numpy()
        assert series[int(str(clip))] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(series).any()  # gaps stay gaps


def test_times_on_an_edge_begin_a_bin() -> None:
    """0.6 / 0.2 and 1.4 / 0.2 are less than 3 and 7 in binary."""
    seconds = np.arange(50) / 5
    series = bin_values(seconds[:, None], seconds, np.zeros(50, int), 0.2)
    assert series[0, :, 0] == pytest.approx(seconds)


@pytest.mark.parametrize("step", [0.0, -1.0, NAN, np.inf, 100.0, 1e-9, 1e-300, 5e-324])
def test_wrong_grids(step: float) -> None:
    with pytest.raises(FerVitError, match="`grid"):
        count_bins(np.array([0, 12.4]), 3, step)


def test_a_grid_needs_times_and_has_a_limit_over_all_clips() -> None:
    with pytest.raises(FerVitError, match="Predict videos"):
        count_bins(np.array([NAN]), 1, 0.2)
    with pytest.raises(FerVitError, match="`grid"):
        count_bins(np.array([1e300]), 1, 1.0)
    assert count_bins(np.array([0, 10.0]), 1000, 0.5) == 21
    with pytest.raises(FerVitError, match=f"{MAX_BINS:,}"):
        count_bins(np.array([0, 10.0]), 100_000, 0.5)


def test_mean_courses_equal_scipy(rng: np.random.Generator) -> None:
    series = rng.normal(size=(9, 4))
    series[3:, 1] = NAN
    series[:, 2] = NAN
    series[2, 3] = NAN
    mean, low, high, persons = mean_course(series)
    assert persons.tolist() == [9, 3, 0, 8]
    assert mean == pytest.approx(
        [series[:, 0].mean(), series[:3, 1].mean(), NAN, mean[3]], nan_ok=True
    )
    for place in (0, 3):
        known = series[np.isfinite(series[:, place]), place]
        expected = stats.ttest_1samp(known, 0).confidence_interval()
        assert (low[place], high[place]) == pytest.approx(tuple(expected))
    assert np.isnan(low[1:3]).all()
    assert np.isnan(high[1:3]).all()


def test_series_of_several_clips_are_averaged() -> None:
    series = np.array([[1.0, NAN], [3.0, NAN], [5.0, 6.0]])
    means = average(series, np.array([0, 0, 2]), 3)
    assert means == pytest.approx(np.array([[2, NAN], [NAN, NAN], [5, 6]]), nan_ok=True)


def test_synchrony_equals_loops(rng: np.random.Generator) -> None:
    series = rng.normal(size=40) + rng.normal(size=(8, 40))
    series[rng.uniform(size=series.shape) < 0.2] = NAN
    series[6] = 0.5  # no variance
    series[7, 2:] = NAN  # too few bins
    correlations = leave_one_out(series)
    for person in range(6):
        pairs = []
        for time in range(40):
            others = [series[second, time] for second in range(8) if second != person]
            others = [value for value in others if not np.isnan(value)]
            if others and not np.isnan(series[person, time]):
                pairs.append((series[person, time], np.mean(others)))
        assert correlations[person] == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])
    assert np.isnan(correlations[6:]).all()


def test_leave_one_out_of_equal_and_of_single_series(rng: np.random.Generator) -> None:
    assert leave_one_out(np.tile(rng.normal(size=10), (4, 1))) == pytest.approx(np.ones(4))
    assert np.isnan(leave_one_out(rng.normal(size=(1, 10)))).all()


def test_correlations_of_pairs_equal_pandas(rng: np.random.Generator) -> None:
    series = 1e3 + rng.normal(size=40) + rng.normal(size=(8, 40))
    series[rng.uniform(size=series.shape) < 0.2] = NAN
    series[6] = 0.5  # no variance
    series[7, 2:] = NAN  # too few bins
    correlations = pair_correlations(series)
    expected = pd.DataFrame(series.T).corr(min_periods=3).to_numpy(copy=True)
    np.fill_diagonal(expected, NAN)
    assert correlations == pytest.approx(expected, nan_ok=True)
    assert np.isfinite(correlations).sum() == 30


def jackknife_by_loops(correlations: np.ndarray) -> tuple[float, float]:
    """The mean z of pairs, and its standard error."""
    persons = list(range(len(correlations)))

    def mean_z(members: list[int]) -> float:
        pairs = [correlations[pair] for pair in combinations(members, 2)]
        return float(np.mean([np.arctanh(value) for value in pairs if not np.isnan(value)]))

    without = [mean_z([rest for rest in persons if rest != person]) for person in persons]
    count = len(persons)
    return mean_z(persons), float(np.sqrt((count - 1) * np.var(without)))


def test_the_interval_of_synchrony_equals_the_jackknife_by_loops(rng: np.random.Generator) -> None:
    series = rng.normal(size=50) + rng.normal(size=(9, 50))
    series[:, 20:] += np.linspace(0, 2, 9)[:, None] * rng.normal(size=30)
    series[3, 30:] = series[5, :30] = NAN  # these two share no bin
    correlations = pair_correlations(series)
    assert np.isnan(correlations[3, 5])
    result = synchrony(correlations)
    mean, error = jackknife_by_loops(correlations)
    reach = stats.t.ppf(0.975, 8) * error
    assert result.mean == pytest.approx(np.tanh(mean))
    bounds = [result.low, result.high]
    assert bounds == pytest.approx(np.tanh([mean - reach, mean + reach]))
    assert result.num_persons == 9


def test_synchrony_without_an_interval(rng: np.random.Generator) -> None:
    series = rng.normal(size=(8, 30))
    assert synchrony(pair_correlations(series[:5])).low is None  # few persons
    equal = synchrony(pair_correlations(np.tile(series[0], (8, 1))))
    assert equal.mean == pytest.approx(1)
    assert equal.low is None
    none = synchrony(np.full((8, 8), NAN))
    assert none == PersonEstimate(mean=None, low=None, high=None, num_persons=0)
    star = np.full((8, 8), NAN)  # all pairs are of one person
    star[0, 1:] = star[1:, 0] = np.linspace(0, 0.6, 7)
    assert synchrony(star).low is None


def independent(persons: int, rng: np.random.Generator) -> np.ndarray:
    """Series (persons, 60) that share nothing, each with autocorrelation."""
    noise = rng.normal(size=(persons, 80))
    return np.apply_along_axis(lambda row: np.convolve(row, np.ones(5), "valid"), 1, noise)[:, :60]


@pytest.mark.parametrize("persons", [8, 15])
def test_independent_series_have_no_synchrony(persons: int) -> None:
    """Leave-one-out correlations resampled by person excluded 0 in a quarter of such studies."""
    rng = np.random.default_rng(persons)
    studies = 400
    excluded = 0
    for _ in range(studies):
        result = synchrony(pair_correlations(independent(persons, rng)))
        assert result.low is not None
        excluded += result.low > 0 or result.high < 0
    assert excluded <= 0.05 * studies
