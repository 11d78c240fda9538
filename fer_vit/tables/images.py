"""Reads tables of users with one row for each image: labels, targets and further columns."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fer_vit.errors import FerVitError, TableError, short
from fer_vit.faces import Objects
from fer_vit.fields import is_owned
from fer_vit.geometry import Array
from fer_vit.heads import POSE, HeadOutputs, Output
from fer_vit.labels import canonical, find_label
from fer_vit.tables.cells import BadCellError, is_missing, read_names, read_numbers, read_paths
from fer_vit.tables.layout import PATH
from fer_vit.tables.paths import normal_path
from fer_vit.tables.table_reader import Table, read_table

AngleUnit = Literal["degrees", "radians"]
DIVISORS = {"degrees": 1.0, "radians": math.pi / 180}  # what angles are divided by, by their unit


class ImageTable(NamedTuple):
    """The columns of M images."""

    paths: Objects  # (M,)
    columns: dict[str, Objects]  # the other columns as names (M,), None where missing
    notes: list[str]  # assumptions of reading


class Truth(NamedTuple):
    """The labels, targets and further columns of M images."""

    paths: Objects  # (M,)
    votes: Array | None  # (M, C), the fraction of votes for each label; None without labels
    outputs: dict[str, Array]  # targets of further heads (M,) by column; NaN where unknown
    columns: dict[str, Objects]  # the other columns (M,)
    notes: Sequence[str] = ()


def read_images(path: Path) -> ImageTable:
    """Reads a table with one row for each image; all columns are names."""
    return _read_image_table(read_table(path))


def read_truth_table(
    path: Path, labels: Sequence[str], angle_unit: AngleUnit | None = None
) -> Truth:
    """Reads the labels of images (one of C `labels`), targets of heads, or both.

    Raises FerVitError for an unknown label, a target that is out of range, or angles whose unit is
    unclear.
    """
    table = read_table(path)
    outputs = HeadOutputs.among(table.names)
    # a table that has only targets needs no labels
    needs_label = "label" in table.names or not outputs
    needed = ["label"] if needs_label else []
    images = _read_image_table(table, needed, labels)

    votes = None
    if needs_label:
        indices = []
        for name in images.columns["label"]:
            label = name if name in labels else canonical(name)
            indices.append(find_label(label, labels, path))
        votes = np.eye(len(labels))[indices]  # (M, C)

    columns = {}
    ignored = []
    for name, cells in images.columns.items():
        if name in outputs.columns:
            continue
        columns[name] = cells
        if name != "label" and is_owned(name, labels):
            ignored.append(name)
    notes = [*images.notes]
    if ignored:
        notes.append(
            f"{path.name}: `predict` has columns of the same name, so "
            f"{short(', '.join(ignored))} are not used. Rename them to use them."
        )
    return Truth(
        paths=images.paths,
        votes=votes,
        outputs=_read_target_columns(table, outputs, angle_unit),
        columns=columns,
        notes=notes,
    )


def _read_image_table(
    table: Table, needed: Sequence[str] = (), labels: Sequence[str] = ()
) -> ImageTable:
    """Returns all columns of a table as names, with notes.

    Names in the column `label` take their spelling in `labels`. Raises FerVitError when a needed
    column is missing or has an empty cell, or an image has several rows.
    """
    table.check_columns(PATH, *needed)
    if not len(table):
        raise FerVitError(f"Expected rows in {table.path}, but it has only the names of columns.")
    paths = read_paths(table[PATH])
    columns = {}
    notes = table.assumption_notes()
    for name in table.names:
        if name == PATH:
            continue
        known = labels if name == "label" else ()
        columns[name], words = read_names(table[name], known)
        notes += table.missing_notes(name, words)

    check_filled(table, PATH, paths)
    for name in needed:
        check_filled(table, name, columns[name])
    check_distinct(table, paths)
    return ImageTable(paths, columns, notes)


def check_filled(table: Table, name: str, cells: Objects) -> None:
    """Raises TableError for an empty cell in the column `name` (M,)."""
    problem = f"expected a {name}, but it is empty. Fill it in, or remove the row."
    table.check(is_missing(cells), problem)


def check_distinct(table: Table, paths: Objects) -> None:
    """Raises FerVitError for an image that several paths (M,) name."""
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        name = normal_path(path)
        if name in first:
            raise FerVitError(
                f"{table.row_name(row)}: expected one row for each image, but {short(path)} has "
                f"several; the first is {table.earlier_row_name(first[name])}. Leave one."
            )
        first[name] = row


def _read_target_columns(
    table: Table, outputs: HeadOutputs, angle_unit: AngleUnit | None
) -> dict[str, Array]:
    """Returns the targets (M,) of columns, NaN where empty.

    Raises FerVitError for a target that is out of range, or an unclear unit.
    """
    decimal_mark = table.decimal_mark(outputs.columns)
    targets = {}
    for output in outputs:
        name = output.column
        try:
            targets[name] = read_numbers(table[name], decimal_mark)
        except BadCellError as error:
            expected = output.range_in_words()
            raise bad_target(table, name, error.row, expected, error.cell) from error

    angles = {name: targets[name] for name in outputs.of_head(POSE).columns}
    divisor_of_angles = angle_divisor(table, angles, angle_unit)
    for output in outputs:
        name = output.column
        divisor = divisor_of_angles if output.head == POSE else 1.0
        check_target_range(table, name, targets[name], output, divisor)
        targets[name] = targets[name] / divisor
    return targets


def angle_divisor(table: Table, angles: Mapping[str, Array], unit: AngleUnit | None) -> float:
    """Returns what angles (M,) are divided by to be degrees.

    Without a unit, angles are degrees. Raises TableError if they may be radians instead: some are
    not 0, and none is above a right angle in radians.
    """
    if unit is None and angles:
        largest = np.nanmax(np.abs([*angles.values()]), initial=0)
        if 0 < largest <= math.pi / 2:
            raise TableError(
                f"{table.path}: no angle in {', '.join(angles)} is above {largest:.2g}. If the "
                "angles are radians, add `--targets_unit radians`; if they are degrees, "
                "`--targets_unit degrees`."
            )
    return DIVISORS[unit or "degrees"]


def check_target_range(
    table: Table, name: str, values: Array, output: Output, scale: float
) -> None:
    """Raises TableError when a target (M,) of an output, times `scale`, is out of range.

    The targets are in the column `name`.
    """
    wrong = output.out_of_range(values, scale)
    if wrong.any():
        row = int(wrong.argmax())
        raise bad_target(table, name, row, output.range_in_words(scale), values[row])


def bad_target(table: Table, name: str, row: int, expected: str, cell: object) -> TableError:
    """Returns the error of a cell that is not the expected target."""
    return table.bad_cell(name, row, expected, cell, "empty it if it is unknown")
