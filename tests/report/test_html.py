import base64
import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from fer_vit.report.draw import FaceView, printable, to_photo, zoom
from fer_vit.report.heads import JOINED
from fer_vit.report.html import Evidence, FaceRecord, heat_maps, save_face, write_page
from fer_vit.visualize.writer import mean_shares
from tests.helpers.browser import chromium, loaded, opened

HOSTILE = "<script>alert(1)</script>.png"
QUOTES = """a"b'c&amp;<!--</script>.png"""
FACTS = {"Method": "relevance", "Model": "<best>.ckpt"}
REGIONS = ("mouth", "nose", "chin")
LABELS = ("neutral", "happiness", '"><i>x')
SHOWN = """() => Promise.all([...document.querySelectorAll("dialog image")].map(image =>
    Object.assign(new Image(), {src: image.getAttribute("href")}).decode()))"""
"""Waits for the pictures of an open face."""


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


def make_view(name: str, probabilities: tuple[float, ...] = (0.1, 0.7, 0.2)) -> FaceView:
    return FaceView(
        name=name,
        face=2,
        photo=np.full((48, 48, 3), 90, np.uint8),
        box=None,
        to_crop=np.array([[0.5, 0.0, 4.0], [0.0, 0.5, 4.0]]),
        crop_size=32,
        heat=np.ones((32, 32)),
        regions={"mouth": np.array([8.0, 16.0, 20.0, 28.0]), "chin": np.array([8.0, 24.0, 20.0, 32.0])},
        shares={"mouth": 0.25, "chin": -0.5},
        probabilities=dict(zip(LABELS, probabilities, strict=True)),
    )


def make_evidence() -> Evidence:
    heat = np.arange(1024.0).reshape(32, 32) / 1024
    each = [(np.array([share, 0.0, -0.5]), heat - share) for share in (0.1, 0.25, -0.4)]
    relations = np.array([[0.6, 0.0, 0.4], [0.0, 0.0, 0.0], [0.3, 0.0, 0.7]])
    return Evidence([1, 2, 0], dict(enumerate(each)), (np.array([0.9, 0.0, 0.1]), heat), relations)


def write(folder: Path) -> Path:
    views = [
        make_view(HOSTILE),
        make_view(QUOTES, (0.6, 0.3, 0.1)),
        make_view("broken \udcff.png", (0.0, 0.1, 0.9)),
    ]
    evidence = [
        make_evidence(),
        make_evidence()._replace(order=[0, 1, 2]),
        Evidence([2, 1, 0], {2: (np.ones(3), np.ones((32, 32)))}, (np.ones(3), np.ones((32, 32))), np.eye(3)),
    ]
    records = [save_face(folder, *one, REGIONS) for one in zip(range(3), views, evidence, strict=True)]
    write_page(folder / "index.html", "A <title>", FACTS, records, mean_shares(records, REGIONS), REGIONS)
    return folder / "index.html"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def data(page: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


@pytest.fixture(scope="module")
def browser(file: Path) -> Iterator[tuple[Page, list[str]]]:
    """The page in a real browser, and what goes wrong in it."""
    with chromium() as browser:
        yield opened(browser, file.as_uri())


def test_a_face_leaves_pictures_and_a_record(tmp_path: Path) -> None:
    view = make_view("a.png")
    record = save_face(tmp_path, 7, view, make_evidence(), REGIONS)
    assert record.label == "happiness"
    assert record.shares == {"mouth": 0.25, "chin": -0.5}
    data = json.loads(record.data)
    assert (data["name"], data["where"]) == ("a.png", "face 2")
    with Image.open(tmp_path / data["image"]) as photo:
        assert list(photo.size) == list(data["size"])
    # A region's corner goes from crop to picture as the photo's zoom has it.
    a, b, c, d, e, f = data["matrix"]
    left, top, _, _ = data["boxes"][0]
    expected = to_photo(zoom(view, 480), view.regions["mouth"])[0]
    assert np.allclose([a * left + c * top + e, b * left + d * top + f], expected, atol=0.05)
    assert data["boxes"][1] is None  # it was not there


def test_names_are_text_and_nothing_else(page: str) -> None:
    reader = Reader(page)
    assert "A <title>" in reader.text
    assert "<best>.ckpt" in reader.text
    assert '"><i>x' in reader.text
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert [face["name"] for face in data(page)["faces"]] == [HOSTILE, QUOTES, "broken ?.png"]
    assert data(page)["labels"] == list(LABELS)
    assert sum(tag == "script" for tag, _ in reader.tags) == 2  # data and program, none smuggled in by a name


def test_page_needs_nothing_but_the_pictures_beside_it(page: str) -> None:
    tags = Reader(page).tags
    assert not any({"href", "src"} & attributes.keys() for _, attributes in tags)
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|@import|url\(", page)
    assert all(face["image"] == f"photos/{number:06d}.jpg" for number, face in enumerate(data(page)["faces"]))


def test_policy_allows_the_page_its_own_script_alone(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for _, a in Reader(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_the_gallery_filters_sorts_and_searches(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    names = page.locator(".card:visible .name")
    assert names.all_text_contents() == [HOSTILE, QUOTES, "broken ?.png"]
    page.locator("select[name=order]").select_option("most")
    assert names.all_text_contents() == ["broken ?.png", HOSTILE, QUOTES]
    page.locator("select[name=order]").select_option("least")
    assert names.all_text_contents() == [QUOTES, HOSTILE, "broken ?.png"]
    page.get_by_text("happiness 1").click()
    assert names.all_text_contents() == [HOSTILE]
    assert page.locator("output").text_content() == "1 of 3 faces"
    page.get_by_text("all", exact=True).click()
    page.get_by_placeholder("contains …").fill("BROKEN")
    assert names.all_text_contents() == ["broken ?.png"]
    page.get_by_placeholder("contains …").fill("")
    page.locator("select[name=order]").select_option("found")
    assert loaded(page.locator(".card img"))
    assert wrong == []


def test_a_face_opens_large_and_explains_any_label(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    dialog = page.locator("dialog")
    page.locator(".card").first.focus()
    page.keyboard.press("Enter")
    assert dialog.locator("h3").text_content() == "happiness 70%"
    assert dialog.locator(".name").text_content() == HOSTILE
    choice = dialog.locator("select")
    assert choice.locator("option").all_text_contents() == [
        "happiness",
        '"><i>x',
        "neutral",
        'happiness rather than "><i>x',
    ]
    assert dialog.locator(".shares li").all_text_contents() == ["mouth25%", "chin-50%"]  # the nose is not there
    heat = dialog.locator("svg .heat")
    assert heat.get_attribute("viewBox") == "0 1 1 1"  # that of happiness
    choice.select_option('"><i>x')
    assert dialog.locator(".shares li").all_text_contents() == ["mouth-40%", "chin-50%"]
    assert dialog.locator(".shares i.against").count() == 2
    choice.select_option("contrast")
    assert dialog.locator(".shares li").all_text_contents() == ["mouth90%", "chin10%"]
    assert heat.get_attribute("viewBox") == "0 3 1 1"  # below those of the three labels
    assert dialog.locator("h4").first.text_content() == 'for happiness rather than "><i>x'
    assert dialog.locator("svg .relation").count() == 0
    dialog.get_by_label("relations").check()
    assert dialog.locator("svg .joint").count() == 2
    lines = dialog.locator("svg .relation")
    assert lines.locator("title").all_text_contents() == ["mouth takes 40% from chin, which takes 30%"]
    assert float(lines.first.get_attribute("stroke-width") or 0) == 4
    dialog.get_by_label("regions").uncheck()
    assert dialog.locator("svg .region").count() == 0
    page.keyboard.press("ArrowRight")
    assert dialog.locator(".name").text_content() == QUOTES
    page.keyboard.press("ArrowRight")
    assert choice.locator("option").all_text_contents() == ['"><i>x', '"><i>x rather than happiness']
    page.keyboard.press("ArrowRight")
    assert dialog.locator(".name").text_content() == "broken ?.png"  # the last
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    expect(page.locator(".card").nth(2)).to_be_focused()
    assert wrong == []


OWN = "document.title='owned'"
NAMES = [
    f"<script>{OWN}</script>.png",
    f"""\"><img src=x onerror="{OWN}">.png""",
    f"""' onmouseover='{OWN}' x='.png""",
    f"</script><script>{OWN}</script>.png",
    f"<!--<script>{OWN}//.png",
    f"javascript:{OWN}",
    "two\nlines\u2028three.png",
    "photo\u202egnp.exe",
    "a#b?c=%41&amp;lt;.png",
    "\\u003c${{{OWN}}}`.png",
]


def test_hostile_names_and_labels_are_text_everywhere(browser: tuple[Page, list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "re#port 100%41?"
    labels = (f"<img src=x onerror={OWN}>", f"'\"><svg/onload={OWN}>", "</script>\u202ex")
    shown = [printable(label) for label in labels]
    records = []
    for number, name in enumerate(NAMES):
        view = make_view(name)
        probabilities = dict(zip(labels, np.roll((0.1, 0.7, 0.2), number), strict=True))
        view = dataclasses.replace(view, probabilities=probabilities, photo=np.full_like(view.photo, 10 + 16 * number))
        evidence = make_evidence()._replace(order=np.argsort([-p for p in probabilities.values()]).tolist())
        records.append(save_face(folder, number, view, evidence, REGIONS))
    means = mean_shares(records, REGIONS)
    write_page(folder / "index.html", NAMES[0], {"Model": NAMES[1]}, records, means, REGIONS)
    _, wrong = browser
    page = browser[0].context.browser.new_page()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((folder / "index.html").as_uri())
    names = [printable(name) for name in NAMES]
    assert names[6:8] == ["two lines three.png", "photo?gnp.exe"]
    assert page.title() == page.locator("h1").text_content() == NAMES[0]
    assert page.locator(".facts dd").first.text_content() == names[1]
    cards, dialog = page.locator(".card"), page.locator("dialog")
    assert cards.locator(".name").all_text_contents() == names
    assert [text.split("\xa0")[0].rpartition(" ")[0] for text in cards.locator(".label").all_text_contents()] == [
        shown[json.loads(record.data)["order"][0]] for record in records
    ]
    assert sorted(page.locator("tbody th").all_text_contents()) == sorted(shown)
    for number, name in enumerate(names):
        page.get_by_placeholder("contains …").fill(name)
        expect(page.locator(".card:visible")).to_have_count(sum(name in other for other in names))
        cards.nth(number).hover()
        expect(cards.nth(number).locator("img")).to_have_js_property("complete", True)
        with Image.open(io.BytesIO(cards.nth(number).locator("img").screenshot())) as picture:
            assert abs(picture.getpixel((20, 20))[0] - (10 + 16 * number)) < 5  # its own picture
        cards.nth(number).click()
        assert dialog.locator(".name").text_content() == name
        options = dialog.locator("select option").all_text_contents()
        assert sorted(options[:3]) == sorted(shown)
        assert dialog.locator("h3").text_content().startswith(options[0])
        dialog.locator("select").select_option("contrast")
        assert dialog.locator("h4").first.text_content() == f"for {options[0]} rather than {options[1]}"
        assert dialog.locator("svg .region title").first.text_content() == "mouth 90%"
        page.keyboard.press("Escape")
    for label in shown:
        page.get_by_text(label, exact=False).locator("visible=true").first.hover()
    page.get_by_placeholder("contains …").fill("")
    page.locator("fieldset span", has_text=shown[0]).click()
    assert page.locator("output").text_content().endswith(f"of {len(names)} faces")
    assert page.title() == NAMES[0]
    assert page.locator("script").count() == 2
    assert page.locator("[src=x], [onload], [onerror], [onmouseover], body i:not(.dot):not(li i)").count() == 0
    page.close()
    assert wrong == []


def test_the_second_label_is_the_models_even_where_its_probability_rounds_to_nothing(
    browser: tuple[Page, list[str]], tmp_path: Path
) -> None:
    page, _ = browser
    view = make_view("a.png", (1e-6, 1.0, 2e-5))
    records = [save_face(tmp_path, 0, view, make_evidence(), REGIONS)]
    write_page(tmp_path / "index.html", "Title", {}, records, mean_shares(records, REGIONS), REGIONS)
    other = page.context.browser.new_page()
    other.goto((tmp_path / "index.html").as_uri())
    other.locator(".card").click()
    assert other.locator("dialog select option").last.text_content() == 'happiness rather than "><i>x'
    other.close()


def test_heat_maps_stand_one_below_the_other_in_colour() -> None:
    heat = np.zeros((24, 24))
    heat[2:6, 8:12], heat[12:16, 12:16] = 2.0, -1.0
    contrast = (np.ones(3), -heat)
    picture = heat_maps(Evidence([1, 0, 2], {1: (np.ones(3), heat)}, contrast, np.eye(3)))
    assert picture.size == (96, 4 * 96)  # labels, and the contrast
    maps = np.asarray(picture.convert("RGBA")).reshape(4, 96, 96, 4)
    assert maps[[0, 2]][..., 3].max() == 0  # of which nothing is known
    for shown, sign in ((maps[1], 1), (maps[3], -1)):
        red, _, blue, strong = shown[16, 40].tolist()
        assert (red > blue) == (sign > 0)
        red, _, blue, weak = shown[56, 56].tolist()
        assert (red > blue) == (sign < 0)
        assert weak == pytest.approx(strong * 0.5**0.7, abs=5)
        assert shown[0, 0, 3] == 0


def test_the_heat_of_the_label_is_shown_where_its_pixels_are(browser: tuple[Page, list[str]], tmp_path: Path) -> None:
    page, wrong = browser
    heat = np.zeros((32, 32))
    heat[24:, :8] = 1.0  # the lower left corner of the crop
    evidence = Evidence(
        [1, 0, 2], {0: (np.ones(3), np.zeros((32, 32))), 1: (np.ones(3), heat)}, (np.ones(3), 0 * heat), np.eye(3)
    )
    view = dataclasses.replace(make_view("a.png"), to_crop=np.eye(2, 3) * 32 / 48)
    records = [save_face(tmp_path, 0, view, evidence, REGIONS)]
    write_page(tmp_path / "index.html", "Title", {}, records, mean_shares(records, REGIONS), REGIONS)
    other = page.context.browser.new_page()
    other.on("console", lambda message: wrong.append(message.text))
    other.goto((tmp_path / "index.html").as_uri())
    other.locator(".card").click()
    dialog = other.locator("dialog")
    dialog.get_by_label("regions").uncheck()
    shown = []
    for label in ("1", "0"):
        dialog.locator("select").select_option(label)
        other.evaluate(SHOWN)
        with Image.open(io.BytesIO(dialog.locator("svg").first.screenshot())) as picture:
            shown.append(np.asarray(picture.convert("RGB").resize((48, 48), Image.Resampling.BOX)).astype(int))
    other.close()
    changed = np.abs(shown[0] - shown[1]).sum(-1) > 30
    assert changed[38:46, 2:10].all()
    assert not changed[:34].any()
    assert not changed[:, 14:].any()
    assert wrong == []


def test_thousands_of_faces_stay_usable(browser: tuple[Page, list[str]], tmp_path: Path) -> None:
    page, wrong = browser
    record = save_face(tmp_path, 0, make_view("a.png"), make_evidence(), REGIONS)
    records = [
        dataclasses.replace(record, data=record.data.replace("a.png", f"{number:05d}.png")) for number in range(2000)
    ]
    write_page(tmp_path / "index.html", "Title", {}, records, mean_shares(records, REGIONS), REGIONS)
    large = page.context.browser.new_page()
    large.on("pageerror", lambda error: wrong.append(str(error)))
    large.goto((tmp_path / "index.html").as_uri())
    expect(large.locator(".card")).to_have_count(2000, timeout=30_000)
    large.get_by_placeholder("contains …").fill("01999")
    expect(large.locator(".card:visible")).to_have_count(1, timeout=30_000)
    large.locator(".card:visible").click()
    assert large.locator("dialog .name").text_content() == "01999.png"
    large.close()
    assert wrong == []


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: tuple[Page, list[str]]) -> None:
    page, _ = browser
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator(".card").first.click()
    for name in ("html", "dialog"):
        assert page.locator(name).evaluate("part => part.scrollWidth <= part.clientWidth")
    page.keyboard.press("Escape")


def test_mean_shares_against_numpy() -> None:
    rng = np.random.default_rng(0)
    labels, regions = ["neutral", "fear", "anger"], ["mouth", "nose", "chin"]
    predicted, shares = rng.integers(0, 2, 40), rng.dirichlet(np.ones(3), 40)
    shares[::5, 1] = np.nan  # faces that do not show the nose
    records = [
        FaceRecord(
            probabilities={label: 0.8 if index == row else 0.1 for index, label in enumerate(labels)},
            shares={region: share for region, share in zip(regions, values, strict=True) if not np.isnan(share)},
            data="{}",
        )
        for row, values in zip(predicted, shares, strict=True)
    ]
    means = mean_shares(records, regions)
    assert set(means) == {"neutral", "fear"}
    for index, label in enumerate(labels[:2]):
        expected = np.nanmean(shares[predicted == index], axis=0)
        found = {region: one["mean"] for region, one in means[label].items()}
        assert found == pytest.approx(dict(zip(regions, expected, strict=True)))
    assert means["fear"]["nose"]["faces"] == (~np.isnan(shares[predicted == 1, 1])).sum()


def test_table_shows_means_and_counts(tmp_path: Path) -> None:
    shares = ({"mouth": 0.2, "nose": 0.8}, {"mouth": 0.3, "nose": -0.7}, {"nose": -1.0})
    tops = ("fear", "fear", "neutral")
    records = [FaceRecord({"neutral": 0.4} | {top: 0.6}, share, "{}") for top, share in zip(tops, shares, strict=True)]
    write_page(tmp_path / "index.html", "Title", {}, records, mean_shares(records, REGIONS), REGIONS)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr><th scope=\"row\">(\w+)</th>(.*?)</tr>", page)
    cells = {label: re.findall(r"<td[^>]*>(.*?)</td>", row) for label, row in rows}
    assert sorted(cells["fear"]) == ["2", "25.0%", "5.0%"]
    assert sorted(cells["neutral"]) == ["&ndash;", "-100.0%", "1"]


def test_page_without_faces_says_so(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", "Title", FACTS, [], {}, REGIONS)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "No face was found." in page
    assert "<table>" not in page


def test_pictures_stand_under_their_headings(tmp_path: Path) -> None:
    record = save_face(tmp_path, 0, make_view("a.png"), make_evidence(), REGIONS)
    means = mean_shares([record], REGIONS)
    pictures = [Image.new("RGB", (width, 20), "red") for width in (30, 40)]
    write_page(tmp_path / "index.html", "Title", {}, [record], means, REGIONS, relations=pictures[:1], heads=pictures)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    tags = [attributes for tag, attributes in Reader(page).tags if tag == "img"]
    shown = [(each["alt"], each["width"], each["height"]) for each in tags]
    heads = "Attention heads"
    assert shown == [("Relations between regions", "30", "20"), (heads, "30", "20"), (heads, "40", "20")]
    for each in tags:
        with Image.open(io.BytesIO(base64.b64decode(each["src"].removeprefix("data:image/jpeg;base64,")))) as picture:
            assert picture.width == int(each["width"])
    assert f"take {100 * JOINED:.0f}% or more from each other" in " ".join(Reader(page).text.split())
    write_page(tmp_path / "index.html", "Title", {}, [record], means, REGIONS)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Relations between" not in page
    assert heads not in page


def test_a_page_is_written_as_its_faces_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    file = io.StringIO()
    monkeypatch.setattr(file, "writelines", lambda pieces: written.extend(map(len, pieces)))
    monkeypatch.setattr(Path, "open", lambda *_, **__: file)
    record = FaceRecord({"happiness": 1.0}, {"mouth": 1.0}, f'"{"x" * 10_000}"')
    write_page(tmp_path / "index.html", "Title", {}, [record] * 50, mean_shares([record], REGIONS), REGIONS)
    assert sum(written) > 500_000
    assert max(written) < 20_000
