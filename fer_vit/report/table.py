"""Writes tables as .csv, .parquet, .jsonl or .xlsx, and as text in Markdown and for a terminal."""

import csv
import io
import json
import logging
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from fer_vit.errors import printable
from fer_vit.fields import NUMBER, NUMBER_FORMATS, Cell, Field
from fer_vit.files import atomic_write, cannot_write
from fer_vit.texts import as_text, json_text

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger("fer_vit")

STDOUT = Path("-")  # the path of a table in JSON Lines that is printed
MAX_PENDING_ROWS = 5_000  # rows of a Parquet file that are held in memory before they are written
FACTS_KEY = "predictions"  # the key of the metadata that records how predictions were made
INPUTS_KEY = "inputs"  # the key of the metadata that records which files were read
LABELS_FACT = "labels"  # the record of the expressions, one of the facts
LINE_BYTES = 2**16  # size of the write buffer of a live table; the buffer is flushed at line ends
MAX_SHEET_ROWS = 1_048_576  # most rows of a sheet in Excel and LibreOffice, including the header
NOT_IN_WORKBOOK = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table, and the formats of numbers as text."""

    path: Path  # where the table will be
    columns: Mapping[str, type]  # type (str, int, float or bool) by name; any cell may be None
    formats: Mapping[str, str]  # format of numbers by column; `NUMBER` for columns without one
    facts: Mapping[str, str]  # metadata of a Parquet file; other files have no metadata
    inputs: Mapping[str, object]  # metadata of a Parquet file, complete when it is closed

    def number_text(self, name: str, value: float) -> str:
        """Returns a number as text, with the digits of the column `name`."""
        return format(value, self.formats.get(name, NUMBER))

    def rounded(self, row: Mapping[str, Any]) -> dict[str, Cell]:
        """Returns the cells of a row by column; numbers are rounded to the digits of the column."""
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
        """Closes the file. After an error, the file is not `complete`."""


class CsvFile:
    """CSV that R, pandas and spreadsheets read without options."""

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        # looked up once: a table may have ten million cells
        self._formats = [(name, layout.formats.get(name, NUMBER)) for name in layout.columns]
        self._text = open_text(path, live)
        self._writer = csv.writer(self._text)
        self._writer.writerow(map(csv_text, layout.columns))

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column."""
        for row in rows:
            self._writer.writerow([csv_cell(row.get(name), form) for name, form in self._formats])

    def close(self, complete: bool) -> None:
        """Closes the file."""
        self._text.close()


def csv_cell(cell: Cell, form: str) -> str | int | None:
    """Returns a cell for CSV; `form` is the format of numbers."""
    if isinstance(cell, float):
        return format(cell, form) if math.isfinite(cell) else None
    if isinstance(cell, str):
        return csv_text(cell)
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"  # R reads True as text
    return cell


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
    """Parquet with unrounded numbers; rows are written in groups of about `MAX_PENDING_ROWS`."""

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        import pyarrow.parquet as pq  # not at the top: other formats don't need it

        self._layout = layout
        # This metadata makes pandas read integers with empty cells as Int64, not as float.
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
                self._file.add_key_value_metadata({INPUTS_KEY: json_text(self._layout.inputs)})
        finally:
            self._file.close()


class ExcelFile:
    """A workbook with one sheet of typed cells; text that begins with "=" stays text.

    If a sheet can't hold all rows, a CSV beside the workbook has the whole table.
    """

    def __init__(self, path: Path, layout: TableLayout, live: bool) -> None:
        from openpyxl import Workbook  # not at the top: few tables are workbooks

        self._path = path
        self._layout = layout
        self._book = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("table")
        self._sheet.freeze_panes = "A2"  # the header stays in view
        self._sheet.append([self._cell(name) for name in layout.columns])
        self._num_rows = 0
        self._max_rows = MAX_SHEET_ROWS - 1  # without the header
        # A workbook can't be read before it is complete, so the CSV is written along with it.
        self._all_rows_path = path.with_name(f"{path.name}.csv")
        self._all_rows = CsvFile(self._all_rows_path, layout, live)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column."""
        for row in rows[: max(0, self._max_rows - self._num_rows)]:
            self._sheet.append([self._cell(cell) for cell in self._layout.rounded(row).values()])
        self._num_rows += len(rows)
        self._all_rows.write(rows)

    def _cell(self, cell: Cell) -> Any:
        from openpyxl.cell import WriteOnlyCell

        if not isinstance(cell, str):
            return cell
        text = WriteOnlyCell(self._sheet, NOT_IN_WORKBOOK.sub(_escape, as_text(cell)))
        text.data_type = "s"  # text, also if the text begins like a formula or an error
        return text

    def close(self, complete: bool) -> None:
        """Saves the workbook if it is complete, and a CSV of all rows if the sheet lacks some."""
        self._sheet.close()
        self._all_rows.close(complete)
        if complete:
            self._book.save(self._path)
            if self._num_rows > self._max_rows:
                self._save_all_rows()

    def _save_all_rows(self) -> None:
        """Saves all rows beside the workbook, under a name that no file has."""
        book = self._layout.path
        names = (book.with_name(f"{book.stem}.all-rows{number or ''}.csv") for number in count())
        beside = next(path for path in names if not os.path.lexists(path))
        with atomic_write(beside, overwrite=False) as new:
            self._all_rows_path.replace(new)
        LOGGER.warning(
            f"A sheet holds {self._max_rows:,} rows: {book} has the first ones, and {beside} has "
            f"all {self._num_rows:,}."
        )


# The formats of tables by lower-case suffix. The last argument is `live`: whether each row is
# flushed at once.
TABLE_FORMATS: dict[str, Callable[[Path, TableLayout, bool], RowFile]] = {
    ".csv": CsvFile,
    ".parquet": ParquetFile,
    ".jsonl": JsonLinesFile,
    ".xlsx": ExcelFile,
}

SUFFIXES = tuple(TABLE_FORMATS)


@dataclass
class TableWriter:
    """Writes a table atomically; a `live` table is written row by row at its path.

    Raises FerVitError when the table cannot be written.
    """

    path: Path  # ends in one of `SUFFIXES`, or is `STDOUT`
    columns: dict[str, type]  # type (str, int, float or bool) by name; any cell may be None
    live: bool = False  # whether each row is in the file at once; only for .csv and .jsonl
    overwrite: bool = True  # whether the table may replace a file from the meantime
    facts: Mapping[str, str] = field(default_factory=dict)  # metadata of a Parquet file
    # what identifies each input file, by its path: metadata of a Parquet file when it is closed
    inputs: Mapping[str, object] = field(default_factory=dict)
    # format of numbers by column; see `TableLayout`
    formats: Mapping[str, str] = field(default_factory=dict)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column; a missing cell is None."""
        with self._errors_with_path():
            self._file.write(rows)

    @contextmanager
    def _errors_with_path(self) -> Iterator[None]:
        """Adds the path to errors of a `live` table; for other tables, `atomic_write` adds it."""
        try:
            yield
        except OSError as error:
            if not self.live:
                raise
            raise cannot_write(self.path, error) from error

    def __enter__(self) -> "TableWriter":
        layout = TableLayout(self.path, self.columns, self.formats, self.facts, self.inputs)
        with ExitStack() as stack:
            path = self.path
            row_file = JsonLinesFile if path == STDOUT else TABLE_FORMATS[path.suffix.lower()]
            if not self.live and path != STDOUT:
                path = stack.enter_context(atomic_write(self.path, overwrite=self.overwrite))
            with self._errors_with_path():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = row_file(path, layout, self.live)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        # Close the file before `atomic_write` renames it.
        self._open.callback(self._file.close, complete=error[0] is None)
        with self._errors_with_path():
            self._open.__exit__(*error)


def write_fields(path: Path, fields: Sequence[Field], **options: Any) -> TableWriter:
    """Returns the writer of a table with a column for each field.

    As text, numbers have the digits of the field's unit. `options` are arguments of `TableWriter`.
    """
    types = {field.name: field.cell_type for field in fields}
    formats = {field.name: field.format for field in fields}
    return TableWriter(path, types, formats=formats, **options)


def share_formats(columns: Mapping[str, type]) -> dict[str, str]:
    """Returns the format of a share for each column of type float."""
    formats = {}
    for name, cell_type in columns.items():
        if cell_type is float:
            formats[name] = NUMBER_FORMATS["share"]
    return formats


class CompleteWrites(io.FileIO):
    """A file that contains only complete writes: a write that fails on a full disk is removed."""

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
    """Opens a text file for writing.

    With `live`, each line is written at once, completely or not at all.
    """
    # A file name may be invalid Unicode; invalid bytes are escaped.
    options: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "newline": "",
    }
    if path == STDOUT:  # each line at once; `sys.stdout` may be redirected, and escapes other names
        printed: TextIO = os.fdopen(os.dup(1), "w", buffering=1, **options)
        return printed
    if not live:
        text: TextIO = path.open("x", **options)
        return text
    path.unlink(missing_ok=True)  # another user may have put a link or a FIFO there
    file = io.BufferedWriter(CompleteWrites(path, "x"), LINE_BYTES)
    return io.TextIOWrapper(file, line_buffering=True, **options)


def read_facts(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns the record of how a table was made, from the metadata of its file.

    Returns {} if there is no record. Raises ValueError when the record is no JSON object.
    """
    try:
        facts = json.loads(metadata.get(FACTS_KEY.encode(), b"{}"))
    except RecursionError as error:
        raise ValueError(f"the record `{FACTS_KEY}` is nested too deeply") from error
    if not isinstance(facts, dict):
        raise ValueError(f"the record `{FACTS_KEY}` is not an object")
    return {name: str(fact) for name, fact in facts.items()}


def arrow_schema(columns: Mapping[str, type]) -> "pa.Schema":
    """Returns the Arrow schema of columns; `columns` has type (str, int, float or bool) by name."""
    import pyarrow as pa  # not at the top: only Parquet and tables in Python need it

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.schema([(name, types[cell_type]) for name, cell_type in columns.items()])


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: "pa.Schema") -> "pa.Table":
    """Returns rows of cells by column as an Arrow table.

    A missing cell is null. Bytes of file names that are invalid Unicode are escaped.
    """
    import pyarrow as pa

    escaped = []
    for row in rows:
        cells = dict(row)
        for name, cell in row.items():
            if isinstance(cell, str):
                cells[name] = as_text(cell)
        escaped.append(cells)
    return pa.Table.from_pylist(escaped, schema)


# A formula begins with = + - or @, also as fullwidth or small form in Unicode.
FORMULA_STARTS = re.escape("=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b")
CELL_ENDS = ";,|\t\r\n"  # characters that a program may read as the end of a cell
# Characters that a program may skip before a formula: quotes, and characters without a shape
# (spaces, control and format characters), except those at which cells end.
_SHAPELESS = [
    character
    for character in map(chr, (*range(0x3001), 0xFEFF, *range(0xFFF9, 0xFFFC)))
    if unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cf")
]
SKIPPED = f"[\"'{re.escape(''.join({*_SHAPELESS} - {*CELL_ENDS}))}]*"
FORMULA = re.compile(
    rf"^(?={SKIPPED}[{FORMULA_STARTS}\t\r\n])|[{CELL_ENDS}](?={SKIPPED}[{FORMULA_STARTS}])"
)
ESCAPED = re.compile(
    rf"^'(?={SKIPPED}[{FORMULA_STARTS}\t\r\n])|(?<=[{CELL_ENDS}])'(?={SKIPPED}[{FORMULA_STARTS}])"
)


def csv_text(text: str) -> str:
    """Returns text for CSV, with an apostrophe before each formula (OWASP, CSV injection).

    Spreadsheets would run a formula. Programs split lines at different characters, and some
    programs also split within quotes.
    """
    return FORMULA.sub(r"\g<0>'", text)


def csv_value(text: str) -> str:
    """Reverts `csv_text`: returns the text without the added apostrophes."""
    return ESCAPED.sub("", text)


def _escape(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first row is the header, the first column is left-aligned."""
    lines = []
    for row in rows:
        cells = [printable(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |\n")
    alignment = ["---:" for _ in rows[0]]
    alignment[0] = "---"
    lines.insert(1, f"| {' | '.join(alignment)} |\n")
    return "".join(lines)


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as aligned lines; a column is as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
