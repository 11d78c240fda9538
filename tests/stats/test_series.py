"""Change from rest and the grid against pandas."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fer_vit.errors import FerVitError
from fer_vit.stats.means import average
from fer_vit.stats.series import (
    Rest,
    RestInClips,
    bin_values,
    mean_course,
    parse_rest,
)

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


def rest_in_clips(rest: Rest, seconds: np.ndarray, clip: np.ndarray) -> RestInClips:
    return RestInClips(rest, rest.contains(seconds), clip)


def test_change_from_rest_equals_pandas(rng: np.random.Generator) -> None:
    table = clips(rng)
    values, seconds, clip = arrays(table)
    changes = rest_in_clips(Rest(1, 5), seconds, clip).change(values)
    for name, column in zip("ab", changes.T, strict=True):
        resting = table[(table["seconds"] >= 1) & (table["seconds"] < 5)]
        expected = table[name] - table["clip"].map(resting.groupby("clip")[name].mean())
        assert column == pytest.approx(expected.to_numpy(), nan_ok=True)
    assert np.isnan(changes[table["clip"] == 2]).all()  # it has no face in the interval


def test_change_from_rest_without_clips_and_times() -> None:
    values = np.array([[0.2], [0.4], [0.6]])
    resting = rest_in_clips(Rest(0, 1), np.array([0, NAN, 2.0]), np.array([0, 0, -1]))
    assert resting.change(values)[:, 0] == pytest.approx([0, 0.2, NAN], nan_ok=True)
    untimed = rest_in_clips(Rest(0, 1), np.full(3, NAN), np.full(3, -1))
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


@pytest.mark.parametrize("step", [0.0, -1.0, NAN, np.inf, 100.0, 1e-9, 5e-324])
def test_wrong_grids(step: float) -> None:
    with pytest.raises(FerVitError, match="`grid"):
        bin_values(np.zeros((2, 1)), np.array([0, 12.4]), np.arange(2), step)


def test_a_grid_needs_times_and_has_a_limit_over_all_clips() -> None:
    clips = np.arange(50_000)
    seconds = np.tile([0.0, 10.0], 25_000)
    values = np.zeros((50_000, 1))
    with pytest.raises(FerVitError, match="Predict videos"):
        bin_values(values[:1], np.array([NAN]), clips[:1], 0.2)
    with pytest.raises(FerVitError, match="`grid"):
        bin_values(values[:1], np.array([1e300]), clips[:1], 1.0)
    assert bin_values(values[:1000], seconds[:1000], clips[:1000], 0.5).shape == (1000, 21, 1)
    with pytest.raises(FerVitError, match="1,000,000"):
        bin_values(values, seconds, clips, 0.5)
