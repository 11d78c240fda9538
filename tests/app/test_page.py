"""The page in a real browser and its API, served by a process of its own."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from skimage.data import astronaut

from fer_vit.app.network import POLICY
from tests.helpers.browser import chromium
from tests.helpers.hostile import bomb

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"
PATIENCE = 60_000
"""Milliseconds."""
HUMAN = 1000
"""Milliseconds before the next click: Gradio loses one that comes while it closes the stream of the last answer."""


class Server(NamedTuple):
    """A running `fer-vit app`: where it is, and what it says."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def server(yunet: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("gradio", reason='the page needs gradio: pip install "fer-vit[app]"')
    log = tmp_path_factory.mktemp("app") / "log"
    command = (sys.executable, "-m", "cli", "app", "--port", "0")
    # Its own refusal of the network is tested here, not that of the tests.
    environment = os.environ | {"PYTHONPATH": "", "FER_VIT_YUNET": str(yunet), "TMPDIR": str(log.parent)}
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=DOCS.parent, env=environment, stdout=file, stderr=file) as process,
    ):
        while not (found := re.search(r"http://\S+", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield Server(found[0], log, process)
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(log.parent.glob("fer-vit-*")), "uploads are left behind"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as browser:
        yield browser


@pytest.fixture
def page(server: Server, browser: Browser) -> Iterator[Page]:
    """The page; afterwards it must have asked nobody else, and nothing must have gone wrong in it."""
    with browser.new_page() as page:
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("response", lambda answer: wrong.append(answer.url) if answer.status >= 400 else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(server.address)
        page.locator("input[type=file]").first.wait_for(state="attached", timeout=PATIENCE)
        yield page
        assert [url for url in asked if not url.startswith((f"{server.address}/", "data:", "blob:"))] == []
        assert wrong == []


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "photo.jpg"
    Image.fromarray(astronaut()).save(path)
    return path


def drop(page: Page, *files: Any) -> None:
    page.locator("input[type=file]").first.set_input_files(list(files))


def test_a_photo(page: Page, photo: Path, tmp_path: Path) -> None:
    drop(page, photo)
    expect(page.get_by_text("1 face: 1 happiness")).to_be_visible(timeout=PATIENCE)
    report = page.frame_locator("iframe")
    face = report.locator("dialog[open]")
    expect(face.locator("h3")).to_contain_text("happiness", timeout=PATIENCE)
    expect(face.locator(".name")).to_have_text("photo.jpg")
    expect(face.locator("svg .region")).to_have_count(11)
    face.locator(".after").click()  # there is no other face
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    with page.expect_download() as table:
        page.get_by_role("button", name="Table").click()
    table.value.save_as(tmp_path / "faces.csv")
    with (tmp_path / "faces.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["path"], row["status"], row["label"]) == ("photo.jpg", "ok", "happiness")
    with page.expect_download() as archive:
        page.get_by_role("button", name="Report").click()
    shutil.unpack_archive(archive.value.path(), tmp_path / "report", "zip")
    assert (tmp_path / "report" / "index.html").is_file()
    face.locator(".close").click()
    expect(face).to_have_count(0)


def test_the_camera(page: Page) -> None:
    page.get_by_role("tab", name="Camera").click()
    page.get_by_text("Click to Access Webcam").click()
    page.wait_for_function("document.querySelector('video')?.videoWidth > 0")
    page.get_by_role("button", name="capture photo").click()
    expect(page.get_by_text("1 photo: 1 no face")).to_be_visible(timeout=PATIENCE)  # Chromium's camera shows a clock


def test_hostile_uploads(server: Server, page: Page, photo: Path) -> None:
    uploads = {
        "nothing.jpg": (b"", "the file is empty"),
        "text.jpg": (b"Hello", "not an image"),
        "cut.jpg": (photo.read_bytes()[:200], "not an image"),
        "bomb.jpg": (bomb("jpeg"), "too large"),
        "scans.jpg": (bomb("scans"), "too many scans"),
        "drawing.svg": (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "not an image"),
        "<img src=x onerror=alert(1)>.jpg": (b"x", "not an image"),
        "../../../escaped.jpg": (b"x", "not an image"),
        "00001.MTS": (b"x", "not a video that can be decoded"),
    }
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for name, (data, said) in uploads.items():
        drop(page, {"name": name, "mimeType": "image/jpeg", "buffer": data})
        summary = page.get_by_text(f": 1 {said}")  # 1 photo, or 1 failed video
        expect(summary).to_be_visible(timeout=PATIENCE)
        page.wait_for_timeout(HUMAN)
        page.get_by_label("Clear").click()
        expect(summary).to_have_count(0, timeout=PATIENCE)
        page.wait_for_timeout(HUMAN)
    drop(page, {"name": "text.txt", "mimeType": "text/plain", "buffer": b"Hello"})
    expect(page.get_by_text("nvalid file type")).to_be_visible(timeout=PATIENCE)
    drop(page, *[{"name": f"{number}.jpg", "mimeType": "image/jpeg", "buffer": b"x"} for number in range(21)])
    expect(page.get_by_text("Expected 1 to 20 photos or clips at a time, but got 21.")).to_be_visible(timeout=PATIENCE)
    assert "Traceback" not in page.content() + server.log.read_text()


def test_an_error_leaves_nothing_of_the_last_photo(page: Page, photo: Path) -> None:
    drop(page, photo)
    expect(page.locator("iframe")).to_be_visible(timeout=PATIENCE)
    page.wait_for_timeout(HUMAN)
    drop(page, *[{"name": f"{number}.jpg", "mimeType": "image/jpeg", "buffer": b"x"} for number in range(21)])
    expect(page.get_by_text("Expected 1 to 20 photos or clips at a time")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("iframe")).to_have_count(0, timeout=PATIENCE)
    expect(page.get_by_text("happiness")).to_have_count(0, timeout=PATIENCE)
    expect(page.get_by_role("button", name=re.compile("Table|Report"))).to_have_count(0)


def test_the_client_of_the_documentation(server: Server, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "app.md").read_text(), re.DOTALL)
    exec(code.replace("http://localhost:7860", server.address).replace('"photo.jpg"', repr(str(photo))), {})
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (row["path"], row["status"], row["label"]) == ("photo.jpg", "ok", "happiness")


def call(server: Server, function: str, path: str, model: str = "ferplus-small") -> str:
    """Asks the API; returns the end of its answer."""
    api = f"{server.address}/gradio_api/call/{function}"
    data = {"data": [[{"path": path, "meta": {"_type": "gradio.FileData"}}], model]}
    event = requests.post(api, json=data).json()["event_id"]
    return requests.get(f"{api}/{event}", timeout=60).text


@pytest.mark.parametrize("path", ["http://example.org/photo.jpg", "/etc/hostname", "../../etc/hostname"])
def test_only_uploads_are_read(server: Server, path: str) -> None:
    answer = call(server, "predict", path)
    assert "event: error" in answer
    assert "Traceback" not in answer
    if "://" in path:
        assert "fer-vit app does not look up" in server.log.read_text()


def test_only_models_of_the_list_are_loaded(server: Server, photo: Path) -> None:
    with photo.open("rb") as file:
        (path,) = requests.post(f"{server.address}/gradio_api/upload", files={"files": file}).json()
    assert "event: complete" in call(server, "visualize", path)
    assert "event: error" in call(server, "predict", path, "user/name")


def test_a_large_upload_is_refused(server: Server) -> None:
    answer = requests.post(f"{server.address}/gradio_api/upload", files={"files": ("a.jpg", bytes(33_000_000))})
    assert answer.status_code == 413
    assert answer.headers["content-security-policy"] == POLICY.decode()


def test_nothing_is_served_but_the_page_and_results(server: Server) -> None:
    for path in ("/results/", "/results/..%2fuploads", "/gradio_api/file=/etc/hostname"):
        assert requests.get(server.address + path).status_code in (403, 404), path
