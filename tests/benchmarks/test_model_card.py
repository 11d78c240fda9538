import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score

from benchmarks import model_card
from benchmarks.model_card import calibration, intervals, main, summary
from tests.helpers.commands import main as fer_vit


def test_the_summary_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    target, guess = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    ours = model_card.confusion_matrix(target, guess, 4)
    assert (ours == confusion_matrix(target, guess)).all()
    expected = [
        accuracy_score(target, guess),
        f1_score(target, guess, average="macro"),
        balanced_accuracy_score(target, guess),
    ]
    assert summary(ours) == pytest.approx(expected)
    # A class that is neither there nor guessed does not count.
    wider = model_card.confusion_matrix(target, guess, 5)
    assert summary(wider) == pytest.approx(expected)


def test_intervals_have_the_width_of_a_binomial() -> None:
    rng = np.random.default_rng(1)
    target = rng.integers(0, 2, 1000)
    guess = np.where(rng.random(1000) < 0.8, target, 1 - target)
    low, high = intervals(target, guess, 2)[:, 0]
    assert low < (target == guess).mean() < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.8 * 0.2 / 1000), rel=0.1)


def test_calibration_is_better_with_the_right_temperature() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4000, 3) * 2
    target = torch.distributions.Categorical(logits=logits).sample()
    raw, fitted, crossed = calibration(3 * logits, target, 3.0)
    assert raw > 0.1
    assert fitted < 0.03
    assert crossed < 0.03


@pytest.mark.slow
def test_the_card_is_written_and_rewritten(
    drawn: Path, checkpoint: Path, tmp_path: Path, yunet_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny"
    fer_vit(["export", str(folder), "--checkpoint", str(checkpoint), "--calibrate", str(drawn / "faces.parquet")])
    card = folder / "README.md"
    card.write_text(card.read_text() + f"\nWhat it is.\n\n{model_card.BEGIN}\nstale\n{model_card.END}\n\nThe end.\n")
    monkeypatch.setattr(model_card, "RESAMPLES", 20)
    monkeypatch.setattr("sys.argv", ["model_card", str(drawn / "faces.parquet"), str(folder), "--write"])
    main()
    text, data = card.read_text(), ModelCard.load(card).data
    assert "stale" not in text
    assert text.index("What it is.") < text.index("| expression | images | recall |") < text.index("The end.")
    assert data.model_name == "tiny"
    assert {result.metric_name for result in data.eval_results} == {"accuracy", "macro F1", "UAR"}
    shutil.copy(card, tmp_path / "once.md")
    monkeypatch.setattr(model_card, "seconds_per_face", lambda model: [0.001])
    main()
    lines = [line for line in card.read_text().splitlines() if "One face on" not in line]
    assert lines == [line for line in (tmp_path / "once.md").read_text().splitlines() if "One face on" not in line]
