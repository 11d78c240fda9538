"""Reads tables of JSON Lines: each line is an object."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from fer_vit.tables.cells import ROWS_AT_ONCE, join_chunks, typed_cells
from fer_vit.tables.layout import check_table_size


def read_json_lines(path: Path) -> tuple[pa.Table, list[str]]:
    """Reads a table of JSON Lines; there are no assumptions, so the list is empty."""
    chunks: dict[str, list[pa.Array]] = {}  # the chunks of each column
    count = 0
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        objects = _json_rows(file)
        while rows := list(islice(objects, ROWS_AT_ONCE)):
            for name in chain.from_iterable(rows):
                if name not in chunks:  # the rows above have no such cell
                    chunks[name] = [pa.nulls(count)] if count else []
            count += len(rows)
            check_table_size(path, count, len(chunks))
            for name, column in chunks.items():
                column.append(typed_cells([row.get(name) for row in rows]))
    columns = [join_chunks(column) for column in chunks.values()]
    return pa.table(columns, names=list(chunks)), []


def _json_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the cells by column of each line that is not blank."""
    for line_number, line in enumerate(lines, 1):
        if line.strip():
            yield _json_row(line_number, line)


def _json_row(line_number: int, line: str) -> dict[str, Any]:
    expected = "an object with the cells by column"
    try:
        row = json.loads(line, object_pairs_hook=_distinct_names)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {line_number}: expected {expected}, {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {line_number}: expected {expected}")
    plain = (str, int, float, bool, type(None))
    return {name: cell if isinstance(cell, plain) else str(cell) for name, cell in row.items()}


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice")
    return row
