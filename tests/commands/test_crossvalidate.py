from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from sklearn.metrics import accuracy_score, confusion_matrix

import fer_vit
from fer_vit import load
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.evaluation import scores
from fer_vit.evaluation.faces import evaluate_logits
from tests.helpers.commands import TINY, fails


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A tiny network that is trained for two steps, as a config."""
    pairs = [word.removeprefix("--").split("=") for word in TINY]
    options = {name: yaml.safe_load(value) for name, value in pairs}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(options))
    return tmp_path / "tiny.yaml"


def test_each_face_is_predicted_by_the_model_that_has_not_learned_it(
    drawn: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(scores, "RESAMPLES", 100)
    faces = drawn / "faces.parquet"
    options = {"config": str(config), "folds": 2, "output": tmp_path / "cv"}
    found = fer_vit.crossvalidate(faces, **options)
    rows = Manifest.read(faces).split("train")
    truth, guess = [], []
    for fold in range(2):
        (best,) = (tmp_path / "cv" / "training").glob(f"*/fold{fold}/*/checkpoints/best.ckpt")
        assert torch.load(best, weights_only=True)["FaceDataModule"]["fold"] == f"{fold}/2"
        logits, targets = evaluate_logits(load(best, "cpu"), faces, "train")
        held_out = in_fold(rows, f"{fold}/2")
        truth.append(targets.argmax(1)[held_out])
        guess.append(logits.argmax(1)[held_out])
        score = found["by"]["fold"]["groups"][str(fold)]["accuracy"]
        assert score["mean"] == pytest.approx(accuracy_score(truth[-1], guess[-1]))
        assert score["faces"] == held_out.sum()
    every = confusion_matrix(np.concatenate(truth), np.concatenate(guess), labels=range(8))
    assert found["confusion"] == every.tolist()
    assert found["all"]["accuracy"]["mean"] == pytest.approx(every.trace() / len(rows))
    assert (tmp_path / "cv" / "evaluation" / "index.html").exists()
    words = ("crossvalidate", faces, "--config", config, "--output", tmp_path / "cv")
    assert "exists already" in fails(capsys, *words)
    assert "folds to be from 2 to 100, but got 1" in fails(
        capsys, *words, "--folds=1", "--overwrite"
    )
    assert "but one is empty. Use fewer folds" in fails(
        capsys, *words, "--folds=100", "--overwrite"
    )


def test_an_interrupted_run_resumes_with_the_same_scores(
    drawn: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(scores, "RESAMPLES", 100)
    faces = drawn / "faces.parquet"
    options = {"config": str(config), "folds": 2}
    expected = fer_vit.crossvalidate(faces, output=tmp_path / "whole", **options)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fer_vit.commands.crossvalidate.predict_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fer_vit.crossvalidate(faces, output=tmp_path / "cv", **options)
    caplog.set_level("INFO", "fer_vit")
    found = fer_vit.crossvalidate(faces, output=tmp_path / "cv", **options)
    assert found["all"] == expected["all"]
    resumed = [message for message in caplog.messages if "resumes from" in message]
    assert len(resumed) == 1
    assert "0/2" in resumed[0]


def test_a_person_is_in_one_fold(drawn: Path, tmp_path: Path) -> None:
    table, faces = pq.read_table(drawn / "faces.parquet"), tmp_path / "m.parquet"
    persons = [None if row % 7 == 0 else f"person {row % 5}" for row in range(len(table))]
    pq.write_table(table.append_column("person", pa.array(persons)), faces)
    rows = Manifest.read(faces).split("train")
    folds = np.array([in_fold(rows, f"{index}/3") for index in range(3)])
    assert (folds.sum(0) == 1).all()
    owners = np.array(rows.column("person"))
    assert all(len(set(folds[:, owners == f"person {n}"].argmax(0))) == 1 for n in range(5))
