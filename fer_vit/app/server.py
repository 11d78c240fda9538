"""The server: pages, the API, results and the camera. `create_app` makes an ASGI app; `serving` runs it on a socket.

A browser requests one camera picture after another. A slow browser requests fewer, so that nothing piles up, and each
viewer sees the newest one.
"""

import asyncio
import io
import shutil
import socket
import sys
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, File, Form, HTTPException, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from PIL import Image as Pil
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fer_vit.app import guard
from fer_vit.app.guard import HERE, Guard
from fer_vit.app.jobs import Event, Jobs, Task, safe_names
from fer_vit.errors import FerVitError
from fer_vit.files import json_text
from fer_vit.report.draw import draw_faces
from fer_vit.report.html import script_digest
from fer_vit.version import __version__

if TYPE_CHECKING:  # this process needs no PyTorch
    from fer_vit.predict.live import Seen

PATIENCE = 10.0  # seconds that a browser waits for a new picture before it gets the old one
MAX_BARS = 8  # faces of which the page shows all expressions
MAX_FILES = 20  # photos and clips in one request
TABLES = {
    "text/csv": "faces.csv",
    "application/vnd.apache.parquet": "faces.parquet",
    "application/json": "faces.jsonl",
}
PROGRESS = "application/x-ndjson"  # of a response that has a line for each event of a job
REPORT_POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{script_digest('page')}'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
ERRORS = 400, 403, 404, 408, 413, 422, 429  # statuses of responses whose `detail` is a sentence


class LivePage:
    """The newest frame and counts of all frames, shared by the thread that finds faces and the server."""

    def __init__(self, recording: str | None = None) -> None:
        self.recording = recording  # name of the table that is written
        self.stopped = False  # by a viewer
        self.frames = 0
        self.labels = Counter[str]()  # of all faces
        self.speed = (
            ""  # frames and faces per second, latency from frame to label, and skipped frames
        )
        self._recent: deque[tuple[float, float, int]] = deque(
            maxlen=100
        )  # when done, latency, faces
        self._newest: tuple[int, Seen | None, str] = 0, None, ""
        self._drawn: dict[str, object] = {"number": 0}

    def show(self, seen: "Seen") -> None:
        """Counts a frame and replaces the picture on the page."""
        now, faces = time.perf_counter(), seen.photo.faces
        self.frames += 1
        self.labels.update(str(face.label_smoothed) for face in faces)
        self._recent.append((now, now - seen.arrived, len(faces)))
        done, latencies, counts = zip(*self._recent, strict=True)
        rate = (len(done) - 1) / max(done[-1] - done[0], 1e-9)
        median, high = np.percentile(latencies, (50, 95)) * 1000
        self.speed = (
            f"{rate:.1f} frames/s, {rate * float(np.mean(counts)):.1f} faces/s, latency {median:.0f} ms "
            f"(95 %: {high:.0f}), {(seen.photo.frame or 0) + 1 - self.frames:,} skipped"
        )
        self._newest = self.frames, seen, self.speed

    async def newest(self, known: int) -> dict[str, object]:
        """Waits for a picture whose number is not `known`; returns the content of the page as JSON values."""
        end = time.monotonic() + PATIENCE
        while not self.stopped and self._newest[0] in (0, known) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        number, seen, status = self._newest
        if seen and number != self._drawn["number"]:  # once for all viewers
            faces, buffer = seen.photo.faces, io.BytesIO()
            Pil.fromarray(draw_faces(seen.image, [face.marked for face in faces])).save(
                buffer, "JPEG", quality=85
            )
            picture = b64encode(buffer.getvalue()).decode()
            bars = [
                {"track": one.track, "probabilities": one.smoothed or one.probabilities}
                for one in faces
            ]
            self._drawn = {
                "number": number,
                "status": status,
                "faces": bars[:MAX_BARS],
                "picture": picture,
            }
        return self._drawn | {"recording": self.recording, "stopped": self.stopped}


@dataclass
class Upload:
    """The form of a job."""

    files: Annotated[list[UploadFile], File(description=f"Photos and clips, at most {MAX_FILES}.")]
    model: Annotated[str, Form(description="The model; left out: the first of `/api/models`.")] = ""
    fps: Annotated[
        float | None, Form(gt=0, le=1000, description="Frames of a clip per second; left out: all.")
    ] = None
    start: Annotated[
        float, Form(ge=0, le=1e6, description="Second of a clip at which to start.")
    ] = 0
    end: Annotated[float, Form(ge=0, le=1e6, description="Second of a clip at which to end.")] = 1e6


def create_app(service: Jobs | LivePage, hosts: Collection[str] = ()) -> ASGIApp:
    """Returns the ASGI app: the upload page with its API, or the camera page. Clients may address it by `hosts`."""
    app = FastAPI(
        title="fer-vit",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses={status: {} for status in ERRORS},
        exception_handlers={RequestValidationError: refuse_values},
        form_limits={"max_files": MAX_FILES, "max_fields": 8, "max_part_size": 1000},
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
        page = Response((files("fer_vit") / path).read_bytes(), media_type=kind)
        app.routes.append(Route(address, page, methods=["GET"]))
    if isinstance(service, Jobs):
        add_jobs(app, service)
        return Guard(app, hosts, service.folder)
    add_live(app, service)
    return Guard(app, hosts)


async def refuse_values(_: Request, error: RequestValidationError) -> Response:
    """Returns a sentence for each wrong value, without the value: it may hold characters that cannot be encoded."""
    messages = {"value_error": "Expected a file"}  # instead of Python's classes
    wrong = (f"{one['loc'][1]}: {messages.get(one['type'], one['msg'])}." for one in error.errors())
    return JSONResponse({"detail": " ".join(wrong)}, 422)


def add_jobs(app: FastAPI, jobs: Jobs) -> None:
    """Adds the API of jobs and their results."""

    @app.get("/api/models")
    def models() -> list[str]:
        """Lists the models, the default first."""
        return list(jobs.models)

    @app.post("/api/predict", response_model=None)
    async def predict(request: Request, upload: Annotated[Upload, Depends()]) -> Response:
        """Finds and classifies every face; returns the table of `fer-vit predict` as JSON, CSV or Parquet."""
        kind = next(
            (kind for kind in TABLES if kind in request.headers.get("accept", "")),
            "application/json",
        )
        task = await store(jobs, upload, TABLES[kind], False)
        done = await finish(jobs.run(task, request.is_disconnected))
        try:
            content = jobs.results[done["id"]][task.table].read_bytes()
        finally:
            jobs.remove(done["id"])
        if kind == "application/json":
            content = b"[" + b",".join(content.splitlines()) + b"]"
        return Response(content, media_type=kind)

    @app.post("/api/report", response_model=None)
    async def report(request: Request, upload: Annotated[Upload, Depends()]) -> Response:
        """Makes the table and the report of `fer-vit visualize`; returns their ID and addresses.

        With `Accept: application/x-ndjson` each line of the response is an event: the place in the queue, what was
        found, the result. The job is cancelled when the client disconnects. Results are kept for an hour.
        """
        events = jobs.run(await store(jobs, upload, "faces.csv", True), request.is_disconnected)
        if PROGRESS in request.headers.get("accept", ""):
            return StreamingResponse(
                (json_text(event) + "\n" async for event in events), media_type=PROGRESS
            )
        return JSONResponse(await finish(events))

    @app.get("/results/{name}/{file:path}", response_model=None)
    async def result(name: str, file: str) -> Response:
        """Returns a file of a job. Both are only looked up among names, and never used as a path."""
        path = jobs.results.get(name, {}).get(file)
        if path is None or not path.is_file():
            raise HTTPException(
                404, "There is no such file, or no longer: results are kept for an hour."
            )
        headers = {"Content-Security-Policy": REPORT_POLICY} if path.suffix == ".html" else {}
        return FileResponse(path, headers=headers)

    @app.delete("/results/{name}", status_code=204)
    @app.post(
        "/results/{name}/close", status_code=204
    )  # a page that is being closed can send nothing else
    async def close(name: str) -> None:
        """Removes the files of a job."""
        if name in jobs.results:
            jobs.remove(name)


def add_live(app: FastAPI, live: LivePage) -> None:
    """Adds the API of the camera page."""

    @app.get("/live/newest")
    async def newest(known: int = 0) -> dict[str, Any]:
        """Waits for a picture other than the known one; returns it as a JPEG in base64, and the faces."""
        return await live.newest(known)

    @app.post("/live/stop", status_code=204)
    async def stop() -> None:
        """Ends the program, and with it the recording."""
        live.stopped = True


async def store(jobs: Jobs, upload: Upload, table: str, report: bool) -> Task:
    """Stores uploads in the folder of a new job. Raises HTTPException when a value or a file is refused."""
    model = upload.model or jobs.models[0]
    if jobs.full:
        raise HTTPException(429, "Too many jobs are waiting. Try again in a minute.")
    if model not in jobs.models:
        raise HTTPException(422, f"Expected one of the models {', '.join(jobs.models)}.")
    if upload.end <= upload.start:
        raise HTTPException(422, "Expected an end that is later than the start.")
    names = safe_names([file.filename or "" for file in upload.files])
    folder = jobs.new_folder()
    try:
        for name, file in zip(names, upload.files, strict=True):
            with (folder / "uploads" / name).open("xb") as copy:
                await asyncio.to_thread(shutil.copyfileobj, file.file, copy)
    except OSError as error:
        jobs.remove(folder.name)
        raise HTTPException(413, f"The upload cannot be stored ({error.strerror}).") from error
    return Task(
        folder,
        names,
        model,
        table,
        report,
        {"fps": upload.fps, "start": upload.start, "end": upload.end},
    )


async def finish(events: AsyncGenerator[Event, None]) -> Event:
    """Returns the last event of a job. Raises HTTPException unless it is done."""
    event = [event async for event in events][-1]
    if event["state"] != "done":
        raise HTTPException(422, event.get("message", "The job was cancelled."))
    return event


def listen(hosts: Sequence[str], port: int) -> tuple[socket.socket, str]:
    """Listens at the first host (default: localhost); returns socket and address. Raises FerVitError when it cannot."""
    host = (*hosts, HERE[0])[0]
    try:
        server = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FerVitError(
            f"Cannot serve at {host}:{port} ({reason}). Choose another `--host` or `--port`."
        ) from error
    address = f"http://{f'[{host}]' if ':' in host else host}:{server.getsockname()[1]}"
    if host not in HERE:
        print(
            f"fer-vit: warning: anyone who reaches {address} can use it: no password, no encryption",
            file=sys.stderr,
        )
    return server, address


class PatientProtocol(H11Protocol):
    """A connection that is closed if it makes no progress for `PATIENCE` seconds: no request, or nothing is read.

    uvicorn itself waits forever for the rest of a request's head, for a body that is not read, and for slow readers.
    """

    def connection_made(self, transport: Any) -> None:
        """Starts the checks."""
        super().connection_made(transport)
        self._reads = 0
        self._check(None)

    def resume_writing(self) -> None:
        """Counts how often the client has read what waited for it."""
        super().resume_writing()
        self._reads += 1

    def _check(self, before: object) -> None:
        now = self.cycle, self._reads
        stuck = not self.cycle or self.cycle.response_complete or self.flow.write_paused
        if stuck and now == before:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(guard.PATIENCE, self._check, now)


@contextmanager
def serving(app: ASGIApp, sock: socket.socket) -> Iterator[Thread]:
    """Serves an app in another thread, without uvicorn's own headers and logs."""
    limits: dict[str, Any] = {
        "http": PatientProtocol,
        "limit_concurrency": 512,
        "timeout_graceful_shutdown": 3,
    }
    without: dict[str, Any] = {
        "ws": "none",
        "server_header": False,
        "proxy_headers": False,
        "log_level": "warning",
    }
    server = uvicorn.Server(uvicorn.Config(app, **limits, **without))
    thread = Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join()
