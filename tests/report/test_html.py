import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

from fer_vit.report.explained_face import Attributed, Evidence
from fer_vit.report.records import FaceRecord, average_data, heat_maps, interacting_pairs, save_face
from fer_vit.stats.estimate import Estimate
from fer_vit.visualization.mean_faces import mean_face
from tests.helpers.browser import SCREENS, Scheme, Tab, assert_accessible, loaded
from tests.helpers.faces import make_face
from tests.helpers.marks import slow
from tests.helpers.processes import PATIENCE
from tests.helpers.reports import (
    ATTENTION,
    INTERACTIONS,
    LABELS,
    REGIONS,
    VIEWS,
    make_evidence,
    make_view,
    write_page,
)

HOSTILE = "<script>alert(1)</script>.png"
QUOTES = """a"b'c&amp;<!--</script>.png"""
SHORT = ("script>.png", "script>.png", "broken ?.png", "last.png")
"""File names without folders."""
FACTS = {"Method": "relevance", "Model": "<best>.ckpt"}
SHOWN = """() => Promise.all([...document.querySelectorAll(".face image")].map(image =>
    Object.assign(new Image(), {src: image.getAttribute("href")}).decode()))"""
"""Waits for the pictures of an open face."""


def write(folder: Path) -> Path:
    small = make_face(dict(zip(LABELS, (0.2, 0.65, 0.15), strict=True)), face=2, size=20)
    views = [
        make_view(HOSTILE),
        make_view(QUOTES, (0.6, 0.3, 0.1)),
        make_view("broken \udcff.png", (0.0, 0.1, 0.9)),
        replace(make_view("folder/last.png"), face=small),
    ]
    few = make_evidence([2, 1, 0])
    few = few._replace(targets=[few.targets[0], few.targets[3]])  # as without `--labels all`
    evidence = [make_evidence(), make_evidence([0, 1, 2]), few, make_evidence([1, 0, 2])]
    records = []
    for number, (view, explained) in enumerate(zip(views, evidence, strict=True)):
        records.append(save_face(folder, number, view, explained, REGIONS))
    intervals = [Estimate(mean=0.2, low=0.1, high=0.3)] * (3 + 3 + 9)
    mean = replace(make_view(""), face=mean_face(LABELS[2], 32))
    average = average_data(
        40,
        mean,
        make_evidence()._replace(order=[0], targets=make_evidence().targets[2:3]),
        REGIONS,
        intervals,
    )
    write_page(
        folder / "index.html",
        FACTS,
        LABELS,
        records,
        title="A <title>",
        averages=[average],
        **VIEWS,
        meaning={"attribution": "Pixels.", "attention": "Attention <b>."},
        skipped=[(HOSTILE, "no face")],
    )
    return folder / "index.html"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def data(page: str) -> dict[str, Any]:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(text)


@pytest.fixture
def browser(tab: Tab, file: Path) -> tuple[Page, list[str]]:
    """The page, and what goes wrong in it."""
    return tab.open(file.as_uri())


def open_records(tab: Tab, folder: Path, records: list[FaceRecord]) -> tuple[Page, list[str]]:
    """A page of these faces, and its errors."""
    write_page(folder / "index.html", {}, LABELS, records, **VIEWS)
    return tab.open((folder / "index.html").as_uri())


def test_names_are_text_and_the_page_needs_only_the_pictures_beside_it(page: str) -> None:
    assert page.count("<script") == 4  # three of data, the program, none from a name
    assert not any(
        text in page for text in ("A <title>", "<best>.ckpt", LABELS[2], HOSTILE, QUOTES)
    )
    faces = data(page)["faces"]
    tags = page.partition("<body>")[2].partition("<script")[0]
    assert [face["name"] for face in faces] == [HOSTILE, QUOTES, "broken ?.png", "folder/last.png"]
    assert data(page)["labels"] == list(LABELS)
    assert not re.search(r"""<[^>]*\s(src|on\w+|href=["']?(?!["#]))""", tags)
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|@import|url\(", page)
    assert [face["image"] for face in faces] == [f"photos/{number:06d}.jpg" for number in range(4)]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; img-src")
    assert policy.endswith(f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'")


def test_the_gallery_filters_sorts_and_searches(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    names = page.locator(".card:visible .name")
    assert names.all_text_contents() == [*SHORT]
    page.locator("select[name=order]").select_option("most")
    assert names.all_text_contents() == [SHORT[2], SHORT[0], SHORT[3], SHORT[1]]
    page.locator("select[name=order]").select_option("least")
    assert names.all_text_contents() == [SHORT[1], SHORT[3], SHORT[0], SHORT[2]]
    page.locator(".filter").get_by_text("happiness 2").click()
    assert names.all_text_contents() == [SHORT[3], SHORT[0]]
    assert page.locator(".filter output").text_content() == "2 of 4 faces"
    page.get_by_text("all", exact=True).click()
    page.get_by_label("File name").fill("BROKEN")
    assert names.all_text_contents() == ["broken ?.png"]
    page.get_by_label("File name").fill("")
    page.locator("select[name=order]").select_option("found")
    assert loaded(page.locator(".card img"))
    page.locator("#skipped summary").click()
    assert page.locator("#skipped li").all_inner_texts() == [f"{HOSTILE}: no face"]
    assert page.locator(".card").nth(3).locator(".flag").all_text_contents() == ["small face"]
    assert wrong == []


def rows(page: Page, table: int = 0, place: str = ".numbers") -> list[list[str]]:
    """The cells of a table of the open face."""
    lines = page.locator(f"dialog {place} .bars").nth(table).locator("tbody tr").all()
    return [[cell for cell in line.locator("th, td").all_text_contents() if cell] for line in lines]


@pytest.fixture
def opened_face(browser: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page with its first face opened by the keyboard; nothing goes wrong in it."""
    page, wrong = browser
    page.locator(".card").first.focus()
    page.keyboard.press("Enter")
    yield page
    assert wrong == []


def test_a_face_opens_large_with_its_probabilities_and_regions(opened_face: Page) -> None:
    dialog = opened_face.locator("dialog")
    expect(dialog.locator(".close")).to_be_focused()
    assert dialog.locator("h2").text_content() == "happiness 70%"
    assert dialog.locator(".name").text_content() == HOSTILE
    assert rows(opened_face, 0, ".probabilities") == [
        ["happiness", "70%"],
        ['"><i>x', "20%"],
        ["neutral", "10%"],
    ]
    assert rows(opened_face) == [["mouth", "+25%"], ["chin", "-50%"]]  # the nose is not there
    bars = dialog.locator(".numbers .signed")
    places = [float(bar.evaluate("bar => bar.style.getPropertyValue('--x')")) for bar in bars.all()]
    widths = [float(bar.evaluate("bar => bar.style.getPropertyValue('--w')")) for bar in bars.all()]
    assert (places, widths) == ([0.5, 0.0], [0.25, 0.5])  # from the middle, to the left if negative
    assert dialog.locator("svg text").all_text_contents() == ["chin -50%", "mouth +25%"]
    assert dialog.locator("svg .region.strong").count() == 2
    dialog.get_by_label("regions", exact=True).uncheck()
    assert dialog.locator("svg .region").count() == 0


def test_any_label_of_a_face_is_explained(opened_face: Page) -> None:
    dialog = opened_face.locator("dialog")
    choice = dialog.locator("select[name=target]")
    heat = dialog.locator("svg .heat")
    assert choice.locator("option").all_text_contents() == [
        "happiness",
        '"><i>x',
        "neutral",
        'happiness rather than "><i>x',
    ]
    assert heat.get_attribute("viewBox") == "0 0 1 1"
    choice.select_option('"><i>x')
    assert rows(opened_face) == [["mouth", "-40%"], ["chin", "-50%"]]
    assert dialog.locator(".numbers .against").count() == 2
    choice.select_option('happiness rather than "><i>x')
    assert rows(opened_face) == [["mouth", "+90%"], ["chin", "+10%"]]
    assert heat.get_attribute("viewBox") == "0 3 1 1"  # below the heat of the three labels


def test_arcs_are_of_the_predicted_expression_and_shown_on_request(opened_face: Page) -> None:
    dialog = opened_face.locator("dialog")
    arcs = dialog.locator("svg .arc")
    assert rows(opened_face, 1) == [["mouth, chin", "-0.40"]]
    assert arcs.count() == 0  # not in the first view
    dialog.get_by_label("arcs between regions").check()
    assert arcs.locator("title").all_text_contents() == ["mouth and chin: -0.40 logits"]
    dialog.locator("select[name=target]").select_option('"><i>x')
    assert arcs.count() == 0


def test_keys_walk_from_face_to_face_and_back_to_the_gallery(opened_face: Page) -> None:
    dialog = opened_face.locator("dialog")
    opened_face.keyboard.press("ArrowRight")
    assert dialog.locator(".name").text_content() == QUOTES
    opened_face.keyboard.press("ArrowRight")
    options = dialog.locator("select[name=target] option")
    assert options.all_text_contents() == ['"><i>x', '"><i>x rather than happiness']
    opened_face.keyboard.press("ArrowRight")
    opened_face.keyboard.press("ArrowRight")
    assert dialog.locator(".name").text_content() == "folder/last.png"  # the last
    assert dialog.locator(".flags li").all_text_contents() == ["small face"]
    opened_face.keyboard.press("Escape")
    assert not dialog.is_visible()
    expect(opened_face.locator(".card").nth(3)).to_be_focused()


def test_the_focus_goes_to_the_filter_that_hides_the_open_card(
    browser: tuple[Page, list[str]],
) -> None:
    page, wrong = browser
    name = page.locator("[name=text]")
    name.fill("no such name")
    page.evaluate("location.hash = '#face-1'")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(name).to_be_focused()
    page.get_by_role("button", name="Show all faces").press("Enter")
    expect(name).to_be_focused()
    assert wrong == []


@pytest.fixture
def opened_exchange(browser: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page that shows how regions of the first face exchange information."""
    page, wrong = browser
    page.locator(".card").first.click()
    page.locator("dialog").get_by_text("How regions exchange information").click()
    yield page
    page.locator("dialog").get_by_text("What drives the prediction").click()
    page.keyboard.press("Escape")
    assert wrong == []


def test_one_click_shows_how_regions_exchange_information(
    browser: tuple[Page, list[str]],
) -> None:
    page, wrong = browser
    dialog = page.locator("dialog")
    page.locator(".card").first.click()
    assert dialog.locator(".meaning p").first.text_content() == "Pixels."
    dialog.get_by_text("How regions exchange information").click()
    assert dialog.locator(".meaning p").first.text_content() == "Attention <b>."
    assert rows(page) == [["mouth", "80%"], ["chin", "20%"]]
    assert rows(page, 1) == [["mouth, chin", "40%", "30%"]]
    assert dialog.locator("svg text").all_text_contents() == ["mouth 80%", "chin 20%"]
    assert wrong == []


def test_arcs_join_the_middles_of_regions_that_exchange_information(
    opened_exchange: Page,
) -> None:
    dialog = opened_exchange.locator("dialog")
    dialog.get_by_label("arcs between regions").check()
    (title,) = dialog.locator(".arc title").all_text_contents()
    assert re.findall(r"mouth|chin|\d+%", title) == ["mouth", "40%", "chin", "30%"]

    # From the middle of the mouth to that of the chin, in the picture: 2 (x - 4), then zoomed
    a, _, _, d, e, f = json.loads(opened_exchange.evaluate("JSON.stringify(faces[0].matrix)"))
    ends = [14 * a + e, 22 * d + f, 14 * a + e, 28 * d + f]
    path = re.findall(r"[\d.]+", dialog.locator(".arc").get_attribute("d") or "")
    assert [float(number) for number in (*path[:2], *path[-2:])] == pytest.approx(ends, abs=0.01)


def test_discs_have_the_area_of_the_information_that_regions_give(opened_exchange: Page) -> None:
    discs = opened_exchange.locator("dialog .disc").all()
    large, small = (float(disc.get_attribute("r") or 0) for disc in discs)
    # discs have a radius of 2 and more
    assert (small - 2) / (large - 2) == pytest.approx(0.5, abs=0.01)
    address = opened_exchange.locator("dialog .soft").get_attribute("href") or ""
    with Image.open(io.BytesIO(base64.b64decode(address[22:]))) as soft:
        assert [soft.getpixel((x, 0))[3] for x in (0, 1)] == [190, 0]


def test_a_head_of_attention_may_be_chosen(opened_exchange: Page) -> None:
    view = opened_exchange.locator("dialog select[name=view]")
    view.select_option("block 1, head 1: 9 px")
    assert rows(opened_exchange) == [["mouth", "25%"], ["chin", "75%"]]
    assert rows(opened_exchange, 1) == [["mouth, chin", "10%", "10%"]]


def test_averages_have_the_same_picture_with_intervals_on_demand(
    browser: tuple[Page, list[str]],
) -> None:
    page, wrong = browser
    means = page.locator("#averages")
    assert means.locator("figcaption").all_text_contents() == ['"><i>x 40 faces']
    assert re.search(r"\b30\b.*: neutral 1, happiness 2\.", means.text_content() or "")
    assert not means.locator("table").first.is_visible()
    means.get_by_text("numbers, 95% intervals").click()
    assert means.locator("tbody").first.inner_text().split() == [
        *("mouth", "+10%", "(+10%", "to", "+30%)"),
        *("chin", "-50%", "(+10%", "to", "+30%)"),
    ]
    means.get_by_text("How regions exchange information").click()
    assert means.locator("table").nth(1).locator("tbody").inner_text().split("\t") == [
        "mouth, chin",
        "40% (10% to 30%)",
        "30% (10% to 30%)",
    ]
    means.locator("select[name=view]").select_option("block 1, head 1: 9 px")
    assert "to 30%" not in means.locator("table").nth(1).inner_text()
    means.get_by_text("Copy numbers").click()
    search = page.locator("input[type=search]")
    search.press("ControlOrMeta+v")
    assert "mouth, chin" in search.input_value()
    assert wrong == []


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_no_violation(width: int, scheme: Scheme, tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri(), width, scheme)
    page.locator(".help summary").click()
    assert_accessible(page)
    page.locator(".card").first.click()
    for mode in ("What drives the prediction", "How regions exchange information"):
        page.locator("dialog").get_by_text(mode).click()
        assert_accessible(page, "html", "dialog")
    assert wrong == []


def test_a_photo_of_several_people_is_whole_and_a_box_opens_a_face(
    tab: Tab, tmp_path: Path
) -> None:
    records = [save_face(tmp_path, 0, make_view("alone.png", face=0), make_evidence(), REGIONS)]
    for number, left in enumerate((10.0, 60.0), 1):
        view = replace(
            make_view("a/b.png", face=number - 1), box=np.array([left, 10, left + 20, 30])
        )
        view = replace(view, photo=np.full((50, 100, 3), 90, np.uint8))
        records.append(save_face(tmp_path, number, view, make_evidence(), REGIONS))
    assert [path.name for path in (tmp_path / "photos").glob("*-whole.jpg")] == ["000001-whole.jpg"]
    page, _ = open_records(tab, tmp_path, records)
    assert loaded(page.locator(".whole img"))
    whole = page.locator(".whole img").bounding_box()
    second = page.locator(".whole button").nth(1).bounding_box()
    assert page.locator(".whole").count() == 1
    assert whole
    assert second
    assert (second["x"] - whole["x"]) / whole["width"] == pytest.approx(0.6, abs=0.01)
    assert second["height"] / whole["height"] == pytest.approx(0.4, abs=0.01)
    assert page.locator(".gallery .face").count() == 3  # all details at once
    page.get_by_role("button", name="face 1: happiness 70%").click()
    expect(page.locator(".gallery .face").nth(2)).to_be_focused()


def test_a_box_in_a_photo_opens_a_face_and_the_filter_also_hides_photos(
    tab: Tab, tmp_path: Path
) -> None:
    records = []
    for number in range(4):
        boxed = replace(
            make_view("a/b.png", face=number),
            box=np.array([10.0 * number, 5, 10.0 * number + 8, 15]),
        )
        records.append(save_face(tmp_path, number, boxed, make_evidence(), REGIONS))
    second_view = make_view("c.png", (0.8, 0.1, 0.1), face=0)
    records.append(save_face(tmp_path, 4, second_view, make_evidence([0, 1, 2]), REGIONS))
    page, wrong = open_records(tab, tmp_path, records)
    assert page.locator(".whole").count() == 1
    page.get_by_role("button", name="face 2: happiness 70%").click()
    dialog = page.locator("dialog")
    assert dialog.locator(".number").text_content() == "face 2"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # only the faces of this photo
    assert dialog.locator(".number").text_content() == "face 3"
    page.keyboard.press("Escape")
    expect(page.locator(".whole button").nth(2)).to_be_focused()
    page.locator(".filter").get_by_text("neutral 1").click()
    expect(page.locator(".groups figure")).to_be_hidden()
    assert page.locator(".filter").evaluate("form => getComputedStyle(form).position") == "sticky"
    assert wrong == []


def test_a_page_that_was_sent_alone_has_its_pictures(tab: Tab, tmp_path: Path) -> None:
    records = []
    for number in range(4):
        view = make_view(f"{number}.png")
        records.append(save_face(tmp_path, number, view, make_evidence(), REGIONS))
    for picture in (tmp_path / "photos").iterdir():
        picture.unlink()
    page, _ = open_records(tab, tmp_path, records)
    assert loaded(page.locator(".card img"))


def test_pairs_that_interact_are_listed_by_size() -> None:
    logits = np.zeros((3, 3))
    logits[0, 1] = logits[1, 0] = 0.1
    logits[1, 2] = logits[2, 1] = -0.5
    assert interacting_pairs(logits) == [[1, 2, -0.5], [0, 1, 0.1]]


def test_heat_maps_stand_one_below_the_other_in_colour() -> None:
    heat = np.zeros((24, 24))
    heat[2:6, 8:12], heat[12:16, 12:16] = 2.0, -1.0
    targets = [Attributed("a", np.ones(3), heat), Attributed("b", np.ones(3), -heat)]
    picture = heat_maps(Evidence([1, 0, 2], targets, ATTENTION, INTERACTIONS, {}))
    assert picture.size == (96, 2 * 96)
    maps = np.asarray(picture.convert("RGBA")).reshape(2, 96, 96, 4)
    for shown, sign in ((maps[0], 1), (maps[1], -1)):
        red, _, blue, strong = shown[16, 40].tolist()
        assert (red > blue) == (sign > 0)
        red, _, blue, weak = shown[56, 56].tolist()
        assert (red > blue) == (sign < 0)
        assert weak == pytest.approx(strong * 0.5, abs=5)
        assert shown[0, 0, 3] == 0


def test_the_heat_of_the_label_is_shown_where_its_pixels_are(tab: Tab, tmp_path: Path) -> None:
    heat = np.zeros((32, 32))
    heat[24:, :8] = 1.0  # the lower left corner of the crop
    targets = [
        Attributed("happiness", np.ones(3), heat),
        Attributed("neutral", np.ones(3), np.zeros((32, 32))),
    ]
    evidence = Evidence([1, 0, 2], targets, ATTENTION, INTERACTIONS, {})
    view = replace(make_view("a.png"), to_crop=np.eye(2, 3) * 32 / 48)
    records = [save_face(tmp_path, 0, view, evidence, REGIONS)]
    page, wrong = open_records(tab, tmp_path, records)
    panel = page.locator(".gallery .face")  # the only face is open from the start
    panel.get_by_label("regions", exact=True).uncheck()
    shown = []
    for target in ("happiness", "neutral"):
        panel.locator("select[name=target]").select_option(target)
        page.evaluate(SHOWN)
        with Image.open(io.BytesIO(panel.locator("svg").first.screenshot())) as picture:
            shown.append(
                np.asarray(picture.convert("RGB").resize((48, 48), Image.Resampling.BOX)).astype(
                    int
                )
            )
    changed = np.abs(shown[0] - shown[1]).sum(-1) > 30
    assert changed[38:46, 2:10].all()
    assert not changed[:34].any()
    assert not changed[:, 14:].any()
    assert wrong == []


@pytest.mark.slow
def test_thousands_of_faces_stay_usable(tab: Tab, tmp_path: Path) -> None:
    record = save_face(tmp_path, 0, make_view("a.png"), make_evidence(), REGIONS)
    records = [
        record._replace(data=record.data.replace("a.png", f"{number:05d}.png"))
        for number in range(2000)
    ]
    large, wrong = open_records(tab, tmp_path, records)
    expect(large.locator(".card")).to_have_count(2000, timeout=1000 * PATIENCE)
    large.get_by_label("File name").fill("01999")
    expect(large.locator(".card:visible")).to_have_count(1, timeout=1000 * PATIENCE)
    large.locator(".card:visible").click()
    assert large.locator("dialog .name").text_content() == "01999.png"
    assert wrong == []


def test_page_without_faces_says_so(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", FACTS, LABELS, [], skipped=[("a.png", "no face")])
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "No face was found." in page
    assert "<bdi>a.png</bdi>: no face" in page


SHAPES = """boxes => boxes.map(box => {
    const edges = part => {
        const {left, top, right, bottom} = part.getBoundingClientRect();
        return [left, top, right, bottom];
    };
    const name = box.firstChild;
    const shown = getComputedStyle(name).visibility === 'visible';
    return {box: edges(box), name: edges(name), shown};
})"""
"""The edges of boxes and of their names, and which names are shown."""


TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def overlap(first: Sequence[float], second: Sequence[float]) -> bool:
    across = first[0] < second[2] - 0.1 and second[0] < first[2] - 0.1
    return across and first[1] < second[3] - 0.1 and second[1] < first[3] - 0.1


def write_crowd(folder: Path, label: str, faces: int) -> Path:
    """Writes a page with a photo of several faces with one label, three in a row."""
    records = []
    photo = np.full((600, 600, 3), 90, np.uint8)
    for number in range(faces):
        row, column = divmod(number, 3)
        left = 200.0 * column + 20
        top = 200.0 * row + 30 + 8 * (number % 3)
        view = replace(
            make_view("a/" + "very_long_name_" * 8 + ".jpg"),
            face=make_face({"neutral": 0.1, label: 0.8, "a": 0.1}, face=number),
            photo=photo,
            box=np.array([left, top, left + 90, top + 110]),
        )
        records.append(save_face(folder, number, view, make_evidence(), REGIONS))
    write_page(folder / "index.html", {}, ["neutral", label, "a"], records, **VIEWS)
    return folder / "index.html"


CROWDS = [
    ("سعادة غامرة جدا", 390),
    ("とても幸せそうな表情", 1280),
    *slow(("happiness", 1280), ("happiness", 390)),
    *slow(("سعادة غامرة جدا", 1280), ("とても幸せそうな表情", 390)),
]


@pytest.mark.parametrize(("label", "width"), CROWDS)
def test_names_in_a_photo_cover_no_name_and_no_face(
    label: str, width: int, tab: Tab, tmp_path: Path
) -> None:
    file = write_crowd(tmp_path, label, 8)
    page, wrong = tab.open(file.as_uri(), width)
    assert loaded(page.locator(".whole img"))
    boxes = page.locator(".whole button")
    expect(boxes.first.locator("span")).to_have_attribute("style", re.compile("top"))
    page.evaluate(TWO_FRAMES)  # names are placed again when the photo has its size
    shapes = boxes.evaluate_all(SHAPES)
    shown = [shape for shape in shapes if shape["shown"]]
    assert shown
    for shape in shown:
        for second in shapes:
            if second is shape:
                continue
            assert not overlap(shape["name"], second["box"])
            assert not (second["shown"] and overlap(shape["name"], second["name"]))
    assert page.locator(".groups .key").all_inner_texts() == [f"{label} 8"]
    assert page.locator("html").evaluate("page => page.scrollWidth <= page.clientWidth")
    hidden = page.locator(".whole .unnamed").first
    if hidden.count():
        hidden.focus()
        expect(hidden.locator("span")).to_be_visible()
    assert wrong == []


def test_names_in_a_crowd_are_shown_on_request(tab: Tab, tmp_path: Path) -> None:
    page, wrong = tab.open(write_crowd(tmp_path, "happiness", 9).as_uri())
    names = page.locator(".whole span")
    expect(page.locator(".whole .unnamed")).to_have_count(9)
    for name in names.all():
        expect(name).to_be_hidden()
    page.locator(".whole button").nth(4).focus()
    expect(names.nth(4)).to_be_visible()
    assert page.locator(".groups .key").all_inner_texts() == ["happiness 9"]
    assert wrong == []


def test_the_result_of_a_face_is_a_sentence(opened_face: Page) -> None:
    dialog = opened_face.locator("dialog")
    result = dialog.locator(".result")
    expect(result).to_have_text("For happiness: mouth +25%. Against it: chin -50%.")
    dialog.locator("select[name=target]").select_option('happiness rather than "><i>x')
    expect(result).to_have_text('For happiness rather than "><i>x: mouth +90%, chin +10%.')
    dialog.get_by_text("How regions exchange information").click()
    expect(result).to_have_text("The output takes most from: mouth 80%, chin 20%.")


def test_bars_of_shares_have_the_same_scale_on_all_faces(opened_face: Page) -> None:
    dialog = opened_face.locator("dialog")
    ends = dialog.locator(".numbers .ends").first.locator("small")
    bars = dialog.locator(".numbers .bar")
    expect(ends).to_have_text(["-50%", "0", "+50%"])
    assert bars.first.evaluate(WIDTH) == pytest.approx(0.5 * 0.25 / 0.5)
    dialog.locator("select[name=target]").select_option('happiness rather than "><i>x')
    expect(ends).to_have_text(["-100%", "0", "+100%"])  # a share is above 0.5
    assert bars.first.evaluate(WIDTH) == pytest.approx(0.5 * 0.9)
    dialog.get_by_text("How regions exchange information").click()
    expect(ends).to_have_text(["0", "100%"])
    assert bars.first.evaluate(WIDTH) == pytest.approx(0.8, abs=0.002)  # in steps of a byte


def test_an_open_face_has_an_address(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    dialog = page.locator("dialog")
    page.locator(".card").nth(1).click()
    assert page.evaluate("location.hash") == "#face-1"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == "#face-2"
    page.evaluate("history.back()")
    expect(dialog).to_be_hidden()
    page.evaluate("history.forward()")
    expect(dialog).to_be_visible()  # the closed one has the same name
    expect(dialog.locator(".name")).to_have_text("broken ?.png")
    page.keyboard.press("Escape")
    page.wait_for_url(file.as_uri())
    assert wrong == []
    page, wrong = tab.open(f"{file.as_uri()}#face-3")
    expect(dialog.locator(".name")).to_have_text("folder/last.png")
    assert wrong == []
    page, wrong = tab.open(f"{file.as_uri()}#face-99")
    expect(dialog).to_be_hidden()
    assert wrong == []


def test_a_face_that_back_has_closed_leaves_no_later_entry(tab: Tab, file: Path) -> None:
    """The dialog's event `close` comes after the browser has perhaps gone forward again."""
    page, wrong = tab.open(file.as_uri())
    page.locator(".card").nth(1).click()
    page.evaluate("""() => new Promise(resolve => {
        document.querySelector('dialog').addEventListener('close', () => setTimeout(resolve, 200));
        const forward = () => history.pushState('opened', '', '#face-2');
        addEventListener('hashchange', forward, {once: true});
        history.back();
    })""")
    assert page.evaluate("location.hash") == "#face-2"
    assert wrong == []


@pytest.fixture
def shared(tab: Tab, file: Path) -> Iterator[tuple[Page, str]]:
    """The page on a server whose path begins with two slashes, as on a network share."""
    tab.page.route("http://localhost:9/**", lambda route: route.fulfill(path=served(route, file)))
    address = "http://localhost:9//share/index.html?token=1"
    page, wrong = tab.open(address)
    yield page, address
    page.unroute_all()
    assert wrong == []


def served(route: Route, file: Path) -> Path:
    path = route.request.url.partition("?")[0].partition("/share/")[2]
    return file.parent / path


def test_closed_faces_leave_no_entry_in_the_history(shared: tuple[Page, str]) -> None:
    page, address = shared
    before = page.evaluate("history.length")
    for number in range(3):
        page.locator(".card").nth(number).click()
        page.wait_for_url(f"{address}#face-{number}")
        page.locator("dialog .close").click()
        page.wait_for_url(address)
        expect(page.locator(".card").nth(number)).to_be_focused()
    assert page.evaluate("history.length") == before + 1  # Forward opens the last one


def test_a_face_that_was_opened_by_its_address_closes_to_the_address_of_the_page(
    shared: tuple[Page, str],
) -> None:
    page, address = shared
    page.goto("about:blank")
    page.goto(f"{address}#face-2")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_url(address)
    expect(page.locator(".card").nth(2)).to_be_focused()


def test_a_face_that_is_opened_while_the_browser_goes_back_stays_open(
    browser: tuple[Page, list[str]], file: Path
) -> None:
    page, wrong = browser
    page.locator(".card").nth(0).click()
    page.evaluate("""() => {
        dialog.addEventListener('close', () => cards[1].card.click(), {once: true});
        dialog.close();
    }""")
    page.wait_for_url(f"{file.as_uri()}#face-1")
    expect(page.locator("dialog .name")).to_have_text(QUOTES)
    page.keyboard.press("Escape")
    page.wait_for_url(file.as_uri())
    expect(page.locator("dialog")).to_be_hidden()
    assert wrong == []


def test_arrows_work_where_the_browser_refuses_more_addresses(
    browser: tuple[Page, list[str]],
) -> None:
    page, wrong = browser
    page.locator(".card").nth(0).click()
    page.evaluate("() => { history.replaceState = () => { throw new Error('too many calls'); }; }")
    page.keyboard.press("ArrowRight")
    expect(page.locator("dialog .name")).to_have_text(QUOTES)
    assert wrong == ["too many calls"]


def test_the_last_of_many_faces_is_in_view_when_it_is_closed(tab: Tab, tmp_path: Path) -> None:
    record = save_face(tmp_path, 0, make_view("a.png"), make_evidence(), REGIONS)
    page, wrong = open_records(tab, tmp_path, [record] * 30)
    expect(page.locator(".card").last).not_to_be_in_viewport()
    page.locator(".card").first.click()
    page.evaluate("for (let number = 1; number < 30; number++) step(1)")
    page.keyboard.press("Escape")
    page.wait_for_url((tmp_path / "index.html").as_uri())
    last = page.locator(".card").last
    expect(last).to_be_focused()
    expect(last).to_be_in_viewport()
    assert wrong == []


def test_the_address_of_a_face_opens_nothing_over_all_details(tab: Tab, tmp_path: Path) -> None:
    record = save_face(tmp_path, 0, make_view("a.png"), make_evidence(), REGIONS)
    page, wrong = open_records(tab, tmp_path, [record] * 2)
    page.evaluate("""() => new Promise(resolve => {
        addEventListener('hashchange', resolve);
        location.hash = '#face-0';
    })""")
    expect(page.locator("dialog")).to_be_hidden()
    assert wrong == []


def test_the_result_names_how_large_regions_are(tab: Tab, tmp_path: Path) -> None:
    evidence = make_evidence()
    small = Attributed("happiness", np.array([0.044, 0.0, -0.956]), np.zeros((32, 32)))
    rounded = Attributed("neutral", np.array([0.046, 0.0, -0.954]), np.zeros((32, 32)))
    evidence = evidence._replace(targets=[small, rounded])
    record = save_face(tmp_path, 0, make_view("a.png"), evidence, REGIONS)
    page, wrong = open_records(tab, tmp_path, [record])
    result = page.locator(".gallery .result")
    expect(result).to_have_text("For happiness: no region with 5% or more. Against it: chin -96%.")
    page.locator(".gallery select[name=target]").select_option("neutral")
    expect(result).to_have_text("For neutral: mouth +5%. Against it: chin -95%.")
    assert wrong == []


def test_a_search_without_a_match_offers_all_faces(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    page.get_by_label("File name").fill("zzz")
    none = page.locator("#faces > .none")
    expect(none).to_be_visible()
    expect(page.locator("#faces > .note")).to_be_hidden()
    none.get_by_role("button").click()
    expect(page.locator(".card:visible")).to_have_count(4)
    expect(none).to_be_hidden()
    assert wrong == []


def test_a_filter_dims_the_boxes_of_other_faces(tab: Tab, tmp_path: Path) -> None:
    page, wrong = tab.open(write_crowd(tmp_path, "happiness", 4).as_uri())
    page.get_by_label("Order").select_option("most")
    expect(page.locator(".whole .filtered")).to_have_count(0)
    page.evaluate("cards[0].label = 0")
    page.locator(".filter").get_by_text("happiness 4").click()
    expect(page.locator(".whole .filtered")).to_have_count(1)
    assert page.locator(".whole button").nth(0).evaluate(OPACITY) < 0.5
    assert wrong == []


def test_the_names_of_boxes_lie_below_the_filter(tab: Tab, tmp_path: Path) -> None:
    file = write_crowd(tmp_path, "happiness", 4)
    page, wrong = tab.open(file.as_uri(), 390)
    assert loaded(page.locator(".whole img"))
    page.evaluate("document.body.style.paddingBottom = '200vh'")
    name = page.locator(".whole button:not(.unnamed) span").first
    expect(name).to_be_visible()
    covered = name.evaluate(UNDER_FORM)
    assert covered, "the form is not above the name"
    assert wrong == []


WIDTH = "bar => Number(bar.style.getPropertyValue('--w'))"
OPACITY = "part => Number(getComputedStyle(part).opacity)"
UNDER_FORM = """name => {
    const form = document.querySelector('.filter');
    const top = name.getBoundingClientRect().top;
    scrollBy(0, top - form.getBoundingClientRect().height / 2);
    const {left, right, top: y, bottom} = name.getBoundingClientRect();
    const seen = document.elementFromPoint((left + right) / 2, (y + bottom) / 2);
    return form.contains(seen);
}"""
"""Scrolls until a name lies behind the form that sticks to the top; returns what is in front."""


@pytest.mark.parametrize("width", [1280, 390])
def test_close_stays_in_view(width: int, tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri(), width)
    page.locator(".card").first.click()
    dialog = page.locator("dialog")
    dialog.locator(".numbers").evaluate("part => { part.style.minHeight = '200vh'; }")
    dialog.evaluate("dialog => { dialog.scrollTop = dialog.scrollHeight; }")
    assert dialog.evaluate("dialog => dialog.scrollTop") > 0
    box = dialog.locator(".close").bounding_box()
    assert box
    assert 0 <= box["y"] < 60
    dialog.locator(".close").click()
    expect(dialog).to_be_hidden()
    assert wrong == []


def test_controls_have_room_for_a_finger(tab: Tab, file: Path) -> None:
    phone = tab.browser.new_context(
        viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    )
    page = phone.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(file.as_uri())
    page.locator(".card").first.click()
    controls = page.locator("dialog").locator("nav button, .tools button, select, .boxes label")
    heights = controls.evaluate_all(
        "all => all.filter(part => part.checkVisibility()).map(part => part.offsetHeight)"
    )
    assert len(heights) > 6
    assert min(heights) >= 44
    phone.close()
