"""Tables of `predict`: one file, or a folder of part tables that several processes wrote."""

import os
from collections import defaultdict
from pathlib import Path

from fer_vit.errors import TableError
from fer_vit.numbered import PART, parse_numbered_name
from fer_vit.tables.read import Table, is_table, read_table


def is_predictions(path: Path) -> bool:
    """Returns whether a path is a table, or a folder with part tables of `predict`."""
    return is_table(path) or bool(find_tables(path)[0])


def read_table_or_folder(path: Path) -> Table:
    """Reads a table, or the part tables of a folder as one table.

    Raises FerVitError when a part table is missing.
    """
    tables, missing = find_tables(path)
    if missing:
        raise TableError(
            f"{path} lacks {missing:,} of its {missing + len(tables):,} tables. "
            "Run the same `fer-vit predict` again to complete it."
        )
    return read_table(*(tables or [path]))


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
