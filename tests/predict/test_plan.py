"""The plan of a folder of tables: its chunks, who writes it, and the check of the tables."""

import os
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.errors import FerVitError
from fer_vit.predict.plan import Plan, open_or_create

SETTINGS = {"images": ["photos"], "model": "abc"}
NAMES = [Path(f"photos/{number}.jpg") for number in range(7)]


def write(plan: Plan, part: int, rows: list[tuple[str, int | None]]) -> None:
    faces = pa.array([face for _, face in rows], pa.int64())
    status = ["no face" if face is None else "ok" for _, face in rows]
    pq.write_table(pa.table({"path": [path for path, _ in rows], "face": faces, "status": status}), plan.table(part))


def test_images_by_part(tmp_path: Path) -> None:
    plan = open_or_create(tmp_path / "faces", iter(NAMES), 3, SETTINGS, 0)
    assert list(plan.chunks) == [0, 1, 2]
    assert list(plan) == NAMES
    assert [plan.images(chunk) for chunk in plan.chunks] == [NAMES[:3], NAMES[3:6], NAMES[6:]]
    some = pickle.loads(pickle.dumps(Plan(tmp_path / "faces", [0, 2])))
    assert list(some) == NAMES[:3] + NAMES[6:]
    assert some[3] == NAMES[6]
    assert list(Plan(tmp_path / "faces", [])) == []


def test_names_that_are_no_unicode(tmp_path: Path) -> None:
    names = [Path(os.fsdecode(b"photos/\xff.jpg")), Path("photos/line\nbreak, ü.jpg")]
    plan = open_or_create(tmp_path, iter(names), 2, SETTINGS, 0)
    assert list(plan) == names
    write(plan, 0, [("photos/\\udcff.jpg", 0), ("photos/line\nbreak, ü.jpg", None)])  # as tables have them
    assert plan.check(0) == ({"ok": 1, "no face": 1}, 1)


def test_the_plan_stays(tmp_path: Path) -> None:
    open_or_create(tmp_path, iter(NAMES), 3, SETTINGS, 0)
    assert list(open_or_create(tmp_path, iter([]), 5, SETTINGS, 1)) == NAMES
    with pytest.raises(FerVitError, match=r"was started with model abc, but now it is xyz"):
        open_or_create(tmp_path, iter(NAMES), 3, SETTINGS | {"model": "xyz"}, 0)


def test_relative_names_belong_to_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS | {"directory": os.getcwd()}
    for name, directory in (("relative", settings), ("absolute", {"directory": None})):
        open_or_create(tmp_path / name, iter(NAMES), 3, SETTINGS | directory, 0)
        assert list(open_or_create(tmp_path / name, iter([]), 3, settings, 0)) == NAMES
    monkeypatch.chdir(tmp_path)
    assert list(open_or_create(tmp_path / "absolute", iter([]), 3, SETTINGS, 0)) == NAMES
    with pytest.raises(FerVitError, match=rf"was started in {settings['directory']}, and names images from there"):
        open_or_create(tmp_path / "relative", iter([]), 3, SETTINGS, 0)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("faces", Path.touch, r"Cannot write .*faces/_plan.parquet \(Not a directory\)"),
        ("faces/thesis.txt", Path.touch, "contains other files"),
        ("faces/_plan.parquet", Path.touch, "is not a plan of `predict`"),
        ("faces/_plan.parquet", partial(pq.write_table, pa.table({"a": [1]})), "is not a plan of `predict`"),
    ],
)
def test_other_files_are_left_alone(name: str, write: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write(tmp_path / name)
    with pytest.raises(FerVitError, match=message):
        open_or_create(tmp_path / "faces", iter(NAMES), 3, SETTINGS, 0)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [name]


def test_processes_wait_for_process_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = threading.Timer(0.5, lambda: open_or_create(tmp_path, iter(NAMES), 3, SETTINGS, 0))
    timer.start()
    assert list(open_or_create(tmp_path, iter([]), 3, SETTINGS, 2)) == NAMES
    assert "Process 2 waits for process 0" in capsys.readouterr().out
    timer.join()
    monkeypatch.setattr("fer_vit.predict.plan.PATIENCE", 0.1)
    with pytest.raises(FerVitError, match=r"Process 0 did not list the images .* writes nothing"):
        open_or_create(tmp_path / "other", iter(NAMES), 3, SETTINGS, 1)


def test_missing_and_unreadable_tables(tmp_path: Path) -> None:
    plan = open_or_create(tmp_path, iter(NAMES), 3, SETTINGS, 0)
    write(plan, 0, [("photos/0.jpg", 0), ("photos/0.jpg", 1), ("photos/1.jpg", None), ("photos/2.jpg", 0)])
    assert plan.missing() == [1, 2]
    assert plan.check(0) == ({"ok": 2, "no face": 1}, 3)
    plan.table(0).write_bytes(b"PAR1")
    with pytest.raises(FerVitError, match=r"part-00000.parquet cannot be read"):
        plan.check(0)


@pytest.mark.parametrize(
    "rows",
    [
        [("0", 0), ("1", 0)],
        [("0", 0), ("1", 0), ("2", 0), ("2", 0)],
        [("0", 0), ("1", 0), ("2", 0), ("0", 0)],
        [("1", 0), ("0", 0), ("2", 0)],
        [("0", 0), ("1", 1), ("2", 0)],
        [("0", None), ("0", None), ("1", 0), ("2", 0)],
    ],
    ids=["lost", "face twice", "image twice", "order", "face lost", "no face twice"],
)
def test_check_finds_missing_and_repeated_rows(rows: list[tuple[str, int | None]], tmp_path: Path) -> None:
    plan = open_or_create(tmp_path, iter(NAMES), 3, SETTINGS, 0)
    write(plan, 0, [(f"photos/{name}.jpg", face) for name, face in rows])
    with pytest.raises(FerVitError, match=r"each once and in the plan's order, but got .*Remove that file"):
        plan.check(0)
