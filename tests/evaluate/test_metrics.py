import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score, recall_score

from fer_vit.errors import FerVitError
from fer_vit.evaluate.labelled import fit_temperature
from fer_vit.evaluate.metrics import class_recall, expression_metrics, metrics_table


def calibration_error(preds: np.ndarray, target: np.ndarray) -> float:
    """Its definition, in 15 bins."""
    confidence, right = preds.max(1), preds.argmax(1) == target
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return error


def test_a_class_without_samples_does_not_pull_the_mean_recall_down() -> None:
    metrics = expression_metrics(3)
    metrics.update(torch.eye(3)[[0, 2, 0]], torch.tensor([0, 1, 0]))  # the last class is predicted, but never true
    recall = class_recall(metrics.compute()["confusion"])
    assert recall[:2].tolist() == [1, 0]
    assert torch.isnan(recall[2])
    assert recall.nanmean().item() == 0.5


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true", "ignore:A single label was found")
@pytest.mark.parametrize("samples", [1, 2, 5, 100])
@pytest.mark.parametrize("true", [(0,), (3,), (0, 2), (1, 2, 3), (0, 1, 2, 3)])
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
    with pytest.raises(FerVitError) as error:
        expression_metrics(1)
    assert str(error.value) == "Expected at least two classes, but got 1. Add images of others."
    expression_metrics(2)


def test_table() -> None:
    table = metrics_table({"accuracy": 0.75, "f1": 1 / 3}, torch.tensor([[3, 1], [0, 0]]), ["anger", "fear"])
    assert table == (
        "| metric | value |\n| --- | ---: |\n| accuracy | 0.7500 |\n| f1 | 0.3333 |\n\n"
        "| expression | images | recall |\n| --- | ---: | ---: |\n| anger | 4 | 0.7500 |\n| fear | 0 | nan |\n"
    )
    with pytest.raises(ValueError, match="zip"):
        metrics_table({}, torch.eye(2), ["anger"])


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
