"""A user's table of labels, and of targets for heads: a row for each photo.

Action units, as in lists of DISFA, BP4D and Aff-Wild2:

    path,AU1,AU2,AU4,AU12
    SN001/000123.png,0,3,,5

The kinds of columns that a table may have:

    path,split,label,person,move_mouthSmileLeft,yaw,valence,arousal

Action units become movements: `AU1`, `au_01` and `AU01_r` are `move_AU01`, `AU12L` is
`move_AU12Left`. They are occurrences, or intensities from 0 to 1 or from 0 to 5; a table from which
the scale does not follow is an error (`au_scale`). These data sets have codes for a missing
annotation (`UNANNOTATED`): such a code is read as unknown, and counted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, short, suggest
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, MOVEMENTS, POSE, HeadOutputs, Output, find_output
from fer_vit.tables.cells import BadCellError, read_names, read_numbers, read_paths
from fer_vit.tables.images import (
    AngleUnit,
    angle_divisor,
    bad_target,
    check_distinct,
    check_filled,
    check_target_range,
)
from fer_vit.tables.layout import PATH, split_sheet
from fer_vit.tables.paths import match_paths
from fer_vit.tables.table_reader import Table, read_table
from fer_vit.wording import counted, list_names

DESCRIBING = ("split", "label", "person")  # columns that describe a photo
AuScale = Literal[1, 5]  # the largest intensity of action units

# The name of a column of an action unit. `_r` and `_c`, in small letters, are OpenFace's suffixes
# for an intensity and an occurrence.
ACTION_UNIT = re.compile(
    r"AU[ _-]?0*(?P<number>[1-9]\d?)"
    r"(?:(?-i:_(?P<kind>[rc]))|[ _-]?(?P<side>left|right|l|r))?",
    re.IGNORECASE,
)

SIDE_WORDS = {"l": "Left", "r": "Right"}

MAX_INTENSITY = 5.0  # the largest intensity of an action unit, E
INTENSITIES = f"intensities from 0 to {MAX_INTENSITY:g}, and divided by that"

# The largest intensity and occurrence in OpenFace's columns, by the suffix of the column.
OPENFACE_MAXIMA = {"r": MAX_INTENSITY, "c": 1.0}

# The codes for a face without annotation. The codes for movements apply to action units only.
UNANNOTATED: dict[str, tuple[float, ...]] = {
    MOVEMENTS: (-1.0, 9.0, 999.0),  # Aff-Wild2; BP4D
    "affect": (-5.0, -2.0),  # Aff-Wild2; AffectNet
}


@dataclass(frozen=True)
class Column:
    """A column of targets."""

    name: str  # the name in the table
    output: Output
    action_unit: bool = False
    # the divisor of the numbers; None: the numbers, or the caller, decide
    scale: float | None = None

    @property
    def unannotated(self) -> tuple[float, ...]:
        """The codes for a face without annotation."""
        if self.output.head == MOVEMENTS and not self.action_unit:
            return ()
        return UNANNOTATED.get(self.output.head, ())


@dataclass(frozen=True)
class TargetTable:
    """The labels and targets of N photos."""

    path: Path  # the file
    paths: NDArray[np.object_]  # (N,), as written in the table
    values: dict[str, Array]  # (N,) by column of a manifest; NaN: unknown
    describing: dict[str, NDArray[np.object_]]  # (N,) by column of `DESCRIBING`; None: empty cell
    notes: list[str]
    rows: dict[str, int] = field(default_factory=dict)  # the index of the row of each photo by name

    @property
    def outputs(self) -> HeadOutputs:
        """The outputs with targets."""
        return HeadOutputs.among(self.values)

    def matched(self, photos: Sequence[str]) -> "TargetTable":
        """Returns the table with the rows of photos by name, and a note about rows without one.

        Raises FerVitError when no photo has a row.
        """
        matches = match_paths(photos, self.paths, self.path, partial=True)
        rows = {photo: row for photo, row in zip(photos, matches.tolist(), strict=True) if row >= 0}
        notes = list(self.notes)
        without_photo = np.setdiff1d(np.arange(len(self.paths)), matches)
        if len(without_photo):
            notes.append(
                f"{self.path.name}: {len(without_photo):,} of {len(self.paths):,} rows name no "
                f"photo, for example {short(self.paths[without_photo[0]])}."
            )
        return replace(self, rows=rows, notes=notes)

    def cells(self, name: str) -> dict[str, str]:
        """Returns the filled cells of a column of `DESCRIBING`, by the name of the photo."""
        if name not in self.describing:
            return {}
        cells = {photo: self.describing[name][row] for photo, row in self.rows.items()}
        return {photo: cell for photo, cell in cells.items() if cell is not None}

    def targets(self, photo: str) -> dict[str, float]:
        """Returns the known targets of a photo by column; {} for a photo without a row."""
        if photo not in self.rows:
            return {}
        values = {name: float(values[self.rows[photo]]) for name, values in self.values.items()}
        return {name: value for name, value in values.items() if not math.isnan(value)}


def read_targets(
    path: Path, angle_unit: AngleUnit | None = None, au_scale: AuScale | None = None
) -> TargetTable:
    """Reads a table of labels and targets.

    Args:
        path: The table.
        angle_unit: The unit of angles; None: degrees, unless they may be radians.
        au_scale: The largest intensity of action units; None: the numbers decide.

    Raises:
        FerVitError: There is no column `path`, or neither a label nor a target, two columns name
            the same output, an image has two rows, a value is out of range, or the unit is unclear.
    """
    file, _ = split_sheet(path)
    if not file.is_file():
        raise FerVitError(f"Expected a table of labels or targets, but there is none at {path}.")
    table = read_table(path)
    table.check_columns(PATH)
    paths = read_paths(table[PATH])
    check_filled(table, PATH, paths)
    check_distinct(table, paths)
    describing = {}
    for name in DESCRIBING:
        if name in table.names:
            describing[name], _ = read_names(table[name])

    columns, notes = find_columns(table)
    values: dict[str, Array] = {}
    if columns:
        values, value_notes = _read_values(table, columns, angle_unit, au_scale)
        notes += value_notes
    elif "label" not in describing:
        examples = "label, AU12, move_mouthSmileLeft, yaw, valence"
        raise TableError(
            f"Expected columns of labels or targets in {table.path}, such as {examples}, but got "
            f"{short(', '.join(table.names))}."
        )
    unread = _unread_note(table)
    if unread:
        notes.append(unread)
    return TargetTable(path, paths, values, describing, [*table.assumption_notes(), *notes])


def find_columns(table: Table) -> tuple[list[Column], list[str]]:
    """Returns the columns of targets, and notes.

    Of OpenFace's intensity and occurrence of one action unit, the intensity is read. Raises
    FerVitError when two other columns name the same output.
    """
    by_target: dict[str, Column] = {}
    occurrences = []  # columns of OpenFace beside their intensities
    for name in table.names:
        column = read_column(name)
        if column is None:
            continue
        target = column.output.column.casefold()
        other = by_target.setdefault(target, column)
        if other == column:
            continue
        if {other.scale, column.scale} != {*OPENFACE_MAXIMA.values()}:
            raise TableError(
                f"{table.path}, row of the names: the columns `{other.name}` and `{name}` are both "
                f"{column.output.column}. Remove one."
            )
        occurrence, intensity = sorted((other, column), key=lambda one: one.scale or 0)
        by_target[target] = intensity
        occurrences.append(occurrence.name)
    notes = []
    if occurrences:
        notes.append(
            f"{table.path.name}: the columns with _r are read instead of "
            f"{list_names(occurrences, limit=8)}."
        )
    return [*by_target.values()], notes


def read_column(name: str) -> Column | None:
    """Returns the column of targets that a name means; None for a name of another column."""
    unit = ACTION_UNIT.fullmatch(name)
    if unit:
        side = SIDE_WORDS.get((unit["side"] or "").lower()[:1], "")
        output = Output(MOVEMENTS, f"AU{int(unit['number']):02d}{side}")
        scale = OPENFACE_MAXIMA.get(unit["kind"])
        return Column(name, output, action_unit=True, scale=scale)
    for spelled in (name, name.lower()):
        found = find_output(spelled)
        if found:
            return Column(name, found, scale=1.0)
    return None


def _read_values(
    table: Table,
    columns: Sequence[Column],
    angle_unit: AngleUnit | None,
    au_scale: AuScale | None,
) -> tuple[dict[str, Array], list[str]]:
    """Returns the values (N,) of columns that are not empty, by column of a manifest, and notes.

    Raises FerVitError for a value out of the head's range, or an unclear unit.
    """
    file = table.path.name
    notes = []
    values, not_annotated = _read_annotations(table, columns)
    if not_annotated:
        notes.append(f"{file}: {counted(not_annotated, 'target')} marked as not annotated.")

    unscaled = {column: values[column] for column in columns if column.scale is None}
    if unscaled:
        au_scale = au_scale or _action_unit_scale(table, unscaled)
        meaning = INTENSITIES
        if au_scale == 1:
            meaning = "occurrences, or intensities from 0 to 1"
        notes.append(f"{file}: action units are read as {meaning}.")
    intense = [column for column in columns if column.scale == MAX_INTENSITY]
    if intense:
        notes.append(f"{file}: action units with _r are read as {INTENSITIES}.")
    angles = {column.name: values[column] for column in columns if column.output.head == POSE}
    divisor_of_angles = angle_divisor(table, angles, angle_unit)
    for column in columns:
        head = column.output.kind
        divisor = column.scale or au_scale or 1
        if column.output.head == POSE:
            divisor = divisor_of_angles
        check_target_range(table, column.name, values[column], column.output, divisor)
        values[column] = values[column] / divisor
        known = values[column][~np.isnan(values[column])]
        if head.scale == "signed" and known.any() and known.min() >= 0:
            notes.append(
                f"{file}: no {column.name} is below 0. The scale is from {head.low:g} to "
                f"{head.high:g}: rescale the column if its scale begins at 0."
            )

    targets, name_notes = _name_targets(table, values)
    return targets, [*notes, *name_notes]


def _name_targets(
    table: Table, values: Mapping[Column, Array]
) -> tuple[dict[str, Array], list[str]]:
    """Returns the values (N,) by column of a manifest, without empty columns, and notes.

    Raises FerVitError when all columns are empty.
    """
    file = table.path.name
    notes = []
    empty = [column.name for column, numbers in values.items() if np.isnan(numbers).all()]
    if len(empty) == len(values):
        raise TableError(f"Expected targets in {table.path}, but none of their cells has a value.")
    if empty:
        notes.append(f"{file}: left out without any value: {list_names(empty, limit=8)}.")

    targets = {}
    renamed = []
    for column, numbers in values.items():
        if column.name in empty:
            continue
        target = column.output.column
        targets[target] = numbers
        if column.name != target:
            renamed.append(f"{column.name} as {target}")
    if renamed:
        notes.append(f"{file}: read {list_names(renamed, limit=40)}.")
    return targets, notes


def _read_annotations(table: Table, columns: Sequence[Column]) -> tuple[dict[Column, Array], int]:
    """Returns the numbers (N,) of each column, and how many cells have a code of `UNANNOTATED`.

    Numbers are NaN where a face is not annotated.
    """
    decimal_mark = table.decimal_mark([column.name for column in columns])
    values = {}
    num_unannotated = 0
    for column in columns:
        try:
            numbers = read_numbers(table[column.name], decimal_mark)
        except BadCellError as error:
            raise bad_target(table, column.name, error.row, error.expected, error.cell) from error
        unannotated = np.isin(numbers, column.unannotated)
        num_unannotated += int(unannotated.sum())
        values[column] = np.where(unannotated, np.nan, numbers)
    return values, num_unannotated


def _action_unit_scale(table: Table, columns: Mapping[Column, Array]) -> AuScale:
    """Returns the scale of the values (N,) of action units, by column.

    Raises TableError for a value out of any scale, or a column whose scale does not follow from the
    numbers.
    """
    for column, values in columns.items():
        check_target_range(table, column.name, values, column.output, MAX_INTENSITY)
    above_one = [column for column, values in columns.items() if (values > 1).any()]
    for column, values in columns.items():
        name = column.name
        known = values[~np.isnan(values)]
        binary = np.isin(known, (0, 1)).all()
        if above_one and binary and (known == 1).any():
            raise TableError(
                f"{table.path}: `{name}` has only 0 and 1, but `{above_one[0].name}` goes up to "
                f"{np.nanmax(columns[above_one[0]]):g}. If both are intensities from 0 to 5, add "
                f"`--au_scale 5`; if `{name}` is an occurrence, rename the column to `{name}_c`."
            )
        if not above_one and not binary:
            raise TableError(
                f"{table.path}: no action unit is above 1, so the scale of `{name}` is "
                "unclear. If intensities go from 0 to 5, add `--au_scale 5`; if from 0 to 1, "
                "`--au_scale 1`."
            )
    return 5 if above_one else 1


def _unread_note(table: Table) -> str | None:
    """Returns a note about columns that are not read, with suggestions for misspelled names.

    None: all columns are read.
    """
    names = []
    for name in table.names:
        if name not in (PATH, *DESCRIBING) and read_column(name) is None:
            names.append(name)
    if not names:
        return None
    known_names = list(DESCRIBING)
    for head in HEADS.values():
        known_names += head.outputs
    note = f"{table.path.name}: columns that are not targets are not read: "
    note += f"{list_names(names, limit=8)}."
    for name in names:
        hint = suggest(name, known_names)
        if hint:
            note += f" `{name}`:{hint}"
    return note
