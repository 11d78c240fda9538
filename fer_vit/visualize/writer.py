"""Writes a report: a folder with the page, pictures and tables of means."""

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from fer_vit.data.dataset import Batch
from fer_vit.errors import printable
from fer_vit.evaluate.scores import mean_intervals
from fer_vit.explain.methods import METHODS
from fer_vit.explain.trace import trace
from fer_vit.face.crop import warp
from fer_vit.geometry import Array, Float32Array
from fer_vit.predict.photos import PhotoOptions, is_video
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import SMALL, FaceResult
from fer_vit.predict.tables import format_count, format_counts
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.html import GENERATOR, Evidence, FaceRecord, average_data, render, save_face
from fer_vit.report.table import Cell, Interval, TableWriter
from fer_vit.visualize.evidence import (
    LabelChoice,
    Shown,
    Video,
    explain_faces,
    explain_labels,
    limit,
    pictures,
    watch,
)

OTHER, BYTES = (
    0.1,
    60_000,
)  # seconds and bytes of a face besides its explanation: detection, pictures and their files
REPORT = (
    "photos",
    "faces.parquet",
    "shares.csv",
    "relations.csv",
    "heads.csv",
    "heads_relations.csv",
    "index.html",
)
"""All that a report may contain, and a new one replaces. The page comes last, when all that it shows exists."""
Explained: TypeAlias = tuple[FaceResult, FaceView, Evidence]
WHOLE = "the whole encoder"  # name of the first view of attention
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
    on_face: Callable[[int, int], None] = lambda faces, in_videos: None,
) -> int:
    """Writes a report of at most `most` faces of photos, and as many of videos, to a folder; returns their number.

    After each face, `on_face` gets the number of faces so far, and how many of videos there will be.
    """
    folder.mkdir()
    root = os.path.commonpath([source.absolute().parent for source in sources])
    films, photos = (
        [*filter(is_video, sources)],
        [source for source in sources if not is_video(source)],
    )
    videos, frames = watch(model.recognize(films, options)) if films else ({}, Counter())
    fewer, status, skipped = (
        limit(videos.values(), most),
        Counter[str](),
        dict.fromkeys(map(str, films), "no face"),
    )
    chosen = [*chain.from_iterable(map(Video.pictures, videos.values()))]
    for face in chosen:
        skipped.pop(face.path, None)
    print_estimate(model, method, labels, min(len(photos), most), len(chosen))
    shown = chain(
        _photos(model, photos, options, status, skipped, most), pictures(model, videos, options)
    )
    explained = chain.from_iterable(explain_faces(model, *some, method, labels) for some in shown)
    counted = _count(explained, lambda faces: on_face(faces, len(chosen)))
    records, means, views, small = _save_faces(folder, model, counted, root, bool(films))
    fewer |= len(records) >= most
    facts = _facts({"Photos": status, "Frames": frames}, most * fewer, len(records), small)
    render(
        folder / "index.html",
        "page",
        title="Why each prediction?",
        generator=GENERATOR,
        facts={"Method": method, "Model": name, **facts},
        labels=model.labels,
        records=records,
        counts=Counter(map(attrgetter("label"), records)),
        regions=model.crop_spec.regions,
        averages=means,
        views=views,
        grid=model.net.layout.grid,
        meaning=meanings(model, method),
        people=[line for path, video in videos.items() for line in video.lines(_short(path, root))],
        skipped=[(_short(path, root), reason) for path, reason in skipped.items()],
    )
    return len(records)


def _count(faces: Iterable[Explained], report: Callable[[int], None]) -> Iterator[Explained]:
    """Yields faces, and reports their number after each."""
    for number, face in enumerate(faces, 1):
        yield face
        report(number)


def _save_faces(
    folder: Path,
    model: Recognizer,
    explained: Iterable[Explained],
    root: str,
    videos: bool,
) -> tuple[list[FaceRecord], list[dict[str, Any]], list[str], int]:
    """Saves faces and tables; returns records, means that the page shows, names of views, and how many are small."""
    regions = model.crop_spec.regions
    averages: defaultdict[str, Average] = defaultdict(lambda: Average(regions))
    records: list[FaceRecord] = []
    every, small = Average(regions), 0
    when: dict[str, type] = {"frame": int, "seconds": float, "track": int} if videos else {}
    columns = {
        "path": str,
        **when,
        "face": int,
        "predicted": str,
        "confidence": float,
        **dict.fromkeys(regions, float),
    }
    with TableWriter(folder / "faces.parquet", columns) as table:
        for face, view, one in explained:
            view = replace(view, name=_short(face.path, root))
            records.append(save_face(folder, len(records), view, one, regions))
            averages[records[-1].label].add(view, one)
            every.add(view, one)
            row: dict[str, Cell] = {
                name: getattr(face, name) for name in ("path", "face", "confidence", *when)
            }
            shares = zip(regions, one.labels[one.order[0]][0].tolist(), strict=True)
            row |= {"predicted": face.label} | {
                name: share for name, share in shares if name in view.regions
            }
            table.write([row])
            small += face.size < SMALL
    found = {label: averages[label] for label in model.labels if label in averages}
    write_tables(folder, found, regions)
    if not records:
        return [], [], [WHOLE], 0
    write_heads(folder, every, len(model.net.vit.blocks))
    means = [
        average_data(
            len(one.rows), *one.face(label, model.crop_spec.size), regions, one.intervals()
        )
        for label, one in found.items()
        if len(one.rows) >= FACES
    ]
    return records, means, name_views(model, every.mean("distance")), small


def _facts(
    status: Mapping[str, Counter[str]], limited: int, faces: int, small: int
) -> dict[str, str]:
    """Returns what the page reports of the sources and their faces, of which some are small."""
    facts = {kind: format_counts(count) for kind, count in status.items() if count}
    if limited:
        facts["Explained"] = f"at most {limited:,} faces of photos, and of videos"
    if small:
        number = f"{small:,} of {format_count(faces, 'face')}"
        facts["Warning"] = f"{number} below {SMALL} pixels: labels of small faces flicker"
    return facts


def _short(path: str, root: str) -> str:
    """Returns a path below the common folder of all files: reports may be sent on, and folders can be private."""
    return printable(os.path.relpath(path, root))


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
        classified = model.classify([(some, chunks)], photos, options.detector)
        faces = [face for photo in classified for face in photo.faces][:most]
        yield [(face, None) for face in faces], chunks
        most -= len(faces)


def print_estimate(
    model: Recognizer, method: str, labels: LabelChoice, photos: int, frames: int
) -> None:
    """Prints how long the explanations take, and how large they are, with one face in each photo."""
    size, regions = model.crop_spec.size, len(model.crop_spec.regions)
    image, boxes, valid = (
        torch.zeros(1, 3, size, size),
        torch.zeros(1, regions, 4),
        torch.ones(1, regions).bool(),
    )
    face = [values.to(model.device) for values in (image, boxes, valid)]
    for _ in range(2):  # the first time is slow
        start = time.perf_counter()
        next(explain_labels(model.net, trace(model.net, *face), method, labels))
    seconds = time.perf_counter() - start + OTHER
    faces = photos + frames
    minutes, size = (
        max(1, round(number)) for number in (seconds * faces / 60, BYTES * faces / 1e6)
    )
    assumed = (
        "with one face in each photo"
        if photos
        else f"for {format_count(frames, 'picture')} of people"
    )
    print(f"About {minutes:,} min and {size:,} MB {assumed}.")


def name_views(model: Recognizer, distance: Array) -> list[str]:
    """Names the views of attention, whose mean distances (V,) are NaN for all but heads."""
    views = head_views(distance, len(model.net.vit.blocks))
    heads = [f"block {block}, head {head}: {distance[view]:.0f} px" for view, block, head in views]
    return [
        WHOLE,
        *heads,
        *(f"query of {label}" for label in model.labels[: len(distance) - 2 - len(heads)]),
    ]


def meanings(model: Recognizer, method: str) -> dict[str, str]:
    """Returns a sentence on attention and on attribution, and how faithful each was measured to be."""
    drives = (
        f"What drives the prediction: {METHODS[method].text} "
        "Orange is for the expression, blue against it."
    )
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


FACES = 30  # faces below which the page has no average
SIDE = 144  # side of the mean face in pixels
MEANS = {"region": str, "faces": int, "mean": float, "low": float, "high": float}
OUTPUT = "output"  # name in tables of the pooled tokens, which attend to the regions


class Average:
    """Means over faces of a model with R regions.

    `rows` are for each face the attribution to each region, what each gives to the output, and what each (row) takes
    from each: 2 R + R^2 values, NaN where a region is missing.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = regions
        self.rows: list[Float32Array] = []
        self.total: defaultdict[str, Any] = defaultdict(float)  # sum of each part of a face by name
        self.count: defaultdict[str, Any] = defaultdict(int)  # the numbers in it, without NaN

    def add(self, view: FaceView, evidence: Evidence) -> None:
        """Adds a face."""
        present = np.array([name in view.regions for name in self.regions], bool)
        shares, heat = evidence.labels[evidence.order[0]]
        attention = evidence.attention
        relations = np.where(np.outer(present, present), attention.relations, np.nan)
        output = np.where(present, attention.output, np.nan)
        shares = np.where(present, shares, np.nan)
        parts = attention._replace(relations=relations, output=output)._asdict() | {
            "shares": shares,
            "heat": heat / max(np.abs(heat).sum(), 1e-12),
            "boxes": np.array(
                [view.regions.get(name, np.full(4, np.nan)) for name in self.regions]
            ).reshape(-1, 4),
            "photo": warp(view.photo, view.to_crop * SIDE / view.crop_size, SIDE).astype(float),
        }
        for name, values in parts.items():
            self.total[name] += np.nan_to_num(values)
            self.count[name] += ~np.isnan(values)
        self.rows.append(
            np.concatenate([shares, output[0], relations[0].ravel()]).astype(np.float32)
        )

    def mean(self, name: str) -> Array:
        """Returns the mean of a part of a face; NaN where there is no number."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.total[name] / self.count[name])

    def intervals(self) -> list[Interval]:
        """Returns the mean of each value of `rows` with its interval."""
        return mean_intervals(np.stack(self.rows).astype(float))

    def face(self, label: str, crop_size: int) -> tuple[FaceView, Evidence]:
        """Returns the mean face, predicted as a label, and its explanation."""
        mean = {name: self.mean(name) for name in self.total}
        boxes = zip(self.regions, mean["boxes"], strict=True)
        view = FaceView(
            mean["photo"].round().astype(np.uint8),
            np.eye(2, 3) * crop_size / SIDE,
            crop_size,
            {name: box for name, box in boxes if np.isfinite(box).all()},
            probabilities={label: 1.0},
        )
        own = (np.nan_to_num(mean["shares"]), mean["heat"])
        attention = Attention(*(np.nan_to_num(mean[name]) for name in Attention._fields))
        return view, Evidence([0], {0: own}, own, attention)


def write_tables(folder: Path, averages: Mapping[str, Average], regions: Sequence[str]) -> None:
    """Writes `shares.csv` and `relations.csv`: means by predicted expression with their intervals."""
    pairs = [(region, other) for region in (OUTPUT, *regions) for other in regions]
    columns = {"predicted": str, "region": str, "takes_from": str} | MEANS
    with (
        TableWriter(folder / "shares.csv", {"predicted": str} | MEANS) as shares,
        TableWriter(folder / "relations.csv", columns) as relations,
    ):
        for label, average in averages.items():
            found = average.intervals()
            own = zip(regions, found, strict=False)
            shares.write(
                [{"predicted": label, "region": name, **one} for name, one in own if one["faces"]]
            )
            between = zip(pairs, found[len(regions) :], strict=True)
            relations.write(
                [
                    {"predicted": label, "region": a, "takes_from": b, **one}
                    for (a, b), one in between
                    if one["faces"]
                ]
            )


def write_heads(folder: Path, every: Average, blocks: int) -> None:
    """Writes `heads.csv` and `heads_relations.csv`: means of each attention head over all faces."""
    mean = Attention(*map(every.mean, Attention._fields))
    columns = {
        "block": int,
        "head": int,
        "distance_px": float,
        "patches": float,
        **dict.fromkeys(every.regions, float),
    }
    pairs = {"block": int, "head": int, "region": str, "takes_from": str, "mean": float}
    with (
        TableWriter(folder / "heads.csv", columns) as heads,
        TableWriter(folder / "heads_relations.csv", pairs) as relations,
    ):
        for view, block, head in head_views(mean.distance, blocks):
            which: dict[str, Any] = {"block": block, "head": head}
            row = {
                "distance_px": float(mean.distance[view]),
                "patches": float(mean.patches[view].sum()),
            }
            heads.write(
                [which | row | dict(zip(every.regions, _cells(mean.output[view]), strict=True))]
            )
            for region, values in zip(every.regions, mean.relations[view], strict=True):
                named = zip(every.regions, _cells(values), strict=True)
                relations.write(
                    [
                        which | {"region": region, "takes_from": name, "mean": one}
                        for name, one in named
                    ]
                )


def head_views(distance: Array, blocks: int) -> Iterator[tuple[int, int, int]]:
    """Yields index, block and head, counted from 1, of the views of attention that are heads."""
    views = np.flatnonzero(np.isfinite(distance))
    for number, view in enumerate(views.tolist()):
        block, head = divmod(number, len(views) // blocks)
        yield view, block + 1, head + 1


def _cells(values: Array) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
