"""Data at the edge: every run works with finite figures, or ends with one line."""

import math
from pathlib import Path

import cv2
import lightning as L
import numpy as np
import pyarrow.parquet as pq
import pytest
from skimage.data import astronaut

from fer_vit import load
from fer_vit.data.schema import Reading, Row, Split, write_manifest
from fer_vit.face.image import encode_png
from fer_vit.labels import EXPRESSIONS
from fer_vit.predict import recognizer
from fer_vit.sources.cartoon import draw_face
from tests.helpers.commands import TINY, build_fit, fails, fit, main

ALL = EXPRESSIONS[:3]
BLACK, WHITE = (encode_png(np.full((48, 48), value, np.uint8)) for value in (0, 255))
CONV = ["--model.network.stem=conv", "--model.network.region_source=stem"]
MIX = ["--model.region_dropout=0.5"]
ADJUSTED = ["--model.logit_adjust=1"]


def face(label: str, seed: int, split: Split, landmarks: bool = True) -> Row:
    image, points = draw_face(label, seed, 48)
    known = points if landmarks else None
    return Row(encode_png(image), f"{label}-{seed}", split, label, landmarks=known)


def faces(
    train: tuple[str, ...], val: tuple[str, ...], each: int = 3, landmarks: bool = True
) -> list[Row]:
    splits: list[tuple[Split, tuple[str, ...]]] = [("train", train), ("val", val)]
    return [
        face(label, seed, split, landmarks)
        for split, names in splits
        for label in names
        for seed in range(each)
    ]


def evenly(image: bytes) -> list[Row]:
    return [
        Row(image, f"{k}.png", split, label)
        for k, split in enumerate(("train", "val"))
        for label in ALL
    ]


REGIONS_ONLY = ["--model.network.tokens=region", "--model.align=crop"]
EDGES = {
    "a class missing from train": (faces(ALL[:2], ALL), ADJUSTED),
    "labels all equal": (faces(ALL[:1], ALL[:1]), ["--data.balanced=true", *MIX]),
    "batches of one": (faces(ALL, ALL), [*CONV, *MIX, "--data.batch_size=1"]),
    "no landmarks, only regions": (faces(ALL, ALL, landmarks=False), REGIONS_ONLY),
    "black images": (evenly(BLACK), CONV),
}


@pytest.mark.parametrize(("rows", "words"), EDGES.values(), ids=EDGES)
def test_training_at_the_edge(rows: list[Row], words: list[str], tmp_path: Path) -> None:
    write_manifest(tmp_path / "faces.parquet", Reading(ALL, rows), "drawn")
    task, data = build_fit(*TINY, *words, f"--data.manifest={tmp_path / 'faces.parquet'}")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    trainer = L.Trainer(max_steps=2, default_root_dir=tmp_path, **quiet)
    trainer.fit(task, data)
    trainer.validate(task, data)
    logged = {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if name.startswith("val/")
    }
    assert all(0 <= logged[f"val/{name}"] <= 1 for name in ("accuracy", "f1", "ece", "uar"))
    assert math.isfinite(logged["val/loss"])
    assert task.confusion.sum() == sum(row.split == "val" for row in rows)


def test_one_class_is_nothing_to_learn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_manifest(tmp_path / "faces.parquet", Reading(ALL[:1], faces(ALL[:1], ALL[:1])), "drawn")
    line = fails(capsys, "fit", *TINY, f"--data.manifest={tmp_path / 'faces.parquet'}")
    assert "two classes" in line
    assert " 1" in line


@pytest.mark.slow
def test_two_classes_from_training_to_the_page(tmp_path: Path) -> None:
    names = ALL[:2]
    write_manifest(tmp_path / "faces.parquet", Reading(names, faces(names, names)), "drawn")
    checkpoint = fit(tmp_path / "faces.parquet", tmp_path, *TINY, *MIX)
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, data in {
        "black": BLACK,
        "white": WHITE,
        "face": encode_png(draw_face(names[0], 0, 48)[0]),
    }.items():
        (photos / f"{name}.png").write_bytes(data)
    words = [str(photos), "--face=crop", "--detector=none", f"--checkpoint={checkpoint}"]
    main(["predict", *words, f"--output={tmp_path / 'table.parquet'}"])
    table = pq.read_table(tmp_path / "table.parquet").to_pylist()
    assert len(table) == 3
    for row in table:
        assert sum(row[f"p_{name}"] for name in names) == pytest.approx(1, abs=1e-6)
    main(["visualize", *words, f"--output={tmp_path / 'report'}"])
    shown = pq.read_table(tmp_path / "report" / "faces.parquet").to_pylist()
    for row in shown:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(math.isfinite(number) for number in numbers)
    assert "NaN" not in (tmp_path / "report" / "index.html").read_text()


SMALL_CHUNK = 8
"""Faces that the model classifies at once in this test; otherwise 64."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photos with no face, one, two and more than SMALL_CHUNK, and a damaged file."""
    folder = tmp_path_factory.mktemp("photos")
    woman = astronaut()
    small = cv2.resize(woman[:300, 80:380], (120, 120), interpolation=cv2.INTER_AREA)
    pictures = {
        "crowd": np.tile(small, (3, 4, 1)),
        "empty": np.full((300, 200, 3), 90, np.uint8),
        "two": np.hstack([woman, np.ascontiguousarray(woman[:, ::-1])]),
        "woman": woman,
    }
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(encode_png(picture))
    (folder / "broken.jpg").write_bytes(b"no image")
    return sorted(folder.iterdir())


@pytest.mark.filterwarnings("ignore:1 of 5 images")
def test_a_prediction_is_its_photos_own(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognizer, "FACES_PER_PASS", SMALL_CHUNK)
    model = load(device="cpu")
    expected = {photo: model.predict(photo) for photo in photos if photo.suffix == ".png"}
    assert len(expected[photos[0].with_name("crowd.png")]) > SMALL_CHUNK
    assert [
        len(expected[photos[0].with_name(f"{name}.png")]) for name in ("empty", "woman", "two")
    ] == [0, 1, 2]
    shuffled = [photos[index] for index in np.random.default_rng(0).permutation(len(photos))]
    for order, batch_size, workers in ((photos[::-1], 3, 0), (shuffled, 1, 1)):
        predicted = model.predict(order, batch_size=batch_size, workers=workers)
        assert [face.path for face in predicted] == [
            str(path) for path in order for _ in expected.get(path, [])
        ]
        for path, faces in expected.items():
            for mine, alone in zip(
                [face for face in predicted if face.path == str(path)], faces, strict=True
            ):
                assert mine.probabilities == pytest.approx(alone.probabilities, rel=1e-3)
                np.testing.assert_allclose(mine.box, alone.box, atol=1e-3)
