"""Writes a report: a folder with the page, pictures and tables."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil

from fer_vit.data.sample import Batch
from fer_vit.evaluate.intervals import mean_intervals
from fer_vit.geometry import Array
from fer_vit.predict.inputs import is_video
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import SMALL, FaceResult
from fer_vit.predict.stages import classify_faces
from fer_vit.predict.tables import counted, listed
from fer_vit.report.charts import relations_figure
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.html import Evidence, FaceRecord, Means, save_face, write_page
from fer_vit.report.table import Cell, TableWriter
from fer_vit.visualize.evidence import LabelChoice, Shown, explain_faces
from fer_vit.visualize.heads import HeadWriter
from fer_vit.visualize.timeline import limit, pictures, watch

REPORT = (
    *("photos", "faces.parquet", "shares.csv", "relations.png", "relations.csv"),
    *("heads", "heads.png", "heads_distance.png", "heads_relations.png", "heads.csv", "heads_relations.csv"),
    "index.html",
)
"""All that a report may contain, and a new one replaces. The page comes last, when all that it shows exists."""
MEANS = {"predicted": str, "region": str, "faces": int, "mean": float, "low": float, "high": float}


def write_report(
    folder: Path,
    model: Recognizer,
    sources: Sequence[Path],
    options: PhotoOptions,
    method: str,
    heads: bool,
    name: str,
    labels: LabelChoice = "predicted",
    most: int = sys.maxsize,
) -> int:
    """Writes a report of photos and videos to a new folder and returns how many faces it shows.

    `name` is the model's name. At most so many faces of photos, and as many of videos, are explained.
    """
    folder.mkdir()
    regions = model.crop_spec.regions
    relation_writer = RelationWriter(folder, model.labels, regions)
    head_writer = HeadWriter(folder, model) if heads else None
    status: Counter[str] = Counter()
    photos, films = ([s for s in sources if is_video(s) == video] for video in (False, True))
    videos, frames = watch(model.recognize(films, options)) if films else ({}, Counter())
    fewer = limit(videos.values(), most)
    faces = chain(_photos(model, photos, options, status, most), pictures(model, videos, options) if films else ())
    records: list[FaceRecord] = []
    small = 0
    columns = table_columns(regions, bool(films))
    with TableWriter(folder / "faces.parquet", columns) as table:
        for some, chunks in faces:
            for face, view, evidence, crop, roles in explain_faces(model, some, chunks, method, heads, labels):
                relation_writer.add(view, evidence)
                if head_writer and roles:
                    head_writer.add(view, crop, roles)
                records.append(save_face(folder, len(records), view, evidence, regions))
                table.write([_row(face, view)])
                small += face.size < SMALL
    means = mean_shares(records, regions)
    write_shares(folder, means)
    counts = {"Photos": status, "Frames": frames}
    warning = f"{small:,} of {counted(len(records), 'face')} below {SMALL} pixels: labels of small faces flicker"
    limited = {"Explained": f"at most {most:,} faces of photos, and of videos"} if fewer or len(records) >= most else {}
    write_page(
        folder / "index.html",
        "Why each prediction?",
        {"Method": method, "Model": name}
        | {kind: listed(count) for kind, count in counts.items() if count}
        | limited
        | ({"Warning": warning} if small else {}),
        records,
        means,
        regions,
        relations=relation_writer.write(),
        heads=head_writer.write() if head_writer else (),
        people=[line for video in videos.values() for line in video.lines()],
    )
    return len(records)


def _photos(
    model: Recognizer, photos: Sequence[Path], options: PhotoOptions, status: Counter[str], most: int
) -> Iterator[tuple[Sequence[Shown], Sequence[Batch]]]:
    """Yields the first faces of photos, and counts all photos by status."""
    for some, chunks in model.find(photos, options) if photos else ():
        status.update(photo.reason for photo in some)
        classified = classify_faces(model.net, model.crop_spec, [(some, chunks)], photos)
        faces = [face for photo in classified for face in photo.faces][:most]
        yield [(face, None) for face in faces], chunks
        most -= len(faces)


def table_columns(regions: Sequence[str], videos: bool) -> dict[str, type]:
    """Returns name and type of the columns of `faces.parquet`, with more of them where there are videos."""
    when: dict[str, type] = {"frame": int, "seconds": float, "track": int} if videos else {}
    return {"path": str, **when, "face": int, "predicted": str, "confidence": float, **dict.fromkeys(regions, float)}


def _row(face: FaceResult, view: FaceView) -> dict[str, Cell]:
    label, confidence = ranked(view.probabilities)[0]
    when = {"frame": face.frame, "seconds": face.seconds, "track": face.track}
    return {"path": view.name, "face": view.face, "predicted": label, "confidence": confidence, **when, **view.shares}


def mean_shares(records: Iterable[FaceRecord], regions: Sequence[str]) -> Means:
    """Returns each region's mean share and its interval per predicted label, over faces that show the region."""
    shares = defaultdict(list)
    for record in records:
        shares[record.label].append([record.shares.get(region, np.nan) for region in regions])
    return {
        label: {name: mean for name, mean in zip(regions, mean_intervals(np.array(rows)), strict=True) if mean["faces"]}
        for label, rows in shares.items()
    }


def write_shares(folder: Path, means: Means) -> None:
    """Writes `shares.csv`: the mean share of every region by predicted expression, with its interval."""
    with TableWriter(folder / "shares.csv", MEANS) as table:
        for label, regions in means.items():
            table.write([{"predicted": label, "region": region, **mean} for region, mean in regions.items()])


@dataclass
class RelationWriter:
    """Collects the relations between R regions, face by face, and writes the means by predicted expression."""

    folder: Path
    labels: Sequence[str]
    regions: Sequence[str]
    # (R, R) each, by label; NaN where one of a pair is missing
    matrices: defaultdict[str, list[NDArray[np.float32]]] = field(default_factory=lambda: defaultdict(list), init=False)

    def add(self, view: FaceView, evidence: Evidence) -> None:
        """Adds a face."""
        present = np.array([name in view.regions for name in self.regions])
        matrix = np.where(np.outer(present, present), evidence.relations, np.nan).astype(np.float32)
        self.matrices[ranked(view.probabilities)[0][0]].append(matrix)

    def write(self) -> list[Pil.Image]:
        """Writes `relations.png` and `relations.csv`. Returns the pictures."""
        labels = [label for label in self.labels if label in self.matrices]
        if not labels or len(self.regions) < 2:
            return []
        pairs = [{"region": region, "takes_from": other} for region in self.regions for other in self.regions]
        means: dict[str, Array] = {}
        columns = {"predicted": str, "region": str, "takes_from": str} | MEANS
        with TableWriter(self.folder / "relations.csv", columns) as table:
            for label in labels:
                faces = self.matrices[label]
                intervals = mean_intervals(np.stack(faces).reshape(len(faces), -1).astype(float))
                table.write([{"predicted": label, **pair, **one} for pair, one in zip(pairs, intervals, strict=True)])
                title = f"{label}, {counted(len(faces), 'face')}"
                means[title] = np.array([interval["mean"] for interval in intervals], float).reshape(faces[0].shape)
        picture = Pil.fromarray(relations_figure(means, self.regions, 4))
        picture.save(self.folder / "relations.png")
        return [picture]
