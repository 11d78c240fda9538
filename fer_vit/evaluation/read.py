"""Reads tables of users and other programs: text, workbooks, JSON Lines and Parquet.

Every table of a user goes through `read_table`. It finds out encoding and separator, and
`Table.assumed` states them where they are not UTF-8 and commas.
"""

import codecs
import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fer_vit.errors import TableError, known_names, printable, short, suggest
from fer_vit.evaluation.cells import (
    SPACES,
    AmbiguousMarkError,
    cell_text,
    find_mark,
    is_text,
    text_column,
)
from fer_vit.predict.tables import read_facts
from fer_vit.report.table import NO_EXCEL, csv_value

PATH = "path"  # the column that every table has
MOST_COLUMNS = 10_000
MOST_CELLS = 100_000_000
MOST_BYTES = 2 << 30  # of an unpacked workbook
SNIFFED = 1 << 18  # characters from which the separator is found
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
BATCH = 10_000  # rows of a workbook or of JSON Lines that are Python objects at a time


@dataclass(frozen=True)
class Table:
    """The cells of a table as they were read."""

    path: Path  # the file, or the folder of several
    cells: pa.Table  # with the metadata of a Parquet file
    assumed: tuple[str, ...] = ()  # what is not the plain case, for a message
    parts: dict[Path, int] = field(default_factory=dict)  # the number of rows of each file in order

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.cells.column_names)

    def __len__(self) -> int:
        return int(self.cells.num_rows)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.cells[name]

    def row_name(self, row: int | np.integer[Any]) -> str:
        """Returns the file and number of a row for messages."""
        number = int(row)
        for path, rows in self.parts.items():
            if number < rows:
                return _row_name(path, number)
            number -= rows
        return _row_name(self.path, number)

    def require(self, *names: str) -> None:
        """Raises FerVitError when a column is missing."""
        missing = [name for name in names if name not in self.names]
        if not missing:
            return
        hint = suggest(missing[0], self.names)
        for name in self.names:
            if name.casefold() == missing[0].casefold():
                hint = f" Rename `{name}`."
                break
        columns = "columns" if len(names) > 1 else "column"
        came = short(known_names(missing[0], map(printable, self.names))) or "no column"
        raise TableError(
            f"Expected the {columns} {' and '.join(names)} in {self.path}, but got {came}.{hint}"
        )

    def decimal_mark(self, names: Sequence[str]) -> str:
        """Returns the decimal mark of the numbers in columns."""
        try:
            return find_mark([self[name] for name in names])
        except AmbiguousMarkError as error:
            raise TableError(
                f"Expected numbers with one decimal mark in {self.path}, but got {error}. "
                "Save the numbers without marks for thousands."
            ) from error

    def facts(self) -> dict[str, str]:
        """Returns how `predict` made the table; of several, the first; {} without a record."""
        with readable(self.path):
            return read_facts(self.cells.schema.metadata or {})

    def assumption(self, *more: str) -> list[str]:
        """Returns a line with what was assumed in reading; none for the plain case."""
        assumed = [*self.assumed, *more]
        if not assumed:
            return []
        return [f"{self.path.name}: {', '.join(assumed)}."]


def _row_name(path: Path, row: int) -> str:
    return f"{path}, row {row + 1} (counted after the head, without blank rows)"


def read_table(*paths: Path) -> Table:
    """Reads a table, or several of a folder as one; raises FerVitError if one is not readable."""
    first = paths[0]
    read = READERS[first.suffix.lower()]
    tables = []
    rows = {}
    for path in paths:
        _check_regular(path)
        with readable(path):
            cells, assumed = read(path)
            table = _check_head(path, cells)
        tables.append(table)
        rows[path] = table.num_rows
    if len(tables) == 1:
        return Table(first, tables[0], assumed=tuple(assumed), parts=rows)
    with readable(first.parent):
        joined = pa.concat_tables(tables, promote_options="permissive")
    return Table(first.parent, joined, parts=rows)


def _check_regular(path: Path) -> None:
    """Raises FerVitError for a FIFO, a folder or a device: reading could wait forever."""
    if path.exists() and not path.is_file():
        raise TableError(f"Expected a table in {path}, but it is not a regular file. Name another.")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises FerVitError when a table cannot be read."""
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
        csv.Error,
        zipfile.BadZipFile,
    ) as error:
        reason = getattr(error, "strerror", None) or short(" ".join(str(error).split()))
        raise TableError(
            f"Expected a table in {path}, but it cannot be read ({printable(reason)})."
        ) from error


def _check_head(path: Path, cells: pa.Table) -> pa.Table:
    """Returns the table with trimmed names, without columns that have none; refuses equal names."""
    names = [name.strip(SPACES) for name in cells.column_names]
    first: dict[str, int] = {}  # the first column of each name
    for index, name in enumerate(names):
        if name in first:
            raise TableError(
                f"{path} has several columns `{printable(short(name))}`. Rename or remove one."
            )
        if name:
            first[name] = index
    named = cells.select(list(first.values())).rename_columns(list(first))
    return named.replace_schema_metadata(cells.schema.metadata)


def check_table_size(path: Path, rows: int, columns: int) -> None:
    """Raises FerVitError for a table that is too large to compute with."""
    if columns > MOST_COLUMNS or rows * columns > MOST_CELLS:
        limit = f"{MOST_COLUMNS:,} columns and {MOST_CELLS:,} cells"
        raise TableError(
            f"Expected at most {limit} in {path}, but got {rows:,} rows of {columns:,} columns. "
            "Remove columns, or split it."
        )


# Text


def read_text(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads cells that are separated by commas, semicolons or tabs, without blank rows."""
    encoding = find_encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        start = file.read(SNIFFED)
    separator, begin = find_separator(start)
    skipped = 1 if begin else 0  # lines

    # the names of the columns
    rows = _first_rows(start[begin:], separator)
    if not rows:
        raise TableError(f"Expected a table in {path}, but it is empty.")
    _check_first(path, ((line + skipped, row) for line, row in rows))
    _, head = rows[0]
    check_table_size(path, 1, len(head))

    # all cells as text; names may be equal, so columns are read by number
    numbers = [str(index) for index in range(len(head))]
    reading = pa_csv.ReadOptions(
        encoding=encoding.removesuffix("-sig"),
        skip_rows=skipped,
        column_names=numbers,
        block_size=1 << 24,
    )
    parsing = pa_csv.ParseOptions(
        delimiter=separator, newlines_in_values=True, invalid_row_handler=_skip_blank
    )
    conversion = pa_csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()))
    try:
        cells = pa_csv.read_csv(path, reading, parsing, conversion)
    except pa.ArrowInvalid:
        _name_ragged_line(path, encoding, separator, skipped)
        raise
    check_table_size(path, cells.num_rows, cells.num_columns)
    cells = _without_blank_rows(cells.slice(1))  # the first row is the head
    columns = [_unescape_column(column) for column in cells.columns]
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


ENCODINGS = {"utf-16": "UTF-16", "cp1252": "Windows-1252"}


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


def find_separator(start: str) -> tuple[str, int]:
    """Returns the separator of a text, and where its table begins: below Excel's line `sep=;`."""
    named = re.match(r'"?sep=([,;\t])"?[^\S\t]*(\r\n|\r|\n)', start)
    if named:
        return named[1], named.end()
    return max(SEPARATORS, key=lambda separator: _fit(start, separator)), 0


def _fit(start: str, separator: str) -> tuple[bool, int, int]:
    """Returns how well a separator fits: for a cell `path`, equal lines, and many cells."""
    rows = [row for _, row in _first_rows(start, separator)]
    width = len(rows[0]) if rows else 0
    named = any(len(row) > 1 and PATH in map(_tidy, row) for row in rows)
    equal = 0
    if width > 1:
        equal = sum(len(row) == width for row in rows)
    return named, equal, width


def _tidy(name: str) -> str:
    return name.strip(SPACES)


def _first_rows(start: str, separator: str) -> list[tuple[int, list[str]]]:
    """Returns up to 20 rows that are not blank, with their lines."""
    reader = csv.reader(io.StringIO(start, newline=""), delimiter=separator)
    rows: list[tuple[int, list[str]]] = []
    with suppress(csv.Error):  # a cell that is too long for Python's reader
        rows.extend(islice(_filled_rows(reader), 20))
    return rows


def _filled_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yields line and cells of the rows of a CSV reader that are not blank."""
    for row in reader:
        if any(map(str.strip, row)):
            yield reader.line_num, row


def _check_first(path: Path, rows: Iterable[tuple[int, Sequence[object]]]) -> None:
    """Raises FerVitError when the names of the columns are in a later row than the first."""
    for index, (number, row) in enumerate(rows):
        has_names = any(isinstance(cell, str) and _tidy(cell) == PATH for cell in row)
        if has_names and index == 0:
            return
        if has_names:
            raise TableError(
                f"Expected the names of the columns in the first row of {path}, but row "
                f"{number} has them. Delete the rows above."
            )


def _skip_blank(row: Any) -> str:
    return "error" if (row.text or "").strip(SPACES + ',;"') else "skip"


def _name_ragged_line(path: Path, encoding: str, separator: str, skipped: int) -> None:
    """Raises FerVitError for the first line with more or fewer cells than the head."""
    with path.open(encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        rows = _filled_rows(reader)
        _, head = next(islice(rows, skipped, None))
        for line, row in rows:
            if len(row) == len(head):
                continue
            remedy = "Correct the line."
            if len(row) == len(head) + 1 and line == skipped + 2:
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


def _unescape_column(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    quoted = pc.match_substring(cells, "'")
    if not pc.any(quoted, min_count=0).as_py():
        return cells
    return pa.chunked_array([pa.array(map(csv_value, cells.to_pylist()), pa.string())])


# Workbooks


def read_workbook(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads the first sheet of a workbook, row by row, without blank rows."""
    try:
        import openpyxl  # only here: the extra `excel` may not be installed
    except ImportError as error:
        raise TableError(f"{path}: {NO_EXCEL}") from error
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile as error:
        raise TableError(
            f"{path} is no workbook, or has a password. Save it without one, or as .csv."
        ) from error
    if size > MOST_BYTES:
        raise TableError(
            f"{path} has {size:,} bytes when unpacked, and the limit is {MOST_BYTES:,}. "
            "Save it as .csv or .parquet."
        )
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # openpyxl raises many types for broken files
        raise TableError(f"{path} is no workbook that can be read. Save it as .csv.") from error
    with closing(book):
        sheets = book.worksheets
        if not sheets:
            raise TableError(f"Expected a sheet in {path}, but got none. Save it as .csv.")
        cells = _read_sheet(path, _sheet_rows(path, sheets[0]))
        title = printable(short(sheets[0].title))
    assumed = []
    if len(sheets) > 1:
        assumed.append(f"read from `{title}`, the first of {len(sheets)} sheets")
    return cells, assumed


def _sheet_rows(path: Path, sheet: Any) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields number and cells of the rows of a sheet that are not blank."""
    try:
        sheet.reset_dimensions()  # which may be wrong
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            if not all(map(_is_blank, row)):
                yield number, row
    except Exception as error:
        raise TableError(f"{path} is no workbook that can be read. Save it as .csv.") from error


def _read_sheet(path: Path, rows: Iterator[tuple[int, Sequence[Any]]]) -> pa.Table:
    """Reads the rows of a sheet, the first of which has the names of the columns."""
    first = list(islice(rows, 20))
    if not first:
        raise TableError(f"Expected a table in {path}, but it is empty.")
    _check_first(path, first)
    _, names = first[0]
    width = len(names)
    while _is_blank(names[width - 1]):
        width -= 1
    head = ["" if _is_blank(cell) else csv_value(str(cell)) for cell in names[:width]]
    check_table_size(path, 1, width)

    chunks: list[list[pa.Array]] = [[] for _ in head]  # of each column
    count = 0
    below = chain(first[1:], rows)
    while batch := list(islice(below, BATCH)):
        for number, row in batch:
            if not all(map(_is_blank, row[width:])):
                raise TableError(
                    f"Row {number} of {path} has a cell beyond the {width} named columns. "
                    "Name its column, or delete the cell."
                )
        count += len(batch)
        check_table_size(path, count, width)
        for index, column in enumerate(chunks):
            column.append(_typed([_cell(row, index) for _, row in batch]))
    columns = [_unescape_text(_join_chunks(column)) for column in chunks]
    return pa.table(columns, names=head)


def _unescape_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return _unescape_column(cells) if is_text(cells.type) else cells


def _is_blank(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip(SPACES))


def _cell(row: Sequence[Any], index: int) -> Any:
    cell = row[index] if index < len(row) else None
    return cell if isinstance(cell, str | int | float | bool) else cell_text(cell)


def _typed(cells: Sequence[Any]) -> pa.Array:
    """Returns cells as numbers or truth values where all are, else as text."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds:
        return pa.nulls(len(cells))
    if kinds == {bool}:
        return pa.array(cells, pa.bool_())
    if kinds <= {int, float}:
        try:
            return pa.array(cells, pa.int64() if kinds == {int} else pa.float64())
        except (pa.ArrowException, OverflowError):  # integers that no column can hold
            pass
    return pa.array(map(cell_text, cells), pa.string())


def _join_chunks(chunks: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Joins the chunks of a column, as text where their types differ."""
    known = [chunk for chunk in chunks if not pa.types.is_null(chunk.type)]
    kinds = {chunk.type for chunk in known}
    if not kinds:
        return pa.chunked_array(chunks, pa.null())
    if kinds == {pa.int64(), pa.float64()}:
        kind = pa.float64()
    elif len(kinds) == 1:
        (kind,) = kinds
    else:
        kind = pa.string()
        known_text = [text_column(pa.chunked_array([chunk])) for chunk in chunks]
        chunks = [part for column in known_text for part in column.chunks]
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


# JSON Lines


def read_json_lines(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads an object on each line."""
    chunks: dict[str, list[pa.Array]] = {}  # of each column
    count = 0
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        objects = _json_rows(file)
        while rows := list(islice(objects, BATCH)):
            for name in chain.from_iterable(rows):
                if name not in chunks:  # null in the rows above
                    chunks[name] = [pa.nulls(count)] if count else []
            count += len(rows)
            check_table_size(path, count, len(chunks))
            for name, column in chunks.items():
                column.append(_typed([row.get(name) for row in rows]))
    columns = [_join_chunks(column) for column in chunks.values()]
    return pa.table(columns, names=list(chunks)), []


def _json_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the cells of each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _json_row(number, line)


def _json_row(number: int, line: str) -> dict[str, Any]:
    expected = "an object with the cells by column"
    try:
        row = json.loads(line, object_pairs_hook=_distinct_names)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: expected {expected}, {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number}: expected {expected}")
    plain = (str, int, float, bool, type(None))
    return {name: cell if isinstance(cell, plain) else str(cell) for name, cell in row.items()}


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice")
    return row


# Parquet


def read_parquet(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads a Parquet file; repeated text stays one text in memory."""
    with pq.ParquetFile(path) as file:
        check_table_size(path, file.metadata.num_rows, file.metadata.num_columns)
        schema = file.schema_arrow
    texts = [column.name for column in schema if is_text(column.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        cells = file.read()
    indices = [name for name in cells.column_names if re.fullmatch(r"__index_level_\d+__", name)]
    return cells.drop_columns(indices), []


READERS: dict[str, Callable[[Path], tuple[pa.Table, list[str]]]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".txt": read_text,
    ".xlsx": read_workbook,
    ".jsonl": read_json_lines,
    ".parquet": read_parquet,
}
"""The readers of tables by lower-case suffix: each returns the cells and what it assumed."""


def metadata(path: Path) -> dict[bytes, bytes]:
    """Returns the metadata of a Parquet file, {} for another file or a folder."""
    if path.suffix.lower() != ".parquet" or path.is_dir():
        return {}
    _check_regular(path)
    with readable(path):
        return pq.read_schema(path).metadata or {}


def is_table(path: Path) -> bool:
    """Returns whether a path names a table; a manifest may be a Parquet file as well."""
    return path.suffix.lower() in READERS and b"fer_vit" not in metadata(path)
