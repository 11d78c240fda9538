"""The live page: what its server gives to viewers, and what strangers do not get."""

import http.client
import io
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.report import live
from fer_vit.report.live import LivePage
from fer_vit.report.overlay import Marked
from tests.helpers.browser import chromium, opened

FACE = Marked(np.array([20.0, 20, 60, 60]), "happiness", 0.9, 0)


def picture(level: int) -> np.ndarray:
    return np.full((90, 160, 3), level, np.uint8)


def level(data: bytes) -> int:
    """The grey of a picture's corner."""
    return int(np.asarray(Pil.open(io.BytesIO(data)))[-1, -1, 0])


@pytest.fixture
def page() -> Iterator[LivePage]:
    with LivePage("127.0.0.1", 0) as served:
        yield served


def ask(page: LivePage, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    viewer = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=20)
    viewer.request("GET", path, headers=headers)
    answer = viewer.getresponse()
    content = answer.read()
    viewer.close()
    return answer.status, dict(answer.getheaders()), content


def test_the_page_and_its_newest_picture(page: LivePage) -> None:
    status, headers, content = ask(page, "/")
    assert status == 200
    assert b"<title>fer-vit live</title>" in content
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    page.show(picture(10), [], "one")
    page.show(picture(200), [FACE], "deux é\n")
    status, headers, content = ask(page, "/picture/-1")
    assert (status, headers["X-Number"], unquote(headers["X-Status"])) == (200, "1", "deux é\n")
    assert abs(level(content) - 200) < 3
    assert np.asarray(Pil.open(io.BytesIO(content)))[20:60, 20].std() > 20  # the box
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_viewer_waits_for_what_it_has_not_seen(page: LivePage) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, page, "/picture/-1") for _ in range(2)]
        page.show(picture(50), [], "")
        assert [viewer.result()[1]["X-Number"] for viewer in waiting] == ["0", "0"]
        late = pool.submit(ask, page, "/picture/0")
        page.show(picture(90), [], "")
        assert late.result()[1]["X-Number"] == "1"
        assert abs(level(late.result()[2]) - 90) < 3
    assert ask(page, "/picture/500")[1]["X-Number"] == "1"  # from a server that ran here before


def test_nothing_new_for_long(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PATIENCE", 0.1)
    assert ask(page, "/picture/-1")[0] == 503
    page.show(picture(50), [], "")
    assert ask(page, "/picture/0")[1]["X-Number"] == "0"


def test_a_picture_is_drawn_only_if_asked_for_and_once(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(live, "draw_faces", lambda image, faces: drawn.append(1) or image)
    for number in range(100):
        page.show(picture(number), [], "")
    assert not drawn
    with ThreadPoolExecutor(4) as pool:
        assert {headers["X-Number"] for _, headers, _ in pool.map(lambda _: ask(page, "/picture/-1"), range(8))} == {
            "99"
        }
    assert drawn == [1]


def test_drawing_does_not_hold_up_the_next_picture(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, proceed = Event(), Event()

    def draw(image: np.ndarray, faces: object) -> np.ndarray:
        begun.set()
        proceed.wait(20)
        return image

    monkeypatch.setattr(live, "draw_faces", draw)
    page.show(picture(1), [], "")
    with ThreadPoolExecutor(1) as pool:
        viewer = pool.submit(ask, page, "/picture/-1")
        assert begun.wait(20)
        page.show(picture(2), [], "")
        page.show(picture(3), [], "")
        proceed.set()
        assert viewer.result()[1]["X-Number"] == "0"
    assert ask(page, "/picture/0")[1]["X-Number"] == "2"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/../../etc/passwd", {}, 404),
        ("/%2e%2e/%2e%2e/etc/passwd", {}, 404),
        ("//etc/passwd", {}, 404),
        ("/live.html", {}, 404),
        ("/picture/../../x", {}, 404),
        ("/picture/1e5", {}, 404),
        ("/picture/" + "9" * 13, {}, 404),
        ("/picture/\u0662".encode().decode("latin-1"), {}, 404),
        ("/" + "x" * 70_000, {}, 414),
        ("/", {"X": "x" * 70_000}, 431),
        ("/", {f"X{n}": "x" for n in range(200)}, 431),
        ("/", {"Host": "evil.example"}, 403),
        ("/picture/-1", {"Host": "127.0.0.1.evil.example:80"}, 403),
        ("/picture/-1", {"Host": ""}, 403),
        ("/", {"Host": "localhost:8000"}, 200),
    ],
)
def test_strangers_get_nothing(
    page: LivePage, path: str, headers: dict[str, str], status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    page.show(picture(50), [], "")
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in ({"Host": "localhost"} | headers).items())]
    answer = raw(page, "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
    assert answer.split()[1] == str(status).encode()
    assert b"root:" not in answer
    assert ask(page, "/picture/-1")[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "request_",
    [b"", b"\0\xff\n\n", b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"],
)
def test_nonsense_does_nothing(page: LivePage, request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    page.show(picture(50), [], "")
    assert b" 200 " not in raw(page, request_)
    with socket.create_connection(("127.0.0.1", page.server_port)) as half:
        half.sendall(b"GET /pict")  # and no more
        assert ask(page, "/picture/-1")[0] == 200
    assert capfd.readouterr() == ("", "")


def raw(page: LivePage, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", page.server_port), timeout=20) as viewer:
        viewer.sendall(request)
        viewer.shutdown(socket.SHUT_WR)
        parts = []
        try:
            while data := viewer.recv(65536):
                parts.append(data)
        except ConnectionResetError:  # it does not read what is too long
            pass
        return b"".join(parts)


def test_viewers_who_leave_are_not_mentioned(page: LivePage, capfd: pytest.CaptureFixture[str]) -> None:
    page.show(np.random.default_rng(0).integers(0, 256, (900, 1600, 3), np.uint8), [], "")
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", page.server_port)) as viewer:
            viewer.sendall(b"GET /picture/-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            viewer.recv(10)
    assert ask(page, "/picture/-1")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_or_none(page: LivePage) -> None:
    for host, port in (("127.0.0.1", page.server_port), ("127.0.0.1", 99999), ("127.0.0.1", -1)):
        with pytest.raises(
            FerVitError, match=rf"Cannot serve at {host}:{port} \(.*\)\. Choose another `--host` or `--port`\."
        ):
            LivePage(host, port)


def test_everybody_may_look_if_asked_for() -> None:
    with LivePage("0.0.0.0", 0) as page:
        page.show(picture(50), [], "")
        assert not page.private
        assert ask(page, "/picture/-1", Host="raspberry.local")[0] == 200


@pytest.mark.slow
def test_in_a_browser(page: LivePage) -> None:
    with chromium() as browser:
        viewers, wrong = zip(*(opened(browser, page.address) for _ in range(2)), strict=True)
        assert viewers[0].inner_text("p").startswith("Waiting")
        for status in ("12 frames/s", "<b>13 é</b>"):
            page.show(picture(50), [FACE], status)
            for viewer in viewers:
                viewer.get_by_text(status, exact=True).wait_for()
                assert viewer.locator("img").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [160, 90]
        assert wrong == ([], [])
        viewers[1].reload()
        viewers[1].get_by_text("<b>13 é</b>").wait_for()
        page.shutdown()
        page.server_close()
        page.show(picture(50), [], "the end")  # to whoever is waiting
        viewers[0].get_by_text("No more pictures").wait_for()
        with LivePage("127.0.0.1", page.server_port) as again:
            again.show(picture(50), [], "back again")
            viewers[0].get_by_text("back again").wait_for()
