"""Adds splits that a data set lacks, by holding out images or persons, and notes about splits."""

import os
import zlib
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from fer_vit.data.schema import SPLITS, Reading, Row, Split
from fer_vit.wording import counted

PERSON_COLUMN = "person"  # the column with the person's identity, in data sets with identities


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of the training images of each class into each of `splits`.

    Where persons are known, a tenth of the persons is moved instead. The CRC-32 of the name of the
    image or person decides, so the choice is the same on each machine. From a small class, one
    image is moved, unless train would lose its last image. Rows stay in order; a note reports the
    change.
    """
    train = [row for row in reading.rows if row.split == "train"]
    groups = _group_units(train)
    if not groups:
        return reading

    moved: dict[str, Split] = {}
    for group in groups:
        names = sorted(group, key=lambda name: (zlib.crc32(os.fsencode(name)), name))
        tenth = max(1, round(len(names) / 10))
        tenth = min(tenth, (len(names) - 1) // len(splits))  # one image or person stays in train
        for number, split in enumerate(splits):
            for name in names[number * tenth : (number + 1) * tenth]:
                moved[name] = split

    rows = []
    for row in reading.rows:
        if row.split == "train":
            row = replace(row, split=moved.get(_unit(row), "train"))
        rows.append(row)
    numbers = Counter(moved.get(_unit(row)) for row in train)
    held = [f"{counted(numbers[split], 'image')} for {split}" for split in splits]
    note = (
        f"Held out from train: {' and '.join(held)} (a fixed tenth of {_describe_units(train)} "
        "each). Choose the model by val, and read test once."
    )
    return replace(reading, rows=rows, notes=[*reading.notes, note])


def _group_units(rows: list[Row]) -> list[set[str]]:
    """Returns the names of persons and images, in groups from which a tenth is held out.

    The first group has all persons. Each other group has the images of a class whose persons are
    unknown. Empty groups are left out.
    """
    persons: set[str] = set()
    images: dict[str | None, set[str]] = defaultdict(set)  # the names of images by label
    for row in rows:
        if PERSON_COLUMN in row.extra:
            persons.add(_unit(row))
        else:
            images[row.label].add(_unit(row))
    groups = [persons, *images.values()]
    return [names for names in groups if names]


def _describe_units(rows: list[Row]) -> str:
    """Returns what the names in the groups of `_group_units` stand for, as words of a note."""
    has_person = [PERSON_COLUMN in row.extra for row in rows]
    if all(has_person):
        return "the persons"
    if any(has_person):
        return "the persons and of the images without a person in every class"
    return "every class"


def _unit(row: Row) -> str:
    """Returns the name of a row's person, or of the image if the person is unknown."""
    return row.extra.get(PERSON_COLUMN, row.name)


def missing_splits(rows: list[Row], root: Path) -> list[str]:
    """Returns a note for each split without rows."""
    missing = set(SPLITS) - {row.split for row in rows}
    return [f"No {split} split in {root}." for split in SPLITS if split in missing]
