"""The camera page: what its server gives to viewers."""

import io
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import requests
from PIL import Image as Pil
from starlette.testclient import TestClient

from fer_vit.app.server import LivePage, create_app, listen, serving
from fer_vit.predict.camera import ClassifiedFrame
from tests.helpers.browser import Tab
from tests.helpers.faces import make_faces

PROBABILITIES = {"<b>happiness</b>": 0.9, "neutral": 0.1}


def seen(level: int, number: int = 0) -> ClassifiedFrame:
    """A frame with this number of faces."""
    faces = make_faces(
        [*PROBABILITIES],
        [[*PROBABILITIES.values()]] * number,
        frame=2 * level,
        track=[*range(number, 0, -1)],
        box=[[20, 20, 60, 60]] * number,
        smoothed=True,
    )
    return ClassifiedFrame(np.full((90, 160, 3), level, np.uint8), 0.0, faces)


def test_the_newest_picture_is_drawn_once_and_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = []
    save = Pil.Image.save

    def draw(picture: Pil.Image, *given: object, **options: object) -> None:
        saved.append(picture.size)
        save(picture, *given, **options)

    monkeypatch.setattr(Pil.Image, "save", draw)
    page = LivePage("live.csv")
    with (
        TestClient(create_app(page), base_url="http://localhost") as client,
        ThreadPoolExecutor(4) as pool,
    ):
        assert "fer-vit live" in client.get("/").text
        for number in range(100):
            page.show(seen(number, 1))
        assert not saved
        states = [*pool.map(lambda _: client.get("/live/newest").json(), range(8))]
    assert saved == [(160, 90)]
    assert {state["number"] for state in states} == {100}
    state = states[0]
    assert (state["status"], state["recording"], state["stopped"]) == (
        page.speed,
        "live.csv",
        False,
    )
    assert page.speed.endswith(", 99 skipped")
    rows = [["<b>happiness</b>", 0.9, "90%"], ["neutral", 0.1, "10%"]]
    assert state["faces"] == [{"track": 1, "rows": rows}]
    image = np.asarray(Pil.open(io.BytesIO(b64decode(state["picture"]))))
    assert abs(int(image[-1, -1, 0]) - 99) < 3
    assert image[20:60, 20].std() > 20  # the box


def test_a_viewer_waits_for_what_it_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the old picture again after some seconds."""
    page = LivePage()
    client = TestClient(create_app(page), base_url="http://localhost")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.get, "/live/newest?known=1") for _ in range(2)]
        page.show(seen(50))
        page.show(seen(90))
        assert [viewer.result().json()["number"] for viewer in waiting] == [2, 2]
    clock = count(0, 5)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert client.get("/live/newest?known=2").json()["number"] == 2


def test_a_viewer_stops_it() -> None:
    page = LivePage()
    client = TestClient(create_app(page), base_url="http://localhost")
    assert client.get("/live/stop").status_code == 405
    assert client.post("/api/predict").status_code == 404
    assert not page.stopped
    assert client.post("/live/stop").status_code == 204
    assert page.stopped


@pytest.mark.slow
def test_the_page_of_live_in_a_browser(tab: Tab) -> None:
    page = LivePage("live.csv")
    sock, address = listen("127.0.0.1", 0)
    with sock, serving(create_app(page), sock):
        viewer, wrong = tab.open(address)
        assert viewer.inner_text("p").startswith("Waiting")
        page.show(seen(50, 2))
        viewer.get_by_text("0.0 frames/s").wait_for()
        viewer.get_by_text("Recording to live.csv").wait_for()
        texts = viewer.locator("tr").all_inner_texts()
        assert [text.split() for text in texts] == [
            ["<b>happiness</b>", "90%"],
            ["neutral", "10%"],
        ] * 2
        assert viewer.locator("caption").all_inner_texts() == ["Person 1", "Person 2"]
        for bar in viewer.locator("td i").all():
            assert bar.evaluate("bar => bar.offsetWidth * bar.offsetHeight") > 0
            assert "gradient" in bar.evaluate("bar => getComputedStyle(bar).backgroundImage")
        assert wrong == []
        viewer.get_by_role("button", name="Stop").click()
        viewer.get_by_text("Stopped.").wait_for()
        assert page.stopped
        assert requests.get(f"{address}/live/newest").json()["stopped"]
        again, _ = tab.open(address)
        again.get_by_text("Stopped.").wait_for()
    assert again.get_by_text("Stopped.").is_visible()  # also when the server has ended
