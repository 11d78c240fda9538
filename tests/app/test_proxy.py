"""The page and its API below a path of a reverse proxy that replaces `Host`,
as nginx does by default.
"""

from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest
import requests
from playwright.sync_api import expect

from fer_vit.app.guard import public_address
from fer_vit.app.jobs import Jobs
from fer_vit.app.server import create_app, listen, serving
from tests.helpers.browser import Tab
from tests.helpers.processes import PATIENCE

PHOTO = {"files": ("a.jpg", b"bytes of a photo")}


class Proxy(BaseHTTPRequestHandler):
    """Passes requests below /fer/ on, with the address of the server behind as `Host`."""

    behind = ""

    def pass_on(self) -> None:
        if not self.path.startswith("/fer/"):
            self.send_error(404)
            return
        length = int(self.headers.get("content-length", 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection = HTTPConnection(self.behind, timeout=PATIENCE)
        connection.request(
            self.command, self.path.removeprefix("/fer"), self.rfile.read(length), headers
        )
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = pass_on  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def public(queue: Jobs) -> Iterator[str]:
    """The address of the page behind a proxy."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        address = f"http://localhost:{proxy.server_port}/fer/"
        thread = Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        sock, behind = listen("127.0.0.1", 0)
        Proxy.behind = urlsplit(behind).netloc
        with sock, serving(create_app(queue, public=public_address(address)), sock):
            yield address
        proxy.shutdown()


def test_the_api_below_a_path(public: str) -> None:
    headers = {"Origin": public.removesuffix("/fer/"), "Sec-Fetch-Site": "same-origin"}
    answer = requests.post(f"{public}api/report", files=PHOTO, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200
    page = public.removesuffix("/fer/") + answer.json()["html"]
    assert requests.get(page, timeout=PATIENCE).text == "<p>Report</p>"
    foreign = {"Origin": "http://evil.example"}
    answer = requests.post(f"{public}api/report", files=PHOTO, headers=foreign, timeout=PATIENCE)
    assert answer.status_code == 403


@pytest.mark.slow
def test_the_page_below_a_path(public: str, tab: Tab) -> None:
    page, wrong = tab.open(public)
    assert page.evaluate("getComputedStyle(document.querySelector('.drop')).borderRadius") == (
        "12px"
    )
    expect(page.locator("select[name=model] option")).to_have_count(2)
    page.locator("input[type=file]").set_input_files(
        {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"x"}
    )
    page.get_by_role("button", name="Show expressions").click()
    expect(page.frame_locator("iframe").get_by_text("Report")).to_be_visible()
    assert wrong == []
