"""The server with a worker that takes orders from the test."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fer_vit.app.jobs import Jobs
from fer_vit.app.server import create_app, listen, serving
from tests.helpers.servers import Stub


@pytest.fixture
def worker() -> Stub:
    return Stub()


@pytest.fixture
def queue(tmp_path: Path, worker: Stub) -> Jobs:
    outputs = {"first": ["expression", "pose", "movements"], "second": ["expression", "pose"]}
    ready = SimpleNamespace(columns={}, heads=outputs)
    return Jobs(tmp_path, [*outputs], worker, ready)  # type: ignore[arg-type]


@pytest.fixture
def address(queue: Jobs) -> Iterator[str]:
    """The server on a socket."""
    sock, address = listen("127.0.0.1", 0)
    with sock, serving(create_app(queue), sock):
        yield address
