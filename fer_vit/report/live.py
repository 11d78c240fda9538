"""The newest picture as a page: a server of this machine, asked by the browser for one picture after another.

A browser that is slow asks less often, so that nothing piles up, and each viewer sees the newest picture.
"""

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Condition, Lock, Thread
from typing import Any
from urllib.parse import quote

from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.geometry import Image
from fer_vit.report.overlay import Marked, draw_faces

PATIENCE = 10.0
"""Seconds that a browser waits for a new picture before it gets the old one."""
HERE = ("127.0.0.1", "localhost")
"""Names of this machine that no other machine can reach."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src blob:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'",  # the page is always the same: nobody can add to it
    "Cross-Origin-Resource-Policy": "same-origin",  # no other page may show the camera's pictures
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture to show; it is drawn only if a browser asks for it."""

    number: int
    image: Image
    faces: Sequence[Marked]
    status: str

    @cached_property
    def jpeg(self) -> bytes:
        """The picture with its faces marked."""
        buffer = io.BytesIO()
        Pil.fromarray(draw_faces(self.image, self.faces)).save(buffer, "JPEG", quality=85)
        return buffer.getvalue()


class LivePage(ThreadingHTTPServer):
    """Serves a page with the newest picture, while it is entered.

    Args:
        host: Address of this machine at which to serve; at 127.0.0.1 no other machine can look.
        port: 0 takes one that is free.

    Raises:
        FerVitError: The address is not this machine's, or the port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FerVitError(
                f"Cannot serve at {host}:{port} ({reason}). Choose another `--host` or `--port`."
            ) from error
        self.private = host in HERE
        self.address = f"http://{host}:{self.server_port}"
        self._shown: Shown | None = None
        self._changed, self._drawing = Condition(), Lock()

    def show(self, image: Image, faces: Sequence[Marked], status: str) -> None:
        """Replaces the picture (H, W, 3), RGB uint8, its faces, and the line below it."""
        with self._changed:
            self._shown = Shown(self._shown.number + 1 if self._shown else 0, image, faces, status)
            self._changed.notify_all()

    def newest(self, known: int) -> Shown | None:
        """Waits for a picture whose number is not `known`, draws it, and returns it; None before the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._shown and self._shown.number != known, PATIENCE)
            shown = self._shown
        with self._drawing:  # once for all viewers
            return shown if shown and shown.jpeg else None

    def __enter__(self) -> "LivePage":
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of viewers who left; other errors are ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LivePage
    timeout = 2 * PATIENCE

    def do_GET(self) -> None:
        """Answers with the page, or with a picture other than that whose number is given."""
        if self.server.private and not re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", self.headers.get("Host", "")):
            self.send_error(403)  # another page may have made its own name point here (DNS rebinding)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", (files("fer_vit.report") / "live.html").read_bytes())
        elif not (asked := re.fullmatch(r"/picture/(-1|\d{1,12})", self.path)):
            self.send_error(404)
        elif shown := self.server.newest(int(asked[1])):
            self._send("image/jpeg", shown.jpeg, {"X-Number": str(shown.number), "X-Status": quote(shown.status)})
        else:
            self.send_error(503)

    def _send(self, kind: str, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(200)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS, **(more or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Keeps the terminal for the status."""
