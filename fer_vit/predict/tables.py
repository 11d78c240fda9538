"""Writes the table of faces of `predict`, and the files that follow from it.

`table_folder.py` writes a folder of such tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from pathlib import Path

from fer_vit.errors import FerVitError, MarkedCopyError
from fer_vit.face.detectors import ChosenDetector, detector_name
from fer_vit.faces import READ_STATUSES, SEPARATOR, WARNINGS, Faces, PhotoInfo, Stamp, join_faces
from fer_vit.fields import Cell, choose_fields, face_fields
from fer_vit.predict.inputs import is_video
from fer_vit.predict.outputs import Outputs, check_model
from fer_vit.predict.people import People, frame_of_faces
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.shots import Cuts
from fer_vit.report.draw import Marked, mark
from fer_vit.report.table import LABELS_FACT, STDOUT, write_fields
from fer_vit.texts import as_text, json_text
from fer_vit.version import __version__
from fer_vit.wording import counted, format_counts

FACES_AT_ONCE = 256  # faces whose rows are made together: a row with all columns takes about 15 KB


def predict_table(
    model: Recognizer,
    photos: Iterable[Faces],
    images: Sequence[Path],
    options: PhotoOptions,
    outputs: Outputs,
) -> "Counts":
    """Writes a table of the faces in photos and videos, and the other files of `outputs`.

    Args:
        model: The model that recognizes the faces.
        photos: Each photo and frame with its faces, in the order of `images`, see
            `Recognizer.recognize`.
        images: The photos and videos.
        options: How photos and videos are read.
        outputs: The files to write.

    Returns:
        The numbers of photos, frames and faces.

    Raises:
        MarkedCopyError: The marked copy cannot be written. The table is complete.
    """
    check_model(outputs, model.heads, model.name)
    people = People(model.outputs, outputs.threshold)
    marks: list[list[Marked]] = []  # the faces of each frame of the marked copy

    def collect(photos: Iterable[Faces]) -> Iterator[Faces]:
        for faces in photos:
            (info,) = faces.infos
            if outputs.people or outputs.intervals:
                people.add(frame_of_faces(faces, outputs.min_confidence))
            if outputs.copy and info.frame is not None:
                marks.append([mark(face, outputs.min_confidence) for face in faces])
            yield faces

    counts = write_tables(
        model=model,
        photos=collect(photos),
        at_once=options.batch_size,
        videos=any(map(is_video, images)),
        plan={outputs.table: images},
        facts=prediction_facts(model, options),
        outputs=outputs,
    )
    outputs.write_people(people, model.labels)
    if outputs.copy:
        # not at the top: photos need no PyAV
        from fer_vit.predict.annotate import annotate_video

        video, path = outputs.copy
        try:
            annotate_video(video, path, marks, options, outputs.overwrite)
        except FerVitError as error:
            message = f"{error} The table {outputs.table} is complete."
            raise MarkedCopyError(message) from error
    return counts


def describe_table(counts: "Counts", outputs: Outputs, options: PhotoOptions) -> str:
    """Returns lines about photos, frames and faces, the detector and the files."""
    table = "standard output" if outputs.table == STDOUT else outputs.table
    return f"{counts.summarize(options.detector)}\nTable: {table}{outputs.further}"


def write_tables(
    model: Recognizer,
    photos: Iterable[Faces],
    at_once: int,
    videos: bool,
    plan: Mapping[Path, Sequence[Path]],
    facts: Mapping[str, str],
    outputs: Outputs,
) -> "Counts":
    """Writes `photos` to tables; `plan` has the files of each table, in the order of `photos`.

    The rows of up to `at_once` photos are made together. With `videos`, the tables have the columns
    of videos. Returns the numbers of photos, frames and faces.
    """
    features = model.engine.width if outputs.features else 0
    fields = face_fields(model.labels, model.outputs, videos, features)
    chosen = choose_fields(fields, outputs.heads)
    counts = Counts()
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
                stamps |= {as_text(info.path): info.stamp for info in joined.infos}
    return counts


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

    def summarize(self, detector: ChosenDetector) -> str:
        """Returns three lines, and further lines for cuts, ambiguous faces and warnings."""
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
        lines.append(f"Detector: {detector_name(detector)}")
        return "\n".join(lines)
