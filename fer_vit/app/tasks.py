"""What the worker process does: tables and reports of uploads, by the functions of `predict` and `visualize`."""

import csv
import math
import shutil
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import cache
from io import StringIO
from itertools import groupby
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path

import numpy as np
from PIL import Image as Pil

from fer_vit.app.guard import refuse_network
from fer_vit.app.jobs import FAILED, Event, Task
from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, image_size, read_image
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.predict.photos import NO_FACE, OK, PhotoOptions, is_video
from fer_vit.predict.recognizer import load
from fer_vit.predict.results import BOX
from fer_vit.predict.tables import Outputs, format_count, format_counts, predict_table
from fer_vit.processes import start_worker
from fer_vit.report.draw import Marked, draw_faces
from fer_vit.visualize.writer import write_report

MAX_FACES = 50  # of photos, and of clips, that a report explains: a face takes up to a second
MAX_PHOTO = 2**26  # pixels; cameras with "64 megapixels" have slightly more than 64 million
MAX_PIXELS = 20_000_000_000  # of all frames of a task: 80 seconds of 4K, or five minutes of full HD, at 30 frames/s
SHOWN = 1600  # longer side of the whole photos on the page, in pixels

load_cached = cache(load)


def work(pipe: Connection, models: Sequence[str]) -> None:
    """Runs in the worker process: loads a model, then does one task after another, and sends each event to the pipe."""
    start_worker()
    Pil.MAX_IMAGE_PIXELS = None  # sizes are checked below
    try:
        load_cached(models[0]).predict(np.zeros((64, 64, 3), np.uint8), workers=0)
    except FerVitError as error:
        return pipe.send({"state": "failed", "message": str(error)})
    sys.addaudithook(refuse_network)
    pipe.send({"state": "ready"})
    while True:
        task = pipe.recv()
        try:
            # Names in tables and reports are relative to the uploads. Nothing is printed, no progress bars either.
            with (
                chdir(task.folder / "uploads"),
                redirect_stdout(StringIO()),
                redirect_stderr(StringIO()),
            ):
                for event in run_task(task):
                    pipe.send(event)
        except (FerVitError, OSError) as error:
            cause = error.__cause__ or error  # an OSError has a path of the server, and a reason
            message = getattr(cause, "strerror", None) or str(error)
            pipe.send({"state": "failed", "message": message})
        except Exception:  # a fault in fer-vit or a decoder, which must not stop the server
            traceback.print_exc()
            pipe.send({"state": "failed", "message": FAILED})


def run_task(task: Task) -> Iterator[Event]:
    """Does a task in the folder of uploads; yields events for the client, `done` last."""
    for name in task.names:
        if Path(name).suffix.lower() not in MEDIA_SUFFIXES:
            raise FerVitError(f"{name} is not a photo or clip that can be read.")
    paths, options = [Path(name) for name in task.names], PhotoOptions(workers=0, **task.reading)
    clips = [path for path in paths if is_video(path)]
    check_pixels([path for path in paths if path not in clips], clips, options.end)
    if task.report:
        yield from make_report(task, paths, clips, options)
    else:
        predict_table(load_cached(task.model), paths, options, Outputs(Path("..", task.table)))
        yield {"state": "done"}


def make_report(
    task: Task, paths: Sequence[Path], clips: Sequence[Path], options: PhotoOptions
) -> Iterator[Event]:
    """Makes tables, a marked copy of the only clip, drawn photos, and the report of the faces, if there are any."""
    model, table, report, messages = (
        load_cached(task.model),
        Path("..", task.table),
        Path("../report"),
        [],
    )
    summary, intervals = (
        Path(f"../{name}.csv") if clips else None for name in ("summary", "intervals")
    )
    try:
        copy = Path("../marked.mp4") if len(clips) == 1 else None
        predict_table(model, paths, options, Outputs(table, summary, intervals, copy))
    except FerVitError:
        if not table.exists():
            raise
        messages.append(
            "There is no marked copy: the clip cannot be read, or the copy cannot be written."
        )
    with table.open(newline="", encoding="utf-8") as file:
        rows_by_name = {
            name: list(rows) for name, rows in groupby(csv.DictReader(file), itemgetter("path"))
        }
    messages += [line for name, rows in rows_by_name.items() for line in describe(name, rows)]
    yield {"state": "found", "messages": messages}
    photos = draw_photos([path for path in paths if path not in clips], rows_by_name)
    if write_report(report, model, paths, options, "pixels", task.model, most=MAX_FACES):
        shutil.make_archive(str(report), "zip", report)
    else:
        shutil.rmtree(report)
    yield {"state": "done", "messages": messages, "photos": photos}


def check_pixels(photos: Sequence[Path], clips: Sequence[Path], end: float) -> None:
    """Raises FerVitError for photos and clips, up to a time in seconds, that take too long to decode."""
    for path in photos:
        sizes = [image_size(path.read_bytes()) or (0, 0)]  # Pillow may take another one of several
        with (
            suppress(Exception),
            Pil.open(path) as image,
        ):  # Pillow raises many types for broken files
            sizes.append(image.size)
        if (size := max(map(math.prod, sizes))) > MAX_PHOTO:
            limit = f"at most {MAX_PHOTO // 10**6} are read"
            raise FerVitError(
                f"{path} has {size / 1e6:,.0f} megapixels, and {limit}. Make it smaller."
            )
    if sum(count_pixels(path, end) for path in clips) > MAX_PIXELS:
        raise FerVitError(
            "The clip is too long for its size. Choose an earlier end, or make its frames smaller."
        )


def count_pixels(path: Path, end: float) -> int:
    """Returns the pixels of all frames of a clip up to a time in seconds; 0 if it cannot be read."""
    from fer_vit.predict.frames import open_video  # only here: PyAV may not be installed

    frames, first = 0, None
    with suppress(ImageError), open_video(path) as (container, stream):
        for packet in container.demux(stream):
            if packet.pts is not None and packet.time_base is not None:
                seconds = float(packet.pts * packet.time_base)
                first = seconds if first is None else first
                if seconds - first > end:
                    break
            frames += 1
        return stream.width * stream.height * frames
    return 0


def describe(name: str, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields sentences about the table rows of a photo or clip."""
    people = defaultdict[str, Counter[str]](Counter)  # a photo's faces have no track
    for row in rows:
        if row["face"]:
            people[row.get("track", "")][row.get("label_smoothed") or row["label"]] += 1
    if "" in people:
        yield f"{name}: {format_count(people[''].total(), 'face')} ({format_counts(people[''])})."
    elif people:
        mostly = [
            f"person {track} mostly {people[track].most_common(1)[0][0]}"
            for track in sorted(people, key=int)
        ]
        mostly[8:] = [f"and {len(mostly) - 8} more"] * (len(mostly) > 8)
        yield f"{name}: {', '.join(mostly)}."
    statuses = {row["status"] for row in rows}
    if not people and NO_FACE in statuses:
        yield f"No face found in {name}."
    for status in sorted(statuses - {OK, NO_FACE}):
        yield f"{name} cannot be read{' to its end' if len(rows) > 1 else ''}: {status}."


def draw_photos(
    paths: Sequence[Path], rows_by_name: Mapping[str, list[dict[str, str]]]
) -> list[dict[str, str]]:
    """Draws the faces in the rows of a table into photos as large as the page shows them; returns names and files."""
    Path("../photos").mkdir()
    drawn: list[dict[str, str]] = []
    for path in paths:
        if faces := [row for row in rows_by_name.get(str(path), []) if row["face"]]:
            photo, file = Pil.fromarray(read_image(path)), f"photos/{len(drawn)}.jpg"
            scale = min(1.0, SHOWN / max(photo.size))
            photo.thumbnail((SHOWN, SHOWN))
            marked = []
            for number, row in enumerate(faces):
                box = np.array([float(row[side]) for side in BOX]) * scale
                marked.append(Marked(box, row["label"], float(row["confidence"]), number))
            Pil.fromarray(draw_faces(np.asarray(photo), marked)).save(f"../{file}", quality=88)
            drawn.append({"name": str(path), "file": file})
    return drawn
