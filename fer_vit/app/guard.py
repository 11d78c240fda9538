"""Which requests are answered: checks of every request, and headers of every response."""

import asyncio
import re
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HERE = (
    "localhost",
    "127.0.0.1",
    "[::1]",
)  # names that only programs on this machine can use to reach it
MAX_BYTES = 200_000_000  # of a request
SPARE = 500_000_000  # bytes of the disk that uploads leave free: tables and reports need some
PATIENCE = 20.0  # seconds after which a client that stops sending or reading is disconnected
SLOWEST = 10_000  # bytes per second that an upload must have on average after the first `PATIENCE` seconds
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """An ASGI app that lets only safe requests through to another one.

    Clients may address it by `HERE`, the IP address they connect to, and `hosts`. Other names may be an attacker's that
    was pointed here (DNS rebinding). Uploads must leave `SPARE` bytes free on the disk of `folder`.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], folder: Path | None = None) -> None:
        self.app = app
        self.hosts = {*HERE, *(host.lower() for host in hosts)}
        self.folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":  # start and end of the server; no route is a websocket
            return await self.app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                message["headers"] = headers.raw
            await send(message)

        headers = Headers(scope=scope)
        if refusal := self._refuse(scope, headers):
            return await JSONResponse({"detail": refusal}, 403)(scope, receive, send_guarded)
        await self.app(scope, self._limit(headers, receive), send_guarded)

    def _refuse(self, scope: Scope, headers: Headers) -> str | None:
        """Returns why a request is refused: an unknown host name, or a change that another site's page requests."""
        host, server = headers.get("host", "").lower(), (scope.get("server") or [""])[0]
        found = re.fullmatch(r"(\[[\da-f:.]+\]|[^:\[\]/@]+)(:\d{1,5})?", host)
        if not found or found[1] not in {*self.hosts, f"[{server}]" if ":" in server else server}:
            return (
                "This host name is not known here. Start the server with this name after `--host`."
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        same = origin is None or origin.partition("://")[2].lower() == host
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or (
            same and site in ("same-origin", "none")
        ):
            return None
        return "Requests from other sites are refused."

    def _limit(self, headers: Headers, receive: Receive) -> Receive:
        """Returns a `receive` that raises an HTTPException for uploads that are too large or too slow."""
        seen, complete, start = 0, False, time.monotonic()
        claimed = headers.get("content-length", "0")
        expected = int(claimed) if claimed.isdecimal() and len(claimed) < 20 else 0

        async def receive_limited() -> Message:
            nonlocal seen, complete
            if complete:  # waits for the client to disconnect
                return await receive()
            if max(seen, expected) > MAX_BYTES:
                raise HTTPException(
                    413, f"At most {MAX_BYTES // 10**6} MB can be uploaded at a time."
                )
            if self.folder and shutil.disk_usage(self.folder).free < SPARE + max(
                expected - seen, 0
            ):
                raise HTTPException(413, "The server's disk has too little room for this upload.")
            try:
                message = await asyncio.wait_for(
                    receive(), start + PATIENCE + seen / SLOWEST - time.monotonic()
                )
            except TimeoutError as error:
                raise HTTPException(408, "The upload is too slow.") from error
            seen += len(message.get("body", b""))
            complete = not message.get("more_body")
            return message

        return receive_limited


def refuse_network(event: str, args: tuple[Any, ...]) -> None:
    """Raises an error when this process is about to connect to an address or to look one up (an audit hook)."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(
        args[1], tuple
    ):
        raise PermissionError(f"fer-vit app does not connect to {args[1][0]}")
    if event in (
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.getnameinfo",
    ):
        raise PermissionError(f"fer-vit app does not look up {args[0]}")
