import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score, recall_score

from fer_vit.errors import FerVitError
from fer_vit.evaluate.faces import fit_temperature
from fer_vit.train.task import class_recall, expression_loss, expression_metrics, log_prior


def calibration_error(preds: np.ndarray, target: np.ndarray) -> float:
    """Its definition, in 15 bins."""
    confidence, right = preds.max(1), preds.argmax(1) == target
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return error


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true", "ignore:A single label was found")
@pytest.mark.parametrize("samples", [1, 5, 100])
@pytest.mark.parametrize("true", [(3,), (0, 2), (0, 1, 2, 3)])
def test_figures_are_scikit_learns(samples: int, true: tuple[int, ...]) -> None:
    rng = np.random.default_rng(samples)
    preds = rng.dirichlet(np.full(4, 0.3), samples).astype(np.float32)
    target = rng.choice(true, samples)
    metrics = expression_metrics(4)
    for part in np.array_split(np.arange(samples), min(samples, 7)):
        metrics.update(torch.from_numpy(preds[part]), torch.from_numpy(target[part]))
    values, label = metrics.compute(), preds.argmax(1)
    assert values.keys() == {"accuracy", "f1", "ece", "confusion"}
    assert values["accuracy"].item() == pytest.approx(accuracy_score(target, label), abs=1e-6)
    assert values["f1"].item() == pytest.approx(f1_score(target, label, average="macro"), abs=1e-6)
    assert (values["confusion"].numpy() == confusion_matrix(target, label, labels=range(4))).all()
    recall = class_recall(values["confusion"])
    expected = recall_score(target, label, labels=range(4), average=None, zero_division=np.nan)
    assert recall.numpy() == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert recall.nanmean().item() == pytest.approx(balanced_accuracy_score(target, label), abs=1e-6)
    assert values["ece"].item() == pytest.approx(calibration_error(preds, target), abs=1e-6)


def test_one_class_has_no_figures() -> None:
    with pytest.raises(FerVitError, match="at least two classes, but got 1"):
        expression_metrics(1)
    expression_metrics(2)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_again(temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(20_000, 4) * 2
    target = torch.distributions.Categorical(logits=logits).sample()
    found = fit_temperature(logits * temperature, target)
    assert found == pytest.approx(temperature, rel=0.03)
    # No temperature on a fine grid does better.
    grid = torch.linspace(0.8, 1.2, 41) * found
    losses = [torch.nn.functional.cross_entropy(logits * temperature / t, target).item() for t in grid]
    assert int(np.argmin(losses)) == 20


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


def test_the_loss_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    logits, target = 50 * torch.randn(64, 8).half(), torch.eye(8).double()[torch.arange(64) % 8]
    exact = torch.nn.functional.cross_entropy(logits.double(), target).item()
    assert expression_loss(logits, target).item() == pytest.approx(exact, rel=1e-6)


def test_log_shares_of_the_classes() -> None:
    assert log_prior(torch.tensor([6, 2])).tolist() == pytest.approx(np.log([0.75, 0.25]))
    assert log_prior(torch.tensor([3.0, 0.25, 0.0])).tolist() == pytest.approx(np.log([0.6, 0.2, 0.2]))
