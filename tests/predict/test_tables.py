"""A folder of tables: the chunks, and the check of the tables that exist."""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pil

from fer_vit import files
from fer_vit.errors import FerVitError
from fer_vit.predict.outputs import Outputs
from fer_vit.predict.people import People
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import load
from fer_vit.predict.table_folder import Checked, check_written_tables, plan_tables
from fer_vit.predict.tables import predict_table
from fer_vit.report.table import TableWriter
from fer_vit.tables.table_reader import find_tables
from tests.helpers.commands import main
from tests.helpers.models import small_model

FACTS = {"model": "abc", "detector": "yunet"}
NAMES = [Path(f"photos/{number}.jpg") for number in range(7)]
ONCE = [("0", 0), ("0", 1), ("1", None), ("2", 0)]


def write(table: Path, rows: list[tuple[str, int | None]]) -> None:
    with TableWriter(table, {"path": str, "face": int, "status": str}, facts=FACTS) as writer:
        for name, face in rows:
            status = "no face" if face is None else "ok"
            writer.write([{"path": f"photos/{name}.jpg", "face": face, "status": status}])


def check(plan: dict[Path, list[Path]], facts: dict[str, str] = FACTS) -> dict[Path, Checked]:
    return check_written_tables(plan, facts, already_checked=())


def test_images_by_table(tmp_path: Path) -> None:
    clip = Path("photos/3b.mp4")
    plan = plan_tables(tmp_path, [*NAMES[:4], clip, *NAMES[4:]], 3)
    assert [path.name for path in plan] == [
        f"part-0000{number}-of-00004.parquet" for number in range(4)
    ]
    assert [*plan.values()] == [NAMES[:3], NAMES[3:4], [clip], NAMES[4:]]
    assert check(plan) == {}
    assert find_tables(tmp_path) == ([], 0)
    for table in [*plan][2:0:-1]:
        write(table, [])
    assert find_tables(tmp_path) == ([*plan][1:3], 2)


def test_each_rank_predicts_its_own_tables(
    drawn: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    crops = ["--face=crop", "--detector=none", "--workers=0", f"--checkpoint={checkpoint}"]
    words = ["predict", str(drawn / "faces/val"), f"--output={out}", "--part_size=4", *crops]
    # the remains of a table that is not written again
    killed = out / ".part-00000-of-00009.parquet.0123abcd.part"
    killed.mkdir(parents=True)
    (killed / files.OWN_MARK).touch()
    monkeypatch.setenv("WORLD_SIZE", "3")
    by_rank = []
    for rank in range(3):
        before = {*out.iterdir()}
        monkeypatch.setenv("RANK", str(rank))
        main(words)
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


def test_tables_and_names_that_are_no_unicode(tmp_path: Path) -> None:
    odd = [Path(os.fsdecode(b"photos/\xff.jpg")), Path("photos/line\nbreak, ü.jpg")]
    first, second = plan = plan_tables(tmp_path, [*NAMES[:3], *odd], 3)
    write(first, ONCE)
    assert check(plan) == {first: ({"ok": 2, "no face": 1}, 3, {})}
    write(second, [(path.stem, 0) for path in odd])
    assert check(plan)[second] == ({"ok": 2}, 2, {})


@pytest.mark.parametrize(
    ("rows", "facts", "message"),
    [
        (
            ONCE[:3],
            {},
            r"\b3 .*photos/0\.jpg .*part-00000-",
        ),
        ([*ONCE, ("2", 0)], {}, "each once"),
        ([*ONCE[2:], *ONCE[:2]], {}, "in order"),
        (ONCE[1:], {}, "each once"),
        ([*ONCE[:2], ONCE[2], *ONCE[2:]], {}, "each once"),
        (
            [*ONCE, ("3", 0)],
            {},
            "each once",
        ),
        (
            ONCE,
            {"model": "xyz"},
            "part-00000-of-00001.parquet .*model abc \\(now xyz\\)",
        ),
        (ONCE, {"every": "3"}, r"every None \(now 3\)"),
        (
            ONCE,
            {"detector": "builtin", "model": "xyz"},
            r"model abc \(now xyz\), detector yunet \(now builtin\)\. ",
        ),
    ],
)
def test_tables_of_other_predictions_are_refused(
    rows: list[tuple[str, int | None]], facts: dict[str, str], message: str, tmp_path: Path
) -> None:
    (table,) = plan = plan_tables(tmp_path, NAMES[:3], 3)
    write(table, rows)
    with pytest.raises(FerVitError, match=message):
        check(plan, FACTS | facts)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        (
            "thesis.txt",
            Path.touch,
            r"part-00000-of-00003\.parquet .*part-00002-of-.* thesis\.txt",
        ),
        (
            "part-00000-of-00004.parquet",
            Path.touch,
            "got part-00000-of-00004.parquet",
        ),
        (
            "part-00000-of-00003.parquet",
            Path.touch,
            "part-00000-of-00003.parquet",
        ),
        (
            "part-00000-of-00003.parquet",
            lambda path: pq.write_table(pa.table({"a": [1]}), path),
            "cannot be read",
        ),
    ],
)
def test_other_and_damaged_files_among_tables_are_refused(
    name: str, write: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(FerVitError, match=message):
        check(plan_tables(tmp_path, NAMES, 3))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("requested", [False, True])
def test_frames_are_counted_for_people_only_on_request(
    requested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of a long video would grow by each person and interval."""
    counted = []
    monkeypatch.setattr(People, "add", lambda people, faces: counted.append(faces))
    photo = tmp_path / "empty.png"
    Pil.new("RGB", (60, 60)).save(photo)
    outputs = Outputs(tmp_path / "faces.csv")
    if requested:
        outputs = outputs._replace(people=tmp_path / "people.csv")
    model = load(small_model(regions=("mouth",)))
    options = PhotoOptions(workers=0)
    predict_table(model, model.recognize([photo], options), [photo], options, outputs)
    assert len(counted) == requested
