"""Reads tables of `predict` as faces: checks them, and sorts by photo, frame and face."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import printable, short
from fer_vit.evaluation.checks import check_rows, check_times, find_moments, order_rows
from fer_vit.evaluation.evaluated import Columns, EvaluatedFaces
from fer_vit.face.detectors import DEFAULT_DETECTOR, DETECTORS
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import NOT_FOUND, SEPARATOR, UNCERTAIN, are_uncertain, as_objects
from fer_vit.fields import BOX_COLUMNS, ORIGIN_FIELDS, SMOOTHED_LABEL
from fer_vit.geometry import Array, Image, Mask
from fer_vit.tables.cells import is_missing
from fer_vit.tables.layout import PATH
from fer_vit.tables.paths import normal_path
from fer_vit.tables.predicted import SUM_TOLERANCE, read_predicted
from fer_vit.wording import format_counts

BOX_MARGIN = 0.15  # margin on each side of a face's box, as a fraction of the box


def read_predictions(path: Path, videos: bool = False) -> EvaluatedFaces:
    """Reads a table of `predict`, or a folder of such tables.

    `videos` allows frames of videos. Faces are sorted by path, frame and face, and may have another
    order than the rows.

    Raises:
        FerVitError: The table is incomplete, a row occurs twice, or a cell does not fit its column.
    """
    table = read_predicted(path)
    check_rows(table, videos)

    # sort the rows
    order = order_rows(table)
    if videos:
        check_times(table, order)
    columns = {name: cells[order] for name, cells in table.columns.items()}
    columns[PATH] = table.paths[order]
    predicted = table.predicted[order]
    probabilities = np.where(predicted[:, None], table.shares[order], np.nan)  # (N, C)
    score = table.numbers.get("score", np.full(len(order), np.nan))[order]

    # assumptions and omissions
    notes = [*table.notes]
    notes += _describe_rows(path, columns, probabilities, table.labels)
    notes += _describe_copies(path, columns, probabilities)
    uncertain = find_uncertain(columns)
    if uncertain.any():
        notes.append(f"{uncertain.sum():,} of {predicted.sum():,} faces are uncertain.")
    return EvaluatedFaces(
        labels=table.labels,
        paths=columns[PATH],
        probabilities=probabilities,
        detected=predicted & (score != NOT_FOUND),
        targets=None,
        columns=columns,
        rows=np.arange(len(predicted)),
        picture=lambda row: cut_face(columns, row),
        facts=_facts(table.facts, columns),
        notes=tuple(notes),
    )


def find_uncertain(columns: Columns) -> Mask:
    """Returns whether each row (N,) of a table is an uncertain face.

    A row is uncertain if its warning states this. Tables of 0.1 have no such warning: rows of a
    detector in `DETECTORS` are also uncertain by their score. Scores of other detectors have an
    unknown scale.
    """
    unknown = as_objects([None] * len(columns[PATH]))
    warnings = columns.get("warning", unknown)
    detectors = columns.get("detector", unknown)
    score = np.array(columns.get("score", unknown), float)  # NaN without a score
    sure_scores = {name: detector.sure_score for name, detector in DETECTORS.items()}

    named = [UNCERTAIN in str(cell).split(SEPARATOR) for cell in warnings]
    uncertain = np.array(named, bool)
    for name in {*detectors.tolist()}:
        by_score = are_uncertain(score, sure_scores.get(name or DEFAULT_DETECTOR))
        uncertain |= (detectors == name) & by_score
    return uncertain


def leave_out_uncertain(faces: EvaluatedFaces) -> EvaluatedFaces:
    """Leaves out uncertain faces in photos that also have a certain face.

    Such an uncertain face is often no face, but a mean over the photo's faces would give both the
    same weight. Frames of videos stay.
    """
    uncertain = find_uncertain(faces.columns)
    photos = is_missing(find_moments(faces.columns))
    certain = set(faces.paths[faces.predicted & ~uncertain])
    with_certain = np.array([path in certain for path in faces.paths], bool)
    dropped = uncertain & photos & with_certain
    if not dropped.any():
        return faces
    note = (
        f"{dropped.sum():,} uncertain faces are left out, because their photos have a certain face "
        "(`--uncertain` uses them)."
    )
    return replace(faces.take(~dropped), notes=(*faces.notes, note))


def _facts(recorded: dict[str, str], columns: Columns) -> dict[str, str]:
    """Returns how a table was made as printable text, from its record, or from its rows."""
    facts = {**recorded}
    if not recorded:
        for name, values in _origins(columns).items():
            if values:
                facts[name] = " and ".join(values)
    return {printable(short(name)): printable(short(fact)) for name, fact in facts.items()}


def _origins(columns: Columns) -> dict[str, list[str]]:
    """Returns the distinct values of each column that records how a row was made."""
    names = [field.name for field in ORIGIN_FIELDS if field.name in columns]
    return {name: sorted({*columns[name].tolist()} - {None}) for name in names}


def _describe_rows(
    path: Path, columns: Columns, probabilities: Array, labels: Sequence[str]
) -> list[str]:
    """Returns lines about rows without a face, and labels that are not the most probable."""
    notes = []
    predicted = np.isfinite(probabilities[:, 0])
    if not predicted.all():
        status = columns.get("status", np.full(len(predicted), None))
        counts = Counter(str(cell or "no status") for cell in status[~predicted])
        known = format_counts(counts, 5)
        notes.append(
            f"{path.name}: {(~predicted).sum():,} of {len(predicted):,} rows have no face and are "
            f"left out ({known})."
        )
    for name, values in _origins(columns).items():
        if len(values) > 1 and name != "predicted_on":
            shown = short(", ".join(values))
            notes.append(f"{path.name}: its rows have {len(values)} values of `{name}`: {shown}.")
    if SMOOTHED_LABEL in columns and "seconds" in columns:
        in_clip = predicted & ~is_missing(columns["seconds"])
        unlabelled = in_clip & is_missing(columns[SMOOTHED_LABEL])
        if unlabelled.any():
            notes.append(
                f"{path.name}: {unlabelled.sum():,} of {in_clip.sum():,} faces in videos are below "
                f"`--min_confidence`: they have no `{SMOOTHED_LABEL}`, and count in no duration."
            )
    if "label" in columns:
        notes += _describe_labels(path, columns["label"], probabilities, labels)
    return notes


def _describe_labels(
    path: Path, cells: NDArray[np.object_], probabilities: Array, labels: Sequence[str]
) -> list[str]:
    """Returns lines about faces without a label, and labels that are not the most probable class.

    `cells` (N,) is the column `label`; `probabilities` are (N, C).
    """
    notes = []
    predicted = np.isfinite(probabilities[:, 0])
    unlabelled = predicted & is_missing(cells)
    if unlabelled.any():
        notes.append(
            f"{path.name}: {unlabelled.sum():,} of {predicted.sum():,} faces have no `label`: they "
            "count in no share of `compare`."
        )
    chosen = np.full(len(predicted), np.nan)  # the probability of the label
    for index, label in enumerate(labels):
        with_label = cells == label
        chosen[with_label] = probabilities[with_label, index]
    with np.errstate(invalid="ignore"):  # rows without a face or label
        less_probable = chosen < probabilities.max(1) - SUM_TOLERANCE
    if less_probable.any():
        notes.append(
            f"{path.name}: in {less_probable.sum():,} of {predicted.sum():,} rows `label` is "
            "not the most probable expression. If people gave these labels, move them to another "
            "column: `label` is the model's."
        )
    return notes


def _describe_copies(path: Path, columns: Columns, probabilities: Array) -> list[str]:
    """Returns a line if photos or clips with one file name have equal rows under several paths.

    Such paths probably name one file, such as `a.png` and `/data/a.png` in joined tables. Rows are
    sorted by path. A file without any face is not compared.
    """
    predicted = np.isfinite(probabilities[:, 0])
    if not predicted.any():
        return []
    path_of_row = columns[PATH][predicted]
    starts = np.flatnonzero(path_of_row[1:] != path_of_row[:-1]) + 1  # for all paths but the first
    paths = path_of_row[[0, *starts]].tolist()
    file_names = [normal_path(name).rpartition("/")[2].casefold() for name in paths]
    occurrences = Counter(file_names)
    values = [columns[name][predicted] for name in BOX_COLUMNS if name in columns]
    cells = np.column_stack([find_moments(columns)[predicted], *values]).astype(float)
    rows = np.column_stack([probabilities[predicted], cells])
    rows_of_paths = np.split(rows, starts)

    first: dict[tuple[str, bytes], str] = {}  # the first path, by file name and rows
    copies = []
    for name, file_name, part in zip(paths, file_names, rows_of_paths, strict=True):
        if occurrences[file_name] == 1:
            continue
        original = first.setdefault((file_name, part.tobytes()), name)
        if original != name:
            copies.append((original, name))
    if not copies:
        return []
    original, name = copies[0]
    return [
        f"{path.name}: {len(copies):,} photos or clips have the same rows as one of the same file "
        f"name in another folder, for example {short(name)} and "
        f"{short(original)}. If they are one file, delete its second rows."
    ]


def cut_face(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with `BOX_MARGIN`."""
    image = read_image(Path(table[PATH][row]))
    box: list[Any] = [table[name][row] for name in BOX_COLUMNS if name in table]
    if len(box) < len(BOX_COLUMNS) or None in box:
        return image
    left, top, right, bottom = box
    x = (right - left) * BOX_MARGIN
    y = (bottom - top) * BOX_MARGIN
    edges = np.array([left - x, top - y, right + x, bottom + y])
    left, top, right, bottom = edges.round().astype(int).clip(0)
    face = image[top:bottom, left:right]
    if not face.size:
        raise ImageError("the face lies outside of the photo")
    return face
