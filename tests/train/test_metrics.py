"""Measures of the outputs of heads, against scipy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics

from fer_vit.heads import HEADS
from fer_vit.train.metrics import FIGURES, OutputMetrics


def test_measures_of_known_targets_equal_their_references() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(0, 20, (200, 3))
    preds = 0.7 * target + rng.normal(3, 8, (200, 3))
    target[rng.random((200, 3)) < 0.3] = np.nan
    collected = OutputMetrics(3, tuple(FIGURES))
    for start in range(0, 200, 64):
        rows = slice(start, start + 64)
        collected.update(torch.from_numpy(preds[rows]), torch.from_numpy(target[rows]))
    figures = collected.compute()
    for output in range(3):
        known = np.isfinite(target[:, output])
        x, y = preds[known, output], target[known, output]
        covariance = np.cov(x, y, bias=True)
        ccc = 2 * covariance[0, 1] / (np.trace(covariance) + (x.mean() - y.mean()) ** 2)
        expected = {
            "r": stats.pearsonr(x, y).statistic,
            "mae": metrics.mean_absolute_error(y, x),
            "rmse": metrics.root_mean_squared_error(y, x),
            "ccc": ccc,
            "sign_agreement": metrics.accuracy_score(y > 0, x > 0),
        }
        for name, value in expected.items():
            assert figures[name][output].item() == pytest.approx(value, abs=1e-9), name


def test_an_output_without_known_targets_is_nan() -> None:
    collected = OutputMetrics(2, ("r", "mae"))
    collected.update(torch.rand(5, 2), torch.tensor([[0.1, float("nan")]] * 5))
    figures = collected.compute()
    assert figures["mae"].isnan().tolist() == [False, True]


@pytest.mark.parametrize("head", [*HEADS])
def test_every_head_has_measures_that_exist(head: str) -> None:
    assert set(HEADS[head].figures) <= set(FIGURES)
