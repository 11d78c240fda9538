"""What visitors may send, and what leaves this machine: nothing, neither the page nor its server asks another one."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""What the browser may load: only what comes from here."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGI = Callable[[Message, Receive, Send], Awaitable[None]]


def confined(app: ASGI) -> ASGI:
    """Returns an ASGI app that adds the policy to every answer of another."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY)]
            await send(message)

        await app(scope, receive, send_with_policy)

    return answer


def roomy(app: ASGI, room: Callable[[], int], spare: int) -> ASGI:
    """Returns an ASGI app that answers 413 to uploads that would leave less of the bytes in `room` than `spare`."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/upload"):
            return await app(scope, receive, send)
        length = dict(scope["headers"]).get(b"content-length")
        if length and int(length) + spare <= await asyncio.to_thread(room):
            return await app(scope, receive, send)
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-type", b"text/plain")]})
        reason = b"The server's disk has no room for it now, or the upload does not say how long it is."
        await send({"type": "http.response.body", "body": reason})

    return answer


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """Raises an error when this process is about to connect to an address or to ask for one."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(args[1], tuple):
        raise PermissionError(f"fer-vit app does not connect to {args[1][0]}")
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"):
        raise PermissionError(f"fer-vit app does not look up {args[0]}")
