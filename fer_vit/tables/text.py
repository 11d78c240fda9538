"""Reads tables that are text: finds out the encoding and what separates the cells."""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fer_vit.errors import TableError
from fer_vit.report.table import csv_value
from fer_vit.tables.cells import SPACES, unescape_column
from fer_vit.tables.layout import PATH, check_head_is_first, check_table_size, trim_name

SNIFFED_CHARACTERS = 1 << 18  # characters from which the separator is found
ENCODINGS = {"utf-16": "UTF-16", "cp1252": "Windows-1252"}  # other than UTF-8, by name
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_text(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads cells that are separated by commas, semicolons or tabs, without blank rows."""
    encoding = find_encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        beginning = file.read(SNIFFED_CHARACTERS)
    separator, offset = find_separator(beginning)
    skip_rows = 1 if offset else 0  # Excel's line `sep=;`

    # the names of the columns
    rows = _first_rows(beginning[offset:], separator)
    if not rows:
        raise TableError(f"Expected a table in {path}, but it is empty.")
    check_head_is_first(path, ((line + skip_rows, row) for line, row in rows))
    _, head = rows[0]
    check_table_size(path, 1, len(head))

    # all cells as text; names may be equal, so columns are read by number
    column_numbers = [str(index) for index in range(len(head))]
    read_options = pa_csv.ReadOptions(
        encoding=encoding.removesuffix("-sig"),
        skip_rows=skip_rows,
        column_names=column_numbers,
        block_size=1 << 24,
    )
    parse_options = pa_csv.ParseOptions(
        delimiter=separator, newlines_in_values=True, invalid_row_handler=_skip_blank
    )
    convert_options = pa_csv.ConvertOptions(column_types=dict.fromkeys(column_numbers, pa.string()))
    try:
        cells = pa_csv.read_csv(path, read_options, parse_options, convert_options)
    except pa.ArrowInvalid:
        _check_line_lengths(path, encoding, separator, skip_rows)
        raise
    check_table_size(path, cells.num_rows, cells.num_columns)
    cells = _without_blank_rows(cells.slice(1))  # the first row is the head
    columns = [unescape_column(column) for column in cells.columns]
    names = [csv_value(name) for name in head]

    assumed = []
    if encoding != "utf-8-sig":
        assumed.append(f"read as {ENCODINGS[encoding]}")
    if separator != ",":
        assumed.append(f"separated by {SEPARATORS[separator]}")
    unnamed = sum(not name.strip(SPACES) for name in head)
    if unnamed:
        assumed.append(f"without {unnamed} of {len(head)} columns, which have no name")
    return pa.table(columns, names=names), assumed


def find_encoding(path: Path) -> str:
    """Returns the encoding of a text: UTF-16 by its byte order mark, else UTF-8 or Windows-1252.

    Raises FerVitError when it is none.
    """
    with path.open("rb") as file:
        mark = file.read(2)
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for encoding in ("utf-8-sig", "cp1252"):
        if _decodes(path, encoding):
            return encoding
    raise TableError(
        f"{path} is text in neither UTF-8, UTF-16 nor Windows-1252. Save it as CSV UTF-8."
    )


def _decodes(path: Path, encoding: str) -> bool:
    """Returns whether a file is text in an encoding; raises FerVitError for NUL bytes."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as file:
        try:
            while block := file.read(1 << 20):
                if b"\0" in block:
                    raise TableError(
                        f"{path} has NUL bytes, so it is no text in UTF-8. Save it as CSV UTF-8."
                    )
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def find_separator(beginning: str) -> tuple[str, int]:
    """Returns the separator of a text, and where its table begins: below Excel's line `sep=;`."""
    named = re.match(r'"?sep=([,;\t])"?[^\S\t]*(\r\n|\r|\n)', beginning)
    if named:
        return named[1], named.end()
    return max(SEPARATORS, key=lambda separator: _rate_separator(beginning, separator)), 0


def _rate_separator(beginning: str, separator: str) -> tuple[bool, int, int]:
    """Returns how well a separator fits: for a cell `path`, equal lines, and many cells."""
    rows = [row for _, row in _first_rows(beginning, separator)]
    width = len(rows[0]) if rows else 0
    named = any(len(row) > 1 and PATH in map(trim_name, row) for row in rows)
    equal = 0
    if width > 1:
        equal = sum(len(row) == width for row in rows)
    return named, equal, width


def _first_rows(beginning: str, separator: str) -> list[tuple[int, list[str]]]:
    """Returns up to 20 rows that are not blank, with their lines."""
    reader = csv.reader(io.StringIO(beginning, newline=""), delimiter=separator)
    rows: list[tuple[int, list[str]]] = []
    with suppress(csv.Error):  # a cell that is too long for Python's reader
        rows.extend(islice(_filled_rows(reader), 20))
    return rows


def _filled_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yields line and cells of the rows of a CSV reader that are not blank."""
    for row in reader:
        if any(map(str.strip, row)):
            yield reader.line_num, row


def _skip_blank(row: Any) -> str:
    is_blank = not (row.text or "").strip(SPACES + ',;"')
    return "skip" if is_blank else "error"


def _check_line_lengths(path: Path, encoding: str, separator: str, skip_rows: int) -> None:
    """Raises FerVitError for the first line with more or fewer cells than the head."""
    with path.open(encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        rows = _filled_rows(reader)
        for _ in range(skip_rows):
            next(rows)
        _, head = next(rows)
        for line, row in rows:
            if len(row) == len(head):
                continue
            remedy = "Correct the line."
            if len(row) == len(head) + 1 and line == skip_rows + 2:
                remedy = "In R, write it with `row.names = FALSE`."
            if len(head) == 1:
                remedy = "Separate the cells by commas, semicolons or tabs."
            raise TableError(
                f"Expected a table in {path}, but line {line} has {len(row)} cells, and the head "
                f"has {len(head)}. {remedy}"
            )


def _without_blank_rows(cells: pa.Table) -> pa.Table:
    """Returns rows that have any cell: spreadsheets leave `,,` where a row was emptied."""
    rows = np.arange(cells.num_rows)
    for column in cells.columns:
        if not len(rows):
            return cells
        trimmed = pc.utf8_trim(column.take(pa.array(rows)), characters=SPACES)
        rows = rows[np.asarray(pc.equal(trimmed, ""), bool)]
    kept = np.ones(cells.num_rows, bool)
    kept[rows] = False
    return cells.filter(pa.array(kept))
