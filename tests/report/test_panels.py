"""Movements, pose and affect of a face on the page, in a real browser."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from fer_vit.heads import HEADS
from fer_vit.report.draw import percent, probability_text
from fer_vit.report.face_figures import MINUS, share_end, signed_percent
from fer_vit.report.records import save_face
from tests.helpers.browser import SCREENS, Scheme, Tab, assert_accessible
from tests.helpers.reports import LABELS, REGIONS, VIEWS, make_evidence, make_view, write_page

FIXED = {
    "movements": {
        "title": "Movements",
        "names": ["mouth smile left", "mouth smile right", "jaw <i>open", "eye blink left"],
        "marks": ["", "weak", "weak", ""],
        "places": [0, 0, 2, None],
        "bias": [-1.0, -2.0, 0.5, 0.0],
    },
    "pose": {
        "title": "Head pose",
        "names": ["yaw", "roll"],
        "marks": ["", ""],
        "bias": [1.0, 0.0],
        "unit": "degrees",
        "bounded": False,
    },
    "affect": {
        "title": "Valence and arousal",
        "names": ["valence", "arousal"],
        "marks": ["", "weak"],
        "meanings": [*HEADS["affect"].outputs.values()],
        "bias": [0.0, 0.1],
        "unit": "",
        "low": -1.0,
        "high": 1.0,
        "bounded": True,
    },
    "age": {
        "title": "Age <i>",
        "names": ["years"],
        "marks": [""],
        "meanings": [],
        "bias": [35.0],
        "unit": "years",
        "low": 0.0,
        "high": 120.0,
        "bounded": False,
    },
}
TERMS = {"face": [0.5, 0.0, 0.0, 0.0], "regions": [[2.0, 0.0, -0.25]] + [[0.0] * 3] * 3}
CHARTS = {
    "movements": {"values": [0.78, 0.4, 0.2, 0.01], **TERMS},
    "pose": {"angles": {"yaw": -20.0, "pitch": 1.0, "roll": 8.0}, **TERMS},
    "affect": {"values": [0.5, -0.25], **TERMS},
    "age": {"values": [30.0], "face": [-4.5], "regions": [[-1.0, 0.0, 0.5]]},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("panels")
    evidence = make_evidence()._replace(charts=CHARTS)
    record = save_face(folder, 0, make_view("a.png"), evidence, REGIONS)
    write_page(folder / "index.html", {}, LABELS, [record], charts=FIXED, **VIEWS)
    return folder / "index.html"


SHARES = [0.0, 0.004, 0.006, 0.12, 0.5, 0.51, 0.994, 0.996, 1.0]
"""Pages and figures format each share on their own, since pages have no Python."""


def test_pages_and_figures_format_shares_alike(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    signed = [*SHARES, *(-share for share in SHARES)]

    def on_page(function: str, values: list[float]) -> list[str]:
        texts: list[str] = page.evaluate(f"values => values.map({function})", values)
        return texts

    assert on_page("percent", SHARES) == [percent(share) for share in SHARES]
    assert on_page("probability", SHARES) == [probability_text(share) for share in SHARES]
    # a hyphen on pages: spreadsheets read copied numbers
    in_figures = [signed_percent(share).replace(MINUS, "-") for share in signed]
    assert on_page("signedPercent", signed) == in_figures
    assert on_page("share => shareEnd([share])", signed) == [share_end([share]) for share in signed]
    assert wrong == []


def cells(page: Page, table: str) -> list[list[str]]:
    rows = page.locator(table).first.locator("tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_movements_are_bars_by_side_and_add_up_from_their_terms(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    assert cells(page, ".movements .wide") == [
        ["mouth smile weak", "0.40", "0.78"],  # a side is weak
        ["jaw <i>open weak", "0.20"],
    ]
    onface = page.locator(".movements .onface")
    assert onface.locator("text").all_text_contents() == ["mouth smile", "jaw <i>open (weak)"]
    full, part = (
        float(onface.locator(f"rect.{kind}").first.get_attribute("width") or 0)
        for kind in ("track", "level")
    )
    assert part / full == pytest.approx(0.78, abs=0.001)
    page.locator(".movements summary").last.click()
    terms = page.locator(".movements details").last.locator("tbody tr td:last-child")
    values = [float(text) for text in terms.all_inner_texts()]
    assert values == [-1.0, 0.5, 2.0, -0.25]  # bias, whole face, and the regions that are there
    assert 1 / (1 + np.exp(-sum(values))) == pytest.approx(0.78, abs=0.005)
    page.locator(".movements select").select_option("1")
    expect(terms.first).to_have_text("-2.00")
    assert wrong == []


def test_bars_of_movements_are_equally_long_with_and_without_sides(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    tracks = page.locator(".movements .wide").first.locator(".bar")
    widths = tracks.evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert widths == pytest.approx([widths[0]] * 3, abs=0.5)
    assert wrong == []


def test_the_terms_of_all_angles_have_one_scale(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    page.locator(".pose summary").click()
    scales = page.locator(".pose .ends").all_inner_texts()
    assert scales == [scales[0]] * 2
    assert "+2.0" in scales[0]  # the largest term of yaw; those of roll are 0
    assert wrong == []


def test_pose_and_affect_are_in_numbers_and_words(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    dials = page.locator(".dials figcaption").all_inner_texts()
    assert [text.splitlines()[0] for text in dials] == ["yaw -20°", "pitch +1°", "roll +8°"]
    assert "right" in dials[0]
    assert [row[-1] for row in cells(page, ".affect .bars")] == ["+0.50", "-0.25"]
    assert [row[0] for row in cells(page, ".affect .bars")] == ["valence", "arousal weak"]
    notes = page.locator(".affect .note").all_inner_texts()
    assert notes[0].startswith("valence: from unpleasant to pleasant; experimental")
    assert len(notes) == 2
    dot = page.locator(".square circle")
    assert dot.get_attribute("cx") == "0.5"
    assert dot.get_attribute("cy") == "0.25"
    assert wrong == []


def test_a_head_without_a_chart_of_its_kind_has_bars_and_terms(tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri())
    assert page.locator(".age h3").inner_text() == "Age <i>"
    (row,) = cells(page, ".age .bars")
    assert row[0] == "years"
    assert row[-1] == "30.0"
    bar = page.locator(".age .bar").first
    assert bar.evaluate("bar => bar.style.getPropertyValue('--w')") == "0.25"
    page.locator(".age summary").click()
    terms = page.locator(".age details tbody tr td:last-child").all_inner_texts()
    assert sum(float(text) for text in terms) == pytest.approx(30.0)
    assert wrong == []


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_no_violation(width: int, scheme: Scheme, tab: Tab, file: Path) -> None:
    page, wrong = tab.open(file.as_uri(), width, scheme)
    details = page.locator(".face details")
    details.evaluate_all("all => all.forEach(part => { part.open = true; })")
    assert_accessible(page, "html")
    assert wrong == []
