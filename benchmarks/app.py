"""Requests a second, seconds of a request and memory of `fer-vit app`, for clients that ask for tables of one photo.

    python -m benchmarks.app --requests 10000

Clients wait for one answer before they ask again; each sends the photo anew. Afterwards, as many requests as
`--requests` says, from 8 clients: the memory of the server along the way.
"""

import io
import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from statistics import quantiles

import httpx
import psutil
from PIL import Image
from skimage.data import astronaut

from benchmarks.machine import PROGRAM, arguments, machine
from fer_vit.store.hub import DEFAULT


@contextmanager
def served() -> Iterator[tuple[str, psutil.Process]]:
    """Yields the address of a server, and its process."""
    with subprocess.Popen([PROGRAM, "app", "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = re.search(r"http://\S+", process.stdout.readline())
        if not found:
            raise SystemExit("the server did not start")
        try:
            yield found[0], psutil.Process(process.pid)
        finally:
            process.terminate()


def ask(client: httpx.Client, photo: bytes, function: str) -> float:
    """Asks once, as a program without Gradio's client would; returns the seconds until the answer."""
    start = time.perf_counter()
    (path,) = client.post("/gradio_api/upload", files={"files": ("photo.jpg", photo)}).raise_for_status().json()
    data = [[{"path": path, "meta": {"_type": "gradio.FileData"}}], DEFAULT]
    event = client.post(f"/gradio_api/call/{function}", json={"data": data}).raise_for_status().json()["event_id"]
    answer = client.get(f"/gradio_api/call/{function}/{event}").raise_for_status().text
    if "event: complete" not in answer:
        raise SystemExit(f"no answer, but {answer[-200:]}")
    json.loads(answer.rpartition("data: ")[2])
    return time.perf_counter() - start


def many(client: httpx.Client, photo: bytes, clients: int, requests: int, function: str = "predict") -> list[float]:
    """Asks many times, some at a time; returns the seconds of each."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, repeat(client, requests), repeat(photo), repeat(function)))


def speed(client: httpx.Client, photo: bytes, each: int) -> None:
    """Prints requests a second and seconds of a request, for growing numbers of clients."""
    print("| | clients | requests/s | median s | 95th percentile s |\n| --- " + "| ---: " * 4 + "|")
    for function, numbers in {"predict": (1, 8, 32), "visualize": (1,)}.items():
        for clients in numbers:
            start = time.perf_counter()
            took = many(client, photo, clients, max(each, 2 * clients), function)
            rate = len(took) / (time.perf_counter() - start)
            cuts = quantiles(took, n=20)
            print(f"| {function} | {clients} | {rate:.1f} | {cuts[9]:.2f} | {cuts[18]:.2f} |", flush=True)


def memory(client: httpx.Client, photo: bytes, server: psutil.Process, requests: int) -> None:
    """Prints the server's memory along the way."""
    done, step = 0, max(1, requests // 10)
    while done < requests:
        many(client, photo, 8, step)
        done += step
        print(f"after {done:,} requests: {server.memory_info().rss / 2**20:,.0f} MB", flush=True)


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--each", type=int, default=100, help="requests for each number of clients")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of the memory figure")
    args = parser.parse_args()
    file = io.BytesIO()
    Image.fromarray(astronaut()).save(file, "JPEG")
    photo = file.getvalue()
    print(machine())
    with served() as (address, server), httpx.Client(base_url=address, timeout=600) as client:
        many(client, photo, 1, 3)
        speed(client, photo, args.each)
        memory(client, photo, server, args.requests)


if __name__ == "__main__":
    main()
