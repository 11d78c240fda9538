"""Viewers of `fer-vit live` that request pictures and read nothing:
memory of the process stays bounded.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests

from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.videos import write_video

pytestmark = pytest.mark.slow

VIEWERS = 100
SECONDS = 4
ALLOWED = 200e6  # bytes of memory that the viewers may add
ROOT = Path(__file__).parents[2]


def test_viewers_that_read_nothing_take_little_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)
    clip = write_video(tmp_path / "clip.mp4", [picture] * 300, range(300))  # it outlasts the test
    log = tmp_path / "log"
    command = [sys.executable, "-m", "cli", "live", str(clip), "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": ""}, stdout=file, stderr=file
        )
    clients = []
    try:

        def served() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return re.search(r"http://localhost:(\d+)\s", log.read_text())

        address = wait_until(served)
        page = address[0].strip()
        wait_until(lambda: requests.get(f"{page}/live/newest").json().get("picture"))
        before = psutil.Process(process.pid).memory_info().rss
        for _ in range(VIEWERS):
            client = socket.create_connection(("127.0.0.1", int(address[1])), timeout=PATIENCE)
            client.sendall(b"GET /live/newest HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
            clients.append(client)
        peak = before
        stop = time.monotonic() + SECONDS
        while time.monotonic() < stop:
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
            time.sleep(0.05)
        assert peak < before + ALLOWED
        assert requests.get(f"{page}/health").ok
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        for client in clients:
            client.close()
