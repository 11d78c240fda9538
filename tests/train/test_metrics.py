"""Measures of the outputs of heads over the batches of a split."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fer_vit.heads import HEADS, MOVEMENTS, POSE
from fer_vit.stats.output_measures import MEASURES, measure
from fer_vit.train.metrics import OutputMetrics


def test_batches_are_measured_together() -> None:
    rng = np.random.default_rng(0)
    target = rng.random((200, 3)).astype(np.float32)
    preds = (0.7 * target + rng.normal(0, 0.1, (200, 3))).astype(np.float32)
    target[:, 2] = target[:, 2] > 0.5
    target[rng.random((200, 3)) < 0.3] = np.nan
    collected = OutputMetrics(3, replace(HEADS[MOVEMENTS], measures=tuple(MEASURES)))
    for start in range(0, 200, 64):
        rows = slice(start, start + 64)
        collected.update(torch.from_numpy(preds[rows]), torch.from_numpy(target[rows]))
    figures = collected.compute()
    for name in MEASURES:
        expected = [measure(name, preds[:, k], target[:, k]) for k in range(3)]
        np.testing.assert_allclose(figures[name], expected, rtol=1e-6)
    assert figures["AUROC"].isnan().tolist() == [True, True, False]

    # after several processes have shared their batches, the states are tensors
    shared = OutputMetrics(3, replace(HEADS[MOVEMENTS], measures=tuple(MEASURES)))
    shared.preds = torch.from_numpy(preds)
    shared.target = torch.from_numpy(target)
    for name, values in shared.compute().items():
        np.testing.assert_allclose(values, figures[name], rtol=1e-6)


def test_an_output_without_known_targets_is_nan() -> None:
    collected = OutputMetrics(2, HEADS[MOVEMENTS])
    assert collected.compute()["MAE"].isnan().all()
    collected.update(torch.rand(5, 2), torch.tensor([[0.1, float("nan")]] * 5))
    assert collected.compute()["MAE"].isnan().tolist() == [False, True]
    collected.reset()
    assert collected.compute()["MAE"].isnan().all()


def test_measures_of_angles_do_not_depend_on_a_turn() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(0, 10, (40, 1))
    preds = rng.normal(0, 10, (40, 1))
    collected = OutputMetrics(1, HEADS[POSE])
    for rows in (slice(0, 20), slice(20, 40)):
        turned = [(angle[rows] + 360) % 360 - 180 for angle in (preds, target)]
        collected.update(*map(torch.from_numpy, turned))
    figures = collected.compute()
    for name in ("r", "MAE"):
        expected = measure(name, preds[:, 0], target[:, 0])
        assert figures[name].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("head", [*HEADS])
def test_every_head_has_measures_that_exist(head: str) -> None:
    assert set(HEADS[head].measures) <= set(MEASURES)
