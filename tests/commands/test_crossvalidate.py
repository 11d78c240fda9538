import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix

import fer_vit
from fer_vit import load
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.errors import FerVitError
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.stats import bootstrap
from fer_vit.tables.labelled import Labelled
from tests.helpers.commands import fails, run
from tests.helpers.logits import labelled_logits


@pytest.fixture(scope="module")
def whole(
    drawn: Path, config: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The output of an uninterrupted run of two folds, and its results."""
    output = tmp_path_factory.mktemp("whole") / "cv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "RESAMPLES", 100)
        results = fer_vit.crossvalidate(
            drawn / "faces.parquet", config=str(config), folds=2, output=output
        )
    return output, results.to_dict()


def test_a_missing_column_is_reported_before_the_training(
    drawn: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []
    monkeypatch.setattr("fer_vit.commands.crossvalidate.Recipe.fit", fitted.append)
    with pytest.raises(
        FerVitError, match=r"no column `gone` in .* It has label, .*near_duplicate\.$"
    ):
        fer_vit.crossvalidate(
            drawn / "faces.parquet", config=str(config), by=["gone"], output=tmp_path / "cv"
        )
    assert fitted == []


def test_each_face_is_predicted_by_the_model_that_has_not_learned_it(
    drawn: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    output, results = whole
    faces = drawn / "faces.parquet"
    rows = Manifest.read(faces).split("train")
    truth = []
    guess = []
    for fold in range(2):
        (best,) = (output / "training").glob(f"*/fold{fold}/*/checkpoints/best.ckpt")
        assert torch.load(best, weights_only=True)["FaceDataModule"]["fold"] == f"{fold}/2"
        logits, targets = labelled_logits(load(best, "cpu"), faces, "train")
        held_out = in_fold(rows, f"{fold}/2")
        truth.append(targets.argmax(1)[held_out])
        guess.append(logits.argmax(1)[held_out])
        score = results["by_fold"][str(fold)]["accuracy"]
        assert score["mean"] == pytest.approx(accuracy_score(truth[-1], guess[-1]))
        assert score["faces"] == held_out.sum()
    every = confusion_matrix(np.concatenate(truth), np.concatenate(guess), labels=range(8))
    assert results["confusion"] == every.tolist()
    assert results["all"]["accuracy"]["mean"] == pytest.approx(every.trace() / len(rows))
    assert (output / "evaluation" / "index.html").exists()


def test_folds_are_a_table_without_tests(whole: tuple[Path, dict[str, Any]]) -> None:
    output, results = whole
    assert "by" not in results
    written = json.loads((output / "evaluation" / "results.json").read_text())
    assert written["folds"] == "2"
    assert [*written["by_fold"]] == ["0", "1"]
    page = (output / "evaluation" / "results.md").read_text()
    (section,) = [part for part in page.split("\n## ") if part.startswith("By fold")]
    head, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    columns = [cell.strip() for cell in head.split("|")]
    assert {"fold", "faces", "accuracy"} <= {*columns}
    assert not {"p", "difference", "worst", "best", "gap"} & {*columns}
    assert [row.split("|")[1].strip() for row in rows] == ["0", "1"]
    for words in ("Fisher", "Worst", "gap"):
        assert words not in section


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "already exists"),
        (["--folds=1", "--overwrite"], "from 2 to 100"),
        (["--folds=100", "--overwrite"], "fewer folds"),
    ],
)
def test_crossvalidate_refuses(
    words: list[str],
    part: str,
    drawn: Path,
    config: Path,
    whole: tuple[Path, dict[str, Any]],
    capsys: pytest.CaptureFixture,
) -> None:
    output, _ = whole
    before = {path for path in output.rglob("*") if path.is_file()}
    command = ("crossvalidate", drawn / "faces.parquet", "--config", config, "--output", output)
    assert part in fails(capsys, *command, *words)
    assert before == {path for path in output.rglob("*") if path.is_file()}


def test_a_folder_with_other_files_is_refused_before_training(
    drawn: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "notes.txt").touch()
    command = ("crossvalidate", drawn / "faces.parquet", "--config", config, "--output", tmp_path)
    assert "notes.txt" in fails(capsys, *command)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_notes_of_crossvalidate_are_printable(
    drawn: Path,
    config: Path,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A note lists the labels, here with a control character, if no label has the most votes."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 100)
    output, _ = whole
    shutil.copytree(output / "training", tmp_path / "cv" / "training")  # nothing is trained again

    def predict_tied(*arguments: Any) -> Labelled:
        faces = predict_manifest(*arguments)
        labels = [f"{label}\x1b[2J\n" for label in faces.labels]
        return replace(faces, labels=labels, targets=np.full_like(faces.targets, 1 / len(labels)))

    monkeypatch.setattr("fer_vit.commands.crossvalidate.predict_manifest", predict_tied)
    fer_vit.crossvalidate(
        drawn / "faces.parquet", config=str(config), folds=2, output=tmp_path / "cv"
    )
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    (note,) = [record.message for record in warnings if "[2J" in record.message]
    assert note.isprintable()


@pytest.mark.slow
def test_an_interrupted_run_resumes_with_the_same_scores(
    drawn: Path,
    config: Path,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 100)
    faces = drawn / "faces.parquet"
    options = {"config": str(config), "folds": 2}
    before, expected = whole
    # as a run leaves it that is interrupted in the second fold
    shutil.copytree(before / "training", tmp_path / "cv" / "training")
    (second,) = (tmp_path / "cv" / "training").glob("*/fold1")
    shutil.rmtree(second)
    caplog.set_level("INFO", "fer_vit")
    results = fer_vit.crossvalidate(faces, output=tmp_path / "cv", **options)
    assert results.to_dict()["all"] == expected["all"]
    resumed = [message for message in caplog.messages if "resumes from" in message]
    assert len(resumed) == 1
    assert "fold0" in resumed[0]


@pytest.mark.slow
def test_options_of_fit_change_every_fold(
    drawn: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["crossvalidate", drawn / "faces.parquet", "--config", config, "--folds", "2"]
    words += ["--output", tmp_path / "cv"]
    run(*words, "--model.lr", "0.02", "--model.region_dropout=0.1")
    for fold in range(2):
        (best,) = (tmp_path / "cv" / "training").glob(f"*/fold{fold}/*/checkpoints/best.ckpt")
        hyper = torch.load(best, weights_only=True)["hyper_parameters"]
        assert hyper["lr"] == 0.02
        assert hyper["region_dropout"] == 0.1
    words[-1] = tmp_path / "other"
    assert "data.fold" in fails(capsys, *words, "--data.fold=0/3")
    assert "trainer.logger" in fails(capsys, *words, "--trainer.logger", "false")
    assert "--model.lr" in fails(capsys, *words, "--model.lrr=1")
    assert not list((tmp_path / "other").rglob("*.ckpt"))


def test_a_person_is_in_one_fold(drawn: Path, tmp_path: Path) -> None:
    table = pq.read_table(drawn / "faces.parquet")
    faces = tmp_path / "m.parquet"
    persons = [None if row % 7 == 0 else f"person {row % 5}" for row in range(len(table))]
    pq.write_table(table.append_column("person", pa.array(persons)), faces)
    rows = Manifest.read(faces).split("train")
    folds = np.array([in_fold(rows, f"{index}/3") for index in range(3)])
    assert (folds.sum(0) == 1).all()
    owners = np.array(rows.column("person"))
    assert all(len(set(folds[:, owners == f"person {n}"].argmax(0))) == 1 for n in range(5))
