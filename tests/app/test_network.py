import asyncio
import socket
from typing import Any

import pytest

from fer_vit.app.network import POLICY, confined, refuse, roomy


@pytest.mark.parametrize(
    ("event", "args"),
    [
        ("socket.connect", (None, ("192.0.2.1", 443))),
        ("socket.connect", (None, ("127.0.0.1", 80))),
        ("socket.connect", (None, ("2001:db8::1", 443, 0, 0))),
        ("socket.sendto", (None, ("192.0.2.1", 53))),
        ("socket.getaddrinfo", ("example.org", 443, 0, 0, 0)),
        ("socket.gethostbyname", ("example.org",)),
        ("socket.gethostbyaddr", ("192.0.2.1",)),
        ("socket.getnameinfo", (("192.0.2.1", 443),)),
    ],
)
def test_a_connection_is_refused(event: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(PermissionError, match="fer-vit app does not"):
        refuse(event, args)


def test_what_stays_here_is_not() -> None:
    refuse("socket.connect", (None, "/run/socket"))
    refuse("socket.bind", (None, ("127.0.0.1", 0)))
    refuse("open", ("/etc/hostname", "r", 0))
    with socket.create_server(("127.0.0.1", 0)):
        pass


def test_every_answer_has_the_policy() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"text"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(confined(app)({}, send, send))
    assert sent[0]["headers"] == [(b"a", b"b"), (b"content-security-policy", POLICY)]
    assert sent[1] == {"type": "http.response.body", "body": b"text"}


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [
        ("/gradio_api/upload", b"60", 200),
        ("/gradio_api/upload", b"61", 413),
        ("/gradio_api/upload", None, 413),  # nobody knows how much will come
        ("/gradio_api/call/predict", None, 200),
    ],
)
def test_uploads_leave_room_on_the_disk(path: str, length: bytes | None, status: int) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"content-length", length)] if length else []}
    asyncio.run(roomy(app, lambda: 100, 40)(scope, send, send))
    assert sent[0]["status"] == status
