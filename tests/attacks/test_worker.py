"""Kills of the worker of a running `fer-vit app` at random moments: each job has an answer,
and nothing is left.
"""

import io
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest
import requests
from PIL import Image
from skimage.data import astronaut

from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Server, running

pytestmark = pytest.mark.slow

KILLS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("app")) as server:
        yield server
        wait_until(lambda: not server.jobs)  # a large table is removed after it is sent


def kill_workers(server: psutil.Process) -> None:
    """Kills the worker of a server and waits until it runs no more.

    A worker that is idle dies a moment after the signal. A job of this moment would meet it alive.
    """

    def runs(worker: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            # A zombie, until the server looks at it: its other threads may end after the first.
            return worker.status() != psutil.STATUS_ZOMBIE or worker.num_threads() > 1
        return False

    killed = []
    for child in server.children():
        with suppress(psutil.NoSuchProcess):  # it may have ended
            if "spawn_main" in str(child.cmdline()):
                child.kill()
                killed.append(child)
    wait_until(lambda: not any(runs(worker) for worker in killed))


def test_a_worker_that_is_killed_at_any_moment_is_replaced(server: Server) -> None:
    file = io.BytesIO()
    Image.fromarray(astronaut()).save(file, "JPEG")

    def send(route: str) -> requests.Response:
        files = {"files": ("a.jpg", file.getvalue())}
        return requests.post(f"{server.address}/api/{route}", files=files, timeout=PATIENCE)

    process = psutil.Process(server.process.pid)
    assert send("predict").ok
    descriptors = process.num_fds()
    rng = random.Random(0)
    with ThreadPoolExecutor(1) as pool:
        for number in range(KILLS):
            coming = pool.submit(send, ("report", "predict")[number % 2])
            time.sleep(1.5 * rng.random())
            kill_workers(process)
            answer = coming.result()
            assert answer.status_code in (200, 422)
            if answer.ok and "id" in answer.json():
                requests.delete(f"{server.address}/results/{answer.json()['id']}")
    assert send("predict").json()[0]["label"] == "happiness"
    wait_until(lambda: process.num_fds() <= descriptors + 5)  # connections close a moment later
