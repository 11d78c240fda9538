"""Which requests are answered: checks of every request, and headers of every response."""

import asyncio
import re
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fer_vit.errors import FerVitError, short

# names by which only programs on this machine reach the server
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_REQUEST_BYTES = 200_000_000  # of a request
SPARE_BYTES = 500_000_000  # bytes of the disk that uploads leave free: tables and reports need some
CLIENT_PATIENCE = 20.0  # seconds after which a client that stops sending or reading is disconnected
# bytes per second that an upload must bring in every `CLIENT_PATIENCE` seconds
MIN_BYTES_PER_SECOND = 10_000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action "
    "'none'; frame-ancestors 'self'"
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
HOST = re.compile(r"(\[[\da-f:.]+\]|[^:\[\]/@]+)(:\d{1,5})?")  # a name or address, and a port
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")  # methods that change nothing


class PublicAddress(NamedTuple):
    """The address of the page for its users, when it lies behind a reverse proxy."""

    origin: str  # scheme, host and port, as browsers send it in `Origin`
    host: str  # without port
    prefix: str  # path of the page without the last slash: "" or "/fer"


def public_address(address: str) -> PublicAddress:
    """Parses an address such as https://lab.example.org/fer/.

    Raises FerVitError for any other text.
    """
    try:
        parts = urlsplit(address.strip().lower())
        host = HOST.fullmatch(parts.netloc)
    except ValueError:  # brackets that are not closed
        host = None
    if host is None or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise FerVitError(
            "Expected `--public` to be the address that users type, such as "
            f"https://lab.example.org/fer/, but got {short(address)}."
        )
    usual_port = {"http": ":80", "https": ":443"}[parts.scheme]  # browsers leave out this port
    origin = f"{parts.scheme}://{parts.netloc.removesuffix(usual_port)}"
    path = urlsplit(address.strip()).path
    return PublicAddress(origin, host[1], path.rstrip("/"))


class Guard:
    """An ASGI app that lets only safe requests through to another app.

    Clients may address it by `LOCAL_NAMES`, the IP address they connect to, `hosts`, and the
    `public` address. Other names may be an attacker's that was pointed here (DNS rebinding).
    Uploads must leave `SPARE_BYTES` bytes free on the disk of `folder`.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        folder: Path | None = None,
        public: PublicAddress | None = None,
    ) -> None:
        self.app = app
        self.hosts = {*LOCAL_NAMES, *(host.lower() for host in hosts)}
        self.folder = folder
        self.public = public
        if public is not None:
            self.hosts.add(public.host)

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
        await self.app(scope, UploadLimit(headers, receive, self.folder), send_guarded)

    def _refuse(self, scope: Scope, headers: Headers) -> str | None:
        """Returns why a request is refused: unknown host, or a change by another site."""
        host = headers.get("host", "").lower()
        server = (scope.get("server") or [""])[0]
        address = f"[{server}]" if ":" in server else server
        name = HOST.fullmatch(host)
        if name is None or name[1] not in {*self.hosts, address}:
            return (
                f"The host name {_quoted(host)} is not known here. Start the server with it in "
                "`--hostnames`, or behind a reverse proxy with `--public` and the address of the "
                "page."
            )
        if scope["method"] in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        if site in ("same-origin", "none") and self._is_own(origin, host):
            return None
        return (
            f"Requests from other sites are refused: the header Origin is {_quoted(origin or '')}, "
            f"and Host is {_quoted(host)}. Behind a reverse proxy, start the server with "
            "`--public` and the address of the page."
        )

    def _is_own(self, origin: str | None, host: str) -> bool:
        """Returns whether a request comes from a page of this server, or from no page."""
        if origin is None:
            return True
        if self.public is not None and origin.lower() == self.public.origin:
            return True
        return origin.partition("://")[2].lower() == host


def _quoted(header: str) -> str:
    """Returns a header's value for a sentence: short, without characters that cannot be printed."""
    shown = [letter if letter.isprintable() else "?" for letter in header]
    return f"`{short(''.join(shown))}`"


class UploadLimit:
    """A `receive` that raises an HTTPException for uploads that are too large or too slow.

    Each `CLIENT_PATIENCE` seconds of waiting must bring `MIN_BYTES_PER_SECOND` bytes a second. What
    was sent fast before is no credit: a client that stops is disconnected after `CLIENT_PATIENCE`
    seconds.
    """

    def __init__(self, headers: Headers, receive: Receive, folder: Path | None) -> None:
        claimed = headers.get("content-length", "0")
        self._expected = 0  # bytes; 0 where the header is no number
        if claimed.isdecimal() and len(claimed) < 20:
            self._expected = int(claimed)
        self._receive = receive
        self._folder = folder
        self._seen = 0  # bytes
        self._complete = False
        self._start_window()

    def _start_window(self) -> None:
        self._left = CLIENT_PATIENCE  # seconds of waiting
        self._missing = MIN_BYTES_PER_SECOND * CLIENT_PATIENCE  # bytes that they must bring

    async def __call__(self) -> Message:
        """Returns the next part of the request."""
        if self._complete:  # waits for the client to disconnect
            return await self._receive()
        self._check_size()
        before = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), self._left)
        except TimeoutError as error:
            raise HTTPException(408, "The upload is too slow.") from error
        size = len(message.get("body", b""))
        self._seen += size
        self._complete = not message.get("more_body")
        self._left -= time.monotonic() - before
        self._missing -= size
        if self._missing <= 0:
            self._start_window()
        return message

    def _check_size(self) -> None:
        if max(self._seen, self._expected) > MAX_REQUEST_BYTES:
            raise HTTPException(
                413, f"At most {MAX_REQUEST_BYTES // 10**6} MB can be uploaded at a time."
            )
        if self._folder is not None:
            coming = max(self._expected - self._seen, 0)
            if shutil.disk_usage(self._folder).free < SPARE_BYTES + coming:
                raise HTTPException(413, "The server's disk has too little room for this upload.")


def refuse_network(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook that raises an error when this process connects or looks up an address."""
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
