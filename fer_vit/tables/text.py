"""Reads tables that are text: finds the encoding and the separator of cells."""

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
from fer_vit.tables.cells import SPACES, count_changed, unescape_column
from fer_vit.tables.layout import PATH, check_header_is_first, check_table_size, trim_name
from fer_vit.wording import counted

OWN_COLUMN = "fer_vit_version"  # a column of each table that `predict` writes
SNIFFED_CHARACTERS = 1 << 18  # characters that are read to find the separator
ENCODINGS = {"utf-16": "UTF-16", "cp1252": "Windows-1252"}  # names of encodings other than UTF-8
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_text(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads cells separated by commas, semicolons or tabs, without blank rows; see `READERS`."""
    encoding = find_encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        beginning = file.read(SNIFFED_CHARACTERS)
    separator, offset = find_separator(beginning)
    skip_rows = 1 if offset else 0  # Excel's line `sep=;`

    # the names of the columns
    rows = _first_rows(beginning[offset:], separator)
    if not rows:
        raise TableError(f"Expected a table in {path}, but it is empty.")
    check_header_is_first(path, ((line + skip_rows, row) for line, row in rows))
    _, header = rows[0]
    check_table_size(path, 1, len(header))

    # All cells are read as text. Columns are named by index, since names may occur twice.
    column_numbers = [str(index) for index in range(len(header))]
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
    cells = _without_blank_rows(cells.slice(1))  # without the header
    columns = [unescape_column(column) for column in cells.columns]
    names = [csv_value(name) for name in header]
    changed = sum(map(count_changed, cells.columns, columns))

    assumed = []
    if encoding != "utf-8-sig":
        assumed.append(f"read as {ENCODINGS[encoding]}")
    if separator != ",":
        assumed.append(f"separated by {SEPARATORS[separator]}")
    if changed and OWN_COLUMN not in names:  # a table that `predict` did not write
        assumed.append(f"without the apostrophe before a formula in {counted(changed, 'cell')}")
    unnamed = sum(not name.strip(SPACES) for name in header)
    if unnamed:
        assumed.append(f"without {unnamed} of {len(header)} columns, which have no name")
    return pa.table(columns, names=names), assumed


def find_encoding(path: Path) -> str:
    """Returns the encoding of a text file: UTF-16 by byte order mark, UTF-8 or Windows-1252.

    Raises FerVitError for another encoding.
    """
    with path.open("rb") as file:
        byte_order_mark = file.read(2)
    if byte_order_mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for encoding in ("utf-8-sig", "cp1252"):
        if _decodes(path, encoding):
            return encoding
    raise TableError(f"{path} isn't UTF-8, UTF-16 or Windows-1252 text. Save it as CSV UTF-8.")


def _decodes(path: Path, encoding: str) -> bool:
    """Returns whether a file is text in an encoding; raises FerVitError for NUL bytes."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as file:
        try:
            while block := file.read(1 << 20):
                if b"\0" in block:
                    raise TableError(
                        f"{path} contains NUL bytes, so it isn't UTF-8 text. Save it as CSV UTF-8."
                    )
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def find_separator(beginning: str) -> tuple[str, int]:
    """Returns the separator of a text, and the offset of its table.

    The offset is 0, or the end of Excel's first line `sep=;`.
    """
    named = re.match(r'"?sep=([,;\t])"?[^\S\t]*(\r\n|\r|\n)', beginning)
    if named:
        return named[1], named.end()
    return max(SEPARATORS, key=lambda separator: _rate_separator(beginning, separator)), 0


def _rate_separator(beginning: str, separator: str) -> tuple[bool, int, int]:
    """Returns how well a separator fits: a column `path`, rows of equal width, and many columns."""
    rows = [row for _, row in _first_rows(beginning, separator)]
    width = len(rows[0]) if rows else 0
    named = any(len(row) > 1 and PATH in map(trim_name, row) for row in rows)
    equal = 0
    if width > 1:
        equal = sum(len(row) == width for row in rows)
    return named, equal, width


def _first_rows(beginning: str, separator: str) -> list[tuple[int, list[str]]]:
    """Returns the line number and the cells of up to 20 rows that are not blank."""
    reader = csv.reader(io.StringIO(beginning, newline=""), delimiter=separator)
    rows: list[tuple[int, list[str]]] = []
    with suppress(csv.Error):  # a cell is too long for Python's reader
        rows.extend(islice(_filled_rows(reader), 20))
    return rows


def _filled_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the cells of each row that is not blank."""
    for row in reader:
        if any(map(str.strip, row)):
            yield reader.line_num, row


def _skip_blank(row: Any) -> str:
    is_blank = not (row.text or "").strip(SPACES + ',;"')
    return "skip" if is_blank else "error"


def _check_line_lengths(path: Path, encoding: str, separator: str, skip_rows: int) -> None:
    """Raises FerVitError for the first line with more or fewer cells than the header."""
    with path.open(encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        rows = _filled_rows(reader)
        for _ in range(skip_rows):
            next(rows)
        _, header = next(rows)
        for line, row in rows:
            if len(row) == len(header):
                continue
            remedy = "Correct the line."
            if len(row) == len(header) + 1 and line == skip_rows + 2:
                remedy = "In R, write it with `row.names = FALSE`."
            if len(header) == 1:
                remedy = "Separate the cells by commas, semicolons or tabs."
            raise TableError(
                f"Expected a table in {path}, but line {line} has {len(row)} cells, and the header "
                f"has {len(header)}. {remedy}"
            )


def _without_blank_rows(cells: pa.Table) -> pa.Table:
    """Returns the rows with any text: spreadsheets leave `,,` where a row was emptied."""
    rows = np.arange(cells.num_rows)
    for column in cells.columns:
        if not len(rows):
            return cells
        trimmed = pc.utf8_trim(column.take(pa.array(rows)), characters=SPACES)
        rows = rows[np.asarray(pc.equal(trimmed, ""), bool)]
    kept = np.ones(cells.num_rows, bool)
    kept[rows] = False
    return cells.filter(pa.array(kept))
