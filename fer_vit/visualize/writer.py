"""Writes a report: a folder with the page, pictures and tables."""

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from fer_vit.data.sample import Batch
from fer_vit.explain.methods import METHODS
from fer_vit.explain.trace import trace
from fer_vit.geometry import Array
from fer_vit.predict.photos import PhotoOptions, is_video
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import SMALL, FaceResult
from fer_vit.predict.tables import format_count, format_counts
from fer_vit.report.draw import FaceView, printable
from fer_vit.report.html import Evidence, FaceRecord, average_data, save_face, write_page
from fer_vit.report.table import Cell, TableWriter
from fer_vit.visualize import evidence
from fer_vit.visualize.evidence import FACES, Average, LabelChoice, Shown, head_views
from fer_vit.visualize.timeline import Video, limit, pictures, watch

OTHER, BYTES = 0.1, 60_000
"""Seconds and bytes of a face besides its explanation: detection, pictures and their files."""
REPORT = "photos", "faces.parquet", "shares.csv", "relations.csv", "heads.csv", "heads_relations.csv", "index.html"
"""All that a report may contain, and a new one replaces. The page comes last, when all that it shows exists."""
WHOLE = "the whole encoder"
"""Name of the first view of attention."""
ATTENTION_TEXT = (
    "Where the model looks: the attention between regions, and to the output, which is classified. "
    "It does not depend on the expression, and a region with much attention need not change the prediction."
)


def write_report(
    folder: Path,
    model: Recognizer,
    sources: Sequence[Path],
    options: PhotoOptions,
    method: str,
    name: str,
    labels: LabelChoice = "predicted",
    most: int = sys.maxsize,
) -> int:
    """Writes a report of photos and videos to a new folder and returns how many faces it shows.

    `name` is the model's name. At most so many faces of photos, and as many of videos, are explained.
    """
    folder.mkdir()
    regions = model.crop_spec.regions
    root = os.path.commonpath([source.absolute().parent for source in sources])
    photos, films = ([s for s in sources if is_video(s) == video] for video in (False, True))
    videos, frames = watch(model.recognize(films, options)) if films else ({}, Counter())
    fewer, skipped = limit(videos.values(), most), dict.fromkeys(map(str, films), "no face")
    number = _count_pictures(videos, skipped)
    print_estimate(model, method, labels, min(len(photos), most), number)
    status: Counter[str] = Counter()
    shown = chain(
        _photos(model, photos, options, status, skipped, most), pictures(model, videos, options) if films else ()
    )
    explained = (evidence.explain_faces(model, *some, method, labels) for some in shown)
    records, averages, every, small = _save_faces(folder, chain.from_iterable(explained), regions, root, bool(films))
    fewer |= len(records) >= most
    found = {label: averages[label] for label in model.labels if label in averages}
    evidence.write_tables(folder, found, regions)
    if records:
        evidence.write_heads(folder, every, len(model.net.vit.blocks))
    facts = _facts({"Photos": status, "Frames": frames}, most if fewer else None, len(records), small)
    write_page(
        folder / "index.html",
        "Why each prediction?",
        {"Method": method, "Model": name, **facts},
        model.labels,
        records,
        regions,
        _mean_faces(model, found),
        views=name_views(model, every.means["distance"].value) if records else [WHOLE],
        grid=model.net.layout.grid,
        meaning=meanings(model, method),
        people=_describe_people(videos, root),
        skipped=[(_short(path, root), reason) for path, reason in skipped.items()],
    )
    return len(records)


def _count_pictures(videos: Mapping[str, Video], skipped: dict[str, str]) -> int:
    """Returns the number of pictures of people in videos, and removes their videos from the skipped ones."""
    faces = [face for video in videos.values() for face in video.pictures()]
    for face in faces:
        skipped.pop(face.path, None)
    return len(faces)


def _describe_people(videos: Mapping[str, Video], root: str) -> list[dict[str, Any]]:
    return [line | {"name": _short(path, root)} for path, video in videos.items() for line in video.lines()]


def _save_faces(
    folder: Path,
    explained: Iterable[tuple[FaceResult, FaceView, Evidence]],
    regions: Sequence[str],
    root: str,
    videos: bool,
) -> tuple[list[FaceRecord], Mapping[str, Average], Average, int]:
    """Saves faces and their table; returns records, averages by label and of all, and the number of small faces."""
    averages: defaultdict[str, Average] = defaultdict(lambda: Average(regions))
    records: list[FaceRecord] = []
    every, small = Average(regions), 0
    with TableWriter(folder / "faces.parquet", table_columns(regions, videos)) as table:
        for face, view, one in explained:
            view = replace(view, name=_short(face.path, root))
            records.append(save_face(folder, len(records), view, one, regions))
            averages[records[-1].label].add(view, one)
            every.add(view, one)
            table.write([_row(face, view, one, regions)])
            small += face.size < SMALL
    return records, averages, every, small


def _facts(status: Mapping[str, Counter[str]], limited: int | None, faces: int, small: int) -> dict[str, str]:
    """Returns what the page reports of the sources and their faces, of which some are small."""
    facts = {kind: format_counts(count) for kind, count in status.items() if count}
    if limited is not None:
        facts["Explained"] = f"at most {limited:,} faces of photos, and of videos"
    if small:
        number = f"{small:,} of {format_count(faces, 'face')}"
        facts["Warning"] = f"{number} below {SMALL} pixels: labels of small faces flicker"
    return facts


def _mean_faces(model: Recognizer, averages: Mapping[str, Average]) -> list[dict[str, Any]]:
    """Returns the means that the page shows, of labels with enough faces."""
    size, regions = model.crop_spec.size, model.crop_spec.regions
    shown = {label: one for label, one in averages.items() if len(one.rows) >= FACES}
    return [
        average_data(len(one.rows), *one.face(label, size), regions, one.intervals()) for label, one in shown.items()
    ]


def name_views(model: Recognizer, distance: Array) -> list[str]:
    """Names the views of attention, whose mean distances (V,) are NaN for all but heads."""
    views = head_views(distance, len(model.net.vit.blocks))
    heads = [f"block {block}, head {head}: {distance[view]:.0f} px" for view, block, head in views]
    return [WHOLE, *heads, *(f"query of {label}" for label in model.labels[: len(distance) - 2 - len(heads)])]


def print_estimate(model: Recognizer, method: str, labels: LabelChoice, photos: int, frames: int) -> None:
    """Prints how long the explanations take, and how large they are, with one face in each photo."""
    size, regions = model.crop_spec.size, len(model.crop_spec.regions)
    image, boxes, valid = torch.zeros(1, 3, size, size), torch.zeros(1, regions, 4), torch.ones(1, regions).bool()
    for _ in range(2):  # the first time is slow
        start = time.perf_counter()
        seen = trace(model.net, *(values.to(model.device) for values in (image, boxes, valid)))
        next(evidence.explain_labels(model.net, seen, method, labels))
        seconds = time.perf_counter() - start + OTHER
    faces = photos + frames
    minutes, size = (max(1, round(number)) for number in (seconds * faces / 60, BYTES * faces / 1e6))
    assumed = "with one face in each photo" if photos else f"for {format_count(frames, 'picture')} of people"
    print(f"About {minutes:,} min and {size:,} MB {assumed}.")


def meanings(model: Recognizer, method: str) -> dict[str, str]:
    """Returns a sentence on attention and on attribution, and how faithful each was measured to be."""
    text = str(METHODS[method].__doc__).partition("\n")[0]
    drives = f"What drives the prediction: {text[0].lower()}{text[1:]} Orange is for the expression, blue against it."
    faithfulness = model.net.settings.faithfulness
    return {
        "attention": f"{ATTENTION_TEXT} {_measured(faithfulness.get('attention', ()))}",
        "pixels": f"{drives} {_measured(faithfulness.get(method, ()))}",
    }


def _measured(gain: Sequence[float]) -> str:
    if not gain:
        return "Its faithfulness was not measured for this model: see fer-vit faithfulness."
    mean, *interval = gain
    spread = f" (95% interval {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    return f"Measured faithfulness: {mean:.2f}{spread}, the gain in pixel insertion over random scores (0 is no gain)."


def _photos(
    model: Recognizer,
    photos: Sequence[Path],
    options: PhotoOptions,
    status: Counter[str],
    skipped: dict[str, str],
    most: int,
) -> Iterator[tuple[Sequence[Shown], Sequence[Batch]]]:
    """Yields the first faces of photos; counts all photos by status, and notes why photos have no face."""
    for some, chunks in model.find(photos, options) if photos else ():
        status.update(photo.reason for photo in some)
        skipped.update({photo.path: photo.status for photo in some if not photo.faces})
        classified = model.classify([(some, chunks)], photos)
        faces = [face for photo in classified for face in photo.faces][:most]
        yield [(face, None) for face in faces], chunks
        most -= len(faces)


def _short(path: str, root: str) -> str:
    """Returns a path below the common folder of all files: reports may be sent on, and folders can be private."""
    return printable(os.path.relpath(path, root))


def table_columns(regions: Sequence[str], videos: bool) -> dict[str, type]:
    """Returns name and type of the columns of `faces.parquet`, with more of them where there are videos."""
    when: dict[str, type] = {"frame": int, "seconds": float, "track": int} if videos else {}
    return {"path": str, **when, "face": int, "predicted": str, "confidence": float, **dict.fromkeys(regions, float)}


def _row(face: FaceResult, view: FaceView, one: Evidence, regions: Sequence[str]) -> dict[str, Cell]:
    shares = zip(regions, one.labels[one.order[0]][0].tolist(), strict=True)
    row = {name: getattr(face, name) for name in ("path", "face", "confidence", "frame", "seconds", "track")}
    return row | {"predicted": face.label} | {name: share for name, share in shares if name in view.regions}
