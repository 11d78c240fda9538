"""Raw and odd HTTP requests to a running `fer-vit app`: each is refused or harmless,
and none is a server error.
"""

import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
import requests

from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.servers import Server, running

pytestmark = pytest.mark.slow

HOST = b"Host: localhost\r\n"
FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
BODY = (
    b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\nx\r\n--b--\r\n'
)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
POST = b"POST /api/predict HTTP/1.1\r\n"
GET = b"GET /api/models HTTP/1.1\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("app")) as server:
        yield server
        wait_until(lambda: not server.jobs)  # a large table is removed after it is sent


def field(name: str, value: str) -> bytes:
    """A form with a file and another field."""
    more = f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    body = more + BODY
    return POST + HOST + FORM + b"Content-Length: %d\r\n\r\n" % len(body) + body


REQUESTS: dict[str, tuple[bytes, set[int]]] = {
    "two lengths": (POST + HOST + FORM + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY, {400}),
    "length and chunked": (
        POST + HOST + FORM + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
        {400, 422},
    ),
    "chunked twice": (
        POST
        + HOST
        + FORM
        + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        {400, 501},
    ),
    "space before a colon": (GET + b"Host : localhost\r\n\r\n", {400}),
    "folded header": (GET + b"Host: localhost\r\n evil.example\r\n\r\n", {400, 403}),
    "two hosts": (GET + HOST + b"Host: evil.example\r\n\r\n", {400, 403}),
    "absolute target": (
        b"GET http://evil.example/api/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {200, 400, 403, 404},
    ),
    "target with another host": (
        b"GET //evil.example/%2e%2e/ HTTP/1.1\r\n" + HOST + b"\r\n",
        {404},
    ),
    "foreign host": (GET + b"Host: evil.example\r\n\r\n", {403}),
    "host with a dot": (GET + b"Host: localhost.\r\n\r\n", {403}),
    "host with Arabic digits": (GET + "Host: localhost:\u0661\r\n\r\n".encode(), {400, 403}),
    "no host": (b"GET /api/models HTTP/1.0\r\n\r\n", {400, 403}),
    "NUL in a header": (GET + HOST + b"X: a\0b\r\n\r\n", {400}),
    "header of 1 MB": (GET + HOST + b"X: " + b"a" * 10**6 + b"\r\n\r\n", {400, 431}),
    "20,000 headers": (GET + HOST + b"X: a\r\n" * 20_000 + b"\r\n", {200, 400, 431}),
    "TRACE": (b"TRACE /api/models HTTP/1.1\r\n" + HOST + b"\r\n", {403, 405}),
    "CONNECT": (b"CONNECT evil:80 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 403, 404, 405}),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 403, 505}),
    "preflight": (
        b"OPTIONS /api/predict HTTP/1.1\r\n"
        + HOST
        + b"Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        {403, 405},
    ),
    "origin null": (POST + HOST + b"Origin: null\r\n" + FORM + LENGTH + b"\r\n" + BODY, {403}),
    "same site": (
        POST + HOST + b"Sec-Fetch-Site: same-site\r\n" + FORM + LENGTH + b"\r\n" + BODY,
        {403},
    ),
    "10 GB": (POST + HOST + FORM + b"Content-Length: 10000000000\r\n\r\n" + BODY, {413}),
    "10^30 bytes": (POST + HOST + FORM + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n", {400}),
    "a negative length": (POST + HOST + FORM + b"Content-Length: -1\r\n\r\n" + BODY, {400}),
    "a form without boundary": (
        POST + HOST + b"Content-Type: multipart/form-data\r\nContent-Length: 2\r\n\r\n{}",
        {400},
    ),
    "another kind of form": (
        POST
        + HOST
        + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\nfiles=x",
        {422},
    ),
    "no Unicode": (b"GET /results/%ff%fe/%00 HTTP/1.1\r\n" + HOST + b"\r\n", {404}),
    **{
        f"{name} {value}": (field(name, value), {422})
        for name, value in (
            ("fps", "1e400"),
            ("fps", "0x10"),
            ("fps", "\u0661x"),
            ("end", "nan"),
            ("start", "-1"),
            ("model", "ferplus-fairface-small\0"),
        )
    },
}


def status_of(server: Server, request: bytes) -> int:
    """The status of the answer to bytes on a new connection."""
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        with suppress(ConnectionError):  # the server may answer and close before all is sent
            client.sendall(request)
        answer = client.recv(65_536)
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert match, answer[:100]
    return int(match[1])


@pytest.mark.parametrize("name", REQUESTS)
def test_odd_requests_are_refused_or_harmless(name: str, server: Server) -> None:
    request, statuses = REQUESTS[name]
    assert status_of(server, request) in statuses
    assert requests.get(f"{server.address}/health").json()["status"] == "ok"


def test_a_page_of_another_site_cannot_read_an_answer(server: Server) -> None:
    """Browsers send such a request, but give the answer to no page without CORS headers."""
    answer = requests.get(
        f"{server.address}/openapi.json",
        headers={"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    )
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_200_requests_in_one_packet_have_200_answers(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall((GET + HOST + b"\r\n") * 200)
        while received.count(b"HTTP/1.1 200") < 200:
            part = client.recv(65_536)
            assert part
            received += part
