"""The output of `predict`: one table, or a folder of tables that several processes write and later runs resume."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from fer_vit.errors import FerVitError
from fer_vit.face.detect import choose_detector
from fer_vit.files import check_output
from fer_vit.predict.people import People, is_textgrid, write_intervals
from fer_vit.predict.photos import NO_FACE, OK, Photo, PhotoOptions, is_video
from fer_vit.predict.plan import Checked, check_tables, plan_tables, read_frames
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import SEPARATOR, WARNINGS, FaceResult, photo_rows, table_columns
from fer_vit.processes import ProcessRank
from fer_vit.report.table import Cell, TableWriter
from fer_vit.version import __version__

NO_LABEL = "without a label"


class Outputs(NamedTuple):
    """What `predict` writes."""

    table: Path  # of faces, or a folder of tables
    people: Path | None = None  # a table of the people in videos
    intervals: Path | None = None  # a table or TextGrid of their expressions
    copy: Path | None = None  # a copy of the only video with marked faces
    min_confidence: float = 0.0  # faces below it have no label and are ambiguous
    overwrite: bool = True  # existing files
    features: bool = False  # columns with the network's features

    def write_people(self, people: People, labels: list[str]) -> None:
        """Writes the requested tables of people."""
        if self.people:
            people.write(self.people, labels, self.overwrite)
        if self.intervals:
            write_intervals(self.intervals, people.intervals(), self.overwrite)


def check_videos(outputs: Outputs, sources: Sequence[Path], in_chunks: bool) -> None:
    """Raises FerVitError when an output needs another number of videos, or the marked copy cannot be written."""
    if not (wanted := outputs.intervals or outputs.people or outputs.copy):
        return
    videos = list(filter(is_video, sources))
    if copy := outputs.copy:
        itself = copy.resolve() in map(Path.resolve, videos)
        if any((in_chunks, itself, copy.suffix.lower() != ".mp4", len(videos) != 1)):
            found = f"--annotate {copy}, --output {outputs.table} and {len(videos)} videos"
            example = "fer-vit predict clip.mp4 --output faces.csv --annotate marked.mp4"
            raise FerVitError(f"Expected one video, one table and another .mp4, but got {found}. Example: `{example}`.")
        check_output(copy, outputs.overwrite)
    if not videos:
        raise FerVitError(f"{wanted} is a table of the people in videos, but there is no video. Leave it out.")
    if outputs.intervals and is_textgrid(outputs.intervals) and len(videos) > 1:
        raise FerVitError(f"A TextGrid contains one video, but there are {len(videos)}. Write a .csv instead.")


def predict_table(model: Recognizer, images: Sequence[Path], options: PhotoOptions, outputs: Outputs) -> str:
    """Writes a table of the faces in photos and videos; returns a summary.

    If the marked copy fails, all tables are written before the error is raised.
    """
    facts, photos = prediction_facts(model, options), model.recognize(images, options)
    errors: list[FerVitError] = []
    if outputs.copy:
        from fer_vit.predict.annotate import annotate_video  # only here: PyAV may not be installed

        video = next(filter(is_video, images))
        photos = annotate_video(photos, video, outputs.copy, options, errors, outputs.overwrite)
    columns = table_columns(model.labels, any(map(is_video, images)), outputs.features * model.net.vit.embed_dim)
    counts, people = _write_tables(photos, {outputs.table: images}, columns, facts, outputs)
    outputs.write_people(people, model.labels)
    if errors:
        raise FerVitError(f"{errors[0]} The table {outputs.table} is complete.")
    return f"{counts.summarize()}\nDetector: {facts['detector']}\nTable: {outputs.table}"


def predict_folder(
    model: Recognizer,
    images: Sequence[Path],
    options: PhotoOptions,
    outputs: Outputs,
    part_size: int,
    rank: ProcessRank,
) -> str:
    """Writes this process's share of the missing tables of a folder; returns a summary.

    Raises FerVitError when the folder contains other files, or a table of other images, options or another model.
    """
    facts = _folder_facts(model, images, options, outputs)
    plan, checked = plan_tables(outputs.table, images, part_size), dict[Path, Checked]()
    check_tables(plan, facts, checked)
    share = {path: plan[path] for path in [*plan][rank.rank :: rank.world_size] if path not in checked}
    photos = model.recognize([*chain.from_iterable(share.values())], options)
    again = outputs._replace(overwrite=True)  # a table that another process has written in the meantime is the same
    columns = table_columns(model.labels, any(map(is_video, images)), outputs.features * model.net.vit.embed_dim)
    counts, _ = _write_tables(photos, share, columns, facts, again)
    report = (
        f"{counts.summarize()}\nDetector: {facts['detector']}"
        if share
        else "Nothing to do: all tables of this process exist."
    )
    if left := sum(not path.exists() for path in plan):
        exist = f"{len(plan) - left:,} of {len(plan):,} tables exist"
        rest = "Other processes write the rest, or the same command resumes them."
        return f"{report}\n{outputs.table}: {exist}. {rest}"
    check_tables(plan, facts, checked)
    if outputs.people or outputs.intervals:
        people = People()
        for rows in chain.from_iterable(map(read_frames, plan)):
            people.add(rows)
        outputs.write_people(people, model.labels)
    status = sum((statuses for statuses, _ in checked.values()), Counter[str]())
    files = f"all {format_count(len(images), 'file')} exactly once ({format_counts(status, 5)})"
    faces = format_count(sum(faces for _, faces in checked.values()), "face")
    return f"{report}\n{outputs.table}: all {format_count(len(plan), 'table')}, {files}, {faces}"


def _write_tables(
    photos: Iterable[Photo[FaceResult]],
    share: Mapping[Path, Sequence[Path]],
    columns: dict[str, type],
    facts: Mapping[str, str],
    outputs: Outputs,
) -> tuple["Counts", People]:
    """Writes a table for each path of a share, of the photos and frames of its images."""
    counts, people = Counts(), People()
    by_source = (some for _, some in groupby(photos, attrgetter("source")))
    for path, images in share.items():
        check_output(path, outputs.overwrite)
        with TableWriter(path, columns, overwrite=outputs.overwrite, facts=facts) as table:
            for photo in chain.from_iterable(islice(by_source, len(images))):
                rows = list(photo_rows(photo, outputs.min_confidence, outputs.features))
                table.write(rows)
                counts.add(photo, rows)
                people.add(rows)
    return counts, people


def prediction_facts(model: Recognizer, options: PhotoOptions) -> dict[str, str]:
    """Returns what the metadata of a table records: version, model, and the settings that change predictions."""
    settings = {name: str(value) for name, value in options.video().items()}
    facts = {"version": __version__, "model": model.name, "face": options.face}
    return {**facts, **model.conditions, "detector": choose_detector(options.detector), **settings}


def _folder_facts(model: Recognizer, images: Sequence[Path], options: PhotoOptions, outputs: Outputs) -> dict[str, str]:
    """Returns what the metadata of each table in a folder records: all that one prediction has in common."""
    directory = "" if all(map(os.path.isabs, images)) else os.getcwd()  # of relative names
    more = {"min_confidence": outputs.min_confidence, "features": outputs.features, "directory": directory}
    given = {name: str(value) for name, value in more.items() if value}
    return {**prediction_facts(model, options), "fingerprint": fingerprint(model), **given}


def fingerprint(model: Recognizer) -> str:
    """Returns 16 characters that identify a model: a hash of its weights and its settings for prediction."""
    net = model.net
    digest = hashlib.sha256(str((net.config, net.settings, model.conditions)).encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


class Counts:
    """Numbers of photos and frames by kind and status, and of faces by label, ambiguity and warning."""

    def __init__(self) -> None:
        self.kinds, self.statuses, self.labels, self.warnings = (Counter[str]() for _ in range(4))
        self.ambiguous = Counter[bool]()

    def add(self, photo: Photo[FaceResult], rows: Sequence[Mapping[str, Cell]]) -> None:
        """Adds a photo or frame and its rows in the table."""
        self.kinds[photo_kind(photo)] += 1
        self.statuses[photo.reason if photo.taken_whole else photo.status] += 1
        for row in rows if photo.faces else ():
            self.labels[str(row["label"] or NO_LABEL)] += 1
            self.warnings.update(str(row["warning"] or "").split(SEPARATOR))
            if row["ambiguous"] is not None:
                self.ambiguous[bool(row["ambiguous"])] += 1

    def summarize(self) -> str:
        """Returns two lines, and further ones for ambiguous, small and turned faces."""
        faces, known = self.labels.total(), self.ambiguous.total()
        kinds = ", ".join(format_count(number, kind) for kind, number in self.kinds.items())
        lines = [
            f"{kinds}: {format_counts(merge_details(self.statuses))}",
            f"{format_count(faces, 'face')}: {format_counts(self.labels)}".removesuffix(": "),
        ]
        if known:
            number = self.ambiguous[True]
            lines.append(f"{number:,} of {known:,} faces are ambiguous ({number / known:.1%})")
        found = ((self.warnings[name], text) for name, text in WARNINGS.items())
        lines += [f"{number:,} of {faces:,} {text}" for number, text in found if number]
        return "\n".join(lines)


def photo_kind(photo: Photo[FaceResult]) -> str:
    """Returns "photo", "frame", or "failed video" for one that cannot be read to its end."""
    if photo.frame is not None:
        return "frame"
    return "failed video" if photo.status not in (OK, NO_FACE) and is_video(Path(photo.path)) else "photo"


def merge_details(status: Counter[str]) -> Counter[str]:
    """Counts statuses by the text before the colon; details after it are kept if they are always the same."""
    reasons = Counter[str]()
    for text, number in status.items():
        reasons[text.partition(":")[0]] += number
    whole = {reason: text for text in status if reasons[reason := text.partition(":")[0]] == status[text]}
    return Counter({whole.get(reason, reason): number for reason, number in reasons.items()})


def format_count(number: int, name: str) -> str:
    """Formats a number with its noun: "1 face", "1,200 faces"."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def format_counts(counts: Counter[str], limit: int | None = None) -> str:
    """Formats counts on one line, the largest first."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(limit))
