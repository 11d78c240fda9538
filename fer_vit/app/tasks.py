"""Does the tasks of the worker process: writes tables and reports of uploads.

A task runs in the folder of its uploads, so that names in tables and reports are relative to this
folder. Results are written to the folder above, `JOB_FOLDER`.
"""

import gc
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from io import StringIO
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from threading import RLock
from typing import NamedTuple

import numpy as np
from PIL import Image as Pil
from tqdm import tqdm

from fer_vit.app.findings import Findings
from fer_vit.app.guard import refuse_network
from fer_vit.app.jobs import FAILED, MAX_TASK_MEMORY, UPLOADS, JobEvent, Task
from fer_vit.app.uploads import safe_name
from fer_vit.engine.choice import Precision
from fer_vit.errors import FerVitError, MarkedCopyError
from fer_vit.explain.methods import choose_method
from fer_vit.extras import is_installed
from fer_vit.face.headers import MEGA, image_size, image_suffix
from fer_vit.face.image import CRASHED, ImageError, check_size, read_bytes, read_image
from fer_vit.faces import Faces, PhotoInfo, no_faces
from fer_vit.fields import FEATURE_FIELDS, all_face_fields
from fer_vit.geometry import Image
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.model_settings import read_model_settings
from fer_vit.predict.inputs import is_video
from fer_vit.predict.outputs import MarkedCopy, Outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.predict.tables import predict_table
from fer_vit.report.draw import Marked, draw_faces
from fer_vit.store.hub import fetch_folder, is_checkpoint, read_config
from fer_vit.system.untrusted import limit_memory
from fer_vit.visualization.explained_scores import ExplainOptions
from fer_vit.visualization.report_parts import (
    DecodedPhoto,
    Part,
    classified_photo_parts,
    video_parts,
)
from fer_vit.visualization.timelines import Watched, limit_pictures

# Most faces of photos, and most of clips, that a report explains. A face takes up to a second.
MAX_FACES = 50
# Most pixels of a photo. Cameras with "64 megapixels" have slightly more than 64 million.
MAX_PHOTO = 67 * MEGA
# Most pixels of all frames of a task: 80 seconds of 4K, or five minutes of full HD, at 30 frames/s.
MAX_TASK_PIXELS = 20_000_000_000
CLIP_TOO_LONG = (
    "the clip is too long for its size: choose an earlier end, or make its frames smaller"
)

# Suffixes of clips by FFmpeg's name of the format. Clips in other formats get .mp4.
CLIP_SUFFIXES = {"matroska,webm": ".webm", "avi": ".avi", "mpegts": ".ts", "flv": ".flv"}

EXPLAIN_MEMORY = 100_000_000  # memory in bytes for faces that are explained together
SHOWN_SIDE = 1600  # the longer side of a whole photo on the page, in pixels
JOB_FOLDER = Path("..")  # the folder of a task's results, relative to the folder of its uploads

Note = Callable[[int | None], None]  # notes the index of the file that is read; None: no file

load_cached = cache(load)


def work(pipe: Connection, models: Sequence[str], precision: Precision = "float32") -> None:
    """Loads the default model, then does one task after another; runs in the worker process.

    Each event is sent to the pipe. Models compute in the `precision`.
    """
    with suppress(OSError):  # if the machine has too little memory, Linux kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    # tqdm's default lock is a semaphore of the system, which would outlive a killed process
    tqdm.set_lock(RLock())
    try:
        model = load_cached(models[0], precision=precision)
        model.predict(np.zeros((64, 64, 3), np.uint8), workers=0)
        heads = {name: heads_of(name) for name in models}
    except FerVitError as error:
        pipe.send({"state": "failed", "message": str(error)})
        return
    sys.addaudithook(refuse_network)
    pipe.send({"state": "ready", "columns": column_types(), "heads": heads})
    while True:  # until the server ends this process
        task = pipe.recv()
        gc.collect()  # frames and decoders of the task before refer to each other
        try:
            model = load_cached(task.model, precision=precision)
            if task.report and task.explain and is_installed("torch"):
                model.net.eval()  # loads the network outside the limits of a task
            limit_memory(MAX_TASK_MEMORY)
            with (  # progress bars and other output are discarded
                chdir(task.folder / UPLOADS),
                redirect_stdout(StringIO()),
                redirect_stderr(StringIO()),
            ):
                run_task(task, model, pipe.send)
        except (FerVitError, OSError) as error:
            pipe.send({"state": "failed", "message": describe_failure(error)})
        except Exception:  # a bug in fer-vit or a decoder must not stop the worker
            traceback.print_exc()
            pipe.send({"state": "failed", "message": FAILED})


def describe_failure(error: FerVitError | OSError) -> str:
    """Returns the message for an error of a task, without paths of the server."""
    reason = getattr(error.__cause__ or error, "strerror", None)
    if reason:
        return f"The server cannot store or read its files ({reason})."
    return str(error)


def heads_of(name: str) -> list[str]:
    """Returns the names of a model's heads."""
    if is_checkpoint(name):
        return load_cached(name).heads
    settings = read_model_settings(read_config(fetch_folder(name), name), name)
    return settings.outputs.all_heads


def column_types() -> dict[str, str]:
    """Returns the JSON type of each column of a table, by name of the column.

    A name with an asterisk stands for several columns.
    """
    return {field.name: field.type for field in all_face_fields() if field not in FEATURE_FIELDS}


def run_task(task: Task, model: Recognizer, send: Callable[[JobEvent], None]) -> None:
    """Does a task in the folder of its uploads; sends events for the client, "done" last.

    The events "reading" are for `Worker`: if this process dies, the last one has the cause.
    """

    def note(file: int | None) -> None:
        send({"state": "reading", "file": file})

    options = PhotoOptions(workers=0, **task.reading)
    _, end = options.span
    uploads = open_uploads(task, end, note)
    photos = recognize_uploads(model, uploads, options, note)
    findings = Findings(uploads.clips)
    outputs = Outputs(JOB_FOLDER / task.table, heads=task.heads)
    if task.report:
        photos = findings.note(photos)  # lazy: faces are noted while the tables are written
        outputs = add_clip_outputs(outputs, uploads.read_clips)

    warnings = write_tables(model, photos, uploads.paths, options, outputs)
    if task.report:
        make_report(model, findings, options, warnings, task.explain, note, send)
    else:
        send({"state": "done"})


class Uploads(NamedTuple):
    """The files of a task, by the names that `path_by_content` has given them."""

    paths: list[Path]  # all files in the order of the request
    clips: list[Path]  # the files that are clips
    refused: dict[Path, str]  # the status of each file that is not read, by path

    @property
    def read_clips(self) -> list[Path]:
        """The clips that are not refused."""
        return [clip for clip in self.clips if clip not in self.refused]


def open_uploads(task: Task, end: float, note: Note) -> Uploads:
    """Returns the uploads of a task; `end` is the second at which clips end."""
    uploads = Uploads([], [], {})
    remaining = MAX_TASK_PIXELS  # pixels that further clips may have
    for index, name in enumerate(task.names):
        path = Path(name)
        if index in task.crashed:
            uploads.paths.append(path)
            uploads.refused[path] = CRASHED
            continue
        note(index)
        path = path_by_content(name, [*task.names, *map(str, uploads.paths)])
        uploads.paths.append(path)
        if not is_video(path):
            refusal = refuse_photo(path)
        else:
            from fer_vit.predict.frames import count_pixels  # photos need no PyAV

            uploads.clips.append(path)
            pixels = count_pixels(path, end, remaining)
            refusal = CLIP_TOO_LONG if pixels > remaining else None
            if refusal is None:
                remaining -= pixels
        if refusal is not None:
            uploads.refused[path] = refusal
    return uploads


def path_by_content(name: str, taken: Collection[str]) -> Path:
    """Returns the path of an upload, with a suffix by its content if its name has no known one.

    For example, browsers name a file `blob` that a page has created. A file that is neither a photo
    nor a clip keeps its name; its row has the reason as the status. The new name is not in `taken`.
    """
    path = Path(name)
    if path.suffix.lower() in MEDIA_SUFFIXES:
        return path
    suffix = suffix_by_content(path)
    if suffix is None:
        return path
    named = Path(safe_name(name + suffix, taken))
    if not named.exists():  # an attempt before may have died
        named.hardlink_to(path)
    return named


def suffix_by_content(path: Path) -> str | None:
    """Returns the suffix for the content of a file; None if it is neither a photo nor a clip."""
    if suffix := image_suffix(read_bytes(path)):
        return suffix
    from fer_vit.predict.frames import open_video  # not at the top: photos need no PyAV

    with suppress(ImageError), open_video(path) as (container, _):
        return CLIP_SUFFIXES.get(container.format.name, ".mp4")
    return None


def add_clip_outputs(outputs: Outputs, clips: Sequence[Path]) -> Outputs:
    """Returns `outputs` with tables of people if there are clips, and a marked copy of one clip.

    With several clips, there is no marked copy.
    """
    if not clips:
        return outputs
    copy = None
    if len(clips) == 1:
        copy = MarkedCopy(clips[0], JOB_FOLDER / "marked.mp4")
    people = JOB_FOLDER / "summary.csv"
    intervals = JOB_FOLDER / "intervals.csv"
    return outputs._replace(people=people, intervals=intervals, copy=copy)


def write_tables(
    model: Recognizer,
    photos: Iterable[Faces],
    paths: Sequence[Path],
    options: PhotoOptions,
    outputs: Outputs,
) -> list[str]:
    """Writes the tables of a task, and the marked copy of a clip; returns warnings.

    `photos` is lazy: faces are recognized while rows are written. A table in JSON is written as
    JSON Lines, then joined into one list. A marked copy that fails is only a warning, since the
    tables are complete.
    """
    table = outputs.table
    is_json = table.suffix == ".json"
    written = table.with_suffix(".jsonl") if is_json else table
    warnings = []
    try:
        predict_table(model, photos, paths, options, outputs._replace(table=written))
    except MarkedCopyError:
        warnings.append(
            "There is no marked copy: the clip cannot be read, or the copy cannot be written."
        )
    if is_json:
        join_rows(written, table)
    return warnings


def join_rows(lines: Path, table: Path) -> None:
    """Writes the rows of a file in JSON Lines as a JSON list to the file `table`."""
    with lines.open(encoding="utf-8") as rows, table.open("w", encoding="utf-8") as file:
        before = "["
        for row in rows:
            file.write(before + row.rstrip("\n"))
            before = ","
        file.write("]")


def make_report(
    model: Recognizer,
    findings: Findings,
    options: PhotoOptions,
    warnings: Sequence[str],
    explain: bool,
    note: Note,
    send: Callable[[JobEvent], None],
) -> None:
    """Draws the photos; with `explain`, also writes the report that explains the faces.

    `warnings` are warnings about the tables, which are sent to the client.
    """
    messages = findings.messages()
    warnings = [*warnings, *findings.warnings()]
    send({"state": "found", "messages": messages, "warnings": warnings})

    faces_by_photo = findings.faces_by_photo()
    drawn: list[dict[str, str]] = []  # the names of photos and of their pictures
    decoded = draw_photos(faces_by_photo, drawn, note)
    if explain:
        # fewer, if a photo can no longer be read
        photo_faces = min(sum(map(len, faces_by_photo.values())), MAX_FACES)
        watched = findings.people
        watched = replace(watched, videos=limit_pictures(watched.videos, MAX_FACES))
        photos = classified_photo_parts(decoded, MAX_FACES)
        frames = video_parts(model, watched.videos, options)
        expected = photo_faces + watched.num_shown
        write_explanations(model, chain(photos, frames), watched, expected, send)
    for _ in decoded:  # without explanations, nothing else has read and drawn the photos
        pass
    send({"state": "done", "messages": messages, "warnings": warnings, "photos": drawn})


def write_explanations(
    model: Recognizer,
    parts: Iterable[Part],
    watched: Watched,
    expected: int,
    send: Callable[[JobEvent], None],
) -> None:
    """Writes the report of about `expected` faces as a page and an archive; sends the progress."""
    # not at the top: scipy, which intervals need, would stay in the memory of each worker
    from fer_vit.visualization.report import write_report

    report = JOB_FOLDER / "report"

    def send_progress(num_faces: int) -> None:
        total = max(num_faces, expected)
        send({"state": "explaining", "faces": num_faces, "of": total})

    explain = ExplainOptions(choose_method(None), memory=EXPLAIN_MEMORY)
    if write_report(report, model, parts, watched, explain, Path(), on_face=send_progress):
        shutil.make_archive(str(report), "zip", report)
    else:
        shutil.rmtree(report)


def refuse_photo(path: Path) -> str | None:
    """Returns the status of a photo that would take too long to decode; None for another one."""
    size = None
    with suppress(ImageError):  # a later step reports the error as the status of a row
        size = image_size(read_bytes(path))
    if size is None:
        return None
    try:
        check_size(size, MAX_PHOTO)
    except ImageError as error:
        return f"{error}: make it smaller"
    return None


def recognize_uploads(
    model: Recognizer, uploads: Uploads, options: PhotoOptions, note: Note
) -> Iterator[Faces]:
    """Yields each photo and frame, in order, with its faces.

    Files that are refused, or cannot be processed, have no faces, and the reason as their status.
    """
    scheme = model.scheme(options.detector)
    for index, path in enumerate(uploads.paths):
        status = uploads.refused.get(path)
        if status is None:
            note(index)
            try:
                for faces in model.recognize([path], options):
                    # `index` counts all uploads
                    infos = tuple(replace(info, index=index) for info in faces.infos)
                    yield replace(faces, infos=infos)
                continue
            except (FerVitError, OSError):
                raise
            except Exception:  # each library has its own error for too little memory
                status = CRASHED
        yield no_faces([PhotoInfo(str(path), status, index)], scheme)


def draw_photos(
    photos: Mapping[str, Faces], drawn: list[dict[str, str]], note: Note
) -> Iterator[DecodedPhoto]:
    """Reads the photos again; yields each photo with its faces.

    Before a photo with faces is yielded, its picture with marked faces is saved and added to
    `drawn`. `photos` has the faces by path of the photo.
    """
    (JOB_FOLDER / "photos").mkdir()
    for name, faces in photos.items():
        if not len(faces):
            yield DecodedPhoto(faces, image=None)
            continue
        note(faces.infos[0].index)
        image = read_image(Path(name))
        file = f"photos/{len(drawn)}.jpg"
        Pil.fromarray(draw_photo(image, faces)).save(JOB_FOLDER / file, quality=88)
        drawn.append({"name": name, "file": file})
        yield DecodedPhoto(faces, image)
    note(None)


def draw_photo(image: Image, faces: Faces) -> Image:
    """Returns a photo (H, W, 3) with marked faces; the longer side is at most `SHOWN_SIDE`."""
    photo = Pil.fromarray(image)
    scale = min(1.0, SHOWN_SIDE / max(photo.size))
    photo.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    marked = []
    for number, face in enumerate(faces, start=1):
        box = None if face.box is None else face.box * scale
        assert face.label is not None  # the recognizer has classified it
        marked.append(Marked(box, face.label, face.confidence, number))
    return draw_faces(np.asarray(photo), marked)
