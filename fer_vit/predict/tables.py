"""The output of `predict`: one table, or a folder of tables that several processes write.

A later run completes a folder.
"""

import json
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fer_vit.errors import FerVitError, MarkedCopyError, short
from fer_vit.face.detectors import detector_name
from fer_vit.faces import READ_STATUSES, SEPARATOR, WARNINGS, Faces, PhotoInfo, Stamp, join_faces
from fer_vit.fields import Cell, choose_fields, face_fields
from fer_vit.files import clear_remains_in
from fer_vit.heads import HeadOutputs
from fer_vit.listing import system_entry
from fer_vit.predict.inputs import is_video
from fer_vit.predict.outputs import Outputs, check_model
from fer_vit.predict.people import People
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import make_finder, read_sources
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.shots import Cuts
from fer_vit.predict.stamps import is_unchanged
from fer_vit.processes import ProcessRank
from fer_vit.report.draw import Marked, mark
from fer_vit.report.table import INPUTS_KEY, LABELS_FACT, read_facts, write_fields
from fer_vit.tables.numbered import PART, numbered_name
from fer_vit.texts import as_text, check_permission, json_text
from fer_vit.version import __version__
from fer_vit.wording import counted, format_counts

FACES_AT_ONCE = 256  # faces whose rows are made together: a row with all columns takes about 15 KB
OTHER_FOLDER = (
    "Repeat the first command with the same images and options, or choose another folder."
)


class Checked(NamedTuple):
    """What a complete table of a folder contains."""

    statuses: Counter[str]  # number of images and frames by status
    num_faces: int
    stamps: dict[str, Stamp | None]  # the stamp of each image, by its path


class FolderState(NamedTuple):
    """The tables of a folder after a run."""

    num_written: int  # tables
    num_planned: int  # tables of all processes
    num_files: int  # photos and videos of all tables
    statuses: Counter[str]  # number of images and frames by status, in the written tables
    num_faces: int  # in the written tables


class Predicted(NamedTuple):
    """What a run did."""

    counts: "Counts | None"  # of photos, frames and faces; None: there was nothing to do
    num_unreadable: int  # photos, frames and videos that cannot be read
    folder: FolderState | None = None  # None: the run wrote one table


class Written(NamedTuple):
    """What was written to tables."""

    counts: "Counts"  # of photos, frames and faces
    people: People  # the people in the videos
    marks: list[list[Marked]]  # the faces of each frame of a marked copy


def predict_table(
    model: Recognizer,
    photos: Iterable[Faces],
    images: Sequence[Path],
    options: PhotoOptions,
    outputs: Outputs,
) -> Predicted:
    """Writes a table of the faces in photos and videos.

    Args:
        model: The model that recognizes the faces.
        photos: Each photo and frame with its faces, in the order of `images`, see
            `Recognizer.recognize`.
        images: The photos and videos.
        options: How photos and videos are read.
        outputs: The files to write.

    Raises:
        MarkedCopyError: The marked copy cannot be written. The table is complete.
    """
    check_model(outputs, model.heads, model.name)
    facts = prediction_facts(model, options)
    written = _write_tables(
        model=model,
        photos=photos,
        at_once=options.batch_size,
        videos=any(map(is_video, images)),
        plan={outputs.table: images},
        facts=facts,
        outputs=outputs,
    )
    outputs.write_people(written.people, model.labels)
    if outputs.copy:
        # not at the top: photos need no PyAV
        from fer_vit.predict.annotate import annotate_video

        video, path = outputs.copy
        try:
            annotate_video(video, path, written.marks, options, outputs.overwrite)
        except FerVitError as error:
            message = f"{error} The table {outputs.table} is complete."
            raise MarkedCopyError(message) from error
    return Predicted(written.counts, written.counts.num_unreadable)


def predict_folder(
    model: Recognizer,
    images: Sequence[Path],
    options: PhotoOptions,
    outputs: Outputs,
    part_size: int,
    rank: ProcessRank,
) -> Predicted:
    """Writes this process's share of the missing tables of a folder.

    Each table has a chunk of the images; a video is a chunk. Processes do not communicate, so no
    process waits for a dead one: each lists the images itself and takes the chunks of its rank. A
    table appears when it is complete, so a missing table is work to do. Raises FerVitError when the
    folder contains other files, a table of other images, options or another model, or when an image
    of a table of this process has changed.
    """
    check_model(outputs, model.heads, model.name)
    facts = _folder_facts(model, options, outputs)
    clear_remains_in(outputs.table)  # also remains of tables that are finished by now

    # the missing tables of this process
    plan = plan_tables(outputs.table, images, part_size)
    checked = check_written_tables(plan, facts, already_checked=())
    assigned = {}
    for path in list(plan)[rank.rank :: rank.world_size]:
        if path in checked:
            check_unchanged(path, plan[path], checked[path].stamps)
        else:
            assigned[path] = plan[path]
    counts = None
    if assigned:
        # Another process may have written a table in the meantime: it is equal.
        overwriting = outputs._replace(overwrite=True)
        sources = list(chain.from_iterable(assigned.values()))
        finder = make_finder(model.crop_spec, options)
        batches = read_sources(sources, finder, options, stamped=True)
        photos = model.recognize(sources, options, batches)
        videos = any(map(is_video, images))
        written = _write_tables(
            model=model,
            photos=photos,
            at_once=options.batch_size,
            videos=videos,
            plan=assigned,
            facts=facts,
            outputs=overwriting,
        )
        counts = written.counts

    checked |= check_written_tables(plan, facts, checked)
    statuses = Counter[str]()
    num_faces = 0
    for table in checked.values():
        statuses += table.statuses
        num_faces += table.num_faces
    num_unreadable = statuses.total() - sum(statuses[status] for status in READ_STATUSES)

    state = FolderState(len(checked), len(plan), len(images), statuses, num_faces)
    if len(checked) == len(plan) and (outputs.people or outputs.intervals):
        people = _read_people(plan, outputs, model.outputs)
        outputs.write_people(people, model.labels)
    return Predicted(counts, num_unreadable, state)


def describe_run(run: Predicted, outputs: Outputs, options: PhotoOptions) -> str:
    """Returns lines about the photos, frames and faces of a run, the detector and the files."""
    lines = "Nothing to do: all tables of this process exist."
    if run.counts:
        lines = f"{run.counts.summarize()}\nDetector: {detector_name(options.detector)}"
    folder = run.folder
    if folder is None:
        table = "standard output" if str(outputs.table) == "-" else outputs.table
        return f"{lines}\nTable: {table}{outputs.further}"
    if folder.num_written < folder.num_planned:
        return (
            f"{lines}\n{outputs.table}: {folder.num_written:,} of {folder.num_planned:,} tables "
            "exist. Other processes, or the same command, write the rest."
        )
    return (
        f"{lines}\n{outputs.table}: all {counted(folder.num_planned, 'table')}, all "
        f"{counted(folder.num_files, 'file')} exactly once ({format_counts(folder.statuses, 5)}), "
        f"{counted(folder.num_faces, 'face')}{outputs.further}"
    )


def _folder_facts(model: Recognizer, options: PhotoOptions, outputs: Outputs) -> dict[str, str]:
    """Returns the facts that are recorded in all tables of a folder, and must be equal."""
    facts = prediction_facts(model, options)
    facts["fingerprint"] = model.fingerprint
    if outputs.min_confidence:
        facts["min_confidence"] = str(outputs.min_confidence)
    if outputs.heads:
        facts["outputs"] = ", ".join(outputs.heads)
    if outputs.features:
        facts["features"] = str(outputs.features)
    return facts


def plan_tables(folder: Path, images: Sequence[Path], part_size: int) -> dict[Path, list[Path]]:
    """Returns the images of each table that a folder will have."""
    chunks = []
    for video, run in groupby(images, is_video):
        while chunk := list(islice(run, 1 if video else part_size)):
            chunks.append(chunk)
    plan = {}
    for index, chunk in enumerate(chunks):
        plan[folder / numbered_name(PART, index, len(chunks))] = chunk
    return plan


def check_written_tables(
    plan: Mapping[Path, Sequence[Path]],
    facts: Mapping[str, str],
    already_checked: Container[Path],
) -> dict[Path, Checked]:
    """Checks and returns the existing tables of a plan that are not `already_checked`.

    Raises FerVitError when the folder contains other files, or a table cannot be read, has other
    facts, or does not contain the rows of each of its images once and in order.
    """
    folder = next(iter(plan)).parent
    planned = {table.name for table in plan}
    existing = set()
    if folder.is_dir():
        existing = {name for name in os.listdir(folder) if system_entry(name) is None}
    unexpected = existing - planned
    if unexpected:
        raise FerVitError(
            f"Expected only {min(planned)} to {max(planned)} in {folder}, but got "
            f"{min(unexpected)}. {OTHER_FOLDER}"
        )

    checked = {}
    new = [table for table in plan if table.name in existing and table not in already_checked]
    for table in tqdm(new, desc="checking", unit=" tables", disable=None, leave=False):
        images = [as_text(str(image)) for image in plan[table]]
        checked[table] = _check_written_table(table, images, facts)
    return checked


def _check_written_table(table: Path, images: Sequence[str], facts: Mapping[str, str]) -> Checked:
    """Checks that a table has the facts, and the rows of each image once and in order."""
    # not at the top: one table needs no Parquet reader
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(table) as file:
            recorded = read_facts(file.schema_arrow.metadata or {})
            stamps = json.loads(file.metadata.metadata[INPUTS_KEY.encode()])
            for path, stamp in stamps.items():
                stamps[path] = stamp and Stamp(*stamp)
            rows = file.read(["path", "frame", "face", "status"]).to_pylist()
        faces = [(row["path"], row.get("frame"), row["face"]) for row in rows]
        first_rows = [row for row in rows if not row["face"]]  # one of each image or frame
        paths = [path for path, _ in groupby(first_rows, itemgetter("path"))]
        statuses = Counter(row["status"] for row in first_rows)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        check_permission(table, error)
        raise FerVitError(
            f"{table} cannot be read. Remove it and run the same command again."
        ) from error

    changes = []
    for name in dict.fromkeys([*recorded, *facts]):
        if recorded.get(name) != facts.get(name):
            changes.append(f"{name} {short(recorded.get(name))} (now {short(facts.get(name))})")
    if changes:
        raise FerVitError(f"{table} was written with {', '.join(changes)}. {OTHER_FOLDER}")

    repeated = len(set(faces)) < len(faces)
    if paths != images or repeated:
        raise FerVitError(
            f"Expected {len(images):,} images from {short(images[0])} on, each once and in order, "
            f"in {table}, but it contains others. {OTHER_FOLDER}"
        )
    num_faces = sum(face is not None for _, _, face in faces)
    return Checked(statuses, num_faces, stamps)


def check_unchanged(
    table: Path, images: Sequence[Path], stamps: Mapping[str, Stamp | None]
) -> None:
    """Raises FerVitError for an image that is not the one whose rows are in a table."""
    for image in images:
        if not is_unchanged(image, stamps[as_text(str(image))]):
            raise FerVitError(
                f"{image} has changed since {table} was written. Remove this table and run "
                "the same command again, or choose another folder."
            )


def _read_people(tables: Iterable[Path], outputs: Outputs, of_model: HeadOutputs) -> People:
    """Reads the people in videos from finished tables of a model."""
    import pyarrow.parquet as pq

    people = People(outputs=of_model, threshold=outputs.threshold)
    for table in tables:
        with pq.ParquetFile(table) as file:
            rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(1000))
            for _, frame in groupby(rows, itemgetter("path", "frame")):
                people.add_rows(list(frame))
    return people


def _write_tables(
    model: Recognizer,
    photos: Iterable[Faces],
    at_once: int,
    videos: bool,
    plan: Mapping[Path, Sequence[Path]],
    facts: Mapping[str, str],
    outputs: Outputs,
) -> Written:
    """Writes `photos` to tables; `plan` has the files of each table, in the order of `photos`.

    The rows of up to `at_once` photos are made together. With `videos`, the tables have the columns
    of videos.
    """
    features = model.engine.width if outputs.features else 0
    fields = face_fields(model.labels, model.outputs, videos, features)
    chosen = choose_fields(fields, outputs.heads)
    counts = Counts()
    people = People(outputs.min_confidence, model.outputs, outputs.threshold)
    marks: list[list[Marked]] = []
    by_source = groupby(photos, lambda faces: faces.infos[0].index)
    for path, chunk in plan.items():
        stamps: dict[str, Stamp | None] = {}
        with write_fields(
            path, chosen, overwrite=outputs.overwrite, facts=facts, inputs=stamps
        ) as table:
            sources = (of_source for _, of_source in islice(by_source, len(chunk)))
            for group in group_photos(chain.from_iterable(sources), at_once):
                joined = join_faces(group)
                rows = joined.rows(fields, min_confidence=outputs.min_confidence)
                table.write(rows)
                counts.add(joined.infos, rows)
                for faces in group:
                    (info,) = faces.infos
                    stamps[as_text(info.path)] = info.stamp
                    if outputs.people or outputs.intervals:
                        people.add(faces)
                    if outputs.copy and info.frame is not None:
                        marks.append([mark(face, outputs.min_confidence) for face in faces])
    return Written(counts, people, marks)


def group_photos(photos: Iterable[Faces], most: int) -> Iterator[list[Faces]]:
    """Yields photos in lists: a column takes as long for one row as for a hundred.

    A list ends with the `most`-th photo, or with the one that completes `FACES_AT_ONCE` faces.
    """
    group: list[Faces] = []
    num_faces = 0
    for faces in photos:
        group.append(faces)
        num_faces += len(faces)
        if len(group) == most or num_faces >= FACES_AT_ONCE:
            yield group
            group = []
            num_faces = 0
    if group:
        yield group


def prediction_facts(model: Recognizer, options: PhotoOptions) -> dict[str, str]:
    """Returns what the metadata of a table records: version, model, and settings by name."""
    facts = {"version": __version__, "model": model.name, "face": options.face}
    facts[LABELS_FACT] = json_text(model.labels)
    facts |= model.conditions
    facts["detector"] = detector_name(options.detector)
    for name, value in options.changed().items():
        facts[name] = str(value)
    return facts


class Counts:
    """Numbers of photos, frames and cuts, and of faces by label, ambiguity and warning."""

    def __init__(self) -> None:
        self.kinds = Counter[str]()  # photos, frames and failed videos
        self.statuses = Counter[str]()  # photos, frames and failed videos by status
        self.cuts = Cuts()
        self.labels = Counter[str]()
        self.warnings = Counter[str]()
        self.ambiguous = Counter[bool]()
        self.num_unreadable = 0  # photos, frames and failed videos

    def add(self, infos: Sequence[PhotoInfo], rows: Sequence[Mapping[str, Cell]]) -> None:
        """Adds photos and frames and their rows in the table."""
        for info in infos:
            kind = "photo"
            if info.frame is not None:
                kind = "frame"
            elif is_video(Path(info.path)):
                kind = "failed video"
            self.kinds[kind] += 1
            self.statuses[info.reason] += 1
            self.num_unreadable += info.status not in READ_STATUSES
            self.cuts.add(info)
        for row in rows:
            if row.get("face") is None:  # a photo without a face
                continue
            self.labels[str(row["label"] or "without a label")] += 1
            self.warnings.update(str(row["warning"] or "").split(SEPARATOR))
            if row["ambiguous"] is not None:
                self.ambiguous[bool(row["ambiguous"])] += 1

    def summarize(self) -> str:
        """Returns two lines, and further lines for cuts, and ambiguous, small and turned faces."""
        kinds = [counted(count, kind) for kind, count in self.kinds.items()]
        lines = [f"{', '.join(kinds)}: {format_counts(self.statuses)}"]
        if self.cuts.count:
            lines.append(self.cuts.describe())

        faces = self.labels.total()
        line = counted(faces, "face")
        if faces:
            line += f": {format_counts(self.labels)}"
        lines.append(line)

        num_ambiguous = self.ambiguous[True]
        if num_ambiguous:
            num_decided = self.ambiguous.total()  # faces that are ambiguous or not
            verb = "is" if num_ambiguous == 1 else "are"
            share = f"{num_ambiguous / num_decided:.1%}"
            decided = counted(num_decided, "face")
            lines.append(f"{num_ambiguous:,} of {decided} {verb} ambiguous ({share})")
        for name, text in WARNINGS.items():
            count = self.warnings[name]
            if count:
                lines.append(f"{count:,} of {faces:,} {text}")
        return "\n".join(lines)
