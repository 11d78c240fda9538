"""Nothing leaves this machine: neither the page in the browser nor the process that serves it asks another one."""

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


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """Raises an error when this process is about to connect to an address or to ask for one."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(args[1], tuple):
        raise PermissionError(f"fer-vit app does not connect to {args[1][0]}")
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"):
        raise PermissionError(f"fer-vit app does not look up {args[0]}")
