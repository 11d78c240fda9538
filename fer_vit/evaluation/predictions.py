"""Tables of `predict` as faces: checked, typed, and in the order of photos, frames and faces."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, printable, short
from fer_vit.evaluation.checks import (
    TypedTable,
    check_rows,
    check_times,
    find_moments,
    order_rows,
)
from fer_vit.evaluation.columns import SUM_TOLERANCE, column_types, find_labels, is_feature
from fer_vit.evaluation.evaluated import Columns, EvaluatedFaces
from fer_vit.face.detectors import DEFAULT_DETECTOR, DETECTORS
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import NOT_FOUND, SEPARATOR, UNCERTAIN, are_uncertain, as_objects
from fer_vit.fields import BOX, ORIGIN, PROBABILITY, SMOOTHED_LABEL
from fer_vit.geometry import Array, Image, Mask
from fer_vit.predict.tables import find_tables
from fer_vit.tables.cells import (
    BadCellError,
    check_magnitude,
    check_whole_cells,
    is_missing,
    normal_path,
    read_names,
    read_numbers,
    read_paths,
    read_truth,
)
from fer_vit.tables.layout import PATH
from fer_vit.tables.read import Table, is_table, read_table
from fer_vit.wording import format_counts

BOX_MARGIN = 0.15  # margin of a picture on each side of a face's box, as a fraction of the box
MAX_NUMBER = 1e12  # sums and ratios of larger numbers overflow


def is_predictions(path: Path) -> bool:
    """Returns whether a path is a table, or a folder of tables of `predict`."""
    return is_table(path) or any(path.glob("part-*-of-*.parquet"))


def read_predictions(path: Path, videos: bool = False) -> EvaluatedFaces:
    """Reads a table, or a folder of tables, of `predict`; with `videos` also of frames.

    Faces are in the order of path, frame and face, not of the rows. Raises FerVitError when the
    table is incomplete, has a row twice, or a cell that does not fit its column.
    """
    tables, left = find_tables(path)
    if left:
        rest = "Run the same `fer-vit predict` again to complete it."
        raise TableError(f"{path} lacks {left:,} of its {left + len(tables):,} tables. {rest}")
    table = read_table(*(tables or [path]))
    table.require(PATH, "confidence")
    typed, notes = _as_types(table)
    check_rows(typed, videos)

    # rows in order
    typed = typed._replace(paths=_one_spelling(typed.paths))
    order = order_rows(typed)
    if videos:
        check_times(typed, order)
    columns = {name: cells[order] for name, cells in typed.columns.items()}
    columns[PATH] = typed.paths[order]
    predicted = typed.predicted[order]
    probabilities = np.where(predicted[:, None], typed.shares[order], np.nan)  # (N, C)
    score = typed.numbers.get("score", np.full(len(table), np.nan))[order]

    # what was assumed and left out
    notes += _describe_rows(path, columns, probabilities, typed.labels)
    notes += _describe_copies(path, columns, probabilities)
    uncertain = find_uncertain(columns)
    if uncertain.any():
        notes.append(f"{uncertain.sum():,} of {predicted.sum():,} faces are uncertain.")
    return EvaluatedFaces(
        labels=typed.labels,
        paths=columns[PATH],
        probabilities=probabilities,
        detected=predicted & (score != NOT_FOUND),
        targets=None,
        columns=columns,
        rows=np.arange(len(predicted)),
        picture=lambda row: cut_face(columns, row),
        facts=_facts(table, columns),
        notes=tuple(notes),
    )


def _as_types(table: Table) -> tuple[TypedTable, list[str]]:
    """Returns the columns of a table as types, and notes about what was assumed.

    Raises FerVitError for a cell that does not fit its column.
    """
    labels = find_labels(table)
    types = column_types(table, labels)
    number_names = [name for name in table.names if types.get(name) in (int, float)]
    mark = table.decimal_mark(number_names)
    numbers = {name: _read_column(table, name, types[name], mark) for name in number_names}
    columns, word_notes = _read_others(table, types, numbers, labels)
    typed = TypedTable(
        table=table,
        labels=labels,
        paths=read_paths(table[PATH]),
        shares=np.column_stack([numbers[PROBABILITY + label] for label in labels]),
        numbers=numbers,
        columns=columns,
    )
    decimal = ["decimal commas"] if mark == "," else []
    return typed, [*table.assumption(*decimal), *word_notes]


def find_uncertain(columns: Columns) -> Mask:
    """Returns which rows (N,) of a table are uncertain faces.

    Rows are, if their warning names it. Tables of 0.1 have no such warning: their rows, and those
    of detectors in `DETECTORS`, also are by the score. The scores of other detectors have an
    unknown scale.
    """
    unknown = as_objects([None] * len(columns[PATH]))
    warnings = columns.get("warning", unknown)
    detectors = columns.get("detector", unknown)
    score = np.array(columns.get("score", unknown), float)  # NaN without one
    sure_scores = {name: detector.sure_score for name, detector in DETECTORS.items()}

    named = [UNCERTAIN in str(cell).split(SEPARATOR) for cell in warnings]
    uncertain = np.array(named, bool)
    for name in {*detectors.tolist()}:
        by_score = are_uncertain(score, sure_scores.get(name or DEFAULT_DETECTOR))
        uncertain |= (detectors == name) & by_score
    return uncertain


def leave_out_uncertain(faces: EvaluatedFaces) -> EvaluatedFaces:
    """Returns the faces without uncertain ones in photos that have a certain face as well.

    Such a face is often none, and a mean over both would count it as much as the certain one.
    Frames of videos stay.
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


def _facts(table: Table, columns: Columns) -> dict[str, str]:
    """Returns how a table was made, by its metadata or else its rows, on printable lines."""
    facts = table.facts()
    if not facts:
        for name, values in _origins(columns).items():
            if values:
                facts[name] = " and ".join(values)
    return {printable(short(name)): printable(short(fact)) for name, fact in facts.items()}


def _origins(columns: Columns) -> dict[str, list[str]]:
    """Returns the different values of each column that records what made a row."""
    names = [field.name for field in ORIGIN if field.name in columns]
    return {name: sorted({*columns[name].tolist()} - {None}) for name in names}


def _read_column(table: Table, name: str, kind: type, mark: str) -> Array:
    """Returns the numbers of a column (N,), NaN where missing."""
    try:
        values = read_numbers(table[name], mark)
        check_magnitude(values, MAX_NUMBER)
        if kind is int:
            check_whole_cells(values)
    except BadCellError as error:
        raise _bad_cell(table, name, error) from error
    return values


def _bad_cell(table: Table, name: str, error: BadCellError) -> FerVitError:
    actual = printable(short(error.cell))
    return FerVitError(
        f"{table.row_name(error.row)}: expected {error.expected} in `{name}`, but got `{actual}`. "
        "Correct the cell, or restore the column as `predict` wrote it."
    )


def _read_others(
    table: Table, types: Mapping[str, type], numbers: Mapping[str, Array], labels: Sequence[str]
) -> tuple[Columns, list[str]]:
    """Returns columns but probabilities and features, and notes about words for missing values."""
    columns: Columns = {}
    notes = []
    for name in table.names:
        probability = name.startswith(PROBABILITY) and name in types
        if name == PATH or probability or is_feature(name):
            continue
        if name in numbers:
            columns[name] = _number_cells(numbers[name], types[name])
        elif types.get(name) is bool:
            try:
                columns[name] = read_truth(table[name])
            except BadCellError as error:
                raise _bad_cell(table, name, error) from error
        elif name in ("label", SMOOTHED_LABEL):
            columns[name], _ = read_names(table[name], labels)
        else:
            columns[name], words = read_names(table[name])
            if name not in types:
                notes += table.missing(name, words)
    return columns, notes


def _number_cells(values: Array, kind: type) -> NDArray[np.object_]:
    """Returns numbers (N,) as cells of a type, None where missing."""
    return as_objects([None if math.isnan(value) else kind(value) for value in values.tolist()])


def _one_spelling(paths: NDArray[np.object_]) -> NDArray[np.object_]:
    """Returns paths (N,) in one spelling for each file: `./a.png` and `a.png` become the first."""
    first: dict[str, str] = {}
    spelled = {}
    for path in dict.fromkeys(paths):
        spelled[path] = first.setdefault(normal_path(path), path)
    return as_objects([spelled[path] for path in paths.tolist()])


def _describe_rows(
    path: Path, columns: Columns, probabilities: Array, labels: Sequence[str]
) -> list[str]:
    """Returns lines about rows without a face, and labels that are not the most probable."""
    notes = []
    predicted = np.isfinite(probabilities[:, 0])
    if not predicted.all():
        status = columns.get("status", np.full(len(predicted), None))
        counts = Counter(str(cell or "no status") for cell in status[~predicted])
        known = printable(format_counts(counts, 5))
        notes.append(
            f"{path.name}: {(~predicted).sum():,} of {len(predicted):,} rows have no face and are "
            f"left out ({known})."
        )
    for name, values in _origins(columns).items():
        if len(values) > 1 and name != "predicted_on":
            shown = printable(short(", ".join(values)))
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
    """Returns lines about faces whose cell of `label` (N,) is empty, or not the most probable."""
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
            "not the most probable expression. Labels of people need another column."
        )
    return notes


def _describe_copies(path: Path, columns: Columns, probabilities: Array) -> list[str]:
    """Returns a line if photos or clips of one file name have equal rows under several paths.

    They are one file twice, such as `a.png` and `/data/a.png` in tables that were joined. Rows are
    in order. A file without any face is not compared.
    """
    predicted = np.isfinite(probabilities[:, 0])
    if not predicted.any():
        return []
    path_of_row = columns[PATH][predicted]
    starts = np.flatnonzero(path_of_row[1:] != path_of_row[:-1]) + 1  # of all paths but the first
    paths = path_of_row[[0, *starts]].tolist()
    file_names = [normal_path(name).rpartition("/")[2].casefold() for name in paths]
    occurrences = Counter(file_names)
    values = [columns[name][predicted] for name in BOX if name in columns]
    cells = np.column_stack([find_moments(columns)[predicted], *values]).astype(float)
    rows = np.column_stack([probabilities[predicted], cells])
    rows_of_paths = np.split(rows, starts)

    first: dict[tuple[str, bytes], str] = {}  # the first path of equal rows
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
        f"name in another folder, for example {printable(short(name))} and "
        f"{printable(short(original))}. If they are one file, delete its second rows."
    ]


def cut_face(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with `BOX_MARGIN`."""
    image = read_image(Path(table[PATH][row]))
    box: list[Any] = [table[name][row] for name in BOX if name in table]
    if len(box) < len(BOX) or None in box:
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
