"""Tables with a row for each face: .csv, .parquet, .jsonl or .xlsx; and Markdown."""

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.errors import TableError, printable
from fer_vit.fields import NUMBER, NUMBER_FORMATS, Cell, Field
from fer_vit.files import atomic_write, cannot_write
from fer_vit.texts import as_text, json_text

MAX_PENDING_ROWS = 5_000  # rows of a Parquet file that are held in memory before they are written
FACTS_KEY = "predictions"  # the metadata that records how predictions were made
LINE_BYTES = 2**16  # of the buffer of a growing table, which writes a line at once
MAX_SHEET_ROWS = 1_048_576  # rows of a sheet in Excel and LibreOffice, with the head
NO_EXCEL = (
    "Tables for spreadsheets (.xlsx) need one more package: "
    'pip install -c constraints.txt ".[excel]".'
)
NOT_IN_WORKBOOK = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table, and how their cells are written as text."""

    columns: Mapping[str, type]  # name and type (str, int, float or bool); any cell may be None
    formats: Mapping[str, str]  # format of the numbers of a column; `NUMBER` for the others
    facts: Mapping[str, str]  # metadata of a Parquet file; the other formats have none

    def number_text(self, name: str, value: float) -> str:
        """Returns a number with the digits of its column."""
        return format(value, self.formats.get(name, NUMBER))

    def rounded(self, row: Mapping[str, Any]) -> dict[str, Cell]:
        """Returns the cells of a row by column, numbers rounded to the digits of their columns."""
        cells: dict[str, Cell] = {}
        for name in self.columns:
            cell = row.get(name)
            if isinstance(cell, float):
                cell = float(self.number_text(name, cell)) if math.isfinite(cell) else None
            cells[name] = cell
        return cells


class RowFile(Protocol):
    """A file of one format that takes rows one after another."""

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column."""

    def close(self, complete: bool) -> None:
        """Closes the file, which after an error is not `complete`."""


class CsvFile:
    """CSV that R, pandas and spreadsheets read without options."""

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        self._layout = layout
        self._text = open_text(path, live)
        self._writer = csv.writer(self._text)
        self._writer.writerow(map(csv_text, layout.columns))

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column."""
        for row in rows:
            cells = [self._cell(name, row.get(name)) for name in self._layout.columns]
            self._writer.writerow(cells)

    def _cell(self, name: str, cell: Cell) -> str | int | None:
        if isinstance(cell, bool):
            return "TRUE" if cell else "FALSE"  # R reads True as text
        if isinstance(cell, float):
            return self._layout.number_text(name, cell) if math.isfinite(cell) else None
        return csv_text(cell) if isinstance(cell, str) else cell

    def close(self, complete: bool) -> None:
        """Closes the file."""
        self._text.close()


class JsonLinesFile:
    """One JSON object for each row."""

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        self._layout = layout
        self._text = open_text(path, live)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column."""
        for row in rows:
            cells = self._layout.rounded(row)
            self._text.write(json_text(cells, ensure_ascii=False) + "\n")

    def close(self, complete: bool) -> None:
        """Closes the file."""
        self._text.close()


class ParquetFile:
    """Parquet with unrounded numbers; up to `MAX_PENDING_ROWS` rows are held in memory."""

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        # pandas reads integers with empty cells as Int64.
        columns = []
        for name, cell_type in layout.columns.items():
            if cell_type is int:
                column = {
                    "name": name,
                    "field_name": name,
                    "pandas_type": "int64",
                    "numpy_type": "Int64",
                    "metadata": None,
                }
                columns.append(column)
        pandas = {"index_columns": [], "column_indexes": [], "columns": columns}
        metadata = {"pandas": json_text(pandas), FACTS_KEY: json_text(dict(layout.facts))}
        self._schema = arrow_schema(layout.columns).with_metadata(metadata)
        self._file = pq.ParquetWriter(path, self._schema)
        self._rows: list[Mapping[str, Any]] = []

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column."""
        self._rows += rows
        if len(self._rows) >= MAX_PENDING_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(arrow_table(self._rows, self._schema))
            self._rows = []

    def close(self, complete: bool) -> None:
        """Closes the file."""
        try:
            if complete:
                self._flush()
        finally:
            self._file.close()


class ExcelFile:
    """A workbook with one sheet of typed cells; text that begins with "=" stays text."""

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        try:
            from openpyxl import Workbook  # only here: the extra may not be installed
        except ImportError as error:
            raise TableError(NO_EXCEL) from error
        self._path = path
        self._layout = layout
        self._book = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("table")
        self._sheet.freeze_panes = "A2"  # the head stays in view
        self._sheet.append([self._cell(name) for name in layout.columns])
        self._num_rows = 1  # with the head

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column. Raises TableError when a sheet has no room for them."""
        self._num_rows += len(rows)
        if self._num_rows > MAX_SHEET_ROWS:
            remedy = "Write a .csv or .parquet table instead."
            raise TableError(
                f"Expected at most {MAX_SHEET_ROWS - 1:,} rows for {self._path.name}, the limit of "
                f"a spreadsheet, but there are more. {remedy}"
            )
        for row in rows:
            self._sheet.append([self._cell(cell) for cell in self._layout.rounded(row).values()])

    def _cell(self, cell: Cell) -> Any:
        from openpyxl.cell import WriteOnlyCell

        if not isinstance(cell, str):
            return cell
        text = WriteOnlyCell(self._sheet, NOT_IN_WORKBOOK.sub(_escape, as_text(cell)))
        text.data_type = "s"  # not a formula or an error, for any first character
        return text

    def close(self, complete: bool) -> None:
        """Saves the file, if it is complete."""
        self._sheet.close()
        if complete:
            self._book.save(self._path)


# The formats of tables by lower-case suffix. The last argument: each row is flushed at once.
TABLE_FORMATS: dict[str, Callable[[Path, TableLayout, bool], RowFile]] = {
    ".csv": CsvFile,
    ".parquet": ParquetFile,
    ".jsonl": JsonLinesFile,
    ".xlsx": ExcelFile,
}

SUFFIXES = tuple(TABLE_FORMATS)


@dataclass
class TableWriter:
    """Writes a table atomically; a `live` one grows in its place.

    Raises FerVitError when it cannot be written.
    """

    path: Path  # ends in one of `SUFFIXES`
    columns: dict[str, type]  # name and type (str, int, float or bool); any cell may be None
    live: bool = False  # whether each row is in the file at once; only for .csv and .jsonl
    overwrite: bool = True  # whether it may replace a file that was written in the meantime
    facts: Mapping[str, str] = field(default_factory=dict)  # metadata of a Parquet file
    # of numbers, by column; see `TableLayout`
    formats: Mapping[str, str] = field(default_factory=dict)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column; a missing cell is None."""
        with self._errors_with_path():
            self._file.write(rows)

    @contextmanager
    def _errors_with_path(self) -> Iterator[None]:
        """Names the file in errors of a `live` table; for other tables `atomic_write` does it."""
        try:
            yield
        except OSError as error:
            if not self.live:
                raise
            raise cannot_write(self.path, error) from error

    def __enter__(self) -> "TableWriter":
        layout = TableLayout(self.columns, self.formats, self.facts)
        with ExitStack() as stack:
            path = self.path
            if not self.live:
                path = stack.enter_context(atomic_write(self.path, overwrite=self.overwrite))
            with self._errors_with_path():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = TABLE_FORMATS[self.path.suffix.lower()](path, layout, self.live)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        # The file is closed before it gets its name.
        self._open.callback(self._file.close, complete=error[0] is None)
        with self._errors_with_path():
            self._open.__exit__(*error)


def write_fields(path: Path, fields: Sequence[Field], **options: Any) -> TableWriter:
    """Returns the writer of a table with described columns; options as for `TableWriter`.

    In text, numbers have the digits of their unit.
    """
    types = {field.name: field.cell_type for field in fields}
    formats = {field.name: field.format for field in fields}
    return TableWriter(path, types, formats=formats, **options)


def share_formats(columns: Mapping[str, type]) -> dict[str, str]:
    """Returns the format of each column of numbers of a table of shares, scores and their means."""
    formats = {}
    for name, cell_type in columns.items():
        if cell_type is float:
            formats[name] = NUMBER_FORMATS["share"]
    return formats


class CompleteWrites(io.FileIO):
    """A file that ends with the last complete write: what a full disk cuts off is removed."""

    def write(self, data: Any) -> int:
        """Writes all of the data or nothing."""
        size = os.fstat(self.fileno()).st_size
        content = memoryview(data)
        written = 0
        try:
            while written < len(content):
                written += super().write(content[written:])
        except OSError:
            self.truncate(size)
            self.seek(size)
            raise
        return written


def open_text(path: Path, live: bool) -> TextIO:
    """Opens a text file to write.

    With `live`, each line is written at once, completely or not at all.
    """
    # File names need not be valid Unicode; invalid bytes are escaped.
    options: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "newline": "",
    }
    if not live:
        text: TextIO = path.open("x", **options)
        return text
    path.unlink(missing_ok=True)  # another user may have put a link or a FIFO there
    file = io.BufferedWriter(CompleteWrites(path, "x"), LINE_BYTES)
    return io.TextIOWrapper(file, line_buffering=True, **options)


def read_facts(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns how a table was made by the metadata of its file, {} without a record.

    Raises ValueError when the record is no object with text.
    """
    try:
        facts = json.loads(metadata.get(FACTS_KEY.encode(), b"{}"))
    except RecursionError as error:
        raise ValueError(f"the record `{FACTS_KEY}` is nested too deeply") from error
    if not isinstance(facts, dict):
        raise ValueError(f"the record `{FACTS_KEY}` is no object")
    return {name: str(fact) for name, fact in facts.items()}


def arrow_schema(columns: Mapping[str, type]) -> pa.Schema:
    """Returns the schema of a table: name and type (str, int, float or bool) of every column."""
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.schema([(name, types[cell_type]) for name, cell_type in columns.items()])


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Returns rows of cells as a table.

    A missing cell is null. Bytes of file names beyond Unicode are escaped.
    """
    escaped = []
    for row in rows:
        cells = dict(row)
        for name, cell in row.items():
            if isinstance(cell, str):
                cells[name] = as_text(cell)
        escaped.append(cells)
    return pa.Table.from_pylist(escaped, schema)


# What a formula begins with: = + - @, in full width and in small forms as well.
FORMULA_STARTS = re.escape("=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b")
CELL_ENDS = r";,|\t\r\n"  # what programs may take for the end of a cell
SKIPPED = "[ \"']*"  # what may precede a formula
FORMULA = re.compile(
    rf"^(?={SKIPPED}[{FORMULA_STARTS}\t\r\n])|[{CELL_ENDS}](?={SKIPPED}[{FORMULA_STARTS}])"
)
ESCAPED = re.compile(
    rf"^'(?={SKIPPED}[{FORMULA_STARTS}\t\r\n])|(?<=[{CELL_ENDS}])'(?={SKIPPED}[{FORMULA_STARTS}])"
)


def csv_text(text: str) -> str:
    """Returns text for CSV; what a spreadsheet would run gets an apostrophe (OWASP, CSV injection).

    Programs split lines at different characters, and some do so within quotes.
    """
    return FORMULA.sub(r"\g<0>'", text)


def csv_value(text: str) -> str:
    """Returns the text that `csv_text` has escaped."""
    return ESCAPED.sub("", text)


def _escape(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table, the first row its head, the first column left-aligned."""
    lines = []
    for row in rows:
        cells = [printable(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |\n")
    alignment = ["---:" for _ in rows[0]]
    alignment[0] = "---"
    lines.insert(1, f"| {' | '.join(alignment)} |\n")
    return "".join(lines)


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as lines for a terminal, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
