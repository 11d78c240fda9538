"""Shared by the sources: held-out splits, text tables, and errors that name file and line."""

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError, short

PERSON = "person"
"""The column that says who is shown, where a data set knows it."""


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of every class of the training images into each of `splits`; of known persons, a tenth of these.

    The choice depends on the images' (or persons') names alone (by their CRC-32), so it is the same on every machine. A
    small class gives one image as long as train keeps one. Rows keep their order; a note reports the change.
    """
    classes: dict[str | None, set[str]] = defaultdict(set)
    for row in reading.rows:
        if row.split == "train":
            classes[None if PERSON in row.extra else row.label].add(_unit(row))
    moved: dict[str, Split] = {}
    for units in classes.values():
        names = sorted(units, key=lambda name: (crc32(os.fsencode(name)), name))
        tenth = min(max(1, round(len(names) / 10)), (len(names) - 1) // len(splits))
        for i, split in enumerate(splits):
            moved |= dict.fromkeys(names[i * tenth : (i + 1) * tenth], split)
    if not classes:
        return reading
    rows = [replace(row, split=moved.get(_unit(row), "train")) if row.split == "train" else row for row in reading.rows]
    what = "the persons" if PERSON in reading.extra else "every class"
    held_out = f"A fixed tenth of {what} of train is held out as {', another as '.join(splits)}"
    return replace(reading, rows=rows, notes=[*reading.notes, f"{held_out}: choose the model by val, read test once."])


def _unit(row: Row) -> str:
    """Returns what is held out as a whole: the person, where it is known, else the image."""
    return row.extra.get(PERSON, row.name)


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields line number (from 1) and cells of every line of a comma-separated file that is not blank.

    Raises:
        FerVitError: The file is malformed, for example because a quote is never closed.
    """
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.reader(file)
        try:
            for cells in table:
                if cells:
                    yield table.line_num, cells
        except csv.Error as error:
            raise bad_line(path, table.line_num, "comma-separated values", str(error)) from error


def bad_line(path: Path, line: int, expected: str, came: str) -> FerVitError:
    """Returns the error for a line of a table that cannot be understood."""
    came = f"`{short(came)}`"
    return FerVitError(f"{path}, line {line}: expected {expected}, but got {came}. Restore the file as distributed.")


def not_found(root: Path, expected: str) -> FerVitError:
    """Returns the error for a root that does not hold the data set; it says what is there instead."""
    came = "no such folder"
    if root.is_file():
        came = "a file"
    elif root.is_dir():
        there = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
        came = ", ".join(there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "") or "an empty folder"
    return FerVitError(f"Expected {expected} in {root}, but got {came}. See data/README.md for the layout.")
