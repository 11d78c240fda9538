"""People over time in the page, in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from fer_vit.report.explained_face import Attention, Attributed, Evidence, FaceView
from fer_vit.report.records import save_face
from tests.helpers.browser import Tab, loaded
from tests.helpers.faces import make_face
from tests.helpers.reports import write_page

NAME = """<img src=x onerror="document.title='owned'">.mp4"""
LABELS = ("happiness", "<i>fear")
REGIONS = ("mouth", "nose")
CHARTS = {
    "movements": {
        "title": "Movements",
        "names": ["smile <i> left", "smile <i> right", "jaw left"],
        "marks": ["", "", "weak"],
        "meanings": [],
        "unit": "",
        "low": 0.0,
        "high": 1.0,
    },
    "pose": {
        "title": "Head pose",
        "names": ["yaw", "roll"],
        "marks": ["", ""],
        "meanings": ["turn", "tilt"],
        "unit": "degrees",
        "low": -180.0,
        "high": 180.0,
    },
    "affect": {"title": "Valence and arousal", "names": ["valence"], "marks": [""]},
}
"""Of three heads, of which the people have curves of two."""


def person(track: int, frames: int, name: str = NAME) -> dict[str, Any]:
    times = np.linspace(0, 10, frames)
    return {
        "name": name,
        "track": track,
        "frames": frames,
        "start": 0.0,
        "end": 10.0,
        "times": times.tolist(),
        "shares": [(100 * times).tolist(), (1000 - 100 * times).tolist()],
        "outputs": {
            "movements": [(times / 10).tolist(), (1 - times / 10).tolist(), [None] * frames],
            "pose": [(3 * times).tolist(), [0.0] * frames],
        },
        "gaps": [[4.0, 6.0]] if track == 1 else [],
    }


def write(folder: Path) -> Path:
    records = []
    for track in range(10):
        for seconds in (0.0, 2.5, 5.0, 10.0) if track < 2 else (5.0,):
            happiness = 0.499 if seconds == 5.0 else seconds / 10
            shares = {"happiness": happiness, "<i>fear": 1 - happiness}
            view = FaceView(
                make_face(shares, seconds=seconds, track=track, smoothed=True),
                np.full((60, 80, 3), 10 * len(records) + 40, np.uint8),
                np.eye(2, 3),
                {"mouth": np.array([4.0, 20, 20, 28]), "nose": np.array([8.0, 8, 16, 20])},
                np.array([2.0, 2, 40, 40]),
                NAME,
            )
            attention = Attention(
                np.zeros((2, 2, 2)), np.ones((2, 2)), np.zeros((2, 0, 0)), np.zeros(1)
            )
            order = [0, 1] if seconds > 5 else [1, 0]
            target = Attributed(LABELS[order[0]], np.array([0.75, -0.25]), np.ones((8, 8)))
            evidence = Evidence(order, [target], attention, np.zeros((2, 2)))
            records.append(save_face(folder, len(records), view, evidence, REGIONS))
    photo = replace(view, name="a.jpg", face=make_face(shares))
    records.append(save_face(folder, len(records), photo, evidence, REGIONS))
    people = [person(track, 30 - track) for track in range(10)]
    write_page(
        folder / "index.html",
        {"Method": "x"},
        LABELS,
        records,
        regions=REGIONS,
        attention=attention,
        people=people,
        charts=CHARTS,
    )
    return folder / "index.html"


@pytest.fixture(scope="module")
def browser(tab: Tab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, list[str]]:
    """The page in a real browser, and what goes wrong in it."""
    return tab.open(write(tmp_path_factory.mktemp("people")).as_uri())


def test_keys_walk_along_a_persons_pictures(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    line = page.get_by_role("slider", name="person 1 over time")
    dialog = page.locator("dialog")
    assert line.get_attribute("aria-valuetext") == "0:00.0  <i>fear >99%"
    line.focus()
    for key, seconds in (
        ("ArrowRight", 2.5),
        ("ArrowRight", 5),
        ("ArrowLeft", 2.5),
        ("End", 10),
        ("ArrowRight", 10),
    ):
        page.keyboard.press(key)
        assert float(line.get_attribute("aria-valuenow") or -1) == seconds
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert dialog.locator("h2").text_content() == "<i>fear >99%"
    assert dialog.locator(".number").text_content() == "person 1 at 0:00.0"
    playhead = "one => getComputedStyle(one).getPropertyValue('--x')"
    assert dialog.locator(".timeline").evaluate(playhead) == "0"
    page.keyboard.press("ArrowLeft")  # there is none
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert dialog.locator(".number").text_content() == "person 1 at 0:10.0"
    assert dialog.locator("h2").text_content() == "happiness >99%"
    assert dialog.locator(".timeline").evaluate(playhead) == "1"
    assert dialog.locator(".numbers tbody tr").all_text_contents() == ["mouth+75%", "nose-25%"]
    page.keyboard.press("Escape")
    expect(line).to_be_focused()
    # where the arrows ended
    expect(line).to_have_attribute("aria-valuetext", "0:10.0  happiness >99%")
    assert wrong == []


def test_a_click_opens_the_picture_nearest_in_time(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    line = page.get_by_role("slider", name="person 0 over time")
    dialog = page.locator("dialog")
    box = line.bounding_box()
    assert box
    for part, seconds in ((0.1, "0.0"), (0.2, "2.5"), (0.6, "5.0"), (0.9, "10.0")):
        line.click(position={"x": part * box["width"], "y": box["height"] / 2})
        assert dialog.locator(".number").text_content() == f"person 0 at 0:{float(seconds):04.1f}"
        page.keyboard.press("Escape")
    line.click(position={"x": 5, "y": 50})
    when = dialog.locator(".timeline").bounding_box()
    assert when
    # the one below the face as well
    dialog.locator(".timeline").click(position={"x": 0.9 * when["width"], "y": 30})
    assert dialog.locator(".number").text_content() == "person 0 at 0:10.0"
    page.keyboard.press("Escape")
    page.locator(".card", has_text="a.jpg").click()  # a photo has no time
    assert dialog.locator(".timeline").count() == 0
    assert dialog.locator(".number").text_content() == "face 0"
    page.keyboard.press("ArrowLeft")  # in the gallery's order
    assert dialog.locator(".number").text_content() == "person 9 at 0:05.0"
    page.keyboard.press("Escape")
    assert wrong == []


def test_a_time_is_rounded_before_it_has_minutes(browser: tuple[Page, list[str]]) -> None:
    page, _ = browser
    clocks = page.evaluate("[0, 9.96, 59.94, 59.97, 119.98].map(clock)")
    assert clocks == ["0:00.0", "0:10.0", "0:59.9", "1:00.0", "2:00.0"]


def test_the_scale_of_probabilities_ends_at_its_chart(browser: tuple[Page, list[str]]) -> None:
    page, _ = browser
    scale = page.locator(".person .rows.ends").first
    assert scale.locator("span").all_inner_texts() == ["1", "probability", "0"]
    ends = scale.locator("span").evaluate_all(
        "texts => texts.map(text => text.getBoundingClientRect().right)"
    )
    right = scale.evaluate("scale => scale.getBoundingClientRect().right")
    padding = scale.evaluate("scale => parseFloat(getComputedStyle(scale).paddingRight)")
    assert ends == pytest.approx([right - padding] * 3, abs=0.5)


def test_areas_are_as_high_as_their_shares(browser: tuple[Page, list[str]]) -> None:
    page, _ = browser
    areas = page.locator(".person").nth(1).locator("svg")

    def tops(name: str) -> list[float]:
        path = areas.nth(0).locator("path", has_text=name).get_attribute("d") or ""
        return [float(corner.split()[1]) for corner in path[1:-1].split("L")[:58]]

    happiness = [100 - 100 * (corner // 2) / 28 for corner in range(58)]  # a step has two corners
    assert tops("happiness") == pytest.approx(happiness, abs=0.06)
    assert tops("<i>fear") == pytest.approx([0] * 58, abs=0.06)
    cells = areas.nth(1).locator("rect[class]")  # two regions at each of four times
    assert cells.locator("title").all_text_contents() == ["mouth +75%", "nose -25%"] * 4
    colours = [cell.get_attribute("class") for cell in cells.all()[:2]]
    assert colours == ["for", "against"]
    assert [float(cell.get_attribute("fill-opacity") or 0) for cell in cells.all()[:2]] == [
        1,
        0.333,
    ]
    edges = [
        tuple(float(cell.get_attribute(name) or 0) for name in ("x", "width"))
        for cell in cells.all()[::2]
    ]
    assert edges == [(0, 125), (125, 250), (375, 375), (750, 250)]
    absent = areas.nth(0).locator("rect")
    assert absent.get_attribute("x") == "400.0"
    assert absent.get_attribute("width") == "200"


def test_the_gallery_has_the_changes_of_a_clip_and_all_pictures_when_asked(
    browser: tuple[Page, list[str]],
) -> None:
    page, _ = browser
    visible = page.locator(".card:visible .where")
    assert visible.all_text_contents()[:3] == [
        "person 0 at 0:00.0",
        "person 0 at 0:10.0",
        "person 1 at 0:00.0",
    ]
    assert visible.count() == 2 + 2 + 8
    page.get_by_label("all pictures of clips").check()
    assert visible.count() == 16
    page.get_by_label("all pictures of clips").uncheck()


def test_people_are_switched_on_and_off(browser: tuple[Page, list[str]]) -> None:
    page, wrong = browser
    shown = page.locator(".person:visible h3")
    # the eight who are seen longest
    assert shown.all_text_contents() == [f"person {n}" for n in range(8)]
    page.locator(".tracks label", has_text="person 9").click()
    page.locator(".tracks label", has_text="person 0").click()
    assert shown.all_text_contents() == [f"person {n}" for n in (*range(1, 8), 9)]
    page.get_by_label("person 0", exact=False).first.press("Space")
    assert shown.all_text_contents() == [f"person {n}" for n in (*range(8), 9)]
    assert NAME in (page.locator(".person bdi").first.text_content() or "")
    page.locator(".strip").nth(0).scroll_into_view_if_needed()
    assert loaded(page.locator(".strip").nth(0).locator("img"))
    assert page.title() == "Title"
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert wrong == []


def test_the_colours_of_expressions_are_named_once_and_rows_stand_beside_their_values(
    browser: tuple[Page, list[str]],
) -> None:
    page, _ = browser
    assert page.locator("#time .key").count() == 1
    left = page.locator("#time .strips svg").first.bounding_box()
    assert left
    for name in page.locator("#time .rows").all():
        edges = name.bounding_box()
        assert edges
        assert edges["x"] + edges["width"] <= left["x"]


def test_one_list_chooses_what_is_drawn_over_time(tab: Tab, tmp_path: Path) -> None:
    page, wrong = tab.open(write(tmp_path).as_uri(), 390)
    choice = page.get_by_label("Curve")
    options = choice.locator("option").all_text_contents()
    assert options == ["expressions", "Head pose", "smile <i>", "jaw left (weak)"]
    assert choice.locator("optgroup").get_attribute("label") == "Movements"
    lines = page.locator(".person").first.locator("path.curve")
    scale = page.locator(".person .rows.ends").first.locator("span")
    line = page.get_by_role("slider", name="person 0 over time")

    choice.focus()
    page.keyboard.press("ArrowDown")  # by the keyboard alone
    assert scale.all_inner_texts() == ["45", "degrees", "-45"]  # the largest angle is 30
    assert page.locator("#time > .key span").all_inner_texts() == ["yaw", "roll"]
    choice.select_option(label="smile <i>")
    assert scale.all_inner_texts() == ["1", "intensity", "0"]
    first, second = [path.get_attribute("d") or "" for path in lines.all()]
    assert first.startswith("M0.0 100.0h0L")
    assert first.endswith("L1000.0 0.0")
    assert second.startswith("M0.0 0.0h0L")
    assert second.endswith("L1000.0 100.0")
    line.focus()
    page.keyboard.press("End")
    values = "smile <i> left 1.00, smile <i> right 0.00"
    assert line.get_attribute("aria-valuetext") == f"0:10.0  {values}"
    page.keyboard.press("Enter")  # the curve below the face is the same
    below = page.locator("dialog .timeline path.curve")
    assert [path.get_attribute("d") for path in below.all()] == [first, second]
    page.keyboard.press("Escape")
    choice.select_option(label="jaw left (weak)")
    assert lines.get_attribute("d") == ""  # nothing is known
    assert line.get_attribute("aria-valuetext") == "0:10.0  jaw left (weak) unknown"
    choice.select_option(label="expressions")
    assert lines.count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert wrong == []
