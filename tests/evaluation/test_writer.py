import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from fer_vit.report.plots import ChartRow, calibration_plot, interval_chart, series_plots
from fer_vit.report.results_page import Card, Page as ResultsPage, Section, write_page
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.series import MeanCourse
from tests.helpers.browser import (
    SCREENS,
    Scheme,
    Tab,
    assert_accessible,
    loaded,
)

HOSTILE = """</script><img src=x onerror="document.title='owned'">"""
LABELS = ("happiness", "anger", HOSTILE)
CONFUSION = np.array([[5, 2, 0], [1, 7, 0], [0, 1, 0]])
PICTURE = Image.new("RGB", (48, 48), (200, 90, 40))
CARDS = [
    Card(PICTURE, f"val/{HOSTILE}.png", 2, 1, 0.97, ["mistake", "label"], ["perhaps anger"]),
    Card(PICTURE, "val/Two.png", 0, 1, 0.8, ["mistake"], []),
    Card(None, "val/three.png", 0, 1, 0.7, ["mistake", "differ"], ["the other: happiness"]),
    Card(PICTURE, "val/four.png", 1, 0, 0.6, ["mistake"], []),
    Card(PICTURE, "val/five.png", 1, 1, 0.9, ["differ"], [f"the other: {HOSTILE}"]),
]
SHARE = Estimate(mean=0.5, low=0.1, high=0.9)
DIFFERENCES = [ChartRow("a", SHARE, is_clear=False), ChartRow(HOSTILE, SHARE, is_clear=True)]
MEANS = [ChartRow("x", SHARE, "a"), ChartRow("y", SHARE, "a")]
SECTIONS = [
    Section(
        "Scores",
        "In brackets.",
        [["", "accuracy"], ["all faces", "88.5% (87.3% to 89.5%)"]],
        plots=[calibration_plot(np.array([0.5, 0.9]), np.array([False, True]))],
        more=[Section(HOSTILE, lines=[HOSTILE])],
    ),
    Section(f"By {HOSTILE}", HOSTILE, [[HOSTILE, "faces"], [HOSTILE, "30"]]),
    Section(
        "Tests",
        intervals=interval_chart(DIFFERENCES, "+.1%", HOSTILE, "lower", "higher"),
        more=[
            Section("Means", intervals=interval_chart(MEANS, ".1%", "")),
            Section("Table", rows=[["", "x"], ["a", "1"]]),
        ],
    ),
    Section("Recall", more=[Section("Table", rows=[["", "x"], ["a", "1"]])]),
]


def write(
    folder: Path,
    confusion: np.ndarray,
    labels: Sequence[str],
    cards: Sequence[Card] = (),
    left_out: int = 0,
) -> Path:
    page = ResultsPage(
        title="How good",
        heading="",
        generator="test",
        facts={"model": HOSTILE},
        sections=SECTIONS,
        labels=labels,
        confusion=confusion,
        cards=cards,
        without_card=left_out,
    )
    write_page(folder / "page", page, {})
    return folder / "page" / "index.html"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("page"), CONFUSION, LABELS, cards=CARDS, left_out=1234)


@pytest.fixture
def page(file: Path, tab: Tab) -> Iterator[Page]:
    """The page in a browser, in which nothing may go wrong."""
    page, wrong = tab.open(file.as_uri())
    yield page
    assert page.title() == "How good"  # no name has run
    assert wrong == []


def names_of_cards(page: Page) -> list[str]:
    """Returns the names of the cards that are shown."""
    return page.locator(".card:visible bdi").all_text_contents()


def test_the_gallery_shows_kinds_of_faces(page: Page) -> None:
    assert names_of_cards(page)[1:] == ["val/Two.png", "val/three.png", "val/four.png"]
    assert page.locator("output").text_content() == "4 of 4 mistakes"
    page.get_by_text("likely wrong labels 1").click()
    assert page.locator("output").text_content() == "1 of 1 likely wrong labels"
    assert len(names_of_cards(page)) == 1
    assert "perhaps anger" in (page.locator(".card:visible").text_content() or "")
    page.get_by_text("where the two differ 2").click()
    assert names_of_cards(page) == ["val/three.png", "val/five.png"]


def test_the_gallery_is_searched_by_name(page: Page) -> None:
    page.get_by_placeholder("contains …").fill("TWO")
    assert names_of_cards(page) == ["val/Two.png"]


def test_cells_of_the_matrix_choose_cards_by_mouse_and_keyboard(page: Page) -> None:
    cells = page.locator("button[data-cell]")
    assert cells.all_text_contents() == ["2", "1", "1"]  # neither zeros nor the diagonal
    cells.nth(0).click()
    assert names_of_cards(page) == ["val/Two.png", "val/three.png"]
    expect(cells.nth(0)).to_have_attribute("aria-pressed", "true")

    # on, another, off
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert names_of_cards(page) == ["val/four.png"]
    expect(cells.nth(0)).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("Space")
    assert len(names_of_cards(page)) == 4


def test_cells_of_the_matrix_have_their_share_of_the_row(page: Page) -> None:
    row = CONFUSION[0]
    titles = (
        page.locator(".confusion tbody tr")
        .first.locator("td")
        .evaluate_all("cells => cells.map(cell => parseFloat(cell.title))")
    )
    occurring = (CONFUSION.sum(0) + CONFUSION.sum(1)) > 0
    assert titles == pytest.approx((100 * row / row.sum())[occurring].tolist(), abs=0.05)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_no_violation(width: int, scheme: Scheme, tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri(), width, scheme)
    for folded in page.locator("summary").all():
        folded.click()
    assert_accessible(page, "html")
    assert wrong == []


def test_pictures_of_the_gallery_are_square_and_fit_a_phone(page: Page) -> None:
    images = page.locator(".card:visible img")
    images.first.scroll_into_view_if_needed()
    assert loaded(images)
    boxes = images.evaluate_all("images => images.map(i => [i.width, i.height])")
    assert all(width == height > 50 for width, height in boxes)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_names_are_text_and_what_is_left_out_is_said(file: Path) -> None:
    page = file.read_text("utf-8")
    assert "<img src=x" not in page
    assert page.count("</script>") == 1
    assert "1,234 more " in page
    assert re.findall(r'src="(?!data:image/jpeg)', page) == []
    assert "<td>88.5%<br><small>(87.3% to 89.5%)</small></td>" in page


def test_labels_that_never_occur_have_no_row(tmp_path: Path) -> None:
    confusion = np.array([[2, 0, 2], [0, 0, 0], [0, 0, 0]])
    page = (
        write(tmp_path, confusion, "abc")
        .read_text("utf-8")
        .partition('<table class="confusion">')[2]
    )
    assert re.findall('<th scope="(.*?)">(.*?) ?<', page) == [
        ("col", "a"),
        ("col", "c"),
        ("row", "a"),
        ("row", "c"),
    ]
    assert re.findall('data-cell="(.*?)"', page) == ["0-2"]


TITLES = [
    "休息",
    "الفيلم",
    "चलचित्र",
    "</svg><script>document.title='owned'</script>",
    "e",
    "f",
    "g",
]


def test_names_in_any_script_are_text_in_the_browser(tab: Tab, tmp_path: Path) -> None:
    times = np.arange(4.0)
    values = np.array([0.1, 0.5, 0.2, 0.3])
    course = MeanCourse(values, values - 0.05, values + 0.05, np.full(4, 6))
    plots = series_plots(times, {name: [course] * len(TITLES) for name in TITLES}, ".3f")
    section = Section("Over time", plots=plots, curves=TITLES)
    results = ResultsPage(title="t", heading="", generator="test", facts={}, sections=[section])
    write_page(tmp_path / "page", results, {})
    page, wrong = tab.open((tmp_path / "page" / "index.html").as_uri(), 390)
    assert page.locator(".key bdi").all_text_contents() == TITLES
    assert page.locator(".plot figcaption b").all_text_contents() == TITLES
    assert page.title() == "t"
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390

    # Each curve is drawn inside its frame.
    frames = page.locator(".plot svg").evaluate_all(
        "all => all.map(svg => [svg, ...svg.querySelectorAll('.line')].map(one => {"
        "const box = one.getBoundingClientRect(); return [box.top, box.bottom];}))"
    )
    for (top, bottom), *curves in frames:
        assert len(curves) == len(TITLES)
        assert all(top - 2 <= high < low <= bottom + 2 for high, low in curves)
    text = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert re.findall("<img", text) == []
