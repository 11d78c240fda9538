"""The API of jobs and results: the contents of requests and of responses."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from fer_vit.app.jobs import MAX_JOBS, UPLOADS, JobEvent, Jobs, Task
from fer_vit.app.uploads import FILES_FIELD, FORM, MAX_FILES, FormOptions, Upload, store
from fer_vit.report.html import script_digest
from fer_vit.texts import json_text
from fer_vit.version import __version__

JSON = "application/json"
TABLE_TYPES = {
    "text/csv": "faces.csv",
    "application/vnd.apache.parquet": "faces.parquet",
    JSON: "faces.json",
}
JSON_LINES = "application/x-ndjson"  # type of a response with a line for each event of a job
REPORT_POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{script_digest('page')}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)

# The statuses of responses in which `detail` is a sentence.
ERROR_STATUSES = (400, 403, 404, 408, 413, 422, 429)

RETRY_LATER = {"Retry-After": "60"}  # seconds


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="One sentence.")


class Health(BaseModel):
    """That the server answers."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class JobsHealth(Health):
    """That the server answers, and how much it has to do."""

    jobs: int = Field(description="Jobs that arrive, wait or run.")
    most: int = Field(description="With this many jobs, further ones get the status 429.")


class Picture(BaseModel):
    """A photo with its faces marked."""

    name: str
    file: str = Field(description="Name of the picture: GET /results/ID/FILE.")


class Report(BaseModel):
    """A finished report, which is kept for an hour."""

    id: str
    files: list[str] = Field(description="Tables and archives: GET /results/ID/FILE.")
    html: str | None = Field(description="Address of the page; null: no face was explained.")
    zip: str | None = Field(description="Address of the page as an archive.")
    messages: list[str] = Field(description="A sentence about the faces of each photo and clip.")
    warnings: list[str] = Field(
        description="A sentence about each file without a face, or that cannot be read."
    )
    photos: list[Picture]


EXPIRED = "There is no such file, or no longer: results are kept for an hour."


class Intake:
    """Stores the uploads of requests as tasks, and yields the events of these tasks.

    `prefix` is the path of the page behind a reverse proxy.
    """

    def __init__(self, jobs: Jobs, prefix: str) -> None:
        self.jobs = jobs
        self.prefix = prefix
        self._one_at_a_time = asyncio.Lock()

    async def receive(self, request: Request, table: str, report: bool) -> Task:
        """Stores an upload in the folder of a new job; returns the task of the job.

        `table` is the name of the table's file. `report` is whether the task has a report. Raises
        HTTPException when a value or a file is refused.
        """
        if self.jobs.full:
            raise HTTPException(
                429, "Too many jobs are waiting. Try again in a minute.", RETRY_LATER
            )
        folder = self.jobs.new_folder()
        try:
            upload = await store(request, folder / UPLOADS, self._one_at_a_time)
            return new_task(self.jobs, folder, upload, table, report)
        except BaseException:
            self.jobs.remove(folder.name)
            raise

    async def run(self, request: Request, task: Task) -> AsyncGenerator[JobEvent, None]:
        """Yields the events of a task; the event "done" has the addresses of the report."""
        async with aclosing(self.jobs.run(task, request.is_disconnected)) as events:
            async for event in events:
                if event["state"] == "done":
                    base = f"{self.prefix}/results/{event['id']}"
                    has_page = "report.zip" in event["files"]
                    event = {
                        **event,
                        "html": f"{base}/report/index.html" if has_page else None,
                        "zip": f"{base}/report.zip" if has_page else None,
                    }
                yield event


def add_jobs(app: FastAPI, jobs: Jobs, prefix: str = "") -> None:
    """Adds the API of jobs. `prefix` is the path of the page behind a reverse proxy."""
    intake = Intake(jobs, prefix)

    @app.get("/health")
    def health() -> JobsHealth:
        """Answers the health checks of containers and load balancers, without any work."""
        return JobsHealth(jobs=len(jobs.active), most=MAX_JOBS)

    @app.get("/api/models")
    def models() -> list[str]:
        """Lists the models, the default first."""
        return list(jobs.models)

    @app.get("/api/outputs")
    def outputs() -> dict[str, list[str]]:
        """Lists the outputs of each model that a request may choose."""
        return {name: list(jobs.heads[name]) for name in jobs.models}

    @app.post(
        "/api/predict",
        response_model=None,
        responses={200: table_answer(jobs.columns)},
        openapi_extra={"requestBody": request_body()},
    )
    async def predict(request: Request) -> Response:
        """Finds and classifies every face.

        Returns the table of `fer-vit predict` as JSON, CSV or Parquet.
        """
        accepted = request.headers.get("accept", "")
        content_type = next((known for known in TABLE_TYPES if known in accepted), JSON)
        task = await intake.receive(request, TABLE_TYPES[content_type], False)
        done = await finish(intake.run(request, task))
        return FileResponse(
            jobs.results[done["id"]][task.table],
            media_type=content_type,
            background=BackgroundTask(jobs.remove, done["id"]),
        )

    @app.post(
        "/api/report",
        response_model=None,
        responses={200: {"model": Report}},
        openapi_extra={"requestBody": request_body()},
    )
    async def report(request: Request) -> Response:
        """Makes the table and the report of `fer-vit visualize`; returns their ID and addresses.

        With `Accept: application/x-ndjson` each line of the response is an event: the place in the
        queue, what was found, how many faces are explained, the result. The first event has the ID
        of the job. The job is cancelled when the client disconnects or deletes it by its ID.
        Results are kept for an hour.
        """
        task = await intake.receive(request, "faces.csv", True)
        events = intake.run(request, task)
        if JSON_LINES in request.headers.get("accept", ""):
            lines = (json_text(event) + "\n" async for event in events)
            end = BackgroundTask(end_events, events, jobs, task)
            return StreamingResponse(lines, media_type=JSON_LINES, background=end)
        done = await finish(events)
        return JSONResponse({name: done.get(name) for name in Report.model_fields})


def add_results(app: FastAPI, jobs: Jobs) -> None:
    """Adds the API of results."""

    @app.get("/results/{name}/{file:path}", response_model=None)
    async def result(name: str, file: str) -> Response:
        """Returns a file of a job.

        The names of the job and of the file are looked up, and never used as a path.
        """
        path = jobs.results.get(name, {}).get(file)
        if path is None or not path.is_file():
            raise HTTPException(404, EXPIRED)
        headers = {"Content-Security-Policy": REPORT_POLICY} if path.suffix == ".html" else {}
        return FileResponse(path, headers=headers)

    @app.delete("/results/{name}", status_code=204)
    # a page that is being closed can only send POST
    @app.post("/results/{name}/close", status_code=204)
    async def close(name: str) -> None:
        """Removes the files of a job; cancels it if it is not done."""
        jobs.close(name)


def new_task(jobs: Jobs, folder: Path, upload: Upload, table: str, report: bool) -> Task:
    """Returns the task of an upload. Raises HTTPException when an option is invalid."""
    options = upload.options
    if options.model and options.model not in jobs.models:
        raise HTTPException(422, f"Expected one of the models {', '.join(jobs.models)}.")
    end = math.inf if options.end is None else options.end  # the default of `PhotoOptions`
    if end <= options.start:
        raise HTTPException(422, "Expected an end that is later than the start.")
    return Task(
        folder=folder,
        names=upload.names,
        model=options.model or jobs.models[0],
        table=table,
        report=report,
        reading={"fps": options.fps, "start": options.start, "end": end},
        explain=options.explain,
        heads=tuple(options.outputs),
    )


def request_body() -> dict[str, Any]:
    """Returns the OpenAPI description of a request: a form with files."""
    form = FormOptions.model_json_schema()
    form["title"] = "FormUpload"
    form["required"] = [FILES_FIELD]
    form["properties"][FILES_FIELD] = {
        "type": "array",
        "description": f"Photos and clips, at most {MAX_FILES}.",
        "items": {"type": "string", "contentMediaType": "application/octet-stream"},
        "minItems": 1,
        "maxItems": MAX_FILES,
    }
    return {"required": True, "content": {FORM: {"schema": form}}}


def table_answer(columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the OpenAPI description of a table; empty cells are null.

    `columns` has the type by name of the column. A name that ends in an asterisk stands for all
    columns with this prefix.
    """
    properties: dict[str, Any] = {}
    patterns: dict[str, Any] = {}
    for name, cell_type in columns.items():
        cell = {"type": [cell_type, "null"]}
        if name.endswith("*"):
            patterns["^" + name.removesuffix("*")] = cell
        else:
            properties[name] = cell
    for name in ("path", "status"):  # these cells are never empty
        properties[name] = {"type": "string"}
    row = {
        "title": "Row",
        "type": "object",
        "description": (
            "A face, or a photo or frame without one. Columns of videos: only where there are "
            "videos. Columns of outputs: of the requested ones that the model has."
        ),
        "properties": properties,
        "patternProperties": patterns,
        "required": ["path", "status"],
    }
    content: dict[str, Any] = {content_type: {} for content_type in TABLE_TYPES}
    content[JSON] = {"schema": {"type": "array", "items": row}}
    return {"description": "The table.", "content": content}


async def end_events(events: AsyncGenerator[JobEvent, None], jobs: Jobs, task: Task) -> None:
    """Ends the job of a task whose client has disconnected, also before the first event."""
    await events.aclose()
    jobs.end(task.folder.name)


async def finish(events: AsyncGenerator[JobEvent, None]) -> JobEvent:
    """Returns the event "done" of a job. Raises HTTPException when the job ends otherwise."""
    event = [event async for event in events][-1]
    if event["state"] != "done":
        raise HTTPException(422, event.get("message", "The job was cancelled."))
    return event
