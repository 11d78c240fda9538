"""Inputs of commands that fit the type of an option and are wrong: other files, impossible numbers,
columns that cannot be meant.
"""

from dataclasses import replace
from errno import ENOENT
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError, TableError
from fer_vit.face.image import encode_png
from fer_vit.files import atomic_write
from fer_vit.geometry import LANDMARKS
from fer_vit.tables.table_reader import read_table
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


@pytest.mark.parametrize(
    "words",
    [
        "predict photos --output taken/faces.csv",
        "predict photos --output taken/a/b/faces.csv",
        "prepare folder photos taken/faces.parquet",
        "crossvalidate faces.parquet --output taken",
        "repeat faces.parquet --output taken/runs",
        "export taken/model",
        "finetune photos --output taken/model",
        "compare faces.csv --by condition --output taken/results",
    ],
)
def test_no_output_lies_in_a_file(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture = encode_png(np.zeros((8, 8), np.uint8))
    for label in NAMES:
        (tmp_path / "photos" / label).mkdir(parents=True)
        (tmp_path / "photos" / label / "a.png").write_bytes(picture)
    write(tmp_path / "faces.parquet", FACE, replace(FACE, split="val"))
    (tmp_path / "taken").write_text("kept")
    before = {*tmp_path.rglob("*")}
    with pytest.raises(SystemExit) as end:
        run(*words.split())
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "taken is " in error
    assert (tmp_path / "taken").read_text() == "kept"
    assert {*tmp_path.rglob("*")} == before


def test_classes_that_a_manifest_does_not_have_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write(tmp_path / "faces.parquet", replace(FACE, split="val"))
    with pytest.raises(SystemExit):
        run("evaluate", path, "--classes", "joy", "--output", tmp_path / "results")
    error = capsys.readouterr().err
    assert "joy" in error
    assert "neutral, anger" in error


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
        {"landmarks": POINTS - 2e6},
        {"landmarks": np.full_like(POINTS, 5)},
        {"score": np.inf},
        {"score": -np.inf},
    ],
)
def test_landmarks_and_scores_that_no_face_has(changed: dict, tmp_path: Path) -> None:
    path = write(tmp_path / "faces.parquet", FACE, replace(FACE, **changed))
    (column,) = changed
    with pytest.raises(FerVitError, match=rf"row 1 \(from 0\), column `{column}`"):
        Manifest.read(path)


def test_landmarks_outside_a_photo_are_accepted(tmp_path: Path) -> None:
    far = replace(FACE, landmarks=POINTS - 500, score=None)
    assert len(Manifest.read(write(tmp_path / "faces.parquet", FACE, far))) == 2


def test_training_faces_of_one_class_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fer_vit")
    neutral = replace(FACE, label="neutral")
    for number, rows in enumerate([[FACE], [FACE, neutral], [FACE, replace(neutral, split="val")]]):
        caplog.clear()
        FaceDataModule(write(tmp_path / f"{number}.parquet", *rows)).setup("fit")
        assert ("label anger" in caplog.text) == (number != 1)


def test_a_run_without_a_best_checkpoint_ends_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    neutral = replace(FACE, label="neutral")
    path = write(tmp_path / "faces.parquet", FACE, neutral, replace(FACE, split="val"))
    options = ["--trainer.limit_val_batches=0", "--trainer.logger=false"]
    run("fit", "--data.manifest", path, *TINY, *options)
    assert "No best checkpoint" in capsys.readouterr().out


def test_parents_that_other_processes_remove_and_make_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes that fail at once: a parent is gone when it is needed, and there again."""
    mkdir, lost = Path.mkdir, []

    def make(path: Path, *words: object, **options: object) -> None:
        if path.name == "new" or len(lost) == 6:
            mkdir(path, *words, **options)
            return
        lost.append(path)
        raise FileNotFoundError(ENOENT, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "mkdir", make)
    with atomic_write(tmp_path / "a" / "faces.csv") as file:
        file.write_text("path")
    assert (tmp_path / "a" / "faces.csv").read_text() == "path"
    assert len(lost) == 6
    with pytest.raises(FerVitError, match="Cannot write"), atomic_write(Path("/proc/a/faces.csv")):
        pass
