"""A user's table of targets for heads: a row for each photo, a column for each output.

Action units, as in lists of DISFA, BP4D and Aff-Wild2:

    path,AU1,AU2,AU4,AU12
    SN001/000123.png,0,3,,5

The kinds of columns that a table may have:

    path,split,label,person,move_mouthSmileLeft,yaw,valence,arousal

Action units become movements: `AU1`, `au_01` and `AU01_r` are `move_AU01`, `AU12L` is
`move_AU12Left`. If any action unit in a table has a value above 1, all action units are intensities
from 0 to 5, and are divided by 5. These data sets have codes for a missing annotation
(`UNANNOTATED`): such a code is read as unknown, and counted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, short, suggest
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, MOVEMENTS, outputs_of, target_column
from fer_vit.tables.cells import BadCellError, read_names, read_numbers, read_paths
from fer_vit.tables.images import bad_target, check_distinct, check_filled, check_target_range
from fer_vit.tables.layout import PATH
from fer_vit.tables.read import Table, read_table
from fer_vit.wording import counted, list_names

DESCRIBING = ("split", "label", "person")  # columns that describe a photo

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
    head: str
    output: str
    action_unit: bool = False
    # the divisor of the numbers; None: the numbers of all action units in the table decide
    scale: float | None = None

    @property
    def target(self) -> str:
        """The name of the column in a manifest."""
        return target_column(self.head, self.output)

    @property
    def unannotated(self) -> tuple[float, ...]:
        """The codes for a face without annotation."""
        if self.head == MOVEMENTS and not self.action_unit:
            return ()
        return UNANNOTATED.get(self.head, ())


@dataclass(frozen=True)
class TargetTable:
    """The targets of N photos."""

    paths: NDArray[np.object_]  # (N,), as written in the table
    values: dict[str, Array]  # (N,) by column of a manifest; NaN: unknown
    describing: dict[str, NDArray[np.object_]]  # (N,) by column of `DESCRIBING`; None: empty cell
    notes: list[str]

    @property
    def outputs(self) -> dict[str, list[str]]:
        """The names of the outputs by head."""
        return outputs_of([*self.values])

    def row(self, index: int) -> dict[str, float]:
        """Returns the known targets of a photo by column."""
        known = {}
        for name, values in self.values.items():
            value = float(values[index])
            if not math.isnan(value):
                known[name] = value
        return known


def read_targets(path: Path) -> TargetTable:
    """Reads a table of targets.

    Raises:
        FerVitError: There is no column `path` or no column of targets, two columns name the same
            output, an image has two rows, or a value is out of range.
    """
    if not path.is_file():
        raise FerVitError(f"Expected a table of targets, but there is none at {path}.")
    table = read_table(path)
    table.check_columns(PATH)
    paths = read_paths(table[PATH])
    check_filled(table.source, PATH, paths)
    check_distinct(table.source, paths)

    columns = find_columns(table)
    values, notes = _read_values(table, columns)
    describing = {}
    for name in DESCRIBING:
        if name in table.names:
            describing[name], _ = read_names(table[name])
    unread = _unread_note(table, columns)
    if unread:
        notes.append(unread)
    return TargetTable(paths, values, describing, [*table.assumption_notes(), *notes])


def find_columns(table: Table) -> list[Column]:
    """Returns the columns of targets.

    Raises FerVitError when there is no such column, or when two columns name the same output.
    """
    columns = []
    for name in table.names:
        column = read_column(name)
        if column:
            columns.append(column)
    if not columns:
        examples = "AU12, move_mouthSmileLeft, yaw, valence"
        actual = short(", ".join(table.names))
        raise TableError(
            f"Expected columns of targets in {table.path}, such as {examples}, but got {actual}."
        )
    by_target: dict[str, Column] = {}
    for column in columns:
        target = column.target.casefold()
        if target in by_target:
            names = f"`{by_target[target].name}` and `{column.name}`"
            raise TableError(
                f"{table.path}, row of the names: the columns {names} are both {column.target}. "
                "Remove one."
            )
        by_target[target] = column
    return columns


def read_column(name: str) -> Column | None:
    """Returns the column of targets that a name means; None for a name of another column."""
    unit = ACTION_UNIT.fullmatch(name)
    if unit:
        side = SIDE_WORDS.get((unit["side"] or "").lower()[:1], "")
        output = f"AU{int(unit['number']):02d}{side}"
        scale = OPENFACE_MAXIMA.get(unit["kind"])
        return Column(name, MOVEMENTS, output, action_unit=True, scale=scale)
    for spelled in (name, name.lower()):
        for head, outputs in outputs_of([spelled]).items():
            (output,) = outputs
            if output:  # "" for the name `move_`
                return Column(name, head, output, scale=1.0)
    return None


def _read_values(table: Table, columns: Sequence[Column]) -> tuple[dict[str, Array], list[str]]:
    """Returns the values (N,) of columns that are not empty, by column of a manifest, and notes.

    Raises FerVitError for a value out of the head's range.
    """
    file = table.path.name
    notes = []
    values, not_annotated = _read_annotations(table, columns)
    if not_annotated:
        notes.append(f"{file}: {counted(not_annotated, 'target')} marked as not annotated.")

    unscaled = [column for column in columns if column.scale is None]
    scale = 1.0
    if unscaled:
        scale, meaning = _action_unit_scale([values[column] for column in unscaled])
        notes.append(f"{file}: action units are read as {meaning}.")
    intense = [column for column in columns if column.scale == MAX_INTENSITY]
    if intense:
        notes.append(f"{file}: action units with _r are read as {INTENSITIES}.")
    for column in columns:
        divisor = scale if column.scale is None else column.scale
        head = HEADS[column.head]
        low = divisor * head.low
        high = divisor * head.high
        check_target_range(table.source, column.name, values[column], low, high)
        values[column] = values[column] / divisor

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
        targets[column.target] = numbers
        if column.name != column.target:
            renamed.append(f"{column.name} as {column.target}")
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
            raise bad_target(
                table.source, column.name, error.row, error.expected, error.cell
            ) from error
        unannotated = np.isin(numbers, column.unannotated)
        num_unannotated += int(unannotated.sum())
        values[column] = np.where(unannotated, np.nan, numbers)
    return values, num_unannotated


def _action_unit_scale(values: Sequence[Array]) -> tuple[float, str]:
    """Returns the divisor for the values (N,) of action units, and what the values mean."""
    numbers = np.concatenate(values)
    numbers = numbers[np.isfinite(numbers)]
    if (numbers > 1).any():
        return MAX_INTENSITY, INTENSITIES
    if np.isin(numbers, (0, 1)).all():
        return 1.0, "occurrences, 0 or 1"
    return 1.0, "intensities from 0 to 1"


def _unread_note(table: Table, columns: Sequence[Column]) -> str | None:
    """Returns a note about columns that are not read, with suggestions for misspelled names.

    None: all columns are read.
    """
    used = {PATH, *DESCRIBING} | {column.name for column in columns}
    names = [name for name in table.names if name not in used]
    if not names:
        return None
    known_names = list(DESCRIBING)
    for head in HEADS.values():
        known_names += head.outputs
    note = f"{table.path.name}: columns that are no targets are not read: "
    note += f"{list_names(names, limit=8)}."
    for name in names:
        hint = suggest(name, known_names)
        if hint:
            note += f" `{name}`:{hint}"
    return note
