"""Reads tables of `predict`, which people may have edited.

N rows, C expressions.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from fer_vit.errors import TableError, printable, short
from fer_vit.faces import NOT_FOUND, SEPARATOR, UNCERTAIN, as_objects
from fer_vit.fields import (
    ORIGIN_FIELDS,
    PROBABILITY,
    SMOOTHED,
    SMOOTHED_LABEL,
    is_feature,
    table_columns,
)
from fer_vit.geometry import Array, Mask
from fer_vit.heads import HeadOutputs
from fer_vit.labels import EXPRESSIONS, SYNONYMS
from fer_vit.report.table import LABELS_FACT
from fer_vit.tables.cells import (
    BadCellError,
    check_magnitude,
    check_whole_cells,
    is_missing,
    read_booleans,
    read_names,
    read_numbers,
    read_paths,
)
from fer_vit.tables.labelled import Columns, Labelled, has_values
from fer_vit.tables.layout import PATH
from fer_vit.tables.paths import one_spelling
from fer_vit.tables.rules import check_rows, check_times, order_rows
from fer_vit.tables.table_reader import Table, is_predictions, read_table
from fer_vit.wording import format_counts

MAX_NUMBER = 1e12  # sums and ratios of larger numbers overflow


def read_predictions(path: Path, videos: bool = False) -> Labelled:
    """Reads a table of `predict`, or a folder of its part tables.

    `videos` allows frames of videos. Faces are sorted by path, frame and face, and may have another
    order than the rows.

    Raises:
        FerVitError: The table is incomplete, a row occurs twice, or a cell does not fit its column.
    """
    check_no_photos(path)
    table = read_table(path)
    faces = type_columns(table)
    check_rows(faces, table, videos)
    faces = faces.take(order_rows(faces, table))
    if videos:
        check_times(faces, table)
    return replace(faces, notes=(*faces.notes, *_describe_rows(path, faces)))


def check_no_photos(path: Path) -> None:
    """Raises TableError for a folder without tables of `predict`, such as a folder of photos."""
    if path.is_dir() and not is_predictions(path):
        raise TableError(
            f"Expected a table, but {path} is a folder without tables of `fer-vit predict`. If it "
            f"has photos, run `fer-vit predict {path}`, then name its table, faces.csv."
        )


def type_columns(table: Table) -> Labelled:
    """Returns the rows of a table in their order, with the types of their columns.

    `fields.py` has the types of the columns of `predict`; columns of a user are text. Raises
    FerVitError when the table lacks a column, or a cell does not fit its column.
    """
    table.check_columns(PATH, "confidence")
    facts = table.facts()
    labels = find_labels(table, facts.pop(LABELS_FACT, None))
    outputs = HeadOutputs.among(table.names)
    types = table_columns(labels, videos=True, outputs=outputs)
    number_names = [name for name in table.names if types.get(name) in (int, float)]
    decimal_mark = table.decimal_mark(number_names)

    columns: Columns = {PATH: one_spelling(read_paths(table[PATH]))}
    shares: dict[str, Array] = {}  # probabilities (N,) by column
    word_notes = []
    for name in table.names:
        if name == PATH or is_feature(name):
            continue
        kind = types.get(name)  # None: a column of a user
        if kind in (int, float):
            values = _read_numbers(table, name, kind, decimal_mark)
            if name.startswith(PROBABILITY):
                shares[name] = values
                continue
            cells = [None if math.isnan(value) else kind(value) for value in values.tolist()]
            columns[name] = as_objects(cells)
        elif kind is bool:
            with _fitting(table, name):
                columns[name] = read_booleans(table[name])
        else:
            known = labels if name in ("label", SMOOTHED_LABEL) else ()
            columns[name], words = read_names(table[name], known)
            if kind is None:
                word_notes += table.missing_notes(name, words)
    probabilities = np.column_stack([shares[PROBABILITY + label] for label in labels])  # (N, C)

    if not facts:
        origins = _origins(columns)
        facts = {name: " and ".join(values) for name, values in origins.items() if values}
    detected = has_values(probabilities)
    if "score" in columns:
        detected &= columns["score"] != NOT_FOUND
    decimal = ["decimal commas"] if decimal_mark == "," else []
    return Labelled(
        labels=labels,
        paths=columns[PATH],
        probabilities=probabilities,
        detected=detected,
        targets=None,
        columns=columns,
        rows=np.arange(len(table)),
        facts={printable(short(name)): printable(short(fact)) for name, fact in facts.items()},
        notes=(*table.assumption_notes(*decimal), *word_notes),
    )


def _read_numbers(table: Table, name: str, kind: type, decimal_mark: str) -> Array:
    """Returns the numbers of a column (N,), NaN where missing."""
    with _fitting(table, name):
        values = read_numbers(table[name], decimal_mark)
        check_magnitude(values, MAX_NUMBER)
        if kind is int:
            check_whole_cells(values)
    return values


@contextmanager
def _fitting(table: Table, name: str) -> Iterator[None]:
    """Raises TableError for a cell that does not fit the column `name`."""
    try:
        yield
    except BadCellError as error:
        remedy = "restore the column as `predict` wrote it"
        raise table.bad_cell(name, error.row, error.expected, error.cell, remedy) from error


def find_labels(table: Table, recorded: str | None) -> list[str]:
    """Returns the expressions of a table.

    Parquet files record them. In other files, an expression has a common name, or a face has it as
    its label. `recorded` is the record; None without one.

    Raises TableError for a column of another name, which may be a probability or a user's column.
    """
    names = [name for name in table.names if name.startswith(PROBABILITY)]
    labels = [name.removeprefix(PROBABILITY) for name in names]
    if recorded is not None:
        expressions = set(json.loads(recorded))
        labels = [label for label in labels if label in expressions]
    else:
        known = {*EXPRESSIONS, *SYNONYMS}
        for column in ("label", SMOOTHED_LABEL):
            if column in table.names:
                cells, _ = read_names(table[column], labels)
                known.update(cells)
        for name in table.names:
            if name.startswith(SMOOTHED):
                known.add(name.removeprefix(SMOOTHED))
        for label in labels:
            if label not in known:
                raise TableError(
                    "Expected the probability of an expression in the column "
                    f"`{short(PROBABILITY + label)}` of {table.path}, but no face has this label. "
                    "Rename a column of yours; for an expression, predict into a .parquet, which "
                    "records the expressions."
                )
    if len(labels) < 2:
        actual = short(", ".join(table.names))
        raise TableError(
            "Expected a table of `fer-vit predict` with path, confidence and, for each expression, "
            f"p_NAME, but {table.path} has {actual}."
        )
    return labels


def find_uncertain(faces: Labelled) -> Mask:
    """Returns whether the warning of each row (N,) states that its face is uncertain."""
    warnings = faces.columns.get("warning", as_objects([None] * len(faces.paths)))
    return np.array([UNCERTAIN in str(cell).split(SEPARATOR) for cell in warnings], bool)


def leave_out_uncertain(faces: Labelled) -> Labelled:
    """Leaves out uncertain faces in photos that also have a certain face.

    Such an uncertain face is often no face, but a mean over the photo's faces would give both the
    same weight. Frames of videos stay.
    """
    uncertain = find_uncertain(faces)
    photos = is_missing(faces.moments)
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


def _origins(columns: Columns) -> dict[str, list[str]]:
    """Returns the distinct values of each column that records how a row was made."""
    names = [field.name for field in ORIGIN_FIELDS if field.name in columns]
    return {name: sorted({*columns[name].tolist()} - {None}) for name in names}


def _describe_rows(path: Path, faces: Labelled) -> list[str]:
    """Returns lines about rows without a face, or without a smoothed label, and their origins."""
    notes = []
    columns = faces.columns
    predicted = faces.predicted
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
    labelled = [("label", predicted, "they count in no share of `compare`")]
    if "seconds" in columns:
        in_clip = predicted & ~is_missing(columns["seconds"])
        reason = "they are below `--min_confidence`, and count in no duration"
        labelled.append((SMOOTHED_LABEL, in_clip, reason))
    for name, expected, reason in labelled:
        if name in columns and is_missing(columns[name][expected]).any():
            count = is_missing(columns[name][expected]).sum()
            notes.append(
                f"{path.name}: {count:,} of {expected.sum():,} faces have no `{name}`: {reason}."
            )
    uncertain = find_uncertain(faces)
    if uncertain.any():
        notes.append(f"{uncertain.sum():,} of {predicted.sum():,} faces are uncertain.")
    return notes


def check_predicted(data: Path, faces: Labelled) -> None:
    """Raises FerVitError when no face has a prediction."""
    if not faces.predicted.any():
        raise TableError(
            f"Expected a face with a prediction in {data}, but there is none. Name another table."
        )
