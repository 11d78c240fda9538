"""What the worker process does: tables and reports of uploads."""

import os
import shutil
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from io import StringIO
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from threading import RLock
from typing import NamedTuple

import numpy as np
from PIL import Image as Pil
from tqdm import tqdm

from fer_vit.app.guard import refuse_network
from fer_vit.app.jobs import FAILED, Event, Task, resident_memory
from fer_vit.app.uploads import safe_name
from fer_vit.errors import FerVitError
from fer_vit.face.headers import MEGA, image_size, image_suffix
from fer_vit.face.image import (
    UNREADABLE,
    UNREADABLE_VIDEO,
    ImageError,
    check_size,
    read_bytes,
    read_image,
)
from fer_vit.faces import NO_FACE, OK, READ_STATUSES, Faces, PhotoInfo, no_faces
from fer_vit.fields import FEATURE_FIELDS, all_face_fields
from fer_vit.geometry import Image
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.predict.inputs import is_video
from fer_vit.predict.outputs import MarkedCopy, Outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer, list_head_names, load
from fer_vit.predict.tables import predict_table
from fer_vit.report.draw import Marked, draw_faces
from fer_vit.store.folder import read_model
from fer_vit.visualization.evidence import ExplainOptions
from fer_vit.visualization.parts import DecodedPhoto, Predictions
from fer_vit.visualization.people import Watched
from fer_vit.visualization.writer import ReportOptions, write_report
from fer_vit.wording import counted, format_counts

MAX_FACES = 50  # of photos, and of clips, that a report explains: a face takes up to a second
MAX_PHOTO = 67 * MEGA  # pixels; cameras with "64 megapixels" have slightly more than 64 million
# of all frames of a task: 80 seconds of 4K, or five minutes of full HD, at 30 frames/s
MAX_TASK_PIXELS = 20_000_000_000
CLIP_TOO_LONG = (
    "the clip is too long for its size: choose an earlier end, or make its frames smaller"
)

# Suffixes of clips by FFmpeg's name of the format; others get .mp4.
CLIP_SUFFIXES = {"matroska,webm": ".webm", "avi": ".avi", "mpegts": ".ts", "flv": ".flv"}

REMEDIES = {  # what a user does about a status of a file
    UNREADABLE: (
        "is not a photo that fer-vit can open. Save it as JPEG or PNG, and choose it again."
    ),
    UNREADABLE_VIDEO: "is not a clip that fer-vit can open. Save it as MP4, and choose it again.",
}
EXPLAIN_MEMORY = 100_000_000  # bytes for the faces that are explained together
SHOWN_SIDE = 1600  # longer side of the whole photos on the page, in pixels

load_cached = cache(load)


def work(pipe: Connection, models: Sequence[str]) -> None:
    """Runs in the worker process: loads a model, then does one task after another.

    It sends each event to the pipe.
    """
    with suppress(OSError):  # if the machine has too little memory, Linux ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    # the default lock is a semaphore of the system, which would outlive a killed process
    tqdm.set_lock(RLock())
    try:
        load_cached(models[0]).predict(np.zeros((64, 64, 3), np.uint8), workers=0)
        heads = heads_of_models(models)
    except FerVitError as error:
        return pipe.send({"state": "failed", "message": str(error)})
    sys.addaudithook(refuse_network)
    memory = resident_memory(os.getpid())
    ready = {"columns": json_types(), "outputs": heads, "memory": memory}
    pipe.send({"state": "ready", **ready})
    while True:
        task = pipe.recv()
        try:
            # Names in tables and reports are relative to the uploads. Nothing is printed, no
            # progress bars either.
            with (
                chdir(task.folder / "uploads"),
                redirect_stdout(StringIO()),
                redirect_stderr(StringIO()),
            ):
                run_task(task, load_cached(task.model), pipe.send)
        except (FerVitError, OSError) as error:
            pipe.send({"state": "failed", "message": describe_failure(error)})
        except Exception:  # a fault in fer-vit or a decoder, which must not stop the server
            traceback.print_exc()
            pipe.send({"state": "failed", "message": FAILED})


def describe_failure(error: FerVitError | OSError) -> str:
    """Returns the message for an error of a task, without paths of the server."""
    reason = getattr(error.__cause__ or error, "strerror", None)
    if reason:
        return f"The server cannot store or read its files ({reason})."
    return str(error)


def heads_of_models(models: Sequence[str]) -> dict[str, list[str]]:
    """Returns the heads of each model, by its name; the first model is loaded."""
    heads = {models[0]: load_cached(models[0]).heads}
    for name in models[1:]:
        heads[name] = list_head_names(read_model(name).settings.outputs)
    return heads


def json_types() -> dict[str, str]:
    """Returns the types of a table's columns by name, as JSON calls them.

    A name with an asterisk stands for several columns.
    """
    return {field.name: field.type for field in all_face_fields() if field not in FEATURE_FIELDS}


def run_task(task: Task, model: Recognizer, send: Callable[[Event], None]) -> None:
    """Does a task in the folder of uploads; sends events for the client, `done` last."""
    options = PhotoOptions(workers=0, **task.reading)
    uploads = open_uploads(task.names, options.end)
    photos = recognize_uploads(model, uploads, options)
    outputs = Outputs(Path("..", task.table), heads=task.outputs)
    if task.report:
        make_report(model, photos, uploads, options, outputs, task.explain, send)
    else:
        make_table(model, photos, uploads, options, outputs)
        send({"state": "done"})


class Uploads(NamedTuple):
    """The files of a task, named by their content."""

    paths: list[Path]  # in the order of the request
    clips: list[Path]  # that are read
    refused: dict[Path, str]  # the status of each that takes too long to decode, by its path


def open_uploads(names: Sequence[str], end: float) -> Uploads:
    """Returns the uploads of these names; clips are read up to `end`, in seconds."""
    paths = name_by_content(names)
    photos = [path for path in paths if not is_video(path)]
    videos = [path for path in paths if is_video(path)]
    refused = refuse_photos(photos) | refuse_clips(videos, end)
    clips = [video for video in videos if video not in refused]
    return Uploads(paths, clips, refused)


def name_by_content(names: Sequence[str]) -> list[Path]:
    """Renames uploads without the suffix of a photo or clip by their content; returns all files.

    Browsers call what a page has made `blob`. Files that are neither photo nor clip keep their
    name: the reason becomes the status of their row.
    """
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        if path.suffix.lower() not in MEDIA_SUFFIXES:
            suffix = suffix_by_content(path)
            if suffix is not None:
                taken = [*names, *(earlier.name for earlier in paths)]
                path = path.rename(safe_name(name + suffix, taken))
        paths.append(path)
    return paths


def suffix_by_content(path: Path) -> str | None:
    """Returns the suffix for the content of a file; None if it is neither a photo nor a clip."""
    if suffix := image_suffix(read_bytes(path)):
        return suffix
    from fer_vit.predict.frames import open_video  # only here: PyAV may not be installed

    with suppress(ImageError), open_video(path) as (container, _):
        return CLIP_SUFFIXES.get(container.format.name, ".mp4")
    return None


def make_table(
    model: Recognizer,
    photos: Iterable[Faces],
    uploads: Uploads,
    options: PhotoOptions,
    outputs: Outputs,
) -> None:
    """Makes the table of a task from its recognized photos; as JSON, one list of rows."""
    table = outputs.table
    is_json = table.suffix == ".json"
    written = table.with_suffix(".jsonl") if is_json else table
    predict_table(model, photos, uploads.paths, options, outputs._replace(table=written))
    if not is_json:
        return
    with written.open(encoding="utf-8") as rows, table.open("w", encoding="utf-8") as file:
        before = "["
        for row in rows:
            file.write(before + row.rstrip("\n"))
            before = ","
        file.write("]")


def make_report(
    model: Recognizer,
    photos: Iterable[Faces],
    uploads: Uploads,
    options: PhotoOptions,
    outputs: Outputs,
    explain: bool,
    send: Callable[[Event], None],
) -> None:
    """Makes tables, a marked copy of the only clip, drawn photos, and the report of the faces.

    `photos` are recognized while the tables are written.
    """
    if uploads.clips:
        outputs = outputs._replace(
            people=Path("../summary.csv"), intervals=Path("../intervals.csv")
        )
    if len(uploads.clips) == 1:
        outputs = outputs._replace(copy=MarkedCopy(uploads.clips[0], Path("../marked.mp4")))
    findings = Findings(uploads.clips)
    warnings: list[str] = []
    try:
        predict_table(model, findings.note(photos), uploads.paths, options, outputs)
    except FerVitError:
        if not outputs.table.exists():
            raise
        warnings.append(
            "There is no marked copy: the clip cannot be read, or the copy cannot be written."
        )
    messages: list[str] = []
    for name, file in findings.files.items():
        messages += describe_faces(name, file)
        warnings += describe_problems(name, file)
    sentences = {"messages": messages, "warnings": warnings}
    send({"state": "found", **sentences})

    # a refused clip is listed as a photo without a face
    others = [str(path) for path in uploads.paths if path not in uploads.clips]
    faces_by_photo = {name: findings.files[name].faces for name in others}
    files = name_pictures(faces_by_photo)
    decoded = draw_photos(faces_by_photo, files)
    if explain:
        photo_faces = min(sum(map(len, faces_by_photo.values())), MAX_FACES)
        predictions = Predictions(decoded, findings.people)
        write_explanations(model, uploads.paths, options, predictions, photo_faces, send)
    for _ in decoded:  # draws the photos; a report has read them all
        pass
    drawn = [{"name": name, "file": file} for name, file in files.items()]
    send({"state": "done", **sentences, "photos": drawn})


def write_explanations(
    model: Recognizer,
    paths: Sequence[Path],
    options: PhotoOptions,
    predictions: Predictions,
    photo_faces: int,
    send: Callable[[Event], None],
) -> None:
    """Makes the report of the faces as a page and an archive; sends how many are explained.

    `photo_faces` of photos will be explained, as far as these can be read again.
    """
    report = Path("../report")

    def send_progress(faces: int, clip_faces: int) -> None:
        total = max(faces, photo_faces + clip_faces)
        send({"state": "explaining", "faces": faces, "of": total})

    faces = write_report(
        folder=report,
        model=model,
        sources=paths,
        options=ReportOptions(
            photos=options,
            explain=ExplainOptions(memory=EXPLAIN_MEMORY),
            max_faces=MAX_FACES,
        ),
        predictions=predictions,
        on_face=send_progress,
    )
    if faces:
        shutil.make_archive(str(report), "zip", report)
    else:
        shutil.rmtree(report)


def refuse_photos(photos: Iterable[Path]) -> dict[Path, str]:
    """Returns the status of each photo that takes too long to decode, by its path."""
    refused = {}
    for path in photos:
        size = None
        with suppress(ImageError):  # which becomes the status of a row
            size = image_size(read_bytes(path))
        if size is None:
            continue
        try:
            check_size(size, MAX_PHOTO)
        except ImageError as error:
            refused[path] = f"{error}: make it smaller"
    return refused


def refuse_clips(clips: Iterable[Path], end: float) -> dict[Path, str]:
    """Returns the status of each clip that takes too long to decode, by its path.

    Clips count up to `end`, in seconds. Together they have at most `MAX_TASK_PIXELS`; the first
    ones are read.
    """
    refused = {}
    remaining = MAX_TASK_PIXELS
    for path in clips:
        from fer_vit.predict.frames import count_pixels  # only here: PyAV may not be installed

        pixels = count_pixels(path, end, remaining)
        if pixels > remaining:
            refused[path] = CLIP_TOO_LONG
        else:
            remaining -= pixels
    return refused


def recognize_uploads(
    model: Recognizer, uploads: Uploads, options: PhotoOptions
) -> Iterator[Faces]:
    """Yields each photo and frame, in order, with its faces.

    Files that are refused have this status and are not read.
    """
    scheme = model.scheme(options.detector)
    read = [path for path in uploads.paths if path not in uploads.refused]
    by_source = groupby(model.recognize(read, options), lambda faces: faces.infos[0].index)
    for index, path in enumerate(uploads.paths):
        if path in uploads.refused:
            yield no_faces([PhotoInfo(str(path), uploads.refused[path], index)], scheme)
            continue
        _, parts = next(by_source)
        for faces in parts:
            infos = tuple(replace(info, index=index) for info in faces.infos)
            yield replace(faces, infos=infos)


@dataclass
class FileFaces:
    """What was found in a photo or clip.

    Attributes:
        people: How often each person of a clip, by track, has each expression; a photo's faces have
            the track None.
        statuses: Of the photo, or of the frames.
        rows: Number of its rows in the table.
        faces: The faces of a photo; the faces of a clip are only counted.
    """

    people: defaultdict[int | None, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    statuses: set[str] = field(default_factory=set)
    rows: int = 0
    faces: Faces = field(default_factory=no_faces)

    def add(self, faces: Faces) -> None:
        """Adds the photo, or a frame of the clip, with its faces."""
        (info,) = faces.infos
        self.statuses.add(info.status)
        self.rows += max(1, len(faces))
        for face in faces:
            label = face.label_smoothed or face.label
            assert label is not None  # the recognizer has classified it
            self.people[face.track][label] += 1
        if info.frame is None:
            self.faces = faces


@dataclass
class Findings:
    """What was found in the files of a task.

    Attributes:
        clips: The clips that are read.
        files: Photos and clips, by path.
        people: The people in the clips.
    """

    clips: Sequence[Path]
    files: dict[str, FileFaces] = field(default_factory=dict)
    people: Watched = field(default_factory=Watched)

    def note(self, photos: Iterable[Faces]) -> Iterator[Faces]:
        """Yields each photo and frame, and notes its faces on the way."""
        for faces in photos:
            (info,) = faces.infos
            self.files.setdefault(info.path, FileFaces()).add(faces)
            if Path(info.path) in self.clips:
                self.people.add(faces)
            yield faces


def describe_faces(name: str, file: FileFaces) -> Iterator[str]:
    """Yields a sentence about the faces of a photo or clip that has some."""
    people = dict(file.people)
    in_photo = people.pop(None, None)
    if in_photo is not None:
        yield f"{name}: {counted(in_photo.total(), 'face')} ({format_counts(in_photo)})."
    elif people:
        tracks = sorted(track for track in people if track is not None)
        mostly = []
        for track in tracks[:8]:
            ((label, _),) = people[track].most_common(1)
            mostly.append(f"person {track} mostly {label}")
        if len(tracks) > 8:
            mostly.append(f"and {len(tracks) - 8} more")
        yield f"{name}: {', '.join(mostly)}."


def describe_problems(name: str, file: FileFaces) -> Iterator[str]:
    """Yields sentences about a photo or clip that has no face, or that cannot be read."""
    if not file.people and NO_FACE in file.statuses:
        yield f"No face found in {name}."
    for status in sorted(file.statuses - {OK, NO_FACE}):
        if status in READ_STATUSES:
            yield f"{name}: {status}."
        elif file.rows == 1 and status in REMEDIES:
            yield f"{name} {REMEDIES[status]}"
        else:
            part = " to its end" if file.rows > 1 else ""
            yield f"{name} cannot be read{part}: {status}."


def name_pictures(photos: Mapping[str, Faces]) -> dict[str, str]:
    """Returns the file of the drawn picture of each photo with a face, by path."""
    with_faces = [name for name, faces in photos.items() if len(faces)]
    return {name: f"photos/{number}.jpg" for number, name in enumerate(with_faces)}


def draw_photos(photos: Mapping[str, Faces], files: Mapping[str, str]) -> Iterator[DecodedPhoto]:
    """Yields photos, by path, with their faces and their image, which is decoded only here.

    On the way, draws the faces into `files`, as large as the page shows them.
    """
    Path("../photos").mkdir()
    for name, faces in photos.items():
        if name not in files:
            yield DecodedPhoto(faces, image=None)
            continue
        image = read_image(Path(name))
        Pil.fromarray(draw_photo(image, faces)).save(f"../{files[name]}", quality=88)
        yield DecodedPhoto(faces, image)


def draw_photo(image: Image, faces: Faces) -> Image:
    """Returns a photo (H, W, 3), as large as the page shows it, with its faces marked."""
    photo = Pil.fromarray(image)
    scale = min(1.0, SHOWN_SIDE / max(photo.size))
    photo.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    marked = []
    for number, face in enumerate(faces, start=1):
        box = None if face.box is None else face.box * scale
        assert face.label is not None  # the recognizer has classified it
        marked.append(Marked(box, face.label, face.confidence, number))
    return draw_faces(np.asarray(photo), marked)
