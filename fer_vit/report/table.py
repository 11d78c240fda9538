"""Tables with a row for each face: .csv, .parquet or .jsonl; and Markdown."""

import csv
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TextIO, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.files import as_text, atomic_write, json_text
from fer_vit.report.draw import printable

SUFFIXES = (".csv", ".parquet", ".jsonl")
Cell = str | int | float | None
ROW_GROUP = 5_000  # rows of a Parquet file that are held in memory before they are written
FACTS = "predictions"  # the metadata that records how predictions were made
NOTHING = "-"  # cell of a missing result


class Interval(TypedDict):
    """A result over faces or persons with its 95 % interval; None if too few of them have a value."""

    mean: float | None
    low: float | None
    high: float | None
    faces: NotRequired[int]
    persons: NotRequired[int]


def interval_text(one: Interval, form: str) -> str:
    """Returns a result with its interval as text, each number in a format such as ".3f"."""
    if one["mean"] is None:
        return NOTHING
    spread = "" if one["low"] is None else f" ({one['low']:{form}} to {one['high']:{form}})"
    return f"{one['mean']:{form}}{spread}"


@dataclass
class TableWriter:
    """Writes a table atomically; a `live` one grows in its place. Raises FerVitError when it cannot be written."""

    path: Path  # ends in one of `SUFFIXES`
    columns: dict[
        str, type
    ]  # name and type (str, int, float or bool) of every column; any cell may be None
    live: bool = False  # whether every row is written at once; not for .parquet
    overwrite: bool = (
        True  # whether it may replace a file that another process has written in the meantime
    )
    facts: Mapping[str, str] = field(
        default_factory=dict
    )  # metadata of a Parquet file; the other formats have none
    _rows: list[Mapping[str, Any]] = field(default_factory=list)
    _parquet: pq.ParquetWriter | None = None
    _text: TextIO | None = None

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of cells by column; a missing cell is None."""
        if self._text is None:
            self._rows += rows
            if len(self._rows) >= ROW_GROUP:
                self._flush()
        elif self.path.suffix.lower() == ".csv":
            csv.writer(self._text).writerows(
                [csv_cell(row.get(name)) for name in self.columns] for row in rows
            )
        else:
            complete = ({name: row.get(name) for name in self.columns} for row in rows)
            self._text.writelines(json_text(row, ensure_ascii=False) + "\n" for row in complete)

    def _flush(self) -> None:
        if self._parquet is not None and self._rows:
            self._parquet.write_table(arrow_table(self._rows, self._parquet.schema))
            self._rows = []

    def __enter__(self) -> "TableWriter":
        with ExitStack() as stack:
            file = (
                self.path
                if self.live
                else stack.enter_context(atomic_write(self.path, overwrite=self.overwrite))
            )
            if self.path.suffix.lower() == ".parquet":
                integers = [name for name, kind in self.columns.items() if kind is int]
                kept = {
                    "pandas_type": "int64",
                    "numpy_type": "Int64",
                    "metadata": None,
                }  # in pandas, with empty cells
                columns = [{"name": name, "field_name": name, **kept} for name in integers]
                pandas = {"index_columns": [], "column_indexes": [], "columns": columns}
                metadata = {"pandas": json_text(pandas), FACTS: json_text(self.facts)}
                schema = arrow_schema(self.columns).with_metadata(metadata)
                self._parquet = stack.enter_context(pq.ParquetWriter(file, schema))
            else:
                # File names need not be valid Unicode; invalid bytes are escaped.
                if self.live:  # another user may have put a link or a FIFO there
                    file.unlink(missing_ok=True)
                text = file.open(
                    "x",
                    1 if self.live else -1,
                    encoding="utf-8",
                    errors="backslashreplace",
                    newline="",
                )
                self._text = stack.enter_context(text)
                if self.path.suffix.lower() == ".csv":
                    csv.writer(text).writerow(map(csv_cell, self.columns))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._open.push(lambda *_: self._flush())
        self._open.__exit__(*error)


def arrow_schema(columns: Mapping[str, type]) -> pa.Schema:
    """Returns the schema of a table: name and type (str, int, float or bool) of every column."""
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Returns rows of cells as a table; a missing cell is null, and bytes of file names beyond Unicode are escaped."""
    texts = [
        {name: as_text(cell) if isinstance(cell, str) else cell for name, cell in row.items()}
        for row in rows
    ]
    return pa.Table.from_pylist(texts, schema)


def csv_cell(cell: Cell) -> Cell:
    """Returns a cell for CSV; text that a spreadsheet would run gets a leading apostrophe (OWASP, CSV injection)."""
    if isinstance(cell, float):
        return f"{cell:.8g}"  # milliseconds within a day
    return (
        f"'{cell}"
        if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
        else cell
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table, the first row its head, the first column left-aligned."""
    lines = [[printable(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def faithfulness_table(
    found: Mapping[str, Mapping[str, Interval]],
    differences: Mapping[str, Mapping[str, Interval]],
    better: Mapping[str, int],
) -> str:
    """Returns Markdown: a row with the `differences` of each method to `random`, then what was `found` for `random`."""
    rows = [
        ["less `random`", *(f"{name} {'↑' if sign > 0 else '↓'}" for name, sign in better.items())]
    ]
    for method, values in differences.items():
        rows.append([method, *(interval_text(values[name], "+.3f") for name in better)])
    return markdown(
        [
            *rows,
            ["`random` itself", *(interval_text(found["random"][name], ".3f") for name in better)],
        ]
    )


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as lines for a terminal, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
