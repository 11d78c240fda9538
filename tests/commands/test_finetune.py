"""From photos to a model: outputs, resuming and errors of `finetune`."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import MagicMock

import cv2
import numpy as np
import pytest

from fer_vit.cli import printed_log
from fer_vit.commands import finetune as verb
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import MAX_CUT_SIDE
from fer_vit.face.image import decode_image, encode_png
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.recognizer import load
from fer_vit.sources.cartoon import draw_face
from fer_vit.stats import bootstrap
from fer_vit.stats.estimate import Estimate
from fer_vit.store.hub import CARD_FILE, CONFIG_FILE, DEFAULT_MODEL, WEIGHTS_FILE
from fer_vit.store.model_folder import save_network
from fer_vit.tables.table_reader import read_table
from fer_vit.train import recipe
from fer_vit.train.fit import fit
from fer_vit.train.recipe import Recipe
from tests.helpers.commands import fails, main, run

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
    """Shortens `finetune` in every test."""
    shorten(monkeypatch)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """One epoch, few resamples."""
    quick = {"trainer.max_epochs": 1, "data.num_workers": 0, "trainer.enable_progress_bar": False}

    def fit_quickly(config: str, words: Sequence[str], **options: object) -> str:
        return fit(config, words, **options, **quick)

    patch.setattr(recipe, "fit", fit_quickly)
    patch.setattr(bootstrap, "RESAMPLES", 50)


class Made(NamedTuple):
    """The folder that `finetune` has filled, and what it has printed."""

    folder: Path
    printed: str


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A model of the photos, in a folder that YAML would read as a mapping."""
    folder = tmp_path_factory.mktemp("made") / "mine: 1"
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch, printed_log(), redirect_stdout(text):
        shorten(patch)
        run("finetune", photos, "--output", folder)
    return Made(folder, text.getvalue())


def test_finetune_prints_what_it_left_out_and_made(made: Made) -> None:
    for part in (
        "left out: 1 (not an image",
        "left out: 1 (no face found)",
        "1 file (1 .txt)",
        "kept happiness; new stirred",
        "2 validation photos, but 100",
        str(made.folder / "model"),
        str(made.folder / "evaluation" / "index.html"),
    ):
        assert part in made.printed


def test_the_manifest_of_finetune_has_cuts_with_landmarks_in_three_splits(made: Made) -> None:
    rows = Manifest.read(made.folder / "faces.parquet")
    assert Counter(rows.column("split")) == {"train": 16, "val": 2, "test": 2}
    shapes = {decode_image(rows.image_bytes(row)).shape for row in range(len(rows))}
    assert shapes == {(MAX_CUT_SIDE, MAX_CUT_SIDE, 3)}
    assert np.isfinite(rows.landmarks()).all()


def test_the_evaluation_of_finetune_is_of_the_test_split(made: Made) -> None:
    results = json.loads((made.folder / "evaluation" / "results.json").read_text())
    assert results["split"] == "test"
    assert results["faces"] == 2
    assert results["model"] == str(made.folder / "model")
    assert "comparison" not in results  # the default model has no class `stirred`


def test_the_model_of_finetune_is_a_folder_whose_card_has_its_results(made: Made) -> None:
    model = made.folder / "model"
    assert {path.name for path in model.iterdir()} == {
        CARD_FILE,
        CONFIG_FILE,
        WEIGHTS_FILE,
        "face_detection_yunet_2023mar.onnx",
        "landmarks.onnx",
        "NOTICE",
    }
    card = (model / CARD_FILE).read_text()
    assert re.search(r"Results on 2 .*\n\n.*accuracy \d", card)


def test_finetune_again_changes_no_file(
    photos: Path, made: Made, capsys: pytest.CaptureFixture
) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")}
    line = fails(capsys, "finetune", photos, "--output", made.folder)
    for part in (
        "finished",
        str(made.folder / "model"),
        str(made.folder / "evaluation" / "index.html"),
        "`--overwrite`",
    ):
        assert part in line
    assert {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")} == before


def test_the_model_of_finetune_predicts_its_classes(
    photos: Path, made: Made, tmp_path: Path
) -> None:
    table = tmp_path / "faces.csv"
    photo = photos / "stirred" / "3.jpg"
    run("predict", photo, "--checkpoint", made.folder / "model", "--output", table)
    assert {"p_happiness", "p_stirred"} <= {*read_table(table).names}


def test_finetune_replaces_no_other_file_and_ends_before_any_work(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    prepare_manifest = MagicMock()
    monkeypatch.setattr(verb, "prepare_manifest", prepare_manifest)
    notes = tmp_path / "model" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    assert "notes.txt" in fails(capsys, "finetune", photos, "--output", tmp_path, "--overwrite")
    assert not prepare_manifest.called
    assert notes.read_text() == "mine"


def test_finetune_reads_persons_from_photos_alone(
    photos: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "mine"
    manifest = drawn / "faces.parquet"
    line = fails(capsys, "finetune", manifest, "--person", "x", "--output", output)
    assert "`--person`" in line
    line = fails(capsys, "finetune", photos, "--person", "nobody", "--output", output)
    assert "`nobody` matches none" in line


def test_the_key_of_a_run_has_the_weights_of_its_models(drawn: Path, tmp_path: Path) -> None:
    manifest = drawn / "faces.parquet"
    weights = tmp_path / "a.ckpt"
    folder = tmp_path / "a"
    folder.mkdir()
    config = tmp_path / "mine.yaml"
    config.write_text(f"model:\n  init: {weights}\n")
    keys = set()
    for content in (b"1", b"2"):
        weights.write_bytes(content)
        (folder / WEIGHTS_FILE).write_bytes(content)
        keys |= {
            Recipe("finetune").key(manifest, str(weights)),
            Recipe("finetune").key(manifest, str(folder)),
            Recipe("finetune", (f"--model.init={weights}",)).key(manifest),
            Recipe("finetune", ("--model.init", str(weights))).key(manifest),
            Recipe("finetune", (f"--model.teachers=[{folder}, {weights}]",)).key(manifest),
            Recipe(str(config)).key(manifest),
        }
    assert len(keys) == 12


@pytest.mark.parametrize("value", ["x" * 5000, "[", "*a", "\0", "\n\t:", "/dev/zero", "."])
def test_the_key_of_a_run_reads_no_other_value(value: str, drawn: Path) -> None:
    option = f"--trainer.max_time={value}"
    assert len(Recipe("finetune", (option,)).key(drawn / "faces.parquet", value)) == 8


def test_an_interrupted_training_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("prepare", "count_faces", "fit", "load", "write_model", "evaluate_model")
    calls = {name: MagicMock() for name in names}
    calls["count_faces"].return_value = Counter()
    monkeypatch.setattr(verb, "Manifest", MagicMock())
    for name, mock in calls.items():
        module = recipe if name == "fit" else verb
        monkeypatch.setattr(module, name, mock)
    (tmp_path / "photos").mkdir()
    manifest = tmp_path / "faces.parquet"
    manifest.touch()
    (tmp_path / "training").mkdir()
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
    assert calls["prepare"].call_count == 1
    assert calls["count_faces"].call_count == calls["evaluate_model"].call_count == 4
    assert calls["fit"].call_count == calls["write_model"].call_count == 3
    for key in ("", None):  # the disk was full, or the program was killed
        key_file = tmp_path / verb.KEY_FILE
        key_file.unlink()
        if key is not None:
            key_file.write_text(key)
        verb.finetune(tmp_path / "photos", output=tmp_path)
        key_file.write_text(folder.removeprefix("training/"))
    assert calls["fit"].call_count == 3
    other_faces = tmp_path / "other.parquet"
    other_faces.write_bytes(b"other faces")
    for faces, start in ((other_faces, None), (tmp_path / "photos", "ferplus-fairface-small")):
        with pytest.raises(FerVitError, match=r"model already exists"):
            verb.finetune(faces, output=tmp_path, checkpoint=start)
    stopped = (
        tmp_path
        / "training"
        / Recipe("finetune").key(other_faces, DEFAULT_MODEL)
        / "v"
        / "checkpoints"
    )
    stopped.mkdir(parents=True)
    (stopped / "last.ckpt").touch()
    with pytest.raises(FerVitError, match=r"model already exists"):  # from the first run
        verb.finetune(other_faces, output=tmp_path)
    shutil.rmtree(stopped)
    shutil.rmtree(tmp_path / "model")
    verb.finetune(other_faces, output=tmp_path)
    assert "ckpt_path" not in calls["fit"].call_args.kwargs


def test_a_model_card_is_complete_or_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(path: Path, *_: object) -> None:
        path.open("w").close()
        raise OSError(28, "No space left on device")

    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    save_network(build_model(RegionViTConfig(**size, tokens="patch"), ["a", "b"]), tmp_path)
    card = tmp_path / CARD_FILE
    before = card.read_text()
    names = {path.name for path in tmp_path.iterdir()}
    score = Estimate(mean=0.5, low=0.4, high=0.6, n=9)
    lines = verb.result_lines({"This model": {"accuracy": score, "UAR": score}})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fill_disk)
        with pytest.raises(FerVitError, match="No space left"):
            verb.complete_card(card, ["happiness"], lines, 9)
    assert card.read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == names
    verb.complete_card(card, ["happiness"], lines, 9)
    assert "Results on 9 " in card.read_text()


@pytest.mark.slow
def test_a_manifest_without_test_faces_is_evaluated_on_val(tmp_path: Path) -> None:
    names = ("happiness", "anger")
    rows = []
    for name, seed in product(names, range(10)):
        drawn = encode_png(draw_face(name, seed, 48)[0])
        split = "val" if seed < 2 else "train"
        rows.append(Row(drawn, f"{name}-{seed}", split, name))
    write_manifest(tmp_path / "m.parquet", Reading(names, rows), "drawn")
    main(["finetune", str(tmp_path / "m.parquet"), "--output", str(tmp_path / "mine")])
    results = json.loads((tmp_path / "mine" / "evaluation" / "results.json").read_text())
    assert results["split"] == "val"
    assert results["comparison"]["faces"] == 4
    held_out = [row for row in rows if row.split == "val"]
    guesses = load(device="cpu").predict(
        [decode_image(row.image) for row in held_out], face="crop", detector="none"
    )
    labels = [max(names, key=guess.probabilities.__getitem__) for guess in guesses]
    right = [label == row.label for label, row in zip(labels, held_out, strict=True)]
    assert results["comparison"]["other"]["accuracy"]["mean"] == np.mean(right)
    assert f"- {DEFAULT_MODEL}: accuracy " in (tmp_path / "mine" / "model" / CARD_FILE).read_text()
    assert not (tmp_path / "mine" / "faces.parquet").exists()


def test_finetune_refuses_too_few_photos(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
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
