"""Attacks on a running `fer-vit app`: memory of the server and its worker, clients by the hundred,
signals.

Bounded, on the loopback interface only. Memory is read from /proc (Linux).
"""

import asyncio
import io
import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import psutil
import pytest
import requests
from PIL import Image
from skimage.data import astronaut

from fer_vit.app.jobs import MAX_JOBS
from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Server, running, started

pytestmark = pytest.mark.slow

MOST = 3.2e9  # bytes that the worker may take with the default model
ALLOWED = 200e6  # bytes above its idle size that the server may take
RATE = 100_000  # bytes per second of a slow client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("app")) as server:
        yield server
        wait_until(lambda: not server.jobs)  # a large table is removed after it is sent


@pytest.fixture(scope="module")
def photo() -> bytes:
    file = io.BytesIO()
    Image.fromarray(astronaut()).save(file, "JPEG")
    return file.getvalue()


def memory(process: int, what: str = "VmRSS") -> float:
    """Bytes of memory of a process: VmRSS now, VmHWM at most."""
    match = re.search(rf"{what}:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    assert match
    return int(match[1]) * 1024.0


def worker_of(server: Server) -> int:
    children = psutil.Process(server.process.pid).children()
    return next(child.pid for child in children if "spawn_main" in str(child.cmdline()))


def port_of(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


def part(name: str, content: bytes) -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n"


def head(length: int, kind: str = "multipart/form-data; boundary=b") -> bytes:
    lines = f"Content-Type: {kind}\r\nContent-Length: {length}"
    return f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n".encode()


def clip(width: int, height: int, frames: int, pix_fmt: str = "yuv420p", **options: str) -> bytes:
    """A grey clip in H.264 of some kilobytes, of which each decoded frame has megabytes."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        options = {"preset": "ultrafast", "g": "1000"} | options
        stream = container.add_stream("libx264", 25, options=options)
        stream.width = width
        stream.height = height
        stream.pix_fmt = pix_fmt
        grey = av.VideoFrame.from_ndarray(np.full((height, width, 3), 128, np.uint8))
        for number in range(frames):
            grey.pts = number
            container.mux(stream.encode(grey))
        container.mux(stream.encode())
    return file.getvalue()


def test_uploads_that_stop_take_no_memory_and_end(server: Server, photo: bytes) -> None:
    idle = memory(server.process.pid)
    # 500 MB of all clients together
    body = b"".join(part(f"{number}.jpg", bytes(2**20 - 1)) for number in range(5))
    clients = []
    for _ in range(100):
        client = socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE)
        client.sendall(head(len(body) + 100) + body)
        clients.append(client)
    assert memory(server.process.pid, "VmHWM") < idle + ALLOWED
    for client in clients:
        client.close()
    wait_until(lambda: not server.jobs)
    answer = requests.post(f"{server.address}/api/predict", files={"files": ("a.jpg", photo)})
    assert answer.json()[0]["label"] == "happiness"


def test_the_largest_clips_and_photos_are_predicted(server: Server, photo: bytes) -> None:
    files = {"8k.mp4": clip(7680, 4320, 8), "a.jpg": photo, "64mp.png": picture("PNG")}
    statuses = statuses_of(server, files | {"48mp.webp": picture("WEBP", 8000, 6000)})
    assert statuses["8k.mp4"] == ["no face"] * 8
    assert statuses["a.jpg"] == ["ok"]
    assert statuses["64mp.png"] == statuses["48mp.webp"] == ["no face"]


def test_a_clip_that_needs_too_much_memory_has_a_row(server: Server, photo: bytes) -> None:
    """Frames as large as the limit allows, of twice as many bytes, of which 16 are held."""
    worker = worker_of(server)
    score = Path(f"/proc/{worker}/oom_score_adj")
    wait_until(lambda: score.read_text().strip() == "1000")  # it ends first; it may just start
    hostile = clip(5984, 5984, 20, "yuv420p10le", refs="16", bf="3")
    statuses = statuses_of(server, {"hostile.mp4": hostile, "a.jpg": photo})
    assert statuses["a.jpg"] == ["ok"]
    assert statuses["hostile.mp4"]
    if psutil.pid_exists(worker):
        assert memory(worker, "VmHWM") < MOST


def statuses_of(server: Server, files: dict[str, bytes]) -> dict[str, list[str]]:
    """The statuses of all rows, by file."""
    sent = [("files", (name, content)) for name, content in files.items()]
    answer = requests.post(f"{server.address}/api/predict", files=sent, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    statuses: dict[str, list[str]] = {name: [] for name in files}
    for row in answer.json():
        statuses[row["path"]].append(row["status"])
    return statuses


def picture(kind: str, width: int = 9248, height: int = 6936) -> bytes:
    """A grey picture, of 64 megapixels by default."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (90, 90, 90)).save(file, kind)
    return file.getvalue()


async def slow_client(port: int, number: int, photo: bytes) -> tuple[int, bytes]:
    """Sends a photo and reads the answer with `RATE`; returns status and body."""
    body = part(f"{number}.jpg", photo) + b"--b--\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=RATE)
    request = head(len(body)) + body
    for at in range(0, len(request), RATE // 10):
        writer.write(request[at : at + RATE // 10])
        await writer.drain()
        await asyncio.sleep(0.1)
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()).strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    received = b""
    while len(received) < length and (piece := await reader.read(RATE // 10)):
        received += piece
        await asyncio.sleep(len(piece) / RATE)
    writer.close()
    assert len(received) == length
    return status, received


def test_as_many_slow_clients_as_jobs_get_their_results(server: Server, photo: bytes) -> None:
    clients = int(os.environ.get("FER_VIT_CLIENTS", MAX_JOBS))
    idle = memory(server.process.pid)

    async def all_at_once() -> list[tuple[int, bytes]]:
        port = port_of(server)
        return await asyncio.gather(*(slow_client(port, n, photo) for n in range(clients)))

    answers = asyncio.run(all_at_once())
    statuses = Counter(status for status, _ in answers)
    assert statuses == {200: clients}
    for number, (_, content) in enumerate(answers):
        (row,) = json.loads(content)
        assert row["path"] == f"{number}.jpg"
        assert row["label"] == "happiness"
    assert memory(server.process.pid, "VmHWM") < idle + ALLOWED


def test_a_signal_during_a_job_leaves_no_file(photo: bytes, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".fer-vit-app.00000000.part", 0o644)  # of another user; it stops no start
    server = started(tmp_path)
    body = part("a.jpg", photo)
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE) as client:
        client.sendall(head(len(body) + 100) + body)
        folder = next(path for path in tmp_path.glob(".fer-vit-app.*") if path.is_dir())
        wait_until(lambda: any(path.is_dir() for path in folder.iterdir()))  # the upload arrives
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(PATIENCE)
    assert status == 128 + signal.SIGTERM
    assert not [path for path in tmp_path.glob(".fer-vit-app.*") if path.is_dir()]
