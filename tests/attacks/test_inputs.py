"""Inputs of commands that fit the type of an option and are wrong: other files, impossible numbers,
columns that cannot be meant.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import FARTHEST, Reading, Row, write_manifest
from fer_vit.errors import FerVitError, TableError
from fer_vit.evaluation.read import read_table
from fer_vit.face.image import encode_png
from fer_vit.geometry import LANDMARKS
from fer_vit.train.datamodule import FaceDataModule
from tests.helpers.commands import TINY, run

NAMES = ("neutral", "anger")
POINTS = np.arange(2.0 * len(LANDMARKS)).reshape(-1, 2)
FACE = Row(encode_png(np.zeros((32, 32), np.uint8)), "a", "train", "anger", None, POINTS, 0.9)


def write(path: Path, *rows: Row) -> Path:
    write_manifest(path, Reading(NAMES, list(rows)), "made")
    return path


@pytest.mark.parametrize("name", ["", "results", "faces.part", "faces", "/dev/null", "-"])
def test_what_is_no_table_by_its_name_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "faces.part").write_text("path,confidence\n")
    with pytest.raises(TableError, match="Expected a table"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_a_folder_of_photos_is_no_table(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((8, 8), np.uint8)))
    by = ["--by", "condition"]
    with pytest.raises(SystemExit) as end:
        run(command, tmp_path, *by, "--output", tmp_path / "results")
    assert end.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_persons_cannot_be_the_conditions(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = ["--by", "group", "--person", "group", "--output", tmp_path / "results"]
    with pytest.raises(SystemExit):
        run("compare", tmp_path / "faces.csv", *options)
    assert "different columns" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [
        {"landmarks": POINTS + 1e30},
        {"landmarks": POINTS - 2 * FARTHEST},
        {"landmarks": np.full_like(POINTS, 5)},
        {"score": np.inf},
        {"score": -np.inf},
    ],
)
def test_landmarks_and_scores_that_no_face_has(changed: dict, tmp_path: Path) -> None:
    path = write(tmp_path / "faces.parquet", FACE, replace(FACE, **changed))
    (column,) = changed
    with pytest.raises(FerVitError, match=f"row 1, column `{column}`"):
        Manifest.read(path)


def test_landmarks_outside_a_photo_are_accepted(tmp_path: Path) -> None:
    far = replace(FACE, landmarks=POINTS - 500, score=None)
    assert len(Manifest.read(write(tmp_path / "faces.parquet", FACE, far))) == 2


def test_training_faces_of_one_class_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fer_vit")
    other = replace(FACE, label="neutral")
    for number, rows in enumerate([[FACE], [FACE, other], [FACE, replace(other, split="val")]]):
        caplog.clear()
        FaceDataModule(write(tmp_path / f"{number}.parquet", *rows)).setup("fit")
        assert ("label anger" in caplog.text) == (number != 1)


def test_a_run_without_a_best_checkpoint_ends_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = replace(FACE, label="neutral")
    path = write(tmp_path / "faces.parquet", FACE, other, replace(FACE, split="val"))
    options = ["--trainer.limit_val_batches=0", "--trainer.logger=false"]
    run("fit", "--data.manifest", path, *TINY, *options)
    assert "No best checkpoint" in capsys.readouterr().out
