"""Compares the web servers of two copies of fer-vit: requests per second of 32 clients, and CPU
time per request.

    python -m tests.attacks.compare_servers OLD NEW --requests 320 --rounds 3

OLD and NEW are folders with the source code. The copies take turns, so that other work on the
machine disturbs both.
"""

import argparse
import io
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import requests
from PIL import Image
from skimage.data import astronaut

CLIENTS = 32


class Cost(NamedTuple):
    """What a request costs."""

    per_second: float  # requests
    server: float  # CPU milliseconds
    worker: float  # CPU milliseconds


def measure(source: Path, photo: bytes, number: int) -> Cost:
    """Starts the server of a copy, sends requests, and ends it."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log"
        command = [sys.executable, "-m", "fer_vit", "app", "--port", "0"]
        environment = os.environ | {"PYTHONPATH": str(source), "TMPDIR": temporary}
        with log.open("wb") as file:
            process = psutil.Popen(command, cwd=source, env=environment, stdout=file, stderr=file)
        try:
            while not (address := re.search(r"Open (http://\S+)", log.read_text())):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            return load(process, f"{address[1]}/api/predict", photo, number)
        finally:
            process.terminate()
            process.wait(60)


def load(process: psutil.Popen, address: str, photo: bytes, number: int) -> Cost:
    """Sends requests of all clients at once to a server that has answered a first one."""
    (worker,) = (child for child in process.children() if "spawn_main" in str(child.cmdline()))

    def send(_: int) -> None:
        requests.post(address, files={"files": ("a.jpg", photo)}, timeout=600).raise_for_status()

    send(0)
    before = [cpu(each) for each in (process, worker)]
    start = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(send, range(number)))
    seconds = time.monotonic() - start
    server, predicting = (
        1000 * (cpu(each) - first) / number
        for each, first in zip((process, worker), before, strict=True)
    )
    return Cost(number / seconds, server, predicting)


def cpu(process: psutil.Process) -> float:
    """Returns the CPU seconds of a process."""
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Prints a line for each round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    file = io.BytesIO()
    Image.fromarray(astronaut()).save(file, "JPEG")

    costs: dict[Path, list[Cost]] = {options.old.resolve(): [], options.new.resolve(): []}
    for _ in range(options.rounds):
        for source, measured in costs.items():
            measured.append(measure(source, file.getvalue(), options.requests))
            print(f"{source.name}: {measured[-1]}", flush=True)
    for source, measured in costs.items():
        medians = [f"{median(values):.1f}" for values in zip(*measured, strict=True)]
        print(f"{source.name}: {medians[0]} requests/s; CPU ms: {medians[1]} server, {medians[2]}")


if __name__ == "__main__":
    main()
