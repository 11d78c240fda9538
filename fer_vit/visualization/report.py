"""Writes a report: a folder with the page, pictures and tables of means."""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fer_vit.errors import printable
from fer_vit.explain.methods import METHODS
from fer_vit.faces import OK, SMALL_SIZE, Crops
from fer_vit.fields import Cell
from fer_vit.heads import SMILE_NOTE, WEAK_MEANING
from fer_vit.listing import GENERATOR
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FigureKind
from fer_vit.report.explained_face import Attention, Evidence, FaceTerms, FaceView
from fer_vit.report.html import render
from fer_vit.report.records import FaceRecord, average_data, save_face
from fer_vit.report.table import TableWriter
from fer_vit.visualization.charts import fixed_charts
from fer_vit.visualization.evidence import explain_crops, explain_faces
from fer_vit.visualization.explained_scores import ExplainOptions
from fer_vit.visualization.figures import save_figures
from fer_vit.visualization.mean_faces import (
    Average,
    list_attention_heads,
    write_averages,
    write_heads,
)
from fer_vit.visualization.report_parts import Part
from fer_vit.visualization.timelines import Video, Watched
from fer_vit.wording import counted, format_counts, list_names

# Estimates for each face.
FACE_SECONDS = 0.1  # time for detection and pictures, without the explanation
FACE_BYTES = 60_000  # size of the files

MIN_FACES = 30  # fewest faces for a mean face on the page
MAX_EMBEDDED = 20_000_000  # most characters of pictures inside the page; other pictures are loaded
MAX_NAMED = 20  # most people in a line of text

# All files and folders that a report may contain. A new report replaces them. The page is last: it
# is written when everything that it shows exists.
REPORT_FILES = (
    "photos",
    "figures",
    "faces.parquet",
    "shares.csv",
    "relations.csv",
    "heads.csv",
    "heads_relations.csv",
    "index.html",
)

WHOLE_ENCODER = "the whole encoder"  # the name of the first view of attention
ATTENTION_TEXT = (
    "How regions exchange information: the attention between regions, and to the output, which is "
    "classified. It is not a reason for the prediction: it does not depend on the expression, and "
    "a region with much attention need not change the prediction."
)


def write_report(
    folder: Path,
    model: Recognizer,
    parts: Iterable[Part],
    watched: Watched,
    explain: ExplainOptions,
    root: Path,
    figures: FigureKind | None = None,
    figure_faces: Sequence[int] = (),
    on_face: Callable[[int], None] | None = None,
) -> int:
    """Writes a report of the faces in photos and videos to a new folder.

    Args:
        folder: The folder to create.
        model: The model whose predictions are explained.
        parts: The photos, and the frames of videos with faces to show, part by part.
        watched: The people in the videos.
        explain: Which scores are explained, and how.
        root: The folder; names of photos and videos in the report are relative to it.
        figures: The format of figures of faces. None: no figures.
        figure_faces: The numbers of faces with figures. Empty: all faces.
        on_face: A function that is called after each face, with the number of faces so far.

    Returns:
        The number of faces.

    Raises:
        FerVitError: The method or a target is unknown, or the method does not explain the target.
    """
    folder.mkdir()

    # Photos and frames are read, classified and explained part by part.
    photo_status: Counter[str] = Counter()
    skipped = _videos_without_faces(watched)
    left_out: dict[str, str] = {}
    with FaceSaver(folder, model.crop_spec.regions, in_videos=bool(watched.status)) as saver:
        for part in parts:
            numbers = np.bincount(part.photos.photo, minlength=len(part.photos.infos))
            for info, number in zip(part.photos.infos, numbers.tolist(), strict=True):
                photo_status[info.reason] += 1
                if not number:
                    skipped[info.path] = info.status
            for path, unexplained in part.left_out.items():
                left_out[path] = counted(unexplained, "face")
            for view, evidence in explain_faces(model, part, explain):
                view = replace(view, name=_below_root(view.face.path, root))
                number = len(saver.records)
                saver.save(view, evidence)
                if figures is not None and (not figure_faces or number in figure_faces):
                    save_figures(folder, number, view, evidence, model, figures)
                if on_face:
                    on_face(len(saver.records))

    # Write the tables of means and the page.
    facts = {"Explained by": METHODS[explain.method].title, "Model": model.name}
    facts |= _status_facts({"Photos": photo_status, "Frames": watched.status})
    incomplete = len(left_out)
    curves: list[dict[str, Any]] = []
    for path, video in watched.videos.items():
        curves += video.curves(_below_root(path, root), model.outputs)
        incomplete += bool(video.left_out)
        if text := _left_out_of_video(video):
            left_out[path] = text
    attention = saver.overall.attention()
    render(
        folder / "index.html",
        "page",
        title="Expressions, and what drives their prediction",
        generator=GENERATOR,
        facts=facts,
        warnings=_page_warnings(saver, incomplete),
        labels=model.labels,
        records=saver.records,
        counts=Counter(record.label for record in saver.records),
        regions=model.crop_spec.regions,
        averages=_write_mean_faces(folder, model, saver),
        min_faces=MIN_FACES,
        attention=attention,
        views=name_views(attention, model.labels) if attention else [],
        charts=fixed_charts(model.settings, saver.terms),
        meaning=view_texts(model, explain.method),
        notes=list_notes(model),
        people=curves,
        skipped=[(_below_root(path, root), reason) for path, reason in skipped.items()],
        left_out=[(_below_root(path, root), what) for path, what in left_out.items()],
    )
    return len(saver.records)


def _videos_without_faces(watched: Watched) -> dict[str, str]:
    """Returns why videos are not shown, by path: a video cannot be read, or has no face."""
    reasons = {}
    for path, status in watched.last_status.items():
        if path not in watched.videos:
            reasons[path] = status
        elif not (watched.videos[path].people or watched.videos[path].left_out):
            reasons[path] = "no face"
    return reasons


def _page_warnings(saver: "FaceSaver", incomplete: int) -> list[str]:
    """Returns the warnings of the page; `incomplete` files have unexplained faces."""
    warnings = []
    if saver.num_small:
        faces = f"{saver.num_small:,} of {counted(len(saver.records), 'face')}"
        warnings.append(f"{faces} below {SMALL_SIZE} pixels: labels of small faces flicker.")
    if incomplete:
        files = counted(incomplete, "file")
        warnings.append(f"Not all faces of {files} are explained: see the end of this page.")
    return warnings


def _left_out_of_video(video: Video) -> str:
    """Returns a text about the unexplained faces of a video; empty if there are none.

    Some frames of a person, or all frames of a person, may be unexplained.
    """
    lines = []
    frames = video.not_shown()
    if frames:
        numbers = [f"person {track} {number:,}" for track, number in frames.items()]
        lines.append(f"{sum(frames.values()):,} frames of people with pictures")
        lines.append(list_names(numbers, MAX_NAMED))
    if video.left_out:
        names = [f"person {track}" for track in video.left_out]
        lines.append(f"all frames of {len(names):,} people: {list_names(names, MAX_NAMED)}")
    return "; ".join(lines)


class FaceSaver:
    """Writes pictures of faces and rows of `faces.parquet`; collects records and means of faces."""

    def __init__(self, folder: Path, regions: Sequence[str], in_videos: bool) -> None:
        self.regions = regions
        self.records: list[FaceRecord] = []
        self.overall = Average(regions)
        self.by_label: defaultdict[str, Average] = defaultdict(lambda: Average(regions))
        self.terms: Mapping[str, FaceTerms] = {}  # of the last face
        self.num_small = 0  # the number of faces below `SMALL_SIZE` pixels
        self._folder = folder
        self._embedded = 0  # the characters of all pictures so far
        # columns whose names are attributes of `Face`
        self._face_columns: dict[str, type] = {"path": str}
        if in_videos:
            self._face_columns |= {"frame": int, "seconds": float, "track": int}
        self._face_columns |= {"face": int}
        shares = dict.fromkeys(self.regions, float)
        columns = self._face_columns | {"predicted": str, "confidence": float} | shares
        self._table = TableWriter(folder / "faces.parquet", columns)

    def __enter__(self) -> "FaceSaver":
        self._table.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._table.__exit__(error_type, error, traceback)

    def save(self, view: FaceView, evidence: Evidence) -> None:
        """Saves a face with its explanation."""
        face = view.face
        record = save_face(self._folder, len(self.records), view, evidence, self.regions)
        self._embedded += len(record.pictures)
        if self._embedded > MAX_EMBEDDED:
            record = record._replace(pictures="")
        self.records.append(record)
        self.terms = evidence.terms
        self.overall.add(view, evidence)
        self.by_label[record.label].add(view, evidence)
        if face.size < SMALL_SIZE:
            self.num_small += 1

        row: dict[str, Cell] = {name: getattr(face, name) for name in self._face_columns}
        row["predicted"] = face.label
        row["confidence"] = face.confidence
        shares = evidence.targets[0].shares.tolist()
        for region, share in zip(self.regions, shares, strict=True):
            if region in view.regions:
                row[region] = share
        self._table.write([row])


def _write_mean_faces(folder: Path, model: Recognizer, saver: FaceSaver) -> list[dict[str, Any]]:
    """Writes the tables of means; returns the mean faces for the page, in the model's label order.

    A label with fewer than `MIN_FACES` faces has no mean face.
    """
    predicted = [label for label in model.labels if label in saver.by_label]
    averages = {label: saver.by_label[label] for label in predicted}
    write_averages(folder, averages, saver.regions)
    attention = saver.overall.attention()
    if attention is not None:
        write_heads(folder, attention, saver.regions)
    shown = []
    for label, average in averages.items():
        faces = len(average.rows)
        if faces >= MIN_FACES:
            view, evidence = average.face(label, model.crop_spec.size)
            shown.append(average_data(faces, view, evidence, saver.regions, average.intervals()))
    return shown


def _status_facts(status: Mapping[str, Counter[str]]) -> dict[str, str]:
    """Returns the number of photos and frames as text, by kind.

    If some cannot be read, the text has the number for each status. Kinds without files are left
    out.
    """
    facts = {}
    for kind, counts in status.items():
        if set(counts) == {OK}:
            facts[kind] = f"{counts[OK]:,}"
        elif counts:
            facts[kind] = format_counts(counts)
    return facts


def _below_root(path: str, root: Path) -> str:
    """Returns a path relative to `root`.

    Names of the folders above may be private, and reports may be shared.
    """
    return printable(os.path.relpath(path, root))


def estimate_effort(
    model: Recognizer, options: ExplainOptions, num_photos: int, num_video_faces: int
) -> str:
    """Returns a sentence with an estimate of the time and size of the explanations.

    Assumption: each photo has one face.
    """
    size = model.crop_spec.size
    regions = len(model.crop_spec.regions)
    blank = Crops(
        image=np.zeros((1, size, size, 3), np.uint8),
        boxes=np.zeros((1, regions, 4), np.float32),
        valid=np.ones((1, regions), bool),
        to_crop=np.eye(2, 3)[None],
    )
    num_faces = num_photos + num_video_faces
    for _ in range(2):  # the first explanation is slow
        start = time.perf_counter()
        next(explain_crops(model, blank, options))
        seconds = time.perf_counter() - start + FACE_SECONDS
        if seconds * num_faces < 60:  # a second explanation could not change "About 1 min"
            break

    minutes = seconds * num_faces / 60
    duration = "Less than a minute" if minutes < 1 else f"About {round(minutes):,} min"
    megabytes = max(1, round(FACE_BYTES * num_faces / 1e6))
    assumed = f"for {counted(num_video_faces, 'picture')} of people"
    if num_photos:
        assumed = "if each photo has one face"
    return f"{duration} and about {megabytes:,} MB {assumed}."


def name_views(attention: Attention, labels: Sequence[str]) -> list[str]:
    """Returns the names of the V views of attention: the encoder, attention heads, label queries.

    The name of an attention head has its mean attention distance in pixels.
    """
    names = [WHOLE_ENCODER]
    for head in list_attention_heads(len(attention.distance), attention.blocks):
        distance = attention.distance[head.position]
        names.append(f"block {head.block}, head {head.number}: {distance:.0f} px")
    # The other views are the queries of labels, if the network has queries.
    num_queries = len(attention.output) - len(names)
    for label in labels[:num_queries]:
        names.append(f"query of {label}")
    return names


def view_texts(model: Recognizer, method: str) -> dict[str, str]:
    """Returns the page's texts about attention and attribution, each with its faithfulness."""
    drives = (
        f"What drives the prediction: {METHODS[method].text} "
        "Orange is for the expression, blue against it."
    )
    faithfulness = model.settings.faithfulness
    return {
        "attention": f"{ATTENTION_TEXT} {_faithfulness_text(faithfulness.get('attention', ()))}",
        "attribution": f"{drives} {_faithfulness_text(faithfulness.get(method, ()))}",
    }


def list_notes(model: Recognizer) -> list[str]:
    """Returns what a reader of the model's labels and outputs must know, as sentences."""
    notes = []
    means = [mean.name for mean in model.outputs.means]
    if "smile" in means and "neutral" in model.labels:
        notes.append(SMILE_NOTE)
    if model.outputs.weak_columns:
        notes.append(WEAK_MEANING)
    return notes


def _faithfulness_text(gain: Sequence[float]) -> str:
    """Returns a sentence about faithfulness: the gain, and its interval if there is one.

    `gain` is (mean,) or (mean, low, high), or empty if the gain was not measured.
    """
    if not gain:
        return "Its faithfulness was not measured for this model: see fer-vit faithfulness."
    mean, *interval = gain
    spread = ""
    if interval:
        low, high = interval
        spread = f" (95% interval {low:.2f} to {high:.2f})"
    return (
        f"Measured faithfulness: {mean:.2f}{spread}, "
        "the gain in pixel insertion over random scores (0 is no gain)."
    )
