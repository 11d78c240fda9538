import os
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from skimage.data import astronaut

from fer_vit.app import jobs as module
from fer_vit.app.jobs import KEPT, MAX_PHOTOS, Jobs, remove_old
from fer_vit.errors import FerVitError
from fer_vit.report.html import is_report
from fer_vit.store.hub import DEFAULT
from tests.helpers.commands import assert_same, main, read
from tests.helpers.hostile import bomb
from tests.helpers.videos import write_video


@pytest.fixture
def jobs(tmp_path: Path, yunet_named: None) -> Jobs:
    made = Jobs(tmp_path / "uploads", tmp_path / "results")
    made.uploads.mkdir()
    made.results.mkdir()
    return made


def upload(jobs: Jobs, folder: str, name: str = "photo.png", data: bytes | None = None) -> str:
    path = jobs.uploads / folder / name
    path.parent.mkdir(exist_ok=True)
    if data is None:
        Image.fromarray(astronaut()).save(path)
    else:
        path.write_bytes(data)
    return str(path)


def test_a_table_is_that_of_predict(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = upload(jobs, "a")
    before = os.getcwd()
    summary, table = jobs.predict([photo], DEFAULT)
    assert summary == "1 photo: 1 ok\n1 face: 1 happiness\n0 of 1 faces are unsure (0.0%)"
    assert os.getcwd() == before
    monkeypatch.chdir(Path(photo).parent)
    main(["predict", "photo.png", "--output", str(tmp_path / "faces.csv")])
    assert_same(read(table), read(tmp_path / "faces.csv"))


@pytest.mark.slow
def test_a_report_is_that_of_visualize(jobs: Jobs) -> None:
    report = jobs.visualize([upload(jobs, "a")], DEFAULT)
    assert report is not None
    assert is_report(report / "index.html")
    page = (report / "index.html").read_text()
    assert '"name":"photo.png"' in page
    assert str(jobs.uploads) not in page
    assert {"faces.parquet", "photos", "shares.csv"} <= {path.name for path in report.iterdir()}


def test_hostile_uploads_have_a_status_and_no_report(jobs: Jobs) -> None:
    whole = Path(upload(jobs, "whole", "whole.jpg")).read_bytes()
    files = {
        "nothing.jpg": b"",
        "text.jpg": b"Hello",
        "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "bomb.jpg": bomb("jpeg"),
        "scans.jpg": bomb("scans"),
        "cut.png": bomb("png")[:200],
        "cut.jpg": whole[:300],
        "<img src=x onerror=alert(1)>.jpg": b"x",
        "-rf; *?[a].jpg": b"x",
    }
    photos = [upload(jobs, str(number), name, data) for number, (name, data) in enumerate(files.items())]
    summary, table = jobs.predict(photos, DEFAULT)
    assert summary.endswith("\n0 faces")
    found = read(table)
    assert [row["path"] for row in found] == ["'" + name if name[0] == "-" else name for name in files]
    assert not [row for row in found if row["status"] in ("ok", "no face")]
    assert jobs.visualize(photos, DEFAULT) is None


@pytest.mark.parametrize("linked", [True, False])
def test_uploads_of_one_name(jobs: Jobs, linked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not linked:
        monkeypatch.setattr("os.link", Mock(side_effect=OSError("another disk")))
    names = ["2 a.png", "a.png", "a.png", "a.png", "2 a.png"]
    photos = [upload(jobs, str(number), name, b"x") for number, name in enumerate(names)]
    _, table = jobs.predict(photos, DEFAULT)
    assert [row["path"] for row in read(table)] == ["2 a.png", "a.png", "1 a.png", "3 a.png", "1 2 a.png"]


@pytest.mark.parametrize("count", [0, MAX_PHOTOS + 1])
def test_the_number_of_photos_is_limited(jobs: Jobs, count: int) -> None:
    with pytest.raises(FerVitError, match=f"1 to {MAX_PHOTOS} photos or clips"):
        jobs.predict([upload(jobs, "a", data=b"x")] * count, DEFAULT)


def test_of_a_crowd_the_table_has_all_and_the_report_some(
    jobs: Jobs, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FACES", 3)
    face = np.asarray(Image.fromarray(astronaut()[:160, 140:300]))
    Image.fromarray(np.tile(face, (2, 2, 1))).save(upload(jobs, "a"))
    summary, table = jobs.predict([str(jobs.uploads / "a" / "photo.png")], str(checkpoint))
    assert len(read(table)) == 4
    assert "4 faces" in summary
    report = jobs.visualize([str(jobs.uploads / "a" / "photo.png")], str(checkpoint))
    assert report is not None
    assert len(list((report / "faces").iterdir())) == 3
    assert "at most 3 faces of photos" in (report / "index.html").read_text()


@pytest.fixture
def clip(jobs: Jobs) -> str:
    times = [0, 0.1, 0.6, 1.1, 60]
    return str(write_video(Path(upload(jobs, "a", "clip.mp4", b"")), [astronaut()] * len(times), times))


def test_a_clip(jobs: Jobs, clip: str) -> None:
    _, table = jobs.predict([clip], DEFAULT)
    assert [(row["path"], row["frame"], row["label"]) for row in read(table)] == [
        ("clip.mp4", frame, "happiness") for frame in (0, 2, 3)
    ]


@pytest.mark.slow
def test_the_report_of_a_clip(jobs: Jobs, clip: str) -> None:
    report = jobs.visualize([clip], DEFAULT)
    assert report is not None
    assert len(list((report / "faces").iterdir())) == 3


def test_what_is_old_is_removed(jobs: Jobs) -> None:
    photo, old = upload(jobs, "new", data=b"x"), upload(jobs, "old", data=b"x")
    past = time.time() - KEPT - 60
    os.utime(Path(old).parent, (past, past))
    _, table = jobs.predict([photo], DEFAULT)
    assert [path.name for path in jobs.uploads.iterdir()] == ["new"]
    os.utime(table.parent, (past, past))
    jobs.predict([photo], DEFAULT)
    assert not table.parent.exists()


def test_an_upload_that_arrives_meanwhile_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old"
    old.mkdir()
    os.utime(old, (0, 0))
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "renamed since", old]))
    remove_old(tmp_path)
    assert not old.exists()
