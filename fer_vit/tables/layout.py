"""What every table of a user has: columns with names, and a limited size."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from fer_vit.errors import TableError, short
from fer_vit.tables.cells import SPACES

PATH = "path"  # the column that every table has
MAX_COLUMNS = 10_000
MAX_CELLS = 100_000_000


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
