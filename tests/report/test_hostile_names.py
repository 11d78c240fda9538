import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from fer_vit.errors import printable
from fer_vit.report.records import save_face
from tests.helpers.browser import Tab
from tests.helpers.faces import make_face
from tests.helpers.reports import REGIONS, VIEWS, make_evidence, make_view, write_page

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


LABELS = (f"<img src=x onerror={OWN}>", f"'\"><svg/onload={OWN}>", "</script>\u202ex")
SHOWN_NAMES = [printable(name) for name in NAMES]
SHOWN_LABELS = [printable(label) for label in LABELS]


class HostilePage(NamedTuple):
    """A page of faces of hostile names and labels."""

    page: Page
    orders: list[list[int]]  # the labels of each face, most probable first

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog")

    @property
    def cards(self) -> Locator:
        return self.page.locator(".card")


PLACES = """images => images.map(image => {
    const {left, top} = image.getBoundingClientRect();
    return [left + scrollX, top + scrollY];
})"""
"""The left upper corners of pictures on the whole page."""


def grey(number: int) -> int:
    """Returns the brightness of the picture of a face."""
    return 10 + 16 * number


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """The file of the page, and the order of the labels of each face."""
    folder = tmp_path_factory.mktemp("pages") / "re#port 100%41?"
    records = []
    orders = []
    for number, name in enumerate(NAMES):
        view = make_view(name)
        probabilities = dict(zip(LABELS, np.roll((0.1, 0.7, 0.2), number), strict=True))
        view = replace(
            view, face=make_face(probabilities), photo=np.full_like(view.photo, grey(number))
        )
        order = np.argsort([-p for p in probabilities.values()]).tolist()
        records.append(save_face(folder, number, view, make_evidence(order, LABELS), REGIONS))
        orders.append(order)
    write_page(folder / "index.html", {"Model": NAMES[1]}, LABELS, records, title=NAMES[0], **VIEWS)
    return folder / "index.html", orders


@pytest.fixture
def hostile(tab: Tab, file: tuple[Path, list[list[int]]]) -> Iterator[HostilePage]:
    """The page in a browser, in which no name and no label may run or become an element."""
    path, orders = file
    page, wrong = tab.open(path.as_uri())
    yield HostilePage(page, orders)
    assert page.title() == NAMES[0]
    assert page.locator("script").count() == 4
    for element in ("[src=x]", "[onload]", "[onerror]", "[onmouseover]", "body i:not([class])"):
        assert page.locator(element).count() == 0, element
    assert wrong == []


def test_hostile_names_are_text_of_the_gallery(hostile: HostilePage) -> None:
    page = hostile.page
    assert SHOWN_NAMES[6:8] == ["two lines three.png", "photo?gnp.exe"]
    assert page.title() == page.locator("h1").text_content() == NAMES[0]
    assert page.locator(".facts dd").first.text_content() == SHOWN_NAMES[1]
    last_parts = [name.rpartition("/")[2] for name in SHOWN_NAMES]
    assert hostile.cards.locator(".name").all_text_contents() == last_parts
    assert [card.get_attribute("title") for card in hostile.cards.all()] == SHOWN_NAMES


def test_hostile_labels_are_text_of_the_gallery(hostile: HostilePage) -> None:
    page = hostile.page
    texts = hostile.cards.locator(".label").all_text_contents()
    labels = [text.split("\xa0")[0].rpartition(" ")[0] for text in texts]
    assert labels == [SHOWN_LABELS[order[0]] for order in hostile.orders]
    for label in SHOWN_LABELS:
        page.get_by_text(label, exact=False).locator("visible=true").first.hover()
    page.locator("fieldset span", has_text=SHOWN_LABELS[0]).click()
    count = page.locator(".filter output").text_content() or ""
    assert count.endswith(f"of {len(NAMES)} faces")


def test_hostile_names_are_found_and_have_their_own_pictures(hostile: HostilePage) -> None:
    page = hostile.page
    search = page.get_by_label("File name")
    images = hostile.cards.locator("img")
    for number, name in enumerate(SHOWN_NAMES):
        search.fill(name)
        containing = [shown for shown in SHOWN_NAMES if name in shown]
        expect(page.locator(".card:visible")).to_have_count(len(containing))
        images.nth(number).scroll_into_view_if_needed()
        expect(images.nth(number)).to_have_js_property("complete", True)

    search.fill("")
    expect(page.locator(".card:visible")).to_have_count(len(NAMES))
    places = images.evaluate_all(PLACES)
    with Image.open(io.BytesIO(page.screenshot(full_page=True))) as picture:
        shown = [picture.getpixel((x + 20, y + 20))[0] for x, y in places]
    assert shown == pytest.approx([grey(number) for number in range(len(NAMES))], abs=4)


def test_hostile_names_and_labels_are_text_of_an_open_face(hostile: HostilePage) -> None:
    dialog = hostile.dialog
    targets = dialog.locator("select[name=target]")
    for number, name in enumerate(SHOWN_NAMES):
        hostile.cards.nth(number).click()
        assert dialog.locator(".name").text_content() == name
        options = targets.locator("option").all_text_contents()
        assert sorted(options[:3]) == sorted(SHOWN_LABELS)
        assert (dialog.locator("h2").text_content() or "").startswith(options[0])
        targets.select_option(index=3)
        assert options[3] == f"{options[0]} rather than {options[1]}"
        assert dialog.locator("svg .region title").first.text_content() == "mouth +90%"
        hostile.page.keyboard.press("Escape")
