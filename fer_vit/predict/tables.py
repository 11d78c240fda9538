"""The output of `predict`: one table, or a folder of tables that several processes write and later runs resume."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fer_vit.errors import FerVitError
from fer_vit.face.detect import choose_detector
from fer_vit.predict.people import People, is_textgrid, write_intervals
from fer_vit.predict.photos import MEDIA_SUFFIXES, NO_FACE, OK, Photo, PhotoOptions, find_images, is_video, iter_images
from fer_vit.predict.plan import Plan, open_or_create
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

    def check(self, sources: Iterable[Path]) -> None:
        """Raises FerVitError for outputs that need another number of videos."""
        if not (wanted := self.intervals or self.people or self.copy):
            return
        videos = [source for source in sources if is_video(source)]
        if self.copy and (len(videos) != 1 or videos[0].resolve() == self.copy.resolve()):
            raise FerVitError(
                f"`--annotate` makes a marked copy of one video, but there are {len(videos)}, or it is {self.copy} "
                "itself. Name one video, and another file for the copy."
            )
        if not videos:
            raise FerVitError(f"{wanted} is a table of the people in videos, but there is no video. Leave it out.")
        if self.intervals and is_textgrid(self.intervals) and len(videos) > 1:
            raise FerVitError(f"A TextGrid contains one video, but there are {len(videos)}. Write a .csv instead.")

    def write_people(self, people: People, labels: list[str]) -> None:
        """Writes the requested tables of people."""
        if self.people:
            people.write(self.people, labels, self.overwrite)
        if self.intervals:
            write_intervals(self.intervals, people.intervals(), self.overwrite)


def predict_table(model: Recognizer, images: Sequence[Path], options: PhotoOptions, outputs: Outputs) -> str:
    """Writes a table of the faces in files, folders and patterns; returns a summary.

    If the marked copy fails, all tables are written before the error is raised.
    """
    sources = find_images(images, MEDIA_SUFFIXES)
    outputs.check(sources)
    facts = prediction_facts(model, options)
    columns = table_columns(model.labels, any(map(is_video, sources)), outputs.features * model.net.vit.embed_dim)
    photos = model.recognize(sources, options)
    errors: list[FerVitError] = []
    if outputs.copy:
        from fer_vit.predict.annotate import annotate_video  # only here: PyAV may not be installed

        video = next(filter(is_video, sources))
        photos = annotate_video(photos, video, outputs.copy, options, errors, outputs.overwrite)
    counts, people = Counts(), People()
    with TableWriter(outputs.table, columns, overwrite=outputs.overwrite, facts=facts) as table:
        for photo in photos:
            rows = list(photo_rows(photo, outputs.min_confidence, outputs.features))
            table.write(rows)
            counts.add(photo, rows)
            people.add(rows)
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

    Raises:
        FerVitError: The folder was started with other settings, or an image does not have its rows exactly once.
    """
    facts = prediction_facts(model, options)
    settings: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    settings |= {"face": options.face, "detector": facts["detector"], "part_size": part_size, **options.video()}
    settings |= {"min_confidence": outputs.min_confidence, "features": outputs.features}
    settings["directory"] = None if all(map(os.path.isabs, images)) else os.getcwd()  # of relative names
    plan = open_or_create(outputs.table, iter_images(images, MEDIA_SUFFIXES), part_size, settings, rank.rank)
    outputs.check(plan)
    part = Plan(outputs.table, [chunk for chunk in plan.missing() if chunk % rank.world_size == rank.rank])
    columns = table_columns(model.labels, any(map(is_video, plan)), outputs.features * model.net.vit.embed_dim)
    by_source = (photos for _, photos in groupby(model.recognize(part, options), attrgetter("source")))
    counts = Counts()
    for chunk in part.chunks:
        with TableWriter(plan.table(chunk), columns, facts=facts) as table:
            for photo in chain.from_iterable(islice(by_source, plan.sizes[chunk])):
                rows = list(photo_rows(photo, outputs.min_confidence, outputs.features))
                table.write(rows)
                counts.add(photo, rows)
    report = "Nothing to do: all tables exist. For photos that were added later, use another `--output` folder."
    if part:
        report = f"{counts.summarize()}\nDetector: {facts['detector']}"
    if (outputs.people or outputs.intervals) and not plan.missing():
        people = People()
        for rows in chain.from_iterable(map(plan.frames, plan.chunks)):
            people.add(rows)
        outputs.write_people(people, model.labels)
    return f"{report}\n{check_folder(plan)}"


def prediction_facts(model: Recognizer, options: PhotoOptions) -> dict[str, str]:
    """Returns what the metadata of a table records: version, model, and the settings that change predictions."""
    settings = {name: str(value) for name, value in options.video().items()}
    facts = {"version": __version__, "model": model.name, "face": options.face}
    return {**facts, **model.conditions, "detector": choose_detector(options.detector), **settings}


def check_folder(plan: Plan) -> str:
    """Reports how many tables of a plan exist; if all do, checks that they contain every image."""
    if left := plan.missing():
        return (
            f"{plan.folder}: {len(plan.chunks) - len(left):,} of {len(plan.chunks):,} tables exist. Other processes "
            "write the rest, or the same command resumes them."
        )
    status, faces = Counter[str](), 0
    for chunk in tqdm(plan.chunks, desc="checking", unit=" tables", disable=None, leave=False):
        statuses, number = plan.check(chunk)
        status, faces = status + statuses, faces + number
    return (
        f"{plan.folder}: all {format_count(len(plan.chunks), 'table')}, all {format_count(len(plan), 'file')} of the "
        f"plan exactly once ({format_counts(status, 5)}), {format_count(faces, 'face')}"
    )


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
