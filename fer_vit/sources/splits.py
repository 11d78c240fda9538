"""Splits that a data set lacks: held-out images or persons, and notes."""

import os
import zlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from fer_vit.data.schema import SPLITS, Reading, Row, Split

PERSON_COLUMN = "person"  # the column with the identity, in data sets that have it


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of the training images of every class into each of `splits`.

    Where persons are known, a tenth of the persons moves instead. The CRC-32 of the name of the
    image or person decides, so the choice is the same on every machine. A small class gives one
    image as long as train keeps one. Rows keep their order; a note reports the change.
    """
    groups = _group_units([row for row in reading.rows if row.split == "train"])
    if not groups:
        return reading

    moved: dict[str, Split] = {}
    for group in groups:
        names = sorted(group, key=lambda name: (zlib.crc32(os.fsencode(name)), name))
        tenth = max(1, round(len(names) / 10))
        tenth = min(tenth, (len(names) - 1) // len(splits))  # train keeps one
        for number, split in enumerate(splits):
            for name in names[number * tenth : (number + 1) * tenth]:
                moved[name] = split

    rows = []
    for row in reading.rows:
        if row.split == "train":
            row = replace(row, split=moved.get(_unit(row), "train"))
        rows.append(row)
    held_out = "the persons" if PERSON_COLUMN in reading.extra else "every class"
    note = (
        f"A fixed tenth of {held_out} of train is held out as {', another as '.join(splits)}: "
        "choose the model by val, read test once."
    )
    return replace(reading, rows=rows, notes=[*reading.notes, note])


def _group_units(rows: list[Row]) -> list[set[str]]:
    """Returns the names of what moves as a whole, in groups that each give a tenth.

    A group has all persons, or the images of one class whose person is unknown.
    """
    persons: set[str] = set()
    images: dict[str | None, set[str]] = defaultdict(set)  # by label
    for row in rows:
        if PERSON_COLUMN in row.extra:
            persons.add(_unit(row))
        else:
            images[row.label].add(_unit(row))
    groups = [persons, *images.values()]
    return [names for names in groups if names]


def _unit(row: Row) -> str:
    """Returns the name of the person, else of the image."""
    return row.extra.get(PERSON_COLUMN, row.name)


def missing_splits(rows: list[Row], root: Path) -> list[str]:
    """Returns a note for each split without rows."""
    missing = set(SPLITS) - {row.split for row in rows}
    return [f"No {split} split in {root}." for split in SPLITS if split in missing]
