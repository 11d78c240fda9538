"""From photos to a model: outputs, resuming and errors of `finetune`."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from unittest.mock import MagicMock

import cv2
import numpy as np
import pytest

from fer_vit.commands import finetune as verb
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation import scores
from fer_vit.evaluation.read import read_table
from fer_vit.exporting.formats import FACE_FILES
from fer_vit.face.crop import CUT
from fer_vit.face.image import decode_image, encode_png
from fer_vit.predict.recognizer import load
from fer_vit.sources.drawn import draw_face
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, WEIGHTS
from fer_vit.train import recipe
from fer_vit.train.cli import fit
from tests.helpers.commands import fails, main

CLASSES = {"happiness": "happiness", "stirred": "surprise"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos of two classes, with some that cannot be used."""
    folder = tmp_path_factory.mktemp("photos")
    for name, drawn in CLASSES.items():
        (folder / name).mkdir()
        for number in range(10):
            seed = number + 10 * (name == "stirred")
            spots = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8)
            photo = cv2.resize(spots, (600, 420), interpolation=cv2.INTER_CUBIC)
            photo[50:370, 150:470] = draw_face(drawn, seed, 320, colour=True)[0]
            cv2.imwrite(str(folder / name / f"{number}.jpg"), photo[..., ::-1])
    cv2.imwrite(str(folder / "stirred" / "wall.png"), np.full((60, 60, 3), 90, np.uint8))
    (folder / "stirred" / "broken.jpg").write_bytes(b"no image")
    (folder / "stirred" / "list.txt").touch()
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs, few resamples."""
    quick = {"trainer.max_epochs": 2, "data.num_workers": 0, "trainer.enable_progress_bar": False}

    def fit_quickly(config: str, words: Sequence[str], **options: object) -> str:
        return fit(config, words, **options, **quick)

    monkeypatch.setattr(recipe, "fit", fit_quickly)
    monkeypatch.setattr(scores, "RESAMPLES", 50)


def test_photos_become_a_model(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    mine = tmp_path / "mine: 1"  # which YAML would read as a mapping
    main(["finetune", str(photos), "--output", str(mine)])
    out = capsys.readouterr().out
    for line in (
        "left out: 1 (not an image that can be decoded)",
        "left out: 1 (no face found)",
        "note: not read: 1 file (1 .txt)",
        "kept happiness; new stirred.",
        "Confidence is not calibrated: 2 validation photos, but 100 are needed.",
        f"Your model: {mine / 'model'}\nHow good it is: {mine / 'evaluation' / 'index.html'}",
    ):
        assert line in out
    rows = Manifest.read(mine / "faces.parquet")
    assert Counter(rows.column("split")) == {"train": 16, "val": 2, "test": 2}
    assert {decode_image(rows.image_bytes(row)).shape for row in range(len(rows))} == {
        (CUT, CUT, 3)
    }
    assert np.isfinite(rows.landmarks()).all()
    files = {CARD_FILE, CONFIG, WEIGHTS, *FACE_FILES}
    assert {path.name for path in (mine / "model").iterdir()} == files
    found = json.loads((mine / "evaluation" / "results.json").read_text())
    assert (found["split"], found["faces"], found["model"]) == ("test", 2, str(mine / "model"))
    assert "comparison" not in found  # the included model has no class `stirred`
    card = (mine / "model" / CARD_FILE).read_text()
    assert "Results on 2 held-out photos:\n\n- This model: accuracy " in card

    before = {path: path.stat().st_mtime_ns for path in mine.rglob("*")}
    assert "evaluation exists already" in fails(capsys, "finetune", photos, "--output", mine)
    assert {path: path.stat().st_mtime_ns for path in mine.rglob("*")} == before

    photo, table = photos / "stirred" / "3.jpg", tmp_path / "faces.csv"
    main(["predict", str(photo), "--checkpoint", str(mine / "model"), "--output", str(table)])
    assert {"p_happiness", "p_stirred"} <= {*read_table(table).names}


def test_an_interrupted_training_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {
        name: MagicMock() for name in ("prepare", "check_enough", "fit", "export", "evaluate_model")
    }
    calls["check_enough"].return_value = Counter()
    monkeypatch.setattr(verb, "Manifest", MagicMock())
    for name, mock in calls.items():
        monkeypatch.setattr(recipe if name == "fit" else verb, name, mock)
    (tmp_path / "photos").mkdir()
    manifest = tmp_path / "faces.parquet"
    manifest.touch()
    verb.finetune(tmp_path / "photos", output=tmp_path)
    folder = calls["fit"].call_args.kwargs["trainer.logger"]["init_args"]["name"]
    last = tmp_path / folder / "version_0" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    for overwrite in (False, True):
        verb.finetune(tmp_path / "photos", output=tmp_path, overwrite=overwrite)
        assert calls["prepare"].called == overwrite
        resumed = calls["fit"].call_args.kwargs.get("ckpt_path")
        assert resumed == (None if overwrite else str(last))
    (tmp_path / "model").mkdir()  # interrupted while it was evaluated
    (tmp_path / "model" / "config.json").touch()
    verb.finetune(tmp_path / "photos", output=tmp_path)
    counts = {name: mock.call_count for name, mock in calls.items()}
    assert counts == {"prepare": 1, "check_enough": 4, "fit": 3, "export": 3, "evaluate_model": 4}
    other = tmp_path / "other.parquet"
    other.write_bytes(b"other faces")
    for faces, start in ((other, None), (tmp_path / "photos", "ferplus-small")):
        with pytest.raises(FerVitError, match=r"model exists already"):
            verb.finetune(faces, output=tmp_path, checkpoint=start)
    shutil.rmtree(tmp_path / "model")
    verb.finetune(other, output=tmp_path)
    assert "ckpt_path" not in calls["fit"].call_args.kwargs


@pytest.mark.slow
def test_a_manifest_without_test_faces_is_evaluated_on_val(tmp_path: Path) -> None:
    names, rows = ("happiness", "anger"), []
    for name, seed in product(names, range(10)):
        drawn = encode_png(draw_face(name, seed, 48)[0])
        rows.append(Row(drawn, f"{name}-{seed}", "val" if seed < 2 else "train", name))
    write_manifest(tmp_path / "m.parquet", Reading(names, rows), "drawn")
    main(["finetune", str(tmp_path / "m.parquet"), "--output", str(tmp_path / "mine")])
    found = json.loads((tmp_path / "mine" / "evaluation" / "results.json").read_text())
    assert (found["split"], found["comparison"]["faces"]) == ("val", 4)
    held_out = [row for row in rows if row.split == "val"]
    guesses = load(device="cpu").predict(
        [decode_image(row.image) for row in held_out], face="crop", detector="none"
    )
    labels = [max(names, key=guess.probabilities.__getitem__) for guess in guesses]
    right = [label == row.label for label, row in zip(labels, held_out, strict=True)]
    assert found["comparison"]["other"]["accuracy"]["mean"] == np.mean(right)
    assert f"- {DEFAULT}: accuracy " in (tmp_path / "mine" / "model" / CARD_FILE).read_text()
    assert not (tmp_path / "mine" / "faces.parquet").exists()


def test_too_few_photos(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    for number in range(5):
        (tmp_path / "photos" / "stirred" / f"{number}.jpg").unlink()
    line = fails(capsys, "finetune", tmp_path / "photos", "--output", tmp_path / "mine")
    assert " 8 " in line
    assert "4 of stirred" in line
    assert not (tmp_path / "mine" / "model").exists()
    drawn = encode_png(draw_face("neutral", 0, 48)[0])
    rows = [Row(drawn, f"{name}{number}", "train", name) for name in CLASSES for number in range(9)]
    write_manifest(tmp_path / "m.parquet", Reading(tuple(CLASSES), rows), "drawn")
    line = fails(capsys, "finetune", tmp_path / "m.parquet", "--output", tmp_path / "mine")
    assert "epoch" in line
