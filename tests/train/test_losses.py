import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from fer_vit.train.losses import balanced_weights, expression_loss, log_prior


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_against_loops_in_float64(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(6, 4), torch.rand(6, 4)
    target /= target.sum(1, keepdim=True)
    total = 0.0
    for z, t in zip(logits.double().numpy(), target.double().numpy(), strict=True):
        log_p = z - np.log(np.exp(z).sum())
        total -= ((1 - smoothing) * t + smoothing / 4) @ log_p
    assert expression_loss(logits, target, smoothing).item() == pytest.approx(total / 6, abs=1e-6)
    assert expression_loss(logits.bfloat16(), target).dtype == torch.float32


def test_class_weights() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    counts = torch.from_numpy(np.bincount(labels)).float()
    assert torch.allclose(balanced_weights(counts), torch.from_numpy(expected).float())
    assert balanced_weights(torch.tensor([4.0, 0.0])).tolist() == [0.5, 0.0]
    logits = torch.randn(7, 3)
    weight = torch.tensor([1.0, 0.0, 0.0])  # only the first class counts
    target = torch.eye(3)[labels]
    first = torch.from_numpy(labels == 0)
    plain = torch.nn.functional.cross_entropy(logits[first], torch.zeros(4, dtype=torch.long))
    assert expression_loss(logits, target, weight=weight).item() == pytest.approx(plain.item() * 4 / 7, rel=1e-5)


def test_a_class_with_less_than_one_image_counts_as_one() -> None:
    assert balanced_weights(torch.tensor([0.5, 3.5])).tolist() == pytest.approx([4 / 2, 4 / (2 * 3.5)])
    assert balanced_weights(torch.tensor([1, 3])).dtype == torch.float32


def test_the_loss_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    logits, target = 50 * torch.randn(64, 8).half(), torch.eye(8).double()[torch.arange(64) % 8]
    exact = torch.nn.functional.cross_entropy(logits.double(), target).item()
    assert expression_loss(logits, target).item() == pytest.approx(exact, rel=1e-6)


def test_log_shares_of_the_classes() -> None:
    assert log_prior(torch.tensor([6, 2])).tolist() == pytest.approx(np.log([0.75, 0.25]))
    assert log_prior(torch.tensor([3.0, 0.25, 0.0])).tolist() == pytest.approx(np.log([0.6, 0.2, 0.2]))
