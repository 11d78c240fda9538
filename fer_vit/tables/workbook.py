"""Reads a sheet of a workbook (.xlsx): the first visible one, or the one that a path names.

`book.xlsx#Data` names the sheet `Data`. Hidden rows and formulas without a stored value are errors,
so that the cells that are read are those that a spreadsheet shows.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from fer_vit.errors import TableError, short
from fer_vit.report.table import csv_value
from fer_vit.tables.cells import (
    ROWS_AT_ONCE,
    SPACES,
    cell_text,
    is_text,
    join_chunks,
    typed_cells,
    unescape_column,
)
from fer_vit.tables.layout import check_header_is_first, check_table_size, in_brackets, split_sheet
from fer_vit.wording import counted


def read_workbook(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads a sheet of a workbook row by row, without blank rows; see `READERS`."""
    import openpyxl  # not at the top: few tables are workbooks

    file, name = split_sheet(path)
    try:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    except zipfile.BadZipFile as error:
        raise TableError(
            f"{file} is not a workbook, or it has a password. Save it without one, or as .csv."
        ) from error
    except Exception as error:  # openpyxl raises many types for broken files
        raise TableError(f"{file} is not a readable workbook. Save it as .csv.") from error
    with closing(book):
        sheet, assumed = _choose_sheet(file, name, book.worksheets)
        with _reading_sheet(file):
            _check_as_shown(path, sheet)
        cells = _read_sheet(path, _sheet_rows(path, sheet), assumed)
    return cells, assumed


def _choose_sheet(file: Path, name: str | None, sheets: Sequence[Any]) -> tuple[Any, list[str]]:
    """Returns the sheet with a name, or the first visible one, and an assumption if it has others.

    A sheet with a chart alone does not count.
    """
    titles = [sheet.title for sheet in sheets]
    if name is not None:
        if name not in titles:
            raise TableError(
                f"Expected the sheet `{short(name)}` in {file}, but it has {_list_titles(titles)}. "
                "Name one of them."
            )
        return sheets[titles.index(name)], []
    visible = [sheet for sheet in sheets if sheet.sheet_state == "visible"]
    if not visible:
        raise TableError(
            f"Expected a visible sheet with a table in {file}, but got none. "
            "Show the sheet, or save it as .csv."
        )
    title = visible[0].title
    others = [other for other in titles if other != title]
    if not others:
        return visible[0], []
    return visible[0], [
        f"read from the sheet `{short(title)}`, not from {_list_titles(others)}; name another as "
        f"`{file.name}#{short(others[0])}`"
    ]


def _list_titles(titles: Sequence[str]) -> str:
    return short(", ".join(f"`{title}`" for title in titles)) or "no sheet with cells"


@contextmanager
def _reading_sheet(path: Path) -> Iterator[None]:
    """Raises TableError when openpyxl fails within the block; it raises many types."""
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        raise TableError(f"{path} is not a readable workbook. Save it as .csv.") from error


def _check_as_shown(path: Path, sheet: Any) -> None:
    """Raises TableError if a sheet has hidden rows, or a formula without a stored value.

    openpyxl reads both without a word when it reads row by row.
    """
    from openpyxl.xml.functions import iterparse

    hidden: list[str] = []  # the numbers of hidden rows with values
    with sheet._get_source() as source:
        for _, element in iterparse(source):
            kind = element.tag.rpartition("}")[2]
            if kind != "row":
                continue
            cells = element.findall("{*}c")
            for cell in cells:
                is_text = cell.get("t") == "str"  # the value of a formula may be empty text
                if cell.find("{*}f") is not None and not cell.findtext("{*}v") and not is_text:
                    raise TableError(
                        f"{path}: the formula in {cell.get('r')} has no stored value. Open the "
                        "workbook in a spreadsheet program and save it, or save it as .csv."
                    )
            is_filled = any(cell.find("{*}v") is not None or len(cell) for cell in cells)
            if is_filled and element.get("hidden") in ("1", "true"):
                hidden.append(element.get("r", "?"))
            element.clear()
    if hidden:
        raise TableError(
            f"{path}: {counted(len(hidden), 'row')} hidden by a filter or by hand; the first is "
            f"row {hidden[0]}. Show all rows, or delete the hidden ones, and save the workbook."
        )


def _sheet_rows(path: Path, sheet: Any) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields the number and the cells of each row that is not blank."""
    with _reading_sheet(path):
        sheet.reset_dimensions()  # the recorded dimensions may be wrong
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            if not all(map(_is_blank, row)):
                yield number, row


def _read_sheet(
    path: Path, rows: Iterator[tuple[int, Sequence[Any]]], assumed: Sequence[str]
) -> pa.Table:
    """Reads the rows of a sheet; the first row has the names of the columns."""
    first_rows = list(islice(rows, 20))
    if not first_rows:
        raise TableError(f"Expected a table in {path}, but it is empty{in_brackets(assumed)}.")
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
    columns = []
    for column in chunks:
        cells = join_chunks(column)
        columns.append(unescape_column(cells) if is_text(cells.type) else cells)
    return pa.table(columns, names=header)


def _is_blank(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip(SPACES))


def _read_cell(row: Sequence[Any], index: int) -> Any:
    cell = row[index] if index < len(row) else None
    return cell if isinstance(cell, str | int | float | bool) else cell_text(cell)
