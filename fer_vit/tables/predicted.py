"""Reads tables of `predict`, which people may have edited, as typed columns."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fer_vit.errors import TableError
from fer_vit.faces import Objects, as_objects
from fer_vit.fields import PROBABILITY, SMOOTHED_LABEL, is_feature, table_columns
from fer_vit.geometry import Array, Mask
from fer_vit.heads import HeadOutputs
from fer_vit.report.table import LABELS_FACT
from fer_vit.tables.cells import (
    BadCellError,
    check_magnitude,
    check_whole_cells,
    read_booleans,
    read_names,
    read_numbers,
    read_paths,
)
from fer_vit.tables.expressions import find_labels
from fer_vit.tables.layout import PATH
from fer_vit.tables.parts import read_table_or_folder
from fer_vit.tables.paths import one_spelling
from fer_vit.tables.read import Table
from fer_vit.tables.source import Source

SUM_TOLERANCE = 0.01  # most distance from 1 of the sum of rounded probabilities
MAX_NUMBER = 1e12  # sums and ratios of larger numbers overflow


class PredictedTable(NamedTuple):
    """A table of `predict` as typed columns, with N rows and C expressions."""

    source: Source
    labels: list[str]  # the expressions (C,)
    paths: Objects  # (N,), with one spelling for each file; None where empty
    shares: Array  # (N, C), the columns of probabilities
    numbers: dict[str, Array]  # columns of numbers (N,) by name, NaN where missing
    # columns (N,) by name, None where missing: all but the path, probabilities and features; a
    # column of numbers is in `numbers` as well
    columns: dict[str, Objects]
    facts: dict[str, str]  # how `predict` made the table; {} without a record
    notes: list[str]  # assumptions of reading

    @property
    def predicted(self) -> Mask:
        """Whether each row (N,) has a face."""
        return ~np.isnan(self.numbers["confidence"])

    def name_first(self, wrong: Mask) -> str:
        """Returns the name of the first row that is True in `wrong` (N,)."""
        return self.source.row_name(int(wrong.argmax()))


def read_predicted(path: Path) -> PredictedTable:
    """Reads a table of `predict`, or a folder with part tables.

    `fields.py` has the types of its columns; columns of a user are text. Raises FerVitError when
    the table is incomplete, lacks a column, or has a cell that does not fit its column.
    """
    table = read_table_or_folder(path)
    table.check_columns(PATH, "confidence")
    labels = find_labels(table)
    outputs = HeadOutputs.among(table.names)
    types = table_columns(labels, videos=True, outputs=outputs)

    number_names = [name for name in table.names if types.get(name) in (int, float)]
    decimal_mark = table.decimal_mark(number_names)
    numbers = {}
    for name in number_names:
        numbers[name] = _read_valid_numbers(table, name, types[name], decimal_mark)
    columns, word_notes = _read_columns(table, types, numbers, labels)

    facts = table.facts()
    facts.pop(LABELS_FACT, None)  # `labels` has them
    decimal = ["decimal commas"] if decimal_mark == "," else []
    return PredictedTable(
        source=table.source,
        labels=labels,
        paths=one_spelling(read_paths(table[PATH])),
        shares=np.column_stack([numbers[PROBABILITY + label] for label in labels]),
        numbers=numbers,
        columns=columns,
        facts=facts,
        notes=[*table.assumption_notes(*decimal), *word_notes],
    )


def _read_valid_numbers(table: Table, name: str, kind: type, decimal_mark: str) -> Array:
    """Returns the numbers of a column (N,), NaN where missing."""
    try:
        values = read_numbers(table[name], decimal_mark)
        check_magnitude(values, MAX_NUMBER)
        if kind is int:
            check_whole_cells(values)
    except BadCellError as error:
        raise _cell_error(table, name, error) from error
    return values


def _cell_error(table: Table, name: str, error: BadCellError) -> TableError:
    remedy = "restore the column as `predict` wrote it"
    return table.source.bad_cell(name, error.row, error.expected, error.cell, remedy)


def _read_columns(
    table: Table, types: Mapping[str, type], numbers: Mapping[str, Array], labels: Sequence[str]
) -> tuple[dict[str, Objects], list[str]]:
    """Returns `PredictedTable.columns`, and notes about words for missing values."""
    columns: dict[str, Objects] = {}
    notes = []
    for name in table.names:
        probability = name.startswith(PROBABILITY) and name in types
        if name == PATH or probability or is_feature(name):
            continue
        if name in numbers:
            columns[name] = _number_cells(numbers[name], types[name])
        elif types.get(name) is bool:
            try:
                columns[name] = read_booleans(table[name])
            except BadCellError as error:
                raise _cell_error(table, name, error) from error
        elif name in ("label", SMOOTHED_LABEL):
            columns[name], _ = read_names(table[name], labels)
        else:
            columns[name], words = read_names(table[name])
            if name not in types:
                notes += table.missing_notes(name, words)
    return columns, notes


def _number_cells(values: Array, kind: type) -> Objects:
    """Returns numbers (N,) as cells of the type `kind`, None where missing."""
    return as_objects([None if math.isnan(value) else kind(value) for value in values.tolist()])
