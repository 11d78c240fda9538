import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from fer_vit.report.draw import Attention, FaceView, printable, to_photo, zoom
from fer_vit.report.html import Evidence, FaceRecord, average_data, heat_maps, save_face, write_page
from fer_vit.report.table import Interval
from tests.helpers.browser import chromium, loaded, opened

HOSTILE = "<script>alert(1)</script>.png"
QUOTES = """a"b'c&amp;<!--</script>.png"""
SHORT = ("script>.png", "script>.png", "broken ?.png")
"""File names without folders."""
FACTS = {"Method": "relevance", "Model": "<best>.ckpt"}
REGIONS = ("mouth", "nose", "chin")
LABELS = ("neutral", "happiness", '"><i>x')
SHOWN = """() => Promise.all([...document.querySelectorAll("dialog image")].map(image =>
    Object.assign(new Image(), {src: image.getAttribute("href")}).decode()))"""
"""Waits for the pictures of an open face."""


ATTENTION = Attention(
    np.array(
        [
            [[0.6, 0.0, 0.4], [0.0, 0.0, 0.0], [0.3, 0.0, 0.7]],
            [[0.9, 0.0, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 0.9]],
            [[0.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]],
        ]
    ),
    np.array([[0.8, 0.0, 0.2], [0.25, 0.0, 0.75], [0.0, 0.0, 0.0]]),
    np.array([[[0.5, 0.0]], [[0.0, 0.5]], [[0.0, 0.0]]]),
    np.array([np.nan, 9.0, np.nan]),
)
"""The whole encoder, one head, and interactions; two patches."""
VIEWS = {"views": ("the whole encoder", "block 1, head 1: 9 px"), "grid": (1, 2)}


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
        regions={"mouth": np.array([8.0, 16.0, 20.0, 28.0]), "chin": np.array([8.0, 24.0, 20.0, 32.0])},
        probabilities=dict(zip(LABELS, probabilities, strict=True)),
    )


def make_evidence() -> Evidence:
    heat = np.arange(1024.0).reshape(32, 32) / 1024
    each = [(np.array([share, 0.0, -0.5]), heat - share) for share in (0.1, 0.25, -0.4)]
    return Evidence([1, 2, 0], dict(enumerate(each)), (np.array([0.9, 0.0, 0.1]), heat), ATTENTION)


def write(folder: Path) -> Path:
    views = [
        make_view(HOSTILE),
        make_view(QUOTES, (0.6, 0.3, 0.1)),
        make_view("broken \udcff.png", (0.0, 0.1, 0.9)),
    ]
    evidence = [
        make_evidence(),
        make_evidence()._replace(order=[0, 1, 2]),
        make_evidence()._replace(order=[2, 1, 0], labels={2: (np.ones(3), np.ones((32, 32)))}),
    ]
    records = [save_face(folder, *one, REGIONS) for one in zip(range(3), views, evidence, strict=True)]
    found = [Interval(mean=0.2, low=0.1, high=0.3, faces=40)] * (3 + 3 + 9)
    mean = replace(make_view(""), probabilities={LABELS[2]: 1.0})
    average = average_data(
        40, mean, make_evidence()._replace(order=[0], labels={0: make_evidence().labels[0]}), REGIONS, found
    )
    write_page(
        folder / "index.html", "A <title>", FACTS, LABELS, records, REGIONS, [average], **VIEWS,
        meaning={"pixels": "Pixels.", "attention": "Attention <b>."}, skipped=[(HOSTILE, "no face")],
    )  # fmt: skip
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
def chrome() -> Iterator[Browser]:
    """A real browser."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(chrome: Browser, file: Path) -> tuple[Page, list[str]]:
    """The page, and what goes wrong in it."""
    return opened(chrome, file.as_uri())


def open_records(chrome: Browser, folder: Path, records: list[FaceRecord]) -> tuple[Page, list[str]]:
    """A page of these faces, and its errors."""
    write_page(folder / "index.html", "Title", {}, LABELS, records, REGIONS, **VIEWS)
    return opened(chrome, (folder / "index.html").as_uri())


def test_a_face_leaves_pictures_and_a_record(tmp_path: Path) -> None:
    view = make_view("a.png")
    record = save_face(tmp_path, 7, view, make_evidence(), REGIONS)
    assert record.label == "happiness"
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
    assert sum(tag == "script" for tag, _ in reader.tags) == 3  # two of data, the program, none from a name


def test_page_needs_nothing_but_the_pictures_beside_it(page: str) -> None:
    tags = Reader(page).tags
    assert not any("src" in attributes or not attributes.get("href", "#").startswith("#") for _, attributes in tags)
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
    assert names.all_text_contents() == [*SHORT]
    page.locator("select[name=order]").select_option("most")
    assert names.all_text_contents() == [SHORT[2], *SHORT[:2]]
    page.locator("select[name=order]").select_option("least")
    assert names.all_text_contents() == [SHORT[1], SHORT[0], SHORT[2]]
    page.locator(".filter").get_by_text("happiness 1").click()
    assert names.all_text_contents() == [SHORT[0]]
    assert page.locator("output").text_content() == "1 of 3 faces"
    page.get_by_text("all", exact=True).click()
    page.get_by_placeholder("contains …").fill("BROKEN")
    assert names.all_text_contents() == ["broken ?.png"]
    page.get_by_placeholder("contains …").fill("")
    page.locator("select[name=order]").select_option("found")
    assert loaded(page.locator(".card img"))
    page.locator("#skipped summary").click()
    assert page.locator("#skipped li").all_inner_texts() == [f"{HOSTILE}: no face"]
    assert wrong == []


def rows(page: Page, table: int = 0) -> list[list[str]]:
    """The cells of a table of the open face."""
    lines = page.locator("dialog .bars").nth(table).locator("tbody tr").all()
    return [[cell for cell in line.locator("th, td").all_text_contents() if cell] for line in lines]


def test_a_face_opens_large_and_explains_any_label(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    dialog = page.locator("dialog")
    page.locator(".card").first.focus()
    page.keyboard.press("Enter")
    assert dialog.locator("h2").text_content() == "happiness 70%"
    assert dialog.locator(".name").text_content() == HOSTILE
    choice = dialog.locator("select[name=label]")
    assert choice.locator("option").all_text_contents() == [
        "happiness",
        '"><i>x',
        "neutral",
        'happiness rather than "><i>x',
    ]
    assert rows(page) == [["mouth", "25%"], ["chin", "-50%"]]  # the nose is not there
    assert rows(page, 1) == [["mouth, chin", "100%"]]
    assert dialog.locator("svg .arc title").all_text_contents() == ["mouth and chin together: 100%"]
    assert rows(page, 2) == [["happiness", "70%"], ['"><i>x', "20%"], ["neutral", "10%"]]
    heat = dialog.locator("svg .heat")
    assert heat.get_attribute("viewBox") == "0 1 1 1"  # happiness
    choice.select_option('"><i>x')
    assert rows(page) == [["mouth", "-40%"], ["chin", "-50%"]]
    assert dialog.locator(".numbers i.against").count() == 2
    assert dialog.locator("svg .arc").count() == 0  # interactions are of the predicted expression
    choice.select_option("contrast")
    assert rows(page) == [["mouth", "90%"], ["chin", "10%"]]
    assert heat.get_attribute("viewBox") == "0 3 1 1"  # below the heat of the three labels
    dialog.get_by_label("regions").uncheck()
    assert dialog.locator("svg .region").count() == 0
    dialog.get_by_label("regions").check()
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


def test_one_click_shows_where_the_model_looks(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    dialog = page.locator("dialog")
    page.locator(".card").first.click()
    assert dialog.locator(".meaning").text_content() == "Pixels."
    dialog.get_by_text("where the model looks").click()
    assert dialog.locator(".meaning").text_content() == "Attention <b>."
    assert rows(page) == [["mouth", "80%"], ["chin", "20%"]]
    assert rows(page, 1) == [["mouth, chin", "40%", "30%"]]
    assert dialog.locator(".arc title").all_text_contents() == ["mouth takes 40% from chin, which takes 30%"]
    assert dialog.locator("svg text").all_text_contents() == ["mouth", "chin"]
    assert "widest: mouth and chin, 70%" in (dialog.locator(".legend").text_content() or "")
    # From the middle of the mouth to the middle of the chin, in the picture: 2 (x - 4), then zoomed.
    a, _, _, d, e, f = json.loads(page.evaluate("JSON.stringify(faces[0].matrix)"))
    ends = [14 * a + e, 22 * d + f, 14 * a + e, 28 * d + f]
    path = re.findall(r"[\d.]+", dialog.locator(".arc").get_attribute("d") or "")
    assert [float(number) for number in (*path[:2], *path[-2:])] == pytest.approx(ends, abs=0.01)
    large, small = (float(disc.get_attribute("r") or 0) for disc in dialog.locator(".disc").all())
    assert (small - 2) / (large - 2) == pytest.approx(0.5, abs=0.01)  # discs have a radius of 2 and more
    with Image.open(io.BytesIO(base64.b64decode((dialog.locator(".soft").get_attribute("href") or "")[22:]))) as soft:
        assert [soft.getpixel((x, 0))[3] for x in (0, 1)] == [190, 0]
    dialog.locator("select[name=view]").select_option("block 1, head 1: 9 px")
    assert rows(page) == [["mouth", "25%"], ["chin", "75%"]]
    assert rows(page, 1) == [["mouth, chin", "10%", "10%"]]
    dialog.get_by_text("what drives the prediction").click()
    page.keyboard.press("Escape")
    assert wrong == []


def test_averages_have_the_same_picture_with_intervals_on_demand(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    means = page.locator("#averages")
    assert means.locator("figcaption").all_text_contents() == ['"><i>x 40 faces']
    assert "Too few faces for an average (below 30): neutral 1, happiness 1." in (means.text_content() or "")
    assert not means.locator("table").first.is_visible()
    means.get_by_text("numbers, 95% intervals").click()
    assert means.locator("tbody").first.inner_text().split() == [
        *("mouth", "10%", "(10%", "to", "30%)"),
        *("chin", "-50%", "(10%", "to", "30%)"),
    ]
    means.get_by_text("where the model looks").click()
    assert means.locator("table").nth(1).locator("tbody").inner_text().split("\t") == [
        "mouth, chin",
        "40% (10% to 30%)",
        "30% (10% to 30%)",
    ]
    means.locator("select[name=view]").select_option("block 1, head 1: 9 px")
    assert "to 30%" not in means.locator("table").nth(1).inner_text()
    with page.expect_download() as saved:
        means.get_by_text("Save PNG").click()
    with Image.open(saved.value.path()) as picture:
        assert max(picture.size) == 96  # twice the picture
    assert saved.value.suggested_filename.endswith(".png")
    with page.expect_download() as saved:
        means.get_by_text("Save SVG").click()
    text = saved.value.path().read_text()
    assert 'href="data:image/' in text
    assert "svg .arc { fill: none" in text
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation(scheme: str, width: int, chrome: Browser, file: Path) -> None:
    context = chrome.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page = context.new_page()
    page.goto(file.as_uri())
    page.locator(".help summary").click()
    assert Axe().run(page).response["violations"] == []
    page.locator(".card").first.click()
    for mode in ("what drives the prediction", "where the model looks"):
        page.locator("dialog").get_by_text(mode).click()
        assert Axe().run(page).response["violations"] == []
        for part in ("html", "dialog"):
            assert page.locator(part).evaluate("part => part.scrollWidth <= part.clientWidth")
    context.close()


def test_a_photo_of_several_people_is_whole_and_a_box_opens_a_face(chrome: Browser, tmp_path: Path) -> None:
    records = []
    for number, left in enumerate((10.0, 60.0)):
        view = replace(make_view("a/b.png"), face=number, box=np.array([left, 10, left + 20, 30]))
        view = replace(view, photo=np.full((50, 100, 3), 90, np.uint8))
        records.append(save_face(tmp_path, number, view, make_evidence(), REGIONS))
    records.append(save_face(tmp_path, 2, make_view("alone.png"), make_evidence(), REGIONS))
    page, _ = open_records(chrome, tmp_path, records)
    assert loaded(page.locator(".whole img"))
    whole, second = page.locator(".whole img").bounding_box(), page.locator(".whole button").nth(1).bounding_box()
    assert page.locator(".whole").count() == 1
    assert whole
    assert second
    assert (second["x"] - whole["x"]) / whole["width"] == pytest.approx(0.6, abs=0.01)
    assert second["height"] / whole["height"] == pytest.approx(0.4, abs=0.01)
    page.get_by_role("button", name="face 1: happiness 70%").click()
    assert page.locator("dialog .number").text_content() == "face 1"
    page.keyboard.press("ArrowRight")  # only the faces of this photo
    assert page.locator("dialog .number").text_content() == "face 1"
    page.keyboard.press("Escape")
    expect(page.locator(".whole button").nth(1)).to_be_focused()


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


def test_hostile_names_and_labels_are_text_everywhere(chrome: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "re#port 100%41?"
    labels = (f"<img src=x onerror={OWN}>", f"'\"><svg/onload={OWN}>", "</script>\u202ex")
    shown = [printable(label) for label in labels]
    records = []
    for number, name in enumerate(NAMES):
        view = make_view(name)
        probabilities = dict(zip(labels, np.roll((0.1, 0.7, 0.2), number), strict=True))
        view = replace(view, probabilities=probabilities, photo=np.full_like(view.photo, 10 + 16 * number))
        evidence = make_evidence()._replace(order=np.argsort([-p for p in probabilities.values()]).tolist())
        records.append(save_face(folder, number, view, evidence, REGIONS))
    write_page(folder / "index.html", NAMES[0], {"Model": NAMES[1]}, labels, records, REGIONS, **VIEWS)
    page, wrong = opened(chrome, (folder / "index.html").as_uri())
    names = [printable(name) for name in NAMES]
    assert names[6:8] == ["two lines three.png", "photo?gnp.exe"]
    assert page.title() == page.locator("h1").text_content() == NAMES[0]
    assert page.locator(".facts dd").first.text_content() == names[1]
    cards, dialog = page.locator(".card"), page.locator("dialog")
    assert cards.locator(".name").all_text_contents() == [name.rpartition("/")[2] for name in names]
    assert [card.get_attribute("title") for card in cards.all()] == names
    assert [text.split("\xa0")[0].rpartition(" ")[0] for text in cards.locator(".label").all_text_contents()] == [
        shown[json.loads(record.data)["order"][0]] for record in records
    ]
    for number, name in enumerate(names):
        page.get_by_placeholder("contains …").fill(name)
        expect(page.locator(".card:visible")).to_have_count(sum(name in other for other in names))
        cards.nth(number).scroll_into_view_if_needed()
        expect(cards.nth(number).locator("img")).to_have_js_property("complete", True)
        with Image.open(io.BytesIO(cards.nth(number).locator("img").screenshot())) as picture:
            assert abs(picture.getpixel((20, 20))[0] - (10 + 16 * number)) < 5  # its own picture
        cards.nth(number).click()
        assert dialog.locator(".name").text_content() == name
        options = dialog.locator("select[name=label] option").all_text_contents()
        assert sorted(options[:3]) == sorted(shown)
        assert dialog.locator("h2").text_content().startswith(options[0])
        dialog.locator("select[name=label]").select_option("contrast")
        assert options[3] == f"{options[0]} rather than {options[1]}"
        assert dialog.locator("svg .region title").first.text_content() == "mouth 90%"
        page.keyboard.press("Escape")
    for label in shown:
        page.get_by_text(label, exact=False).locator("visible=true").first.hover()
    page.get_by_placeholder("contains …").fill("")
    page.locator("fieldset span", has_text=shown[0]).click()
    assert page.locator("output").text_content().endswith(f"of {len(names)} faces")
    assert page.title() == NAMES[0]
    assert page.locator("script").count() == 3
    assert page.locator("[src=x], [onload], [onerror], [onmouseover], body i:not([class])").count() == 0
    assert wrong == []


def test_the_second_label_is_the_models_even_where_its_probability_rounds_to_nothing(
    chrome: Browser, tmp_path: Path
) -> None:
    view = make_view("a.png", (1e-6, 1.0, 2e-5))
    records = [save_face(tmp_path, 0, view, make_evidence(), REGIONS)]
    page, _ = open_records(chrome, tmp_path, records)
    page.locator(".card").click()
    assert page.locator("dialog select[name=label] option").last.text_content() == 'happiness rather than "><i>x'


def test_heat_maps_stand_one_below_the_other_in_colour() -> None:
    heat = np.zeros((24, 24))
    heat[2:6, 8:12], heat[12:16, 12:16] = 2.0, -1.0
    contrast = (np.ones(3), -heat)
    picture = heat_maps(Evidence([1, 0, 2], {1: (np.ones(3), heat)}, contrast, ATTENTION))
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


def test_the_heat_of_the_label_is_shown_where_its_pixels_are(chrome: Browser, tmp_path: Path) -> None:
    heat = np.zeros((32, 32))
    heat[24:, :8] = 1.0  # the lower left corner of the crop
    evidence = Evidence(
        [1, 0, 2], {0: (np.ones(3), np.zeros((32, 32))), 1: (np.ones(3), heat)}, (np.ones(3), 0 * heat), ATTENTION
    )
    view = replace(make_view("a.png"), to_crop=np.eye(2, 3) * 32 / 48)
    records = [save_face(tmp_path, 0, view, evidence, REGIONS)]
    page, wrong = open_records(chrome, tmp_path, records)
    page.locator(".card").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("regions").uncheck()
    shown = []
    for label in ("1", "0"):
        dialog.locator("select[name=label]").select_option(label)
        page.evaluate(SHOWN)
        with Image.open(io.BytesIO(dialog.locator("svg").first.screenshot())) as picture:
            shown.append(np.asarray(picture.convert("RGB").resize((48, 48), Image.Resampling.BOX)).astype(int))
    changed = np.abs(shown[0] - shown[1]).sum(-1) > 30
    assert changed[38:46, 2:10].all()
    assert not changed[:34].any()
    assert not changed[:, 14:].any()
    assert wrong == []


def test_thousands_of_faces_stay_usable(chrome: Browser, tmp_path: Path) -> None:
    record = save_face(tmp_path, 0, make_view("a.png"), make_evidence(), REGIONS)
    records = [record._replace(data=record.data.replace("a.png", f"{number:05d}.png")) for number in range(2000)]
    large, wrong = open_records(chrome, tmp_path, records)
    expect(large.locator(".card")).to_have_count(2000, timeout=30_000)
    large.get_by_placeholder("contains …").fill("01999")
    expect(large.locator(".card:visible")).to_have_count(1, timeout=30_000)
    large.locator(".card:visible").click()
    assert large.locator("dialog .name").text_content() == "01999.png"
    assert wrong == []


def test_page_without_faces_says_so(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", "Title", FACTS, LABELS, [], REGIONS, skipped=[("a.png", "no face")])
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "No face was found." in page
    assert "<bdi>a.png</bdi>: no face" in page


def test_a_page_is_written_as_its_faces_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    file = io.StringIO()
    monkeypatch.setattr(file, "writelines", lambda pieces: written.extend(map(len, pieces)))
    monkeypatch.setattr(Path, "open", lambda *_, **__: file)
    record = FaceRecord("happiness", f'"{"x" * 50_000}"', "AA==")
    write_page(tmp_path / "index.html", "Title", {}, LABELS, [record] * 50, REGIONS)
    assert sum(written) > 2_500_000
    assert max(written) < 100_000
