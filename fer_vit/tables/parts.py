"""A table of `predict`: one file, or a folder of part tables that several processes write."""

import os
import re
from collections import defaultdict
from pathlib import Path

from fer_vit.errors import TableError
from fer_vit.tables.read import Table, is_table, read_table

PART_NAME = re.compile(r"part-(\d{5,})-of-(\d{5,})\.parquet")  # part-00000-of-00002.parquet


def is_predictions(path: Path) -> bool:
    """Returns whether a path is a table, or a folder of tables of `predict`."""
    return is_table(path) or any(path.glob("part-*-of-*.parquet"))


def read_table_or_folder(path: Path) -> Table:
    """Reads a table, or all tables of a folder as one; raises FerVitError if one is missing."""
    tables, missing = find_tables(path)
    if missing:
        raise TableError(
            f"{path} lacks {missing:,} of its {missing + len(tables):,} tables. "
            "Run the same `fer-vit predict` again to complete it."
        )
    return read_table(*(tables or [path]))


def find_tables(folder: Path) -> tuple[list[Path], int]:
    """Returns the existing tables of a folder in order, and how many are missing.

    Each name has the number of tables: part-00000-of-00002.parquet. Tables of an earlier run with
    fewer are ignored.
    """
    if not folder.is_dir():
        return [], 0
    tables: dict[int, dict[int, Path]] = defaultdict(dict)  # by total number and index
    for file_name in os.listdir(folder):
        name = PART_NAME.fullmatch(file_name)
        if name:
            tables[int(name[2])][int(name[1])] = folder / file_name
    if not tables:
        return [], 0
    number = max(tables)
    existing = [tables[number][index] for index in sorted(tables[number]) if index < number]
    return existing, number - len(existing)
