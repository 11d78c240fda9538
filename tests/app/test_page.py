"""The upload page in a real browser, with answers that the test writes."""

import io
import json

import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect
from starlette.testclient import TestClient

from fer_vit.app.jobs import Jobs
from fer_vit.app.server import create_app
from tests.helpers.browser import Tab, assert_accessible

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
DONE = {
    "state": "done",
    "id": "job",
    "messages": ["b.jpg: 1 face (1 fear)."],
    "warnings": ["a.jpg cannot be read."],
    "files": ["faces.csv"],
    "photos": [{"name": "b.jpg", "file": "photos/0.jpg"}],
    "html": True,
}
OUTPUTS = {"large": ["expression", "pose", "movements"], "small": ["expression", "pose"]}
PHOTO = {"name": "b.jpg", "mimeType": "image/jpeg", "buffer": b"x"}


@pytest.fixture
def sent() -> list[str]:
    """The bodies of the jobs that the page sends."""
    return []


@pytest.fixture
def page(tab: Tab, sent: list[str], queue: Jobs) -> Page:
    """The page; a job with explanations does not end, one without does."""

    client = TestClient(create_app(queue), base_url="http://localhost")

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2] or "upload.html"
        if name == "outputs":
            route.fulfill(json=OUTPUTS)
        elif name == "report":
            sent.append(route.request.post_data or "")
            if explained(sent[-1]):
                return
            route.fulfill(body=json.dumps(DONE | {"html": False}) + "\n")
        elif name.partition(".")[2] in KINDS and "results" not in route.request.url:
            text = client.get("/" if name == "upload.html" else f"/{name}").text
            route.fulfill(body=text, content_type=KINDS[name.partition(".")[2]])
        else:
            route.fulfill(body="")

    context = tab.page.context
    context.unroute_all()  # the answers of the test before
    context.route("**/*", answer)  # also of a tab that it opens
    page, _ = tab.open("http://localhost:9/")
    return page


def test_progress_has_the_time_that_is_left(page: Page) -> None:
    set_clock(page, 1000)
    page.evaluate("found({messages: [], warnings: []})")
    set_clock(page, 1030)
    page.evaluate("explaining({faces: 3, of: 5})")
    expect(page.locator("output")).to_contain_text("20 s left")
    page.evaluate("explaining({faces: 4, of: 5})")  # reported with the faces before it
    expect(page.locator("output")).to_contain_text("8 s left")
    set_clock(page, 1330)
    page.evaluate("explaining({faces: 3, of: 5})")
    expect(page.locator("output")).to_contain_text("4 min left")


def test_a_result_that_does_not_come_is_an_error(page: Page) -> None:
    page.context.route("**/report", lambda route: route.fulfill(body='{"state":"running"}\n'))
    page.locator("input[type=file]").set_input_files([PHOTO])
    page.locator(".go").click()
    expect(page.locator("output")).to_have_class("wrong")
    expect(page.locator(".go")).to_be_enabled()


def test_dropped_text_keeps_the_chosen_files(page: Page) -> None:
    page.locator("input[type=file]").set_input_files([PHOTO])
    page.evaluate("""() => {
        const text = new DataTransfer();
        text.setData('text/plain', 'words');
        document.dispatchEvent(new DragEvent('drop', {dataTransfer: text, bubbles: true}));
    }""")
    expect(page.locator(".go")).to_be_enabled()


def set_clock(page: Page, seconds: float) -> None:
    """Stops the clock of a page at a time."""
    page.evaluate(f"performance.now = () => {1000 * seconds}")


def test_explanations_are_left_out_on_request(page: Page, sent: list[str]) -> None:
    page.locator("input[type=file]").set_input_files([PHOTO])
    with page.expect_request("**/report"):  # which skipping would else take back unsent
        page.locator(".go").click()
    expect(page.locator(".skip")).to_be_hidden()  # no face is explained yet
    page.evaluate("explaining({faces: 1, of: 5})")
    page.locator(".skip").click()
    expect(page.locator(".downloads a")).to_have_count(1)
    assert len(sent) == 2
    expect(page.locator("output")).to_contain_text("without explanations")
    expect(page.locator(".photos")).to_have_js_property("open", True)
    page.get_by_role("button", name="Other photos or options").click()
    with page.expect_request("**/report") as last:  # the next job has explanations again
        page.locator(".go").click()
    bodies = [*sent[:2], last.value.post_data]
    assert [explained(body) for body in bodies] == [True, False, True]


def explained(body: str) -> bool:
    """Whether a job that the page sends has to explain its faces."""
    return "true" in body.rpartition('name="explain"')[2]


FAKE_CAMERA = """() => {
    window.streams = [];
    const canvas = document.createElement('canvas');
    canvas.getContext('2d').fillRect(0, 0, 9, 9);
    const whenAllowed = resolve => {
        window.allow = () => {
            streams.push(canvas.captureStream());
            resolve(streams.at(-1));
        };
    };
    const camera = {getUserMedia: () => new Promise(whenAllowed)};
    Object.defineProperty(navigator, 'mediaDevices', {value: camera});
    HTMLMediaElement.prototype.play = async () => {};
}"""
"""A camera that `allow()` allows."""
LIVE = "streams.flatMap(stream => stream.getTracks()).filter(track => track.readyState === 'live')"


def test_a_camera_that_is_allowed_after_a_job_began_stays_off(page: Page) -> None:
    page.evaluate(FAKE_CAMERA)
    page.locator("input[type=file]").set_input_files([PHOTO])
    page.get_by_role("button", name="Use the camera").click()
    with page.expect_request("**/report"):
        page.locator(".go").click()
    page.evaluate("allow()")
    expect(page.locator(".upload")).to_have_class("upload busy")
    expect(page.locator(".shoot")).to_be_hidden()
    assert page.evaluate(f"{LIVE}.length") == 0
    page.locator(".cancel").click()
    page.get_by_role("button", name="Use the camera").click()
    page.evaluate("allow()")
    expect(page.locator(".shoot")).to_be_visible()
    assert page.evaluate(f"{LIVE}.length") == 1
    page.get_by_role("button", name="Turn camera off").click()
    assert page.evaluate(f"{LIVE}.length") == 0


def test_a_page_that_leaves_closes_its_job_before_the_result_is_there(page: Page) -> None:
    page.evaluate("follow({state: 'running', id: 'early'})")
    with page.expect_request("**/results/early/close"):
        page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")


def test_the_page_offers_the_columns_of_the_chosen_model(page: Page, sent: list[str]) -> None:
    page.get_by_text("Options", exact=True).click()
    boxes = page.locator(".kinds input")
    expect(boxes).to_have_count(3)
    page.get_by_label("Model").select_option("small")
    expect(boxes).to_have_count(2)
    page.get_by_label("Explain each face").uncheck()
    page.locator("input[type=file]").set_input_files([PHOTO])
    for name in OUTPUTS["small"]:
        page.get_by_role("checkbox", name=name).uncheck()
    page.get_by_text("Options", exact=True).click()
    page.locator(".go").click()
    expect(page.locator("output")).to_contain_text("at least one")
    expect(page.locator(".options")).to_have_attribute("open", "")
    page.get_by_role("checkbox", name="pose").check()
    page.locator(".go").click()
    expect(page.locator(".downloads a")).to_have_count(1)
    page.get_by_role("button", name="Other photos or options").click()
    page.get_by_role("checkbox", name="expression").check()
    page.locator(".go").click()
    expect(page.locator(".downloads a")).to_have_count(1)
    chosen = [body.count('name="outputs"') for body in sent]
    assert chosen == [1, 0]  # all are the same as none


def test_chosen_files_have_a_preview_and_can_be_taken_out(page: Page) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (8, 4)).save(picture, "PNG")
    whole = {"name": "a.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    page.locator("input[type=file]").set_input_files([whole, PHOTO])
    rows = page.locator(".chosen li")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("img")).to_have_js_property("naturalWidth", 8)
    expect(rows.last).to_contain_text("no preview")
    page.get_by_role("button", name="Remove a.png").click()
    expect(rows.locator("bdi")).to_have_text(["b.jpg"])
    page.get_by_role("button", name="Remove b.jpg").click()
    expect(rows).to_have_count(0)
    expect(page.locator(".go")).to_be_disabled()


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("input[type=file]").set_input_files([PHOTO])
    page.get_by_text("Options", exact=True).click()
    assert_accessible(page, "html")
    page.evaluate(f"show({json.dumps(DONE | {'html': False})})")
    assert_accessible(page, "html")


def test_a_result_leaves_one_line_of_the_form(page: Page) -> None:
    page.locator("input[type=file]").set_input_files([PHOTO])
    page.evaluate(f"show({json.dumps(DONE)})")
    for part in (".drop", ".chosen", ".options", ".go"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator("output")).to_contain_text("1 file")
    page.get_by_role("button", name="Other photos or options").click()
    expect(page.locator(".chosen li")).to_have_count(1)
    expect(page.locator(".go")).to_be_enabled()
    page.evaluate(f"show({json.dumps(DONE)})")
    page.locator("input[type=file]").set_input_files([PHOTO])
    expect(page.locator(".go")).to_be_visible()


def test_the_focus_moves_to_the_result_or_back_to_the_form(page: Page) -> None:
    page.locator("input[type=file]").set_input_files([PHOTO])
    page.locator(".go").press("Enter")
    page.locator(".cancel").press("Enter")
    expect(page.locator(".go")).to_be_focused()
    page.get_by_text("Options", exact=True).press("Enter")
    page.locator("[name=explain]").press("Space")  # such a job has a result at once
    page.locator(".go").press("Enter")
    expect(page.get_by_role("heading", name="Result")).to_be_focused()


def test_files_without_a_face_have_no_table_and_leave_the_form_open(page: Page) -> None:
    page.evaluate(f"show({json.dumps(DONE | {'messages': [], 'photos': [], 'html': False})})")
    expect(page.locator(".messages .wrong")).to_be_visible()
    expect(page.locator(".downloads a")).to_have_count(0)
    expect(page.locator(".drop")).to_be_visible()


@pytest.mark.parametrize(("name", "offered"), [("camera.jpg", True), ("b.jpg", False)])
def test_another_photo_of_the_camera_is_one_click_away(
    page: Page, name: str, offered: bool
) -> None:
    page.locator("input[type=file]").set_input_files([PHOTO | {"name": name}])
    page.evaluate(f"show({json.dumps(DONE)})")
    expect(page.locator(".another")).to_be_visible(visible=offered)


def test_a_photo_that_the_report_has_is_folded(page: Page) -> None:
    page.evaluate(f"show({json.dumps(DONE)})")
    expect(page.locator(".messages li")).to_have_text([*DONE["messages"], *DONE["warnings"]])
    expect(page.locator(".messages .wrong")).to_have_text(DONE["warnings"])
    expect(page.locator(".frame iframe")).to_have_count(1)
    expect(page.locator(".photos")).to_have_js_property("open", False)
    assert page.locator(".photos img").count() == 1


def test_the_report_opens_in_a_tab_of_its_own(page: Page) -> None:
    page.evaluate(f"show({json.dumps(DONE)})")
    link = page.locator(".downloads .tab")
    with page.context.expect_page() as opening:
        link.click()
    tab = opening.value
    tab.wait_for_url("**/results/job/report/index.html")
    assert tab.evaluate("opener") is None
    tab.close()
    page.evaluate(f"show({json.dumps(DONE | {'html': False})})")
    expect(link).to_have_count(0)


@pytest.mark.parametrize(("width", "framed"), [(1280, True), (390, False)])
def test_a_phone_has_no_report_that_scrolls_within_the_page(
    page: Page, width: int, framed: bool
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate(f"show({json.dumps(DONE)})")
    expect(page.locator(".frame")).to_be_visible(visible=framed)
    expect(page.locator(".downloads .tab")).to_be_visible()
    expect(page.locator(".photos")).to_have_js_property("open", not framed)  # faces at once
