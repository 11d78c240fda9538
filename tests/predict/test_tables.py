"""A folder of tables: its chunks, and the check of the tables that exist."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pil

from fer_vit.faces import PhotoInfo, no_faces
from fer_vit.predict.outputs import Outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import load
from fer_vit.predict.tables import predict_table
from tests.helpers.commands import fails, run
from tests.helpers.faces import make_faces, tiny_recognizer, write_tables
from tests.helpers.killed import leave_remains
from tests.helpers.models import small_model

FIRST = "part-00000-of-00002.parquet"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four files, of which the second one is no photo, and the last two have odd names."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in (b"0.png", b"2.png", b"\xff.png", "line\nbreak, ü.png".encode()):
        Pil.new("RGB", (20, 20)).save(folder / os.fsdecode(name))
    (folder / "1.png").write_text("text")
    return folder


@pytest.fixture
def words(photos: Path, checkpoint: Path, tmp_path: Path) -> list[object]:
    """The words of a command that writes two tables of three files each."""
    crops = ["--face=crop", "--detector=none", "--workers=0", f"--checkpoint={checkpoint}"]
    return ["predict", photos, *crops, "--part_size=3", f"--output={tmp_path / 'out'}"]


def test_images_by_table(tmp_path: Path, words: list[object], photos: Path) -> None:
    """A video has its own table, and names that are no Unicode are those of the files."""
    (photos / "1b.mp4").write_text("no video")
    run(*words)
    tables = sorted((tmp_path / "out").iterdir())
    names = [f"part-0000{number}-of-00003.parquet" for number in range(3)]
    assert [path.name for path in tables] == names
    paths = [pq.read_table(path)["path"].to_pylist() for path in tables]
    assert [Path(path).name for path in paths[0]] == ["0.png", "1.png"]
    assert [Path(path).name for path in paths[1]] == ["1b.mp4"]
    assert len({*paths[2]}) == 3
    run(*words)  # the names are found again


def test_each_rank_predicts_its_own_tables(
    drawn: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    crops = ["--face=crop", "--detector=none", "--workers=0", f"--checkpoint={checkpoint}"]
    out.mkdir()
    # the remains of a table that is not written again
    killed = leave_remains(out / "part-00000-of-00009.parquet")
    monkeypatch.setenv("WORLD_SIZE", "3")
    by_rank = []
    for rank in range(3):
        before = {*out.iterdir()}
        monkeypatch.setenv("RANK", str(rank))
        run("predict", drawn / "faces/val", f"--output={out}", "--part_size=4", *crops)
        by_rank.append(sorted({*out.iterdir()} - before))
    assert not killed.exists()
    tables = sorted(out.iterdir())
    assert by_rank == [tables[rank::3] for rank in range(3)]
    rows = [row for table in tables for row in pq.read_table(table).to_pylist()]
    assert [row["path"] for row in rows] == sorted(map(str, drawn.glob("faces/val/*/*.png")))


def test_a_photo_without_a_face_has_a_row_beside_columns_of_features(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    Pil.new("RGB", (60, 60)).save(empty)
    broken = tmp_path / "text.png"
    broken.write_text("a")
    table = tmp_path / "faces.csv"
    model = load(small_model(regions=("mouth",)))
    options = PhotoOptions(workers=0)
    photos = model.recognize([empty, broken], options)
    predict_table(model, photos, [empty, broken], options, Outputs(table, features=True))
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [str(empty), str(broken)]
    features = [name for name in rows[0] if name.startswith("feature_")]
    assert features == [f"feature_{index}" for index in range(32)]
    assert {row[name] for row in rows for name in features} == {""}
    faces = model.predict(np.zeros((60, 60, 3), np.uint8), workers=0)
    assert faces.table(features=True)["feature_31"] == [None]


def change(path: Path, order: list[int], **facts: str) -> None:
    """Writes a table again with its rows in another order, and other facts."""
    table = pq.read_table(path)
    known = dict(pq.ParquetFile(path).metadata.metadata)
    known |= {f"fer_vit.{name}".encode(): value.encode() for name, value in facts.items()}
    known.pop(b"ARROW:schema", None)
    pq.write_table(table.take(order).replace_schema_metadata(known), path)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 2, 2], [1, 2, 0], [1, 0, 2]])
def test_tables_of_other_images_are_refused(
    order: list[int], words: list[object], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run(*words)
    change(tmp_path / "out" / FIRST, [0, 1, 2])
    run(*words)  # nothing was changed
    change(tmp_path / "out" / FIRST, order)
    line = fails(capsys, *words)
    assert "each once and in order" in line
    assert FIRST in line


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("thesis.txt", Path.touch, f"{FIRST} to part-00001-of-00002.parquet"),
        ("part-00000-of-00004.parquet", Path.touch, "part-00000-of-00004.parquet"),
        (FIRST, Path.touch, FIRST),
        (FIRST, lambda path: pq.write_table(pa.table({"a": [1]}), path), "cannot be read"),
    ],
)
def test_other_and_damaged_files_among_tables_are_refused(
    name: str,
    write: Callable[[Path], Any],
    message: str,
    words: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out" / name)
    line = fails(capsys, *words)
    assert message in line
    assert name in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_photos_and_people_of_a_table_are_counted_once(tmp_path: Path) -> None:
    """A table of people is written on request."""
    video = [
        make_faces(("a", "b"), [[0.6, 0.4]], frame=n, seconds=n / 10, track=[1], smoothed=True)
        for n in range(3)
    ]
    status = no_faces([PhotoInfo("a.mp4", "damaged")], video[0].scheme)
    for people in (None, tmp_path / "people.csv"):
        outputs = Outputs(tmp_path / "faces.csv", people)
        write_tables([*video, status], [Path("a.mp4")], outputs, ("a", "b"))
        assert len((tmp_path / "faces.csv").read_text().splitlines()) == 5
    assert len((tmp_path / "people.csv").read_text().splitlines()) == 2
    assert tiny_recognizer(("a", "b")).labels == ["a", "b"]
