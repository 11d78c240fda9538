import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from fer_vit.evaluate.intervals import mean_intervals


def test_means_and_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(1).gamma(1.0, size=(60, 3))
    for column, found in zip(values.T, mean_intervals(values), strict=True):
        expected = bootstrap((column,), np.mean, n_resamples=20_000, method="percentile", rng=0).confidence_interval
        error = column.std() / 60**0.5
        assert found["faces"] == 60
        assert found["mean"] == pytest.approx(column.mean())
        assert found["low"] == pytest.approx(expected.low, abs=0.1 * error)
        assert found["high"] == pytest.approx(expected.high, abs=0.1 * error)


def test_faces_without_a_value_do_not_count() -> None:
    values = np.random.default_rng(1).normal(size=(80, 2))
    whole = mean_intervals(values[:40, :1])[0]
    values[40:, 0] = np.nan
    found = mean_intervals(values)[0]
    assert (found["faces"], found["mean"]) == (40, pytest.approx(whole["mean"]))
    error = values[:40, 0].std() / 40**0.5
    assert found["low"] == pytest.approx(whole["low"], abs=0.15 * error)  # their number differs from draw to draw
    assert found["high"] == pytest.approx(whole["high"], abs=0.15 * error)


def test_one_face_has_no_interval_and_none_no_mean() -> None:
    one, none = mean_intervals(np.array([[0.25, np.nan]]))
    assert one == {"mean": 0.25, "low": None, "high": None, "faces": 1}
    assert none == {"mean": None, "low": None, "high": None, "faces": 0}
    assert mean_intervals(np.full((5, 1), 0.5))[0] == {"mean": 0.5, "low": 0.5, "high": 0.5, "faces": 5}
    assert mean_intervals(np.empty((0, 1)))[0]["mean"] is None


@pytest.mark.parametrize("hits", [0, 6])
def test_a_share_without_exceptions_has_the_bounds_of_scipys_binomial(hits: int) -> None:
    values = np.append(np.full(6, hits / 6), np.nan)[:, None]
    expected = binomtest(hits, 6).proportion_ci(method="exact")
    (share,) = mean_intervals(values, binary=True)
    assert (share["low"], share["high"]) == pytest.approx((expected.low, expected.high))
    expected = binomtest(hits // 2, 3).proportion_ci(method="exact")
    (of_persons,) = mean_intervals(values, np.array([0, 0, 1, 1, 2, 2, 2]), binary=True)
    assert (of_persons["low"], of_persons["high"]) == pytest.approx((expected.low, expected.high))
    (difference,) = mean_intervals(values)
    assert (difference["low"], difference["high"]) == (hits / 6, hits / 6)
