"""What every table of a user has: a source of rows, columns with names, and a limited size.

N rows.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fer_vit.errors import TableError, short
from fer_vit.geometry import Mask
from fer_vit.tables.cells import SPACES

PATH = "path"  # the column that every table has
MAX_COLUMNS = 10_000
MAX_CELLS = 100_000_000


@dataclass(frozen=True)
class Source:
    """The file of a table, or several files that were read as one table: names rows in messages."""

    path: Path  # the file, or the folder with several files
    num_rows: dict[Path, int] = field(default_factory=dict)  # number of rows of each file, in order

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
        for path, num_rows in self.num_rows.items():
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


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """Returns the file of a table, and the sheet that the path names: `book.xlsx#Data`."""
    named = re.fullmatch(r"(.+\.xlsx)#(.+)", path.name, re.IGNORECASE)
    if named is None:
        return path, None
    return path.with_name(named[1]), named[2]


def trim_names(path: Path, cells: pa.Table) -> pa.Table:
    """Returns a table with trimmed names, without the columns that have no name.

    Raises FerVitError when two columns have the same name.
    """
    names = [trim_name(name) for name in cells.column_names]
    first: dict[str, int] = {}  # index of the first column with each name
    for index, name in enumerate(names):
        if name in first:
            raise TableError(f"{path} has several columns `{short(name)}`. Rename or remove one.")
        if name:
            first[name] = index
    named = cells.select(list(first.values())).rename_columns(list(first))
    return named.replace_schema_metadata(cells.schema.metadata)


def check_table_size(path: Path, rows: int, columns: int) -> None:
    """Raises FerVitError for a table that is too large to compute with."""
    if columns > MAX_COLUMNS or rows * columns > MAX_CELLS:
        limit = f"{MAX_COLUMNS:,} columns and {MAX_CELLS:,} cells"
        raise TableError(
            f"Expected at most {limit} in {path}, but got {rows:,} rows of {columns:,} columns. "
            "Remove columns, or split the table."
        )


def in_brackets(assumed: Sequence[str]) -> str:
    """Returns a space and the assumptions of reading for a message; empty without any."""
    return f" ({', '.join(assumed)})" if assumed else ""


def trim_name(name: str) -> str:
    """Returns the name of a column without surrounding spaces."""
    return name.strip(SPACES)


def check_header_is_first(path: Path, rows: Iterable[tuple[int, Sequence[object]]]) -> None:
    """Raises FerVitError when the first row has no column names, but a later row has.

    `rows` has the number and the cells of each row.
    """
    for index, (row_number, row) in enumerate(rows):
        has_names = any(isinstance(cell, str) and trim_name(cell) == PATH for cell in row)
        if has_names and index == 0:
            return
        if has_names:
            raise TableError(
                f"Expected the names of the columns in the first row of {path}, but row "
                f"{row_number} has them. Delete the rows above."
            )
