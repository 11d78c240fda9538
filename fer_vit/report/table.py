"""Tables with a row for each face: .csv, .parquet or .jsonl; and Markdown."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fer_vit.errors import FerVitError
from fer_vit.files import as_text, atomic_write
from fer_vit.report.draw import printable

SUFFIXES = (".csv", ".parquet", ".jsonl")
Cell = str | int | float | None
ROW_GROUP = 5_000
"""Rows of a Parquet file that are held in memory before they are written."""


class TableWriter:
    """Writes a table atomically; after an error nothing is left. A `live` one grows in its place, row by row.

    Args:
        path: Ends in one of `SUFFIXES`.
        columns: Name and type (str, int, float or bool) of every column; any cell may be None.
        live: Whether every row is to be in the file at once, whatever happens; not for .parquet.

    Raises:
        FerVitError: On entering, when the folder cannot be written.
    """

    def __init__(self, path: Path, columns: dict[str, type], live: bool = False) -> None:
        self.path = path
        self.columns = columns
        self.live = live
        self._rows: list[Mapping[str, Any]] = []
        self._parquet: pq.ParquetWriter | None = None
        self._text: TextIO | None = None

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column; a missing cell is None.

        Raises:
            FerVitError: They cannot be written, for example because the disk is full.
        """
        if self._text is None:
            self._rows += rows
            if len(self._rows) >= ROW_GROUP:
                self._flush()
        elif self.path.suffix.lower() == ".csv":
            csv.writer(self._text).writerows([csv_cell(row.get(name)) for name in self.columns] for row in rows)
        else:
            complete = ({name: row.get(name) for name in self.columns} for row in rows)
            self._text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in complete)

    def _flush(self) -> None:
        if self._parquet is not None and self._rows:
            rows = [
                {name: as_text(cell) if isinstance(cell, str) else cell for name, cell in row.items()}
                for row in self._rows
            ]
            self._parquet.write_table(pa.Table.from_pylist(rows, self._parquet.schema))
            self._rows = []

    def __enter__(self) -> "TableWriter":
        with ExitStack() as stack:
            file = self.path if self.live else stack.enter_context(atomic_write(self.path))
            if self.path.suffix.lower() == ".parquet":
                types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
                schema = pa.schema([(name, types[kind]) for name, kind in self.columns.items()])
                self._parquet = stack.enter_context(pq.ParquetWriter(file, schema))
            else:
                # File names need not be valid Unicode; invalid bytes are escaped.
                text = file.open("w", 1 if self.live else -1, encoding="utf-8", errors="backslashreplace", newline="")
                self._text = stack.enter_context(text)
                if self.path.suffix.lower() == ".csv":
                    csv.writer(text).writerow(map(csv_cell, self.columns))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._open.push(lambda *_: self._flush())
        self._open.__exit__(*error)


def csv_cell(cell: Cell) -> Cell:
    """Returns a cell for CSV; text that a spreadsheet would run gets a leading apostrophe (OWASP, CSV injection)."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def is_table(path: Path) -> bool:
    """Tells a table from a manifest, which may be a Parquet file as well, and from anything else."""
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return path.suffix.lower() in SUFFIXES[::2]
    with _readable(path):
        return b"fer_vit" not in (pq.read_schema(path).metadata or {})


def read_table(path: Path) -> dict[str, NDArray[np.object_]]:
    """Reads the cells of a table by column, None where empty; a CSV has text. Raises FerVitError when it cannot."""
    if path.suffix.lower() == ".parquet":
        return read_tables([path])
    with _readable(path):
        if path.suffix.lower() == ".jsonl":
            rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a line is no object")
            columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(k for row in rows for k in row)}
        else:
            names, *lines = _csv_lines(path) or [[]]
            columns = {_plain(name) or "": [_plain(line[place]) for line in lines] for place, name in enumerate(names)}
    return _columns(columns)


def _csv_lines(path: Path) -> list[list[str]]:
    """Reads the lines of a CSV, all with as many cells as its head, without those that are blank."""
    lines: list[list[str]] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for line in (reader := csv.reader(file)):
            if not any(cell.strip() for cell in line):  # spreadsheets leave `,,` where a row was emptied
                continue
            if not lines and len(line) == 1 and (";" in line[0] or "\t" in line[0]):
                raise ValueError("its cells are separated by semicolons or tabs: save it with commas")
            if lines and len(line) != len(lines[0]):
                raise ValueError(f"line {reader.line_num} has {len(line)} cells, but the head has {len(lines[0])}")
            lines.append(line)
    return lines


def row_place(path: Path, index: int | np.integer[Any]) -> str:
    """Names a row for a message, counted from 1; of a CSV as `read_table` returns them."""
    counted = " (counted after the head, without blank rows)" if path.suffix.lower() == ".csv" else ""
    return f"{path}, row {index + 1}{counted}"


def read_tables(paths: Sequence[Path]) -> dict[str, NDArray[np.object_]]:
    """Reads Parquet tables as one; where one lacks a column its cells are None. Raises FerVitError when it cannot."""
    tables = []
    for path in paths:
        with _readable(path):
            tables.append(pq.read_table(path, partitioning=None))
    with _readable(paths[0].parent):
        columns = pa.concat_tables(tables, promote_options="default").to_pydict()
    return _columns(columns)


def _columns(columns: Mapping[str, Sequence[object]]) -> dict[str, NDArray[np.object_]]:
    """Returns columns as arrays; a path is text, even where the file has a number."""
    paths = [cell if cell is None else str(cell) for cell in columns.get("path", ())]
    return {name: as_objects(paths if name == "path" else cells) for name, cells in columns.items()}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FerVitError(f"Expected a table in {path}, but it cannot be read ({reason}).") from error


def as_objects(values: Sequence[object]) -> NDArray[np.object_]:
    """Returns values as an array (N,), whatever they are."""
    return np.fromiter(values, object, len(values))


def _plain(cell: str) -> str | None:
    """Returns what `csv_cell` was given; None for an empty cell."""
    return (cell[1:] if csv_cell(cell[1:]) == cell else cell) or None


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table, the first row its head, the first column left-aligned."""
    lines = [[printable(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
