import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from skimage.data import astronaut

from fer_vit import load
from fer_vit.explain.methods import METHODS
from fer_vit.face.crop import DEFAULT_REGIONS
from fer_vit.face.image import UNREADABLE, UNREADABLE_VIDEO, encode_png
from fer_vit.predict.frames import read_frames
from fer_vit.sources.cartoon import draw_face
from fer_vit.store.model_folder import save_network
from fer_vit.visualization import report
from tests.helpers.commands import CROPS, fails, main, run
from tests.helpers.models import small_model
from tests.helpers.videos import write_video


def visualize(images: Path, checkpoint: Path, output: Path, *more: str) -> str:
    main(
        ["visualize", str(images), "--checkpoint", str(checkpoint), "--output", str(output), *more]
    )
    return (output / "index.html").read_text(encoding="utf-8")


def test_a_report_of_crops(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    images = drawn / "faces" / "test" / "anger"
    method = "pixels"
    page = visualize(images, checkpoint, tmp_path / "r", "--method", method, *CROPS)
    count = len(list(images.rglob("*.png")))
    assert page.count('"image":"photos/') == count
    assert len(list((tmp_path / "r" / "photos").glob("*.jpg"))) == count
    with Image.open(tmp_path / "r" / "photos" / "000000.png") as maps:
        # the first expression, and the first rather than the second
        assert maps.size == (
            96,
            2 * 96,
        )
    assert f"<dt>Explained by</dt><dd>{METHODS[method].title}</dd>" in page
    # the page loads nothing from other addresses
    assert re.search(r"""(src|href)=["'](?!data:|#)""", page.split("<script")[0]) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r"]
    tables = {"faces.parquet", "heads.csv", "heads_relations.csv", "relations.csv", "shares.csv"}
    assert {path.name for path in (tmp_path / "r").iterdir()} == tables | {"index.html", "photos"}
    for name in tables - {"faces.parquet"}:
        table = pd.read_csv(tmp_path / "r" / name, float_precision="round_trip")
        numbers = table.select_dtypes("float").stack().dropna()  # three faces have no interval
        assert len(numbers)
        assert all(float(f"{number:.4g}") == number for number in numbers), "digits of shares"


def test_a_report_of_one(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "woman.png").write_bytes(encode_png(astronaut()))
    (tmp_path / "photos" / "broken.png").write_bytes(b"no")
    page = visualize(tmp_path / "photos", checkpoint, tmp_path / "r")
    assert page.count('"image":"photos/') == 1
    assert f"1 {UNREADABLE}, 1 ok" in page
    assert "flicker" not in page
    assert "<li><bdi>broken.png</bdi>: not an image" in page
    assert str(tmp_path) not in page  # names, not paths
    out = capsys.readouterr().out
    assert "faithfulness was not measured" in page
    assert f"1 face in 2 photos: open {tmp_path / 'r' / 'index.html'}\n" in out
    assert re.match(r".*\bminute\b.*\b1 MB\b", out)


def test_a_report_is_replaced(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    photos = drawn / "faces" / "test" / "anger"
    report = tmp_path / "r"
    words = ("--checkpoint", checkpoint, *CROPS, "--output")
    old = report / "photos" / "old.jpg"
    page = report / "index.html"
    old.parent.mkdir(parents=True)
    old.touch()
    page.write_text("<title>My holidays</title>")
    assert "is not a report" in fails(capsys, "visualize", photos, *words, report, "--overwrite")
    page.write_text('<meta name="generator" content="fer-vit visualize">')
    assert "already exists" in fails(capsys, "visualize", photos, *words, report)
    assert old.exists()
    run("visualize", photos, *words, report, "--overwrite", "--method=relevance")
    assert not old.exists()
    assert fails(capsys, "visualize", drawn / "gone", *words, report, "--overwrite")
    (report / "mine.txt").touch()
    assert "mine.txt" in fails(capsys, "visualize", photos, *words, report, "--overwrite")
    assert page.exists()
    assert str(photos / "report") in fails(capsys, "visualize", photos, *words, photos / "report")
    assert not (photos / "report").exists()
    (tmp_path / "faces" / "test").mkdir(parents=True)
    for name in ("mine.png", "faces/test/mine.png"):
        (tmp_path / name).write_bytes(encode_png(astronaut()[:64, :64]))
    for name in (".", "faces/test"):
        line = fails(capsys, "visualize", tmp_path / name, *words, tmp_path, "--overwrite")
        assert line.endswith("Choose another folder.")
    assert (tmp_path / "mine.png").exists()


@pytest.mark.parametrize(
    "change", [{"regions": (), "tokens": "patch"}, {"labels": "a"}, {"regions": ("mouth",)}]
)
def test_models_with_little_to_say(change: dict[str, object], drawn: Path, tmp_path: Path) -> None:
    net = small_model(
        classifier=("weight",), **{"regions": ("right_eye", "nose", "mouth"), **change}
    )
    save_network(net, tmp_path / "model")
    photo = min((drawn / "faces" / "test").rglob("*.png"))
    words = ("--method", "relevance", *CROPS)
    assert "<dt>Faces</dt><dd>1</dd>" in visualize(
        photo, tmp_path / "model", tmp_path / "r", *words
    )


TIMES = [0.0, 0.04, 0.2, 0.24, 0.5, 0.54, 0.7, 0.74, 0.9]


class Report(NamedTuple):
    """What `visualize` writes of a photo, two clips of the same frames, and no video."""

    clip: Path
    folder: Path
    page: str

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(re.findall(r'id="data">(.*?)</script>', self.page, re.DOTALL)[0])

    @property
    def table(self) -> dict[str, list[Any]]:
        return pq.read_table(self.folder / "faces.parquet").to_pydict()


@pytest.fixture(scope="module")
def report_of_videos(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("videos")
    inputs = folder / "in"
    inputs.mkdir()
    face = draw_face("anger", 0, 28, colour=True)[0]  # smaller than labels are stable
    faces = [np.uint8(face * (1 - 0.03 * number)) for number in range(9)]  # the light fades
    for name in "ab":
        write_video(inputs / f"{name}.mp4", faces, TIMES)
    (inputs / "c.png").write_bytes(encode_png(faces[0]))
    (inputs / "d.mp4").write_text("no video")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "MIN_FACES", 1)
        words = (*CROPS, "--start=0.1", "--every=2", "--method=relevance")
        page = visualize(inputs, checkpoint, folder / "r", *words)
    return Report(inputs / "a.mp4", folder / "r", page)


def test_the_table_of_a_report_of_videos_has_its_frames(report_of_videos: Report) -> None:
    table = report_of_videos.table
    assert [Path(path).name for path in table["path"]] == ["c.png"] + ["a.mp4"] * 4 + ["b.mp4"] * 4
    assert table["frame"] == [None, *[2, 4, 6, 8] * 2]
    assert table["seconds"][1:] == pytest.approx([0.2, 0.5, 0.7, 0.9] * 2, abs=1e-4)
    assert table["track"] == [None, *[1] * 8]
    shares = np.stack([table[region] for region in DEFAULT_REGIONS], axis=1)
    assert np.allclose(np.abs(shares).sum(1), 1)
    assert np.allclose(shares[1:5], shares[5:], atol=1e-5)  # the same video


def test_the_page_of_a_report_of_videos_counts_frames_and_people(
    report_of_videos: Report,
) -> None:
    page = report_of_videos.page
    assert "<dt>Photos</dt><dd>1</dd>" in page
    assert f"<dt>Frames</dt><dd>8 ok, 1 {UNREADABLE_VIDEO}</dd>" in page
    assert "9 of 9 faces below 30 pixels" in page
    data = report_of_videos.data
    assert [
        (person["track"], person["frames"], person["start"], person["end"])
        for person in data["people"]
    ] == [(1, 4, 0.2, 0.9)] * 2
    assert data["faces"][1]["where"] == "person 1 at 0:00.2"
    assert sum(average["faces"] for average in data["averages"]) == 9


def test_the_faces_of_a_report_of_videos_are_those_of_predict(
    report_of_videos: Report, checkpoint: Path
) -> None:
    data = report_of_videos.data
    predicted = load(checkpoint).predict(
        report_of_videos.clip, face="crop", detector="none", start=0.1, every=2
    )
    for number, result in enumerate(predicted):
        assert data["faces"][1 + number]["probabilities"] == pytest.approx(
            [*result.probabilities.values()], abs=1e-3
        )
        smoothed = [share[number] / 1000 for share in data["people"][0]["shares"]]
        assert smoothed == pytest.approx([*result.smoothed.values()], abs=1e-3)


def test_the_pictures_of_a_report_of_videos_are_its_frames(report_of_videos: Report) -> None:
    for number in range(4):
        start = TIMES[2 + 2 * number] - 0.01
        frame = next(read_frames(report_of_videos.clip, start=start)).image
        file = report_of_videos.folder / report_of_videos.data["faces"][1 + number]["image"]
        with Image.open(file) as picture:
            shown = np.asarray(picture.resize((28, 28)), float)
        assert np.abs(shown - frame.astype(float)).mean() < 8
