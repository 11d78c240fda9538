"""A folder of tables of faces, which several processes write and a later run completes."""

import json
import os
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from fer_vit.errors import FerVitError, short
from fer_vit.faces import READ_STATUSES, Stamp
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.files import clear_remains_in
from fer_vit.heads import HeadOutputs
from fer_vit.listing import system_entry
from fer_vit.predict.inputs import is_video
from fer_vit.predict.outputs import Outputs, check_model
from fer_vit.predict.people import CountedFrame, People
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import read_sources, read_stamp
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.tables import Counts, prediction_facts, write_tables
from fer_vit.processes import ProcessRank
from fer_vit.report.table import INPUTS_KEY, read_facts
from fer_vit.tables.numbered import PART, numbered_name
from fer_vit.texts import as_text, check_permission
from fer_vit.wording import counted, format_counts

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

    counts: Counts | None  # of photos, frames and faces of the run; None: nothing was to do
    num_written: int  # tables
    num_planned: int  # tables of all processes
    num_files: int  # photos and videos of all tables
    statuses: Counter[str]  # number of images and frames by status, in the written tables
    num_faces: int  # in the written tables

    @property
    def num_unreadable(self) -> int:
        """The number of photos, frames and videos that cannot be read."""
        return self.statuses.total() - sum(self.statuses[status] for status in READ_STATUSES)


def predict_folder(
    model: Recognizer,
    images: Sequence[Path],
    options: PhotoOptions,
    outputs: Outputs,
    part_size: int,
    rank: ProcessRank,
) -> FolderState:
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
        batches = read_sources(sources, model.crop_spec, options, stamped=True)
        photos = model.recognize(sources, options, batches)
        videos = any(map(is_video, images))
        counts = write_tables(
            model=model,
            photos=photos,
            at_once=options.batch_size,
            videos=videos,
            plan=assigned,
            facts=facts,
            outputs=overwriting,
        )

    checked |= check_written_tables(plan, facts, checked)
    statuses = Counter[str]()
    num_faces = 0
    for table in checked.values():
        statuses += table.statuses
        num_faces += table.num_faces
    if len(checked) == len(plan) and (outputs.people or outputs.intervals):
        people = _read_people(plan, outputs, model.outputs)
        outputs.write_people(people, model.labels)
    return FolderState(counts, len(checked), len(plan), len(images), statuses, num_faces)


def describe_folder(folder: FolderState, outputs: Outputs, options: PhotoOptions) -> str:
    """Returns lines about the photos, frames and faces of a run, the detector and the tables."""
    lines = "Nothing to do: all tables of this process exist."
    if folder.counts:
        lines = folder.counts.summarize(options.detector)
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


def is_unchanged(path: Path, stamp: Stamp | None) -> bool:
    """Returns whether a file is the one that was read. Only a file with another time is read."""
    if stamp is None:
        return read_stamp(path) is None
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != stamp.size:
        return False
    if status.st_mtime_ns == stamp.mtime:
        return True
    now = read_stamp(path)
    return now is not None and now.sha256 == stamp.sha256


def _read_people(tables: Iterable[Path], outputs: Outputs, of_model: HeadOutputs) -> People:
    """Reads the people in videos from finished tables of a model."""
    import pyarrow.parquet as pq

    people = People(of_model, outputs.threshold)
    for table in tables:
        with pq.ParquetFile(table) as file:
            rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(1000))
            for _, frame in groupby(rows, itemgetter("path", "frame")):
                people.add(frame_of_rows(list(frame), of_model.columns))
    return people


def frame_of_rows(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> CountedFrame | None:
    """Returns what is counted in a frame, by its rows in a table of `predict`.

    `columns` are those of outputs of further heads. The label is taken from the table, because the
    label of a face below `--min_confidence` is empty. Returns None for rows without a time: those
    of a photo, and of the end of a damaged video.
    """
    seconds = rows[0].get("seconds")
    if seconds is None:
        return None
    faces = [row for row in rows if row.get("face") is not None]
    labels = [row[SMOOTHED_LABEL] for row in faces]
    confidences = []
    outputs = []
    for row, label in zip(faces, labels, strict=True):
        confidences.append(0.0 if label is None else row[SMOOTHED + label])
        values = {}
        for column in columns:
            cell = row.get(SMOOTHED + column)
            if cell is not None:
                values[column] = cell
        outputs.append(values)
    return CountedFrame(
        path=rows[0]["path"],
        seconds=seconds,
        tracks=[row["track"] for row in faces],
        labels=labels,
        confidences=confidences,
        outputs=outputs,
    )
