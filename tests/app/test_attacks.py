"""Attacks on the app with a stub worker, and on real `fer-vit app` processes."""

import csv
import io
import json
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import av
import numpy as np
import psutil
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from PIL import Image
from skimage.data import astronaut

from fer_vit.app.jobs import Jobs
from fer_vit.app.server import create_app
from tests.helpers.hostile import BOMBS, bomb, jpeg_bomb
from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Server, running

pytestmark = pytest.mark.slow

REQUESTS = 1000  # made from the schema


@pytest.mark.parametrize(
    "charset", ["utf-7", "unicode_escape", "raw_unicode_escape", "idna", "utf-16", "hex"]
)
def test_odd_encodings_are_no_server_error(address: str, charset: str) -> None:
    parts = (
        'name="files"; filename="+2AA-\\ud800.jpg"',
        'name="fps"\r\n\r\n+2AA-',
        'name="end"\r\n\r\n\\ud800',
    )
    body = (
        "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
        + "--b--\r\n"
    )
    kind = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    answer = requests.post(f"{address}/api/predict", data=body, headers=kind)
    assert answer.status_code in (400, 422)


def test_requests_made_from_the_schema(queue: Jobs) -> None:
    import schemathesis  # only here: it takes seconds, and pytest imports this file for others, too

    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(queue))
    operations = [operation.ok() for operation in schema.get_all_operations()]
    cases = st.one_of(
        operation.as_strategy(mode)
        for operation in operations
        for mode in schemathesis.GenerationMode
    )
    statuses = Counter[int]()

    @settings(
        max_examples=REQUESTS,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(cases)
    def send(case: Any) -> None:
        status = case.call().status_code
        statuses[status] += 1
        assert status < 500

    send()
    assert statuses.total() >= REQUESTS
    assert {200, 204, 404, 422} <= {*statuses}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("app")) as server:
        yield server
        wait_until(lambda: not server.jobs)  # a large table is removed after it is sent


@pytest.fixture(scope="module")
def photo() -> bytes:
    return encode(astronaut())


def encode(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG")
    return file.getvalue()


def post(
    server: Server, name: str, data: bytes | str, route: str = "predict", **fields: str
) -> requests.Response:
    """Sends a file; removes the results."""
    answer = requests.post(
        f"{server.address}/api/{route}",
        files={"files": (name, data)},
        data=fields,
        timeout=PATIENCE,
    )
    if answer.ok and route == "report":
        assert requests.delete(f"{server.address}/results/{answer.json()['id']}").status_code == 204
    return answer


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that accepts no connection."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.accept()


def test_no_field_reads_a_file_or_an_address(
    server: Server, photo: bytes, listener: int, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.jpg"
    link = tmp_path / "link.jpg"
    secret.write_bytes(photo)
    link.symlink_to(secret)
    places = [
        str(secret),
        str(link),
        f"{'../' * 12}{secret}",
        quote(f"../..{secret}", safe=""),
        f"file://{secret}",
    ]
    places += [f"//127.0.0.1{secret}", f"\\\\127.0.0.1@{listener}\\a.jpg"]
    places += [f"{kind}://127.0.0.1:{listener}/a.jpg" for kind in ("http", "ftp", "rtsp")]
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"

    def check(content: bytes) -> None:
        assert not re.search(rb'"happiness"|1 face', content)
        assert photo[:1000] not in content

    for place, route in product(places, ("predict", "report")):
        for field in ("model", "fps", "start", "end"):
            assert post(server, "a.jpg", b"", route, **{field: place}).status_code == 422
        data = {"files": place}
        assert requests.post(f"{server.address}/api/{route}", data=data).status_code == 422
    # a report reads the same file as a table, and explains it
    playlists = (playlist, "ffconcat version 1.0\nfile '{}'\n")
    for place, text in product(places, playlists):
        content = text.format(place)
        files = [("files", (name, content)) for name in (place, "a.m3u8", "a.mp4", "a.jpg")]
        answer = requests.post(f"{server.address}/api/report", files=files, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        check(answer.content)
        table = f"{server.address}/results/{answer.json()['id']}/faces.csv"
        rows = csv.DictReader(io.StringIO(requests.get(table, timeout=PATIENCE).text))
        assert [row["label"] for row in rows] == [""] * len(files)
        assert requests.delete(table.removesuffix("/faces.csv")).status_code == 204
    kept = requests.post(f"{server.address}/api/report", files={"files": ("a.jpg", photo)}).json()[
        "id"
    ]
    for place in places:
        paths = (
            f"/{place}",
            f"/results/{place}",
            f"/results/{place}/faces.csv",
            f"/results/{kept}/{place}",
        )
        for path, method in product((*paths, f"/results/{place}/close"), ("GET", "POST", "DELETE")):
            # sends `..` unchanged
            connection = HTTPConnection(server.address.removeprefix("http://"))
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.status in (204, 400, 404, 405)
            check(answer.read())
    assert requests.get(f"{server.address}/results/{kept}/faces.csv").ok
    assert requests.delete(f"{server.address}/results/{kept}").status_code == 204
    assert secret.exists()


def avi(picture: bytes, side: int, frames: int) -> bytes:
    """A clip that consists of one JPEG."""
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as clip:
        stream = clip.add_stream("mjpeg", 25, width=side, height=side, pix_fmt="yuvj420p")
        for number in range(frames):
            packet = av.Packet(picture)
            packet.stream = stream
            packet.pts = number
            packet.dts = number
            clip.mux(packet)
    return file.getvalue()


@contextmanager
def started_job(server: Server, file: tuple[str, bytes]) -> Iterator[Iterator[bytes]]:
    """Starts the job of a file; yields its events."""
    answer = requests.post(
        f"{server.address}/api/report",
        files={"files": file},
        headers={"Accept": "application/x-ndjson"},
        stream=True,
        timeout=PATIENCE,
    )
    with answer:
        events = answer.iter_lines(chunk_size=1)
        assert json.loads(next(events))["state"] == "running"
        yield events


def worker_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    return next(child for child in children if "spawn_main" in str(child.cmdline()))


def peak_memory(process: psutil.Process) -> int:
    """The most memory that a process has had, in kB (Linux)."""
    match = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert match
    return int(match[1])


BOMB_FILES = {f"{name}.jpg": partial(bomb, name) for name in BOMBS} | {
    "large.avi": lambda: avi(jpeg_bomb(16_000), 16_000, 3),
    "long.avi": lambda: avi(jpeg_bomb(5900), 5900, 1000),
}


def test_bombs_take_no_memory(server: Server, photo: bytes) -> None:
    assert post(server, "a.jpg", photo).status_code == 200
    worker = worker_of(server)
    before = peak_memory(worker)
    for name, make in BOMB_FILES.items():
        answer = post(server, name, make(), "report").text
        refused = "megapixels|too large|too long|too many scans|not a photo that"
        assert re.search(refused, answer), answer
    assert worker_of(server) == worker
    assert peak_memory(worker) < before + 200_000
    assert post(server, "a.jpg", photo).json()[0]["label"] == "happiness"


def test_32_clients_get_their_own_tables(server: Server) -> None:
    photos = [encode(np.roll(astronaut(), 4 * number, 1)) for number in range(32)]

    def table(number: int) -> str:
        return post(server, f"{number}.jpg", photos[number]).text

    expected = [*map(table, range(32))]
    assert len({json.loads(text)[0]["box_left"] for text in expected}) > 16
    with ThreadPoolExecutor(32) as pool:
        for _ in range(3):
            assert [*pool.map(table, range(32))] == expected


def test_a_job_ends_with_its_client(server: Server, photo: bytes) -> None:
    worker = worker_of(server)
    clip = avi(encode(np.zeros((1000, 1000, 3), np.uint8)), 1000, 1000)
    with started_job(server, ("a.avi", clip)):  # it would last half a minute
        used = sum(worker.cpu_times()[:2])
        wait_until(lambda: sum(worker.cpu_times()[:2]) > used + 0.2)  # in the midst of the work
    assert post(server, "a.jpg", photo).json()[0]["label"] == "happiness"
    assert not worker.is_running()


def test_a_full_disk_keeps_what_was_there(photo: bytes, tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", tmp_path]).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        with running(tmp_path) as server:
            assert post(server, "a.jpg", bytes(150_000_000)).status_code == 413
            filler = tmp_path / "filler"
            worker = worker_of(server)
            worker.suspend()  # until the disk is full
            with started_job(server, ("a.jpg", photo)) as events:
                with filler.open("wb") as file, suppress(OSError):
                    while True:
                        file.write(bytes(1_000_000))
                worker.resume()
                (event,) = events
                assert b'"failed"' in event
                assert b"(No space left on device)" in event
            assert post(server, "a.jpg", photo).status_code == 413
            filler.unlink()
            assert post(server, "a.jpg", photo).json()[0]["label"] == "happiness"
            wait_until(lambda: not server.jobs)  # removed once the answer is sent
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
