"""Reads tables of users and other programs: text, workbooks, JSON Lines and Parquet.

Every table of a user goes through `read_table`; `READERS` has a reader for each format.
`Table.assumed` states what had to be assumed, such as an encoding other than UTF-8.
"""

import csv
import os
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.errors import TableError, known_names, short, suggest
from fer_vit.fields import is_feature
from fer_vit.files import open_input
from fer_vit.geometry import Mask
from fer_vit.report.table import read_facts
from fer_vit.system.untrusted import MEGA, TooHeavyError, parse_apart
from fer_vit.tables.cells import AmbiguousMarkError, find_mark, is_text, text_column
from fer_vit.tables.json_lines import read_json_lines
from fer_vit.tables.layout import check_table_size, in_brackets, split_sheet, trim_names
from fer_vit.tables.numbered import PART, parse_numbered_name
from fer_vit.tables.text import read_text
from fer_vit.tables.workbook import read_workbook
from fer_vit.wording import format_counts, list_names

# Limits of the process that reads a table: bytes of memory, and seconds. Both grow with the file: a
# workbook of 100 MB takes minutes.
BASE_MEMORY = 500 * MEGA
MEMORY_PER_BYTE = 8
BASE_SECONDS = 120
BYTES_PER_SECOND = 50_000


@dataclass(frozen=True)
class Table:
    """The cells of a table before conversion; its methods also name rows and cells in messages."""

    path: Path  # the file, or the folder with several files, which are read as one table
    cells: pa.Table  # the columns, with the metadata of a Parquet file
    file_rows: dict[Path, int] = field(default_factory=dict)  # rows of each file, in order
    assumed: tuple[str, ...] = ()  # what had to be assumed: phrases for a message

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.cells.column_names)

    def __len__(self) -> int:
        return int(self.cells.num_rows)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.cells[name]

    def check_columns(self, *names: str) -> None:
        """Raises FerVitError when one of these columns is missing."""
        missing = [name for name in names if name not in self.names]
        if not missing:
            return
        hint = suggest(missing[0], self.names)
        for name in self.names:
            if name.casefold() == missing[0].casefold():  # only the case differs
                hint = f" Rename `{name}` to `{missing[0]}`."
                break
        columns = "columns" if len(names) > 1 else "column"
        actual = short(known_names(missing[0], self.names)) or "no column"
        raise TableError(
            f"Expected the {columns} {' and '.join(names)} in {self.path}, but got {actual}"
            f"{in_brackets(self.assumed)}.{hint}"
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
        """Returns the record of how `predict` made the table; {} without a record.

        If the table has several files, the first record counts.
        """
        with reading(self.path):
            return read_facts(self.cells.schema.metadata or {})

    def assumption_notes(self, *more: str) -> list[str]:
        """Returns a line with the assumptions of reading and `more` of the caller, if any."""
        assumed = [*self.assumed, *more]
        if not assumed:
            return []
        return [f"{self.path.name}: {', '.join(assumed)}."]

    def missing_notes(self, name: str, words: Counter[str]) -> list[str]:
        """Returns a line about the words of a column that were read as missing, if any."""
        if not words:
            return []
        return [f"{self.path.name}: read as missing in `{name}`: {format_counts(words)}."]

    def row_name(self, row: int | np.integer[Any]) -> str:
        """Returns the file and the number of a row, for messages."""
        path, number = self._file_and_number(int(row))
        return f"{path}, row {number} (counted after the header, without blank rows)"

    def earlier_row_name(self, row: int) -> str:
        """Returns the number and the file of a row, for messages that begin with `row_name`."""
        path, number = self._file_and_number(row)
        return f"row {number} of {path.name}"

    def _file_and_number(self, row: int) -> tuple[Path, int]:
        """Returns the file of a row, and the number of the row in the file, counted from 1."""
        index = row
        for path, num_rows in self.file_rows.items():
            if index < num_rows:
                return path, index + 1
            index -= num_rows
        return self.path, index + 1

    def check(self, wrong: Mask, problem: str) -> None:
        """Raises TableError that names the first row for which `wrong` (N,) is True, if any."""
        if wrong.any():
            raise TableError(f"{self.row_name(int(wrong.argmax()))}: {problem}")

    def bad_cell(
        self, column: str, row: int, expected: str, cell: object, remedy: str
    ) -> TableError:
        """Returns the error for a cell that does not fit its column."""
        return TableError(
            f"{self.row_name(row)}: expected {expected} in `{column}`, but got `{short(cell)}`. "
            f"Correct the cell, or {remedy}."
        )


def read_table(path: Path) -> Table:
    """Reads a table, or the part tables of a folder as one table.

    Raises FerVitError when a file cannot be read, or a part table is missing.
    """
    paths, missing = find_tables(path)
    if missing:
        raise TableError(
            f"{path} is missing {missing:,} of its {missing + len(paths):,} tables. "
            "Run the same `fer-vit predict` again to complete it."
        )
    if not paths:
        paths = [path]
    if table_suffix(paths[0]) not in READERS:  # all files have one suffix
        raise TableError(
            f"Expected a table that ends in {', '.join(READERS)}, but got {path}. Name another."
        )
    parts = []
    file_rows = {}
    assumed = []
    for file in paths:
        with reading(file):
            cells, assumed_here = _read_file(file)
            cells.validate(full=True)
            cells = trim_names(file, cells)
        parts.append(cells)
        file_rows[file] = cells.num_rows
        assumed += assumed_here
    with reading(path):
        # "permissive": a column that a file lacks becomes null, and types may widen
        joined = pa.concat_tables(parts, promote_options="permissive")
    return Table(path, joined, file_rows, tuple(assumed))


def find_tables(folder: Path) -> tuple[list[Path], int]:
    """Returns the existing part tables of a folder in order, and the number of missing ones.

    Each name has the number of part tables: part-00000-of-00002.parquet. Part tables of a run with
    fewer processes are ignored.
    """
    if not folder.is_dir():
        return [], 0
    tables: dict[int, dict[int, Path]] = defaultdict(dict)  # by number of parts, then by index
    for file_name in os.listdir(folder):
        name = parse_numbered_name(file_name)
        if name is not None and name.kind == PART:
            tables[name.total][name.number] = folder / file_name
    if not tables:
        return [], 0
    num_parts = max(tables)
    parts = tables[num_parts]
    existing = [parts[index] for index in sorted(parts) if index < num_parts]
    return existing, num_parts - len(existing)


def _read_file(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads a table in another process, where its size is limited.

    Text is read here: it takes only a few times the size of its file.
    """
    file, _ = split_sheet(path)
    open_input(file).close()  # the readers open the path again, and could wait for a pipe
    if READERS[table_suffix(path)] is read_text:
        return read_text(path)
    size = file.stat().st_size
    memory = BASE_MEMORY + MEMORY_PER_BYTE * size
    seconds = BASE_SECONDS + size // BYTES_PER_SECOND
    try:
        (table,) = parse_apart(parse_table, path, memory=memory, seconds=seconds)
    except TooHeavyError as error:
        raise TableError(
            f"Expected a table in {path}, but {error}. Remove columns, or split the table."
        ) from error
    return table


def parse_table(path: Path) -> Iterator[tuple[pa.Table, list[str]]]:
    """Yields what the reader of a table returns; see `READERS`."""
    yield READERS[table_suffix(path)](path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises FerVitError when reading a table fails within the block."""
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        csv.Error,
        zipfile.BadZipFile,
    ) as error:
        reason = getattr(error, "strerror", None) or short(" ".join(str(error).split()))
        raise TableError(
            f"Expected a table in {path}, but it cannot be read ({reason})."
        ) from error


def read_parquet(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads the columns of a Parquet file that have one number, text, date or boolean in each cell.

    Features of the network are not read: no command uses them, and a table has hundreds. Text
    columns are read as dictionaries: equal cells share one text in memory.
    """
    with pq.ParquetFile(path) as file:
        num_rows = file.metadata.num_rows
        schema = file.schema_arrow
    plain = [column for column in schema if _is_plain(column.type)]
    texts = [column.name for column in plain if is_text(column.type)]
    # pandas stores the index of its rows as a column
    names = [
        column.name
        for column in plain
        if not is_feature(column.name) and not re.fullmatch(r"__index_level_\d+__", column.name)
    ]
    check_table_size(path, num_rows, len(names))
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        cells = file.read(names, use_threads=False)
    assumed = []
    other = [f"`{column.name}`" for column in schema if not _is_plain(column.type)]
    if other:
        assumed.append(f"without {list_names(other)}: several values or bytes in a cell")
    for index, column in enumerate(cells.schema):
        if pa.types.is_temporal(column.type):  # Python has fewer dates than Arrow
            cells = cells.set_column(index, column.name, text_column(cells[index]))
    return cells, assumed


def _is_plain(kind: pa.DataType) -> bool:
    """Returns whether a cell of a type is one number, text, date or boolean, or missing."""
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if is_text(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        return True
    return bool(pa.types.is_primitive(kind))


# The readers of tables by lower-case suffix. A reader returns the cells and its assumptions.
READERS: dict[str, Callable[[Path], tuple[pa.Table, list[str]]]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".txt": read_text,
    ".xlsx": read_workbook,
    ".jsonl": read_json_lines,
    ".parquet": read_parquet,
}


def table_suffix(path: Path) -> str:
    """Returns the lower-case suffix of a table's file; `book.xlsx#Data` names one of its sheets."""
    file, _ = split_sheet(path)
    return file.suffix.lower()


def read_metadata(path: Path) -> dict[bytes, bytes]:
    """Returns the metadata of a Parquet file; {} for another file, or a folder."""
    if path.suffix.lower() != ".parquet" or path.is_dir():
        return {}
    with reading(path):
        open_input(path).close()
        return pq.read_schema(path).metadata or {}


def is_table(path: Path) -> bool:
    """Returns whether a path names a table and no manifest.

    A manifest is a Parquet file with `fer_vit` in its metadata.
    """
    return table_suffix(path) in READERS and b"fer_vit" not in read_metadata(path)


def is_predictions(path: Path) -> bool:
    """Returns whether a path is a table, or a folder with part tables of `predict`."""
    return is_table(path) or bool(find_tables(path)[0])
