import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, expect

from fer_vit.errors import printable
from fer_vit.report.faces import save_face
from tests.helpers.browser import opened
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


def test_hostile_names_and_labels_are_text_everywhere(chrome: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "re#port 100%41?"
    labels = (f"<img src=x onerror={OWN}>", f"'\"><svg/onload={OWN}>", "</script>\u202ex")
    shown = [printable(label) for label in labels]
    records = []
    for number, name in enumerate(NAMES):
        view = make_view(name)
        probabilities = dict(zip(labels, np.roll((0.1, 0.7, 0.2), number), strict=True))
        view = replace(
            view, face=make_face(probabilities), photo=np.full_like(view.photo, 10 + 16 * number)
        )
        order = np.argsort([-p for p in probabilities.values()]).tolist()
        evidence = make_evidence(order, labels)
        records.append(save_face(folder, number, view, evidence, REGIONS))
    write_page(folder / "index.html", {"Model": NAMES[1]}, labels, records, title=NAMES[0], **VIEWS)
    page, wrong = opened(chrome, (folder / "index.html").as_uri())
    names = [printable(name) for name in NAMES]
    assert names[6:8] == ["two lines three.png", "photo?gnp.exe"]
    assert page.title() == page.locator("h1").text_content() == NAMES[0]
    assert page.locator(".facts dd").first.text_content() == names[1]
    cards = page.locator(".card")
    dialog = page.locator("dialog")
    assert cards.locator(".name").all_text_contents() == [name.rpartition("/")[2] for name in names]
    assert [card.get_attribute("title") for card in cards.all()] == names
    assert [
        text.split("\xa0")[0].rpartition(" ")[0]
        for text in cards.locator(".label").all_text_contents()
    ] == [shown[json.loads(record.data)["order"][0]] for record in records]
    for number, name in enumerate(names):
        page.get_by_label("File name").fill(name)
        expect(page.locator(".card:visible")).to_have_count(sum(name in shown for shown in names))
        cards.nth(number).scroll_into_view_if_needed()
        expect(cards.nth(number).locator("img")).to_have_js_property("complete", True)
        with Image.open(io.BytesIO(cards.nth(number).locator("img").screenshot())) as picture:
            assert abs(picture.getpixel((20, 20))[0] - (10 + 16 * number)) < 5  # its own picture
        cards.nth(number).click()
        assert dialog.locator(".name").text_content() == name
        options = dialog.locator("select[name=target] option").all_text_contents()
        assert sorted(options[:3]) == sorted(shown)
        assert dialog.locator("h2").text_content().startswith(options[0])
        dialog.locator("select[name=target]").select_option(index=3)
        assert options[3] == f"{options[0]} rather than {options[1]}"
        assert dialog.locator("svg .region title").first.text_content() == "mouth +90%"
        page.keyboard.press("Escape")
    for label in shown:
        page.get_by_text(label, exact=False).locator("visible=true").first.hover()
    page.get_by_label("File name").fill("")
    page.locator("fieldset span", has_text=shown[0]).click()
    assert page.locator(".filter output").text_content().endswith(f"of {len(names)} faces")
    assert page.title() == NAMES[0]
    assert page.locator("script").count() == 4
    assert (
        page.locator("[src=x], [onload], [onerror], [onmouseover], body i:not([class])").count()
        == 0
    )
    assert wrong == []
