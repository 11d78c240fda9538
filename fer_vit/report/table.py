"""Prediction tables, written row by row: .csv, .parquet or .jsonl."""

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError
from fer_vit.files import as_text, atomic_write

SUFFIXES = (".csv", ".parquet", ".jsonl")
Cell = str | int | float | None
ROW_GROUP = 10_000
"""Rows of a Parquet file that are held in memory before they are written."""


class TableWriter:
    """Writes a table atomically; after an error nothing is left.

    Args:
        path: Ends in one of `SUFFIXES`.
        columns: Name and type (str, int or float) of every column; any cell may be None.

    Raises:
        FerVitError: The suffix is another one, or (on entering) the folder cannot be written.
    """

    def __init__(self, path: Path, columns: dict[str, type]) -> None:
        if path.suffix not in SUFFIXES:
            raise FerVitError(f"Expected a table that ends in {', '.join(SUFFIXES)}, but got {path}.")
        self.path = path
        self.columns = columns
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
        elif self.path.suffix == ".csv":
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
            file = stack.enter_context(atomic_write(self.path))
            if self.path.suffix == ".parquet":
                types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
                schema = pa.schema([(name, types[kind]) for name, kind in self.columns.items()])
                self._parquet = stack.enter_context(pq.ParquetWriter(file, schema))
            else:
                # File names need not be valid Unicode; invalid bytes are escaped.
                text = file.open("w", encoding="utf-8", errors="backslashreplace", newline="")
                self._text = stack.enter_context(text)
                if self.path.suffix == ".csv":
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
