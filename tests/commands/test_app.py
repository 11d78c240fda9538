"""`fer-vit app` as a separate process: its temporary folder, its API as documented,
and its page in a browser.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from PIL import Image
from playwright.sync_api import expect
from skimage.data import astronaut

from tests.helpers.browser import Tab, chromium
from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Server, running, started

CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
BROWSER_PATIENCE = 1000 * PATIENCE  # milliseconds
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("app")) as server:
        yield server


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "photo.jpg"
    Image.fromarray(astronaut()).save(path)
    return path


@pytest.mark.slow
def test_what_a_killed_server_leaves_is_removed_at_the_next_start(tmp_path: Path) -> None:
    killed = started(tmp_path, "--host", "0.0.0.0", "--hostnames", "lab.example")
    assert "warning: anyone who reaches" in killed.log.read_text()
    killed.process.kill()
    killed.process.wait()
    (left,) = tmp_path.glob(".fer-vit-app.*")
    assert left.stat().st_mode & 0o777 == 0o700
    both = [started(tmp_path) for _ in range(2)]
    assert not left.exists()
    assert len([*tmp_path.glob(".fer-vit-app.*")]) == 2
    for server in both:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
    assert not [*tmp_path.glob(".fer-vit-app.*")]


@pytest.mark.slow
def test_the_clients_of_the_documentation(
    server: Server, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "how-to/rest.md").read_text().replace("http://localhost:7860", server.address)
    monkeypatch.chdir(photo.parent)
    codes = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    outputs = [
        subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout
        for code in codes
    ]
    assert len(outputs) == 1
    assert outputs[0].startswith("photo.jpg happiness")
    commands = re.findall(r"^    (curl .*(?:\\\n.*)*)", page, re.MULTILINE)
    tables = [
        subprocess.run(command, shell=True, stdout=-1, text=True, check=True).stdout
        for command in commands
    ]
    assert tables[0].startswith("path,status,face,")
    (row,) = json.loads(tables[1])
    assert "yaw" in row
    assert "label" not in row
    report = json.loads(tables[2])
    assert requests.get(server.address + report["html"]).ok
    assert requests.delete(f"{server.address}/results/{report['id']}").status_code == 204


@pytest.mark.slow
def test_the_page_of_app(server: Server, photo: Path, tmp_path: Path) -> None:
    Image.new("RGB", (90, 90), "grey").save(tmp_path / "empty.png")
    with chromium(*CAMERA) as browser:
        page, wrong = Tab(browser).open(server.address)
        page.on(
            "request",
            lambda request: (
                request.url.startswith((server.address, "data:", "blob:"))
                or wrong.append(request.url)
            ),
        )
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.set_default_timeout(BROWSER_PATIENCE)
        files = page.locator("input[type=file]")
        find = page.get_by_role("button", name="Show expressions")
        files.set_input_files([photo, tmp_path / "empty.png"])
        find.click()
        expect(page.get_by_text("photo.jpg: 1 face (1 happiness).")).to_be_visible(
            timeout=BROWSER_PATIENCE
        )
        expect(page.get_by_text("No face found in empty.png.")).to_be_visible()
        report = page.frame_locator("iframe").locator("main article.face")
        expect(report.locator("svg .region")).to_have_count(11, timeout=BROWSER_PATIENCE)
        expect(page.locator(".pictures img")).to_have_js_property("complete", True)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        with page.expect_download() as archive:
            page.get_by_text("Report (zip)").click()
        shutil.unpack_archive(archive.value.path(), tmp_path / "report", "zip")
        assert (tmp_path / "report" / "index.html").is_file()
        name = "<img src=x onerror=alert(1)>.jpg"
        files.set_input_files({"name": name, "mimeType": "image/jpeg", "buffer": b"x"})
        find.click()
        expect(page.get_by_text("Save it as JPEG")).to_be_visible(timeout=BROWSER_PATIENCE)
        expect(page.locator(".downloads a")).to_have_count(0)
        files.set_input_files([photo] * 20)
        find.click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("Cancelled.")).to_be_visible()
        page.get_by_role("button", name="Use the camera").click()
        expect(page.locator(".camera video")).not_to_have_js_property("videoWidth", 0)
        page.get_by_role("button", name="Take photo").click()
        expect(page.get_by_text("No face found in camera.jpg.")).to_be_visible(
            timeout=BROWSER_PATIENCE
        )
        page.goto("about:blank")
        wait_until(lambda: not server.jobs)  # the browser sends this after the page has left
        assert wrong == []
