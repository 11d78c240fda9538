"""Measures of outputs, against scipy and scikit-learn."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from fer_vit.stats.output_measures import MEASURES, measure, measure_intervals

RNG = np.random.default_rng(0)
TARGET = RNG.normal(0, 20, 300)
VALUE = 0.7 * TARGET + RNG.normal(3, 8, 300)
BINARY = (RNG.random(300) < 0.3).astype(float)
SCORE = (0.3 * BINARY + RNG.random(300)).round(1)  # with many equal values


def reference(value: np.ndarray, target: np.ndarray) -> dict[str, float]:
    covariance = np.cov(value, target, bias=True)
    shift = (value.mean() - target.mean()) ** 2
    return {
        "r": stats.pearsonr(value, target).statistic,
        "MAE": metrics.mean_absolute_error(target, value),
        "RMSE": metrics.root_mean_squared_error(target, value),
        "CCC": 2 * covariance[0, 1] / (np.trace(covariance) + shift),
        "sign agreement": metrics.accuracy_score(target > 0, value > 0),
    }


def binary_reference(score: np.ndarray, target: np.ndarray) -> dict[str, float]:
    return {
        "F1": metrics.f1_score(target, score >= 0.5),
        "AUROC": metrics.roc_auc_score(target, score),
    }


@pytest.mark.parametrize("name", [*reference(VALUE, TARGET)])
def test_measures_equal_their_references(name: str) -> None:
    assert measure(name, VALUE, TARGET) == pytest.approx(reference(VALUE, TARGET)[name], abs=1e-9)


@pytest.mark.parametrize("name", ["F1", "AUROC"])
def test_binary_measures_equal_their_references(name: str) -> None:
    expected = binary_reference(SCORE, BINARY)[name]
    assert measure(name, SCORE, BINARY) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["F1", "AUROC"])
@pytest.mark.parametrize("target", [BINARY * 0.5, np.zeros(300), np.ones(300)])
def test_other_targets_have_no_binary_measures(name: str, target: np.ndarray) -> None:
    assert np.isnan(measure(name, SCORE, target))


@pytest.mark.parametrize("name", ["r", "CCC"])
def test_constant_series_have_no_correlation(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(measure(name, SCORE, np.full(300, 0.1)))
        assert not measure(name, np.full(300, 0.1), SCORE) > 0


@pytest.mark.parametrize("name", [*MEASURES])
def test_unknown_targets_are_left_out_and_none_is_nan(name: str) -> None:
    target = np.where(RNG.random(300) < 0.5, BINARY, np.nan)
    known = np.isfinite(target)
    assert measure(name, SCORE, target) == pytest.approx(measure(name, SCORE[known], target[known]))
    assert np.isnan(measure(name, SCORE, np.full(300, np.nan)))


@pytest.mark.parametrize("name", [*MEASURES])
def test_intervals_are_those_of_faces_drawn_again(name: str) -> None:
    target = BINARY if name in ("F1", "AUROC") else SCORE + VALUE / 20
    interval = measure_intervals([name], SCORE, target, np.arange(300))[name]
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(400):
        faces = rng.integers(0, 300, 300)
        drawn.append(measure(name, SCORE[faces], target[faces]))
    width = 4 * np.std(drawn)
    assert interval.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.12 * width)
    assert interval.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.12 * width)
