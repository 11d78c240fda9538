"""Reads the first sheet of a workbook (.xlsx)."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from fer_vit.errors import TableError, short
from fer_vit.report.table import NO_EXCEL, csv_value
from fer_vit.tables.cells import (
    ROWS_AT_ONCE,
    SPACES,
    cell_text,
    is_text,
    join_chunks,
    typed_cells,
    unescape_column,
)
from fer_vit.tables.layout import check_header_is_first, check_table_size


def read_workbook(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads the first sheet of a workbook row by row, without blank rows; see `READERS`."""
    try:
        import openpyxl  # not at the top: the extra `excel` may be missing
    except ImportError as error:
        raise TableError(f"{path}: {NO_EXCEL}") from error
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except zipfile.BadZipFile as error:
        raise TableError(
            f"{path} is no workbook, or has a password. Save it without one, or as .csv."
        ) from error
    except Exception as error:  # openpyxl raises many types for broken files
        raise TableError(f"{path} is no workbook that can be read. Save it as .csv.") from error
    with closing(book):
        sheets = book.worksheets
        if not sheets:
            raise TableError(f"Expected a sheet in {path}, but got none. Save it as .csv.")
        cells = _read_sheet(path, _sheet_rows(path, sheets[0]))
        title = short(sheets[0].title)
    assumed = []
    if len(sheets) > 1:
        assumed.append(f"read from `{title}`, the first of {len(sheets)} sheets")
    return cells, assumed


def _sheet_rows(path: Path, sheet: Any) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields the number and the cells of each row that is not blank."""
    try:
        sheet.reset_dimensions()  # the recorded dimensions may be wrong
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            if not all(map(_is_blank, row)):
                yield number, row
    except Exception as error:
        raise TableError(f"{path} is no workbook that can be read. Save it as .csv.") from error


def _read_sheet(path: Path, rows: Iterator[tuple[int, Sequence[Any]]]) -> pa.Table:
    """Reads the rows of a sheet; the first row has the names of the columns."""
    first_rows = list(islice(rows, 20))
    if not first_rows:
        raise TableError(f"Expected a table in {path}, but it is empty.")
    check_header_is_first(path, first_rows)
    _, names = first_rows[0]
    width = len(names)  # number of columns, without blank cells at the end
    while _is_blank(names[width - 1]):
        width -= 1
    header = ["" if _is_blank(cell) else csv_value(str(cell)) for cell in names[:width]]
    check_table_size(path, 1, width)

    chunks: list[list[pa.Array]] = [[] for _ in header]  # the chunks of each column
    count = 0
    rows_of_cells = chain(first_rows[1:], rows)
    while batch := list(islice(rows_of_cells, ROWS_AT_ONCE)):
        for number, row in batch:
            if not all(map(_is_blank, row[width:])):
                raise TableError(
                    f"Row {number} of {path} has a cell beyond the {width} named columns. "
                    "Name its column, or delete the cell."
                )
        count += len(batch)
        check_table_size(path, count, width)
        for index, column in enumerate(chunks):
            column.append(typed_cells([_read_cell(row, index) for _, row in batch]))
    columns = [_unescape_text(join_chunks(column)) for column in chunks]
    return pa.table(columns, names=header)


def _unescape_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return unescape_column(cells) if is_text(cells.type) else cells


def _is_blank(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip(SPACES))


def _read_cell(row: Sequence[Any], index: int) -> Any:
    cell = row[index] if index < len(row) else None
    return cell if isinstance(cell, str | int | float | bool) else cell_text(cell)
