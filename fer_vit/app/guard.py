"""Checks each request before the app answers it, and adds security headers to each response."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fer_vit.errors import FerVitError, short

# host names that only programs on this machine can use to reach the server
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_REQUEST_BYTES = 200_000_000  # most bytes of a request
SPARE_BYTES = 500_000_000  # disk space that uploads leave free, for tables and reports
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
# a host name or an IP address (group 1), perhaps with a port
HOST = re.compile(r"(\[[\da-f:.]+\]|[^:\[\]/@]+)(:\d{1,5})?")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")  # HTTP methods that change nothing


class PublicAddress(NamedTuple):
    """The address that users type when the page is behind a reverse proxy."""

    origin: str  # scheme, host and port, in the format of the header `Origin`
    host: str  # host name without port
    prefix: str  # path of the page without a slash at its end, such as "" or "/fer"


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
    default_port = {"http": ":80", "https": ":443"}[parts.scheme]  # browsers leave out this port
    origin = f"{parts.scheme}://{parts.netloc.removesuffix(default_port)}"
    path = urlsplit(address.strip()).path
    return PublicAddress(origin, host[1], path.rstrip("/"))


class Guard:
    """An ASGI app that passes only safe requests to another app.

    Clients may use `LOCAL_NAMES`, the IP address of the connection, `hosts`, and the `public`
    address as host names. Other host names are refused: an attacker may have pointed a name to this
    server (DNS rebinding). Uploads must leave `SPARE_BYTES` free on the disk of `folder`; without a
    `folder`, the disk is not checked.
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
        """Passes a request to the app, or refuses the request."""
        if scope["type"] != "http":  # the server starts or ends; there are no routes of websockets
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
        """Returns why a request is refused; None for a safe request.

        Requests with an unknown host name are refused, and requests of other sites that may change
        something.
        """
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
        return origin.lower() in (f"http://{host}", f"https://{host}")


def _quoted(header: str) -> str:
    """Returns the value of a header in backticks, short and printable."""
    shown = [letter if letter.isprintable() else "?" for letter in header]
    return f"`{short(''.join(shown))}`"


class UploadLimit:
    """An ASGI `receive` that raises HTTPException for uploads that are too large."""

    def __init__(self, headers: Headers, receive: Receive, folder: Path | None) -> None:
        claimed = headers.get("content-length", "0")
        self._expected = 0  # bytes; 0 if the header is no number
        if claimed.isdecimal() and len(claimed) < 20:
            self._expected = int(claimed)
        self._receive = receive
        self._folder = folder
        self._seen = 0  # bytes
        self._complete = False

    async def __call__(self) -> Message:
        """Returns the next part of the request."""
        if self._complete:  # the app asks whether the client has disconnected
            return await self._receive()
        self._check_size()
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        self._complete = not message.get("more_body")
        return message

    def _check_size(self) -> None:
        if max(self._seen, self._expected) > MAX_REQUEST_BYTES:
            raise HTTPException(
                413, f"At most {MAX_REQUEST_BYTES // 10**6} MB can be uploaded at a time."
            )
        if self._folder is not None:
            size = max(self._seen, self._expected)
            coming = 2 * size - self._seen  # all files are copied to the folder of the job
            if shutil.disk_usage(self._folder).free < SPARE_BYTES + coming:
                raise HTTPException(413, "The server's disk has too little room for this upload.")


def refuse_network(event: str, args: tuple[Any, ...]) -> None:
    """Raises PermissionError when this process connects or looks up an address (an audit hook)."""
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
