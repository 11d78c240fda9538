"""Attacks on the ASGI app with a stub worker: slow clients, odd encodings, and requests made from the schema."""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from fer_vit.app import guard
from fer_vit.app.jobs import Jobs
from fer_vit.app.server import create_app, listen, serving
from tests.app.test_server import Stub

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("FER_VIT_REQUESTS", 1000))
"""Requests made from the schema."""


@pytest.fixture
def queue(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, ["first", "second"], Stub())  # type: ignore[arg-type]


@pytest.fixture
def port(queue: Jobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server on a socket that waits half a second for its clients."""
    monkeypatch.setattr(guard, "PATIENCE", 0.5)
    sock, address = listen("127.0.0.1", 0)
    with sock, serving(create_app(queue), sock):
        yield int(address.rpartition(":")[2])


FORM = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 99999"
HEAD = f"POST {{}} HTTP/1.1\r\nHost: localhost\r\n{FORM}\r\n\r\n"


@pytest.mark.parametrize("start", ["", "GET / HT", HEAD.format("/api/predict"), HEAD.format("/gone")])
def test_a_client_that_sends_bytes_slowly_is_disconnected(port: int, start: str) -> None:
    def drip(client: socket.socket) -> None:
        while True:
            client.sendall(b"-")
            time.sleep(0.1)

    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(start.encode())
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            drip(client)


def test_a_client_that_reads_nothing_is_disconnected(port: int, queue: Jobs) -> None:
    big = queue.new_folder() / "big"
    big.write_bytes(bytes(50_000_000))
    queue.results["id"] = {"big": big}
    received = 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client, suppress(ConnectionResetError):
        client.sendall(b"GET /results/id/big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2)
        while part := client.recv(1_000_000):
            received += len(part)
    assert received < big.stat().st_size


def test_idle_connections_lock_nobody_out_for_long(port: int) -> None:
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(520)]
    end, status = time.monotonic() + 20, 503
    while status == 503 and time.monotonic() < end:
        status = requests.get(f"http://127.0.0.1:{port}/api/models").status_code
    assert status == 200
    for client in idle:
        client.close()


@pytest.mark.parametrize("charset", ["utf-7", "unicode_escape", "raw_unicode_escape", "idna", "utf-16", "hex"])
def test_odd_encodings_are_no_server_error(port: int, charset: str) -> None:
    parts = ('name="files"; filename="+2AA-\\ud800.jpg"', 'name="fps"\r\n\r\n+2AA-', 'name="end"\r\n\r\n\\ud800')
    body = "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts) + "--b--\r\n"
    kind = {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}
    assert requests.post(f"http://127.0.0.1:{port}/api/predict", data=body, headers=kind).status_code in (400, 422)


def test_requests_made_from_the_schema(queue: Jobs) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(queue))
    operations = [found.ok() for found in schema.get_all_operations()]
    cases = st.one_of(operation.as_strategy(mode) for operation in operations for mode in GenerationMode)
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
    def send(case: Case) -> None:
        status = case.call().status_code
        statuses[status] += 1
        assert status < 500

    send()
    assert statuses.total() >= REQUESTS
    assert {200, 204, 404, 422} <= {*statuses}
