"""The names of groups and persons in a column: cells without a name, and names that look alike."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from unicodedata import combining, normalize

import numpy as np

from fer_vit.errors import FerVitError, known_names, short, suggest
from fer_vit.faces import Objects
from fer_vit.fields import is_owned
from fer_vit.tables.cells import is_missing
from fer_vit.tables.labelled import Columns, Labelled
from fer_vit.tables.layout import PATH

MAX_NAME_LENGTH = 200  # most characters of a group's or person's name

# A long number as spreadsheets and R write it: the last digits may be lost.
SHORTENED = re.compile(r"[+-]?\d([.,]\d+)?[eE]\+\d{2,3}")

# What a spreadsheet or a person writes where there is no name: #REF!, -, ...
NO_NAME = re.compile(r"#.*|[\W_]+")

EXCEL_DIGITS = 15  # digits that a spreadsheet keeps of a number; further digits become zeros
LONG_NUMBER = re.compile(rf"[+-]?\d{{{EXCEL_DIGITS}}}(\d+)")


def describe_groups(faces: Labelled, columns: Iterable[str]) -> list[str]:
    """Returns lines about missing names in columns to group by."""
    notes = []
    paths = np.array(faces.paths)[faces.predicted]
    for column in dict.fromkeys(columns):
        missing = is_missing(faces.columns[column][faces.predicted])
        if missing.any():
            count = f"{missing.sum():,} of {len(missing):,}"
            first = short(paths[missing.argmax()])
            notes.append(f"`{column}` is missing for {count} faces, the first in {first}.")
    return notes


def check_groups(
    columns: Columns,
    paths: Sequence[str],
    groups: Iterable[str],
    data: Path,
    labels: Sequence[str],
    remedy: str = "",
) -> None:
    """Checks the columns to group by before anything is predicted or trained.

    Args:
        columns: The cells of N faces by column.
        paths: The images of the faces (N,), for messages.
        groups: The names of the columns to group by.
        data: The path of the faces, for messages.
        labels: The expressions: they are names of groups in any spelling.
        remedy: What adds a missing column, as the end of a message.

    Raises:
        FerVitError: There is no such column; a cell is no name, such as `-` or `#REF!`; a
            spreadsheet has shortened a name, or it is too long; a reader takes two names for one.
    """
    for column in groups:
        if column not in columns:
            hint = _describe_columns(column, columns, labels)
            raise FerVitError(f"There is no column `{column}` in {data}.{hint}{remedy}")
        if column != PATH:  # always complete; `check_rows` has checked it
            _check_names(column, columns[column], paths, labels)


def _describe_columns(column: str, columns: Columns, labels: Sequence[str]) -> str:
    """Returns the columns that a user may name instead of a missing one, as sentences."""
    names = list(columns)
    if PATH not in names:  # a manifest
        known = f"It has {known_names(column, names)}."
    else:
        added = [name for name in names if not is_owned(name, labels)]
        known = "`fer-vit predict --help` lists the columns of `predict`"
        if added:
            known += f"; others are {known_names(column, added)}"
        known += "."
    return f"{suggest(column, names)} {known}"


def _check_names(column: str, cells: Objects, paths: Sequence[str], labels: Sequence[str]) -> None:
    """Raises the errors of `check_groups` for the names in a column (N,)."""
    first_paths: dict[str, str] = {}  # the image of the first cell with each name
    for cell, path in zip(cells.tolist(), paths, strict=True):
        if cell is not None:
            first_paths.setdefault(str(cell), path)
    names = list(first_paths)
    for name in names:
        if NO_NAME.fullmatch(name) and name not in labels:
            raise FerVitError(
                f"Expected a name in `{column}`, but got `{short(name)}` for "
                f"{first_paths[name]}. Empty the cell if it is missing, or write a word."
            )
    similar = look_alikes(names)
    if similar:
        first, second, *_ = similar[0]
        raise FerVitError(
            f"Expected one spelling of each name in `{column}`, but got `{short(first)}` and "
            f"`{short(second)}` (for {first_paths[first]} and {first_paths[second]}). Write both "
            "alike, or rename one."
        )

    last_digits = [match[1] for match in map(LONG_NUMBER.fullmatch, names) if match]
    all_zeros = not "".join(last_digits).strip("0")
    for name in names:
        if len(name) > MAX_NAME_LENGTH:
            raise FerVitError(
                f"Expected names of at most {MAX_NAME_LENGTH} characters in `{column}`, but got "
                f"{len(name):,}: {short(name)}. Is it the right column?"
            )
        shortened = (
            f"Expected names in `{column}`, but got {name}, a number that a spreadsheet or R "
            "has shortened. Make the column text, enter the names again and save it."
        )
        if SHORTENED.fullmatch(name):
            raise FerVitError(shortened)
        if all_zeros and LONG_NUMBER.fullmatch(name):
            raise FerVitError(
                f"{shortened} If the zeros are right, write a letter before the names."
            )


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Returns groups of names that a reader takes for one name, such as `P-01`, `p1` and `P_1`.

    Names of a group differ in case, accents, width, spaces, punctuation, leading zeros or a
    fraction of zeros.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(_skeleton(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


# A sign at the start, a fraction, a whole number, a word, or a symbol that is no separator:
# "-12.5 kg (%)" has the parts "-", "12", ".5", "kg" and "%".
_PARTS = re.compile(r"^[-+]|(?<=\d)[.,]\d+|\d+|[^\W\d_]+|[^\w\s.,:;()'\"-]")

_ZERO_FRACTION = re.compile("[.,]0+")
_DASHES = re.compile("[\u2010-\u2015\u2212]")
_QUOTES = re.compile("[\u2018-\u201f]")


def _skeleton(name: str) -> tuple[str, ...]:
    letters = "".join(char for char in normalize("NFKD", name) if not combining(char))
    letters = _QUOTES.sub("'", _DASHES.sub("-", letters))
    parts = []
    for part in _PARTS.findall(letters.casefold()):
        if _ZERO_FRACTION.fullmatch(part):
            continue
        if part.isdigit():
            part = part.lstrip("0") or "0"
        parts.append(part)
    return tuple(parts) or (name,)
