"""The page: whole in one file, safe against hostile names, right in its means."""

import base64
import hashlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fer_vit.errors import FerVitError
from fer_vit.report import draw
from fer_vit.report.html import FaceRecord, mean_shares, save_face, write_page

HOSTILE = "<img src=x onerror=alert(1)>.png"
QUOTES = """it's "quoted" & </script><b>.png"""
FACTS = {"Method": "rollout", "Checkpoint": "<best>.ckpt"}


class Reader(HTMLParser):
    """Collects tags with attributes, and all text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("style", "script"):
            self.text += data


def make_view(name: str, label: str = "happiness") -> draw.FaceView:
    return draw.FaceView(
        name=name,
        face=2,
        photo=np.full((48, 48, 3), 90, np.uint8),
        box=None,
        to_crop=np.eye(2, 3),
        crop_size=48,
        heat=np.ones((6, 6)),
        regions={"mouth": np.array([14.0, 30.0, 34.0, 42.0])},
        shares={"mouth": 0.25},
        probabilities={"neutral": 0.1, label: 0.9},
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    views = [make_view(HOSTILE), make_view(QUOTES), make_view("broken \udcff.png", label='"><i>x')]
    records = [save_face(folder, number, view) for number, view in enumerate(views)]
    write_page(folder / "index.html", records, "A <title>", FACTS)
    return (folder / "index.html").read_text(encoding="utf-8")


def test_save_face_keeps_the_figure_and_a_small_record(tmp_path: Path) -> None:
    record = save_face(tmp_path, 7, make_view("a.png"))
    assert record.figure == tmp_path / "faces" / "000007.jpg"
    assert (record.label, record.confidence, record.face) == ("happiness", 0.9, 2)
    assert record.shares == {"mouth": 0.25, "patches": 0.75}
    drawn = np.asarray(draw.face_figure(make_view("a.png"))).astype(float)
    with Image.open(record.figure) as saved:
        assert np.abs(np.asarray(saved) - drawn).mean() < 2


def test_names_are_text_and_nothing_else(page: str) -> None:
    reader = Reader(page)
    assert HOSTILE in reader.text and QUOTES in reader.text and "broken ?.png" in reader.text
    assert "A <title>" in reader.text and "<best>.ckpt" in reader.text and '"><i>x' in reader.text
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert [attributes["data-label"] for tag, attributes in reader.tags if tag == "article"][2] == '"><i>x'
    assert sum(tag == "script" for tag, _ in reader.tags) == 1


def test_page_is_whole_in_itself(page: str) -> None:
    tags = Reader(page).tags
    images = [attributes for tag, attributes in tags if tag == "img"]
    assert len(images) == 6  # two of each face, none smuggled in by a name
    assert all(image["src"].startswith("data:image/jpeg;base64,") and image["loading"] == "lazy" for image in images)
    assert not any("href" in attributes for _, attributes in tags)
    assert not any("src" in attributes for tag, attributes in tags if tag != "img")
    assert not re.search(r"https?://|@import|url\(", page)


def test_pictures_are_those_of_the_face(page: str) -> None:
    first, second, *_ = (attributes["src"] for tag, attributes in Reader(page).tags if tag == "img")
    figure = draw.face_figure(make_view(HOSTILE))
    for uri, panel in zip((first, second), draw.PANELS, strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
        assert np.abs(np.asarray(picture).astype(float) - np.asarray(figure.crop(panel))).mean() < 3


def test_policy_allows_the_page_its_own_script_alone(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for _, a in Reader(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


def test_mean_shares_against_numpy() -> None:
    rng = np.random.default_rng(0)
    labels, regions = ["neutral", "fear", "anger"], ["mouth", "nose", "patches"]
    predicted, shares = rng.integers(0, 2, 40), rng.dirichlet(np.ones(3), 40)
    shares[::5, 1] = np.nan  # faces that do not show the nose
    records = [
        FaceRecord(
            name="",
            face=0,
            probabilities={label: 0.8 if index == row else 0.1 for index, label in enumerate(labels)},
            shares={region: share for region, share in zip(regions, values, strict=True) if not np.isnan(share)},
            figure=Path(),
        )
        for row, values in zip(predicted, shares, strict=True)
    ]
    means = mean_shares(records)
    assert set(means) == {"neutral", "fear"}
    for index, label in enumerate(labels[:2]):
        expected = np.nanmean(shares[predicted == index], axis=0)
        assert means[label] == pytest.approx(dict(zip(regions, expected, strict=True)))


def test_table_shows_means_and_counts(tmp_path: Path) -> None:
    figure = save_face(tmp_path, 0, make_view("a.png")).figure
    shares = ({"mouth": 0.2, "patches": 0.8}, {"mouth": 0.3, "patches": 0.7}, {"patches": 1.0})
    tops = ("fear", "fear", "neutral")
    records = [
        FaceRecord("a.png", 0, {"neutral": 0.4} | {top: 0.6}, share, figure)
        for top, share in zip(tops, shares, strict=True)
    ]
    write_page(tmp_path / "index.html", records, "Title", {})
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr><th scope=\"row\">(\w+)</th>(.*?)</tr>", page)
    cells = {label: re.findall(r"<td[^>]*>(.*?)</td>", row) for label, row in rows}
    assert cells["fear"] == ["2", "25.0%", "75.0%"]
    assert cells["neutral"] == ["1", "&ndash;", "100.0%"]


def test_page_without_faces_says_so(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", [], "Title", FACTS)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "No face was found." in page and "<table>" not in page


def test_folder_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FerVitError, match="Choose a folder"):
        save_face(tmp_path / "file", 0, make_view("a.png"))
    with pytest.raises(FerVitError, match="Choose a folder"):
        write_page(tmp_path / "file" / "index.html", [], "Title", FACTS)
