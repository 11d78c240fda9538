"""Serves the pages, the API, results and the camera.

`create_app` returns an ASGI app, and `serving` runs an app on a socket.

A browser requests one camera picture after another. A slow browser requests fewer pictures, so that
no queue grows, and each viewer sees the newest picture.
"""

import asyncio
import io
import re
import socket
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from string import Template
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from PIL import Image as Pil
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from fer_vit.app.api import ERROR_STATUSES, Health, Problem, add_jobs, add_results
from fer_vit.app.guard import MAX_REQUEST_BYTES, Guard, PublicAddress
from fer_vit.app.jobs import KEPT_SECONDS, Jobs
from fer_vit.app.uploads import MAX_FILES, describe_errors
from fer_vit.errors import FerVitError
from fer_vit.extras import source_folder
from fer_vit.report.draw import draw_faces, mark, probability_text
from fer_vit.version import __version__

if TYPE_CHECKING:  # this process needs no PyTorch
    from fer_vit.predict.camera import ClassifiedFrame

PICTURE_TIMEOUT = 10.0  # seconds of waiting for a new picture, after which the old one is sent
MAX_BARS = 8  # most faces with bars of all expressions on the page
# Most connections at a time: more than `MAX_JOBS`, so that pages are sent while uploads arrive.
MAX_CONNECTIONS = 640
WEB = Path("build", "web")  # what `make web` builds in fer-vit's folder


class Timing(NamedTuple):
    """When a frame of the camera was shown."""

    shown: float  # seconds of `time.perf_counter`
    latency: float  # seconds since the frame arrived
    faces: int


class Newest(NamedTuple):
    """The content of the page, which is replaced as a whole, since another thread reads it."""

    number: int  # the number of the frame, from 1; 0: there is no frame yet
    frame: "ClassifiedFrame | None"
    speed: str


class LivePage:
    """The newest frame, and counts over all frames.

    The server and the thread that detects faces share this object.
    """

    def __init__(self, recording: str | None = None) -> None:
        self.recording = recording  # the name of the table that is written
        self.stopped = False  # whether a viewer has stopped the program
        self.frames = 0
        self.labels = Counter[str]()  # the number of faces by label
        # text about frames and faces per second, latency from frame to label, and skipped frames
        self.speed = ""
        self._recent: deque[Timing] = deque(maxlen=100)
        self._newest = Newest(number=0, frame=None, speed="")
        self._drawn: dict[str, object] = {"number": 0}

    def show(self, seen: "ClassifiedFrame") -> None:
        """Counts a frame and replaces the picture on the page."""
        now = time.perf_counter()
        faces = seen.faces
        self.frames += 1
        self.labels.update(str(face.label_smoothed) for face in faces)
        self._recent.append(Timing(now, now - seen.arrived, len(faces)))

        seconds = now - self._recent[0].shown
        rate = (len(self._recent) - 1) / max(seconds, 1e-9)
        mean_faces = float(np.mean([timing.faces for timing in self._recent]))
        latencies = [timing.latency for timing in self._recent]
        median, high = np.percentile(latencies, (50, 95)) * 1000
        skipped = (faces.infos[0].frame or 0) + 1 - self.frames
        self.speed = (
            f"{rate:.1f} frames/s, {rate * mean_faces:.1f} faces/s, latency {median:.0f} ms "
            f"(95%: {high:.0f}), {skipped:,} skipped"
        )
        self._newest = Newest(self.frames, seen, self.speed)

    async def newest(self, known: int) -> dict[str, object]:
        """Waits for a picture whose number differs from `known`, the number that the viewer has.

        Returns the content of the page as JSON values.
        """
        end = time.monotonic() + PICTURE_TIMEOUT
        while not self.stopped and self._newest.number in (0, known) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        number, frame, speed = self._newest
        if frame and number != self._drawn["number"]:  # a frame is drawn once for all viewers
            marked = draw_faces(frame.image, [mark(face) for face in frame.faces])
            picture = io.BytesIO()
            Pil.fromarray(marked).save(picture, "JPEG", quality=85)
            bars = []
            for face in frame.faces[:MAX_BARS]:
                shares = face.smoothed or face.probabilities
                rows = [(name, share, probability_text(share)) for name, share in shares.items()]
                bars.append({"track": face.track, "rows": rows})
            self._drawn = {
                "number": number,
                "status": speed,
                "faces": bars,
                "picture": b64encode(picture.getvalue()).decode(),
            }
        return self._drawn | {"recording": self.recording, "stopped": self.stopped}


def create_app(
    service: Jobs | LivePage,
    hosts: Collection[str] = (),
    public: PublicAddress | None = None,
    web: Path | None = None,
) -> ASGIApp:
    """Returns the ASGI app of the upload page and its API, or of the camera page.

    Clients may use `hosts` or the `public` address of a reverse proxy as host names. The upload
    page links the page that computes in the visitor's browser, whose folder is `web`.
    """
    app = FastAPI(
        title="fer-vit",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses={status: {"model": Problem} for status in ERROR_STATUSES},
        exception_handlers={RequestValidationError: refuse_values},
    )
    name = "upload" if isinstance(service, Jobs) else "live"
    pages = {
        "/": ("text/html", f"app/{name}.html"),
        f"/{name}.js": ("text/javascript", f"app/{name}.js"),
    }
    pages |= {
        f"/{path.partition('/')[2]}": ("text/css", path)
        for path in ("report/page.css", "app/app.css")
    }
    for address, (kind, path) in pages.items():
        page = Response(page_text(path, web is not None), media_type=kind)
        app.routes.append(Route(address, page, methods=["GET"]))
    if isinstance(service, Jobs):
        add_jobs(app, service, public.prefix if public else "")
        add_results(app, service)
        if web is not None:
            app.mount("/browser", WebPage(web))
        return Guard(app, hosts, service.folder, public)
    add_live(app, service)
    return Guard(app, hosts, public=public)


def built_page() -> Path | None:
    """Returns the folder of the page that computes in the visitor's browser; None: not built."""
    source = source_folder()
    if source is None or not (source / WEB / "index.html").is_file():
        return None
    return source / WEB


class WebPage(StaticFiles):
    """Serves the folder of the page that computes in the visitor's browser.

    Its policy allows WebAssembly; as no other site can read its answers, networks get threads.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True)
        page = (folder / "index.html").read_text(encoding="utf-8")
        (policy,) = re.findall('"Content-Security-Policy" content="([^"]+)"', page)
        self._headers = {
            "Content-Security-Policy": f"{policy}; frame-ancestors 'self'",
            "Cross-Origin-Embedder-Policy": "require-corp",
        }

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Returns a file with the headers of the page."""
        response = super().file_response(*args, **options)
        response.headers.update(self._headers)
        return response


def page_text(path: str, has_web: bool = False) -> str:
    """Returns the text of a file of a page.

    In HTML, `$NAME` becomes a limit of uploads, or hides the link of the page that computes in the
    browser.
    """
    text = (files("fer_vit") / path).read_text(encoding="utf-8")
    if not path.endswith(".html"):
        return text
    return Template(text).substitute(
        files=MAX_FILES,
        megabytes=MAX_REQUEST_BYTES // 1_000_000,
        minutes=round(KEPT_SECONDS / 60),
        web="" if has_web else "hidden",
    )


async def refuse_values(_: Request, error: RequestValidationError) -> Response:
    """Returns a response with a sentence for each invalid value of a request."""
    return JSONResponse({"detail": describe_errors(error.errors())}, 422)


def add_live(app: FastAPI, live: LivePage) -> None:
    """Adds the API of the camera page."""

    @app.get("/health")
    def health() -> Health:
        """Answers the health checks of containers and load balancers, without any work."""
        return Health()

    @app.get("/live/newest")
    async def newest(known: int = 0) -> dict[str, Any]:
        """Waits for a picture whose number differs from `known`.

        Returns the picture as a JPEG in base64, and the faces.
        """
        return await live.newest(known)

    @app.post("/live/stop", status_code=204)
    async def stop() -> None:
        """Ends the program and the recording."""
        live.stopped = True


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Listens at an address; returns the socket and its URL.

    Raises FerVitError when the address cannot be used.
    """
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FerVitError(
            f"Cannot serve at {host}:{port} ({reason}). Choose another `--host` or `--port`."
        ) from error
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    return listener, address


@contextmanager
def serving(app: ASGIApp, sock: socket.socket) -> Iterator[Thread]:
    """Serves an app in another thread, which is yielded; uvicorn adds no headers and no logs."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=3,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join()
