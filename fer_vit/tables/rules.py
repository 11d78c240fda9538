"""Rules for the rows of a table of `predict`, which people may have edited, and their order.

N rows, C expressions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fer_vit.errors import TableError, short
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.tables.cells import is_missing
from fer_vit.tables.labelled import MOMENT_COLUMNS, Labelled, has_values
from fer_vit.tables.layout import PATH
from fer_vit.tables.table_reader import Table

SUM_TOLERANCE = 0.01  # most distance from 1 of the sum of rounded probabilities
MAX_FALL = 1.0  # most seconds by which the time may fall from one frame to the next
CLIP_COLUMNS = ("frame", "seconds", "track", "face")  # needed to compute durations


class Rule(NamedTuple):
    """What the cells of a column must be. A table without the column keeps the rule.

    Attributes:
        column: The name of the column.
        is_broken: Returns whether each row (N,) breaks the rule, from the table and the column.
        problem: What is wrong, and the remedy; {column}, {cell} and {labels} are filled in.
    """

    column: str
    is_broken: Callable[[Labelled, str], Mask]
    problem: str


def is_empty(faces: Labelled, column: str) -> Mask:
    """Returns whether each cell (N,) of a column is empty."""
    return is_missing(faces.columns[column])


def is_empty_beside_face(faces: Labelled, column: str) -> Mask:
    """Returns whether each cell (N,) is empty, but the row has probabilities."""
    return is_empty(faces, column) & faces.predicted


def is_no_distribution(faces: Labelled, column: str) -> Mask:
    """Returns whether the probabilities of each row (N,) with a confidence do not sum to 1."""
    return ~is_empty(faces, column) & ~are_distributions(faces.probabilities)


def is_no_average(faces: Labelled, column: str) -> Mask:
    """Returns whether the smoothed probabilities of each row (N,) that has any do not sum to 1."""
    averages = smoothed(faces)
    return has_values(averages) & ~are_distributions(averages)


def are_distributions(shares: Array) -> Mask:
    """Returns whether the shares (N, C) of each row (N,) are valid and sum to 1."""
    return np.asarray((shares >= 0).all(1) & (abs(shares.sum(1) - 1) < SUM_TOLERANCE))


def smoothed(faces: Labelled) -> Array:
    """Returns the smoothed probabilities (N, C), NaN for photos and rows without a face."""
    return np.column_stack([faces.numbers(SMOOTHED + label) for label in faces.labels])


def is_no_label(faces: Labelled, column: str) -> Mask:
    """Returns whether each cell (N,) is a name that the table has no probability of."""
    known = {None, *faces.labels}
    return np.array([cell not in known for cell in faces.columns[column].tolist()], bool)


def is_less_probable(faces: Labelled, column: str) -> Mask:
    """Returns whether the label of each row (N,) is less probable than another expression.

    A smoothed label is compared with smoothed probabilities.
    """
    shares = smoothed(faces) if column == SMOOTHED_LABEL else faces.probabilities
    index = {label: number for number, label in enumerate(faces.labels)}
    rows = np.flatnonzero(has_values(shares) & ~is_empty(faces, column))
    chosen = [index[label] for label in faces.columns[column][rows]]
    shares = shares[rows]
    wrong = np.zeros(len(faces.paths), bool)
    wrong[rows] = shares[np.arange(len(rows)), chosen] < shares.max(1) - SUM_TOLERANCE
    return wrong


def is_in_clip(faces: Labelled) -> Mask:
    """Returns whether each row (N,) is a face of a clip."""
    return faces.predicted & ~is_empty(faces, "seconds")


def is_empty_in_clip(faces: Labelled, column: str) -> Mask:
    """Returns whether each cell (N,) is empty in a row of a clip."""
    return is_empty(faces, column) & is_in_clip(faces)


def has_lost_its_label(faces: Labelled, column: str) -> Mask:
    """Returns whether each face of a clip (N,) has no label, but a face that is less clear has one.

    Faces below `--min_confidence` of `predict` have no label; all other faces have one.
    """
    in_clip = is_in_clip(faces)
    largest = np.where(in_clip[:, None], smoothed(faces), np.nan).max(1)  # (N,)
    unlabelled = in_clip & is_empty(faces, column)
    least = largest[in_clip & ~unlabelled].min(initial=np.inf)
    return np.asarray(unlabelled & (largest > least))


NO_LABEL = (
    "expected one of {labels} in `{column}`, but got `{cell}`. Keep the labels of `predict`, and "
    "give your column another name."
)
# A spreadsheet may have added a row of totals.
EMPTY_BESIDE_FACE = (
    "expected a value in `{column}`, since there are probabilities, but it is empty. Restore it, "
    "or delete the row."
)
EMPTY = "expected a value in `{column}`, but it is empty. Restore it, or delete the row."

# The rules in the order in which they are checked: a rule may rely on the rules above it.
RULES = (
    Rule(PATH, is_empty, "expected a path, but it is empty. Fill it in, or delete the row."),
    Rule(
        "confidence",
        is_no_distribution,
        "expected probabilities of {labels} that sum to 1. Restore them as `predict` wrote them.",
    ),
    Rule("label", is_no_label, NO_LABEL),
    Rule(SMOOTHED_LABEL, is_no_label, NO_LABEL),
    Rule("confidence", is_empty_beside_face, EMPTY_BESIDE_FACE),
    Rule("status", is_empty_beside_face, EMPTY_BESIDE_FACE),
    Rule(
        "label",
        is_less_probable,
        "expected the most probable expression in `label`, the column of the model. Restore it, "
        "and move labels that people gave to another column.",
    ),
)
# Rules of tables with clips, from which series and durations of expressions are computed.
NO_AVERAGE = (
    "expected smoothed probabilities of {labels} that sum to 1. Restore them as `predict` wrote "
    "them."
)
LESS_PROBABLE_ON_AVERAGE = Rule(
    SMOOTHED_LABEL,
    is_less_probable,
    "expected the most probable smoothed expression in `{column}`. Restore it, and move labels "
    "that people gave to another column.",
)
LOST_LABEL = Rule(
    SMOOTHED_LABEL,
    has_lost_its_label,
    "expected a value in `{column}`, which faces with a lower average have, but it is empty. "
    "Restore it, or predict all videos with one `--min_confidence`.",
)


def check_rows(faces: Labelled, table: Table, videos: bool) -> None:
    """Raises TableError for the first cell that is missing, or contradicts another cell.

    Without `videos`, a frame of a video is an error, too.
    """
    has_frames = any(not np.isnan(faces.numbers(name)).all() for name in MOMENT_COLUMNS)
    if has_frames and not videos:
        raise TableError(
            f"{table.path} has frames of videos, but `evaluate` needs photos. Predict photos only."
        )
    rules = [*RULES]
    averages = [SMOOTHED + label for label in faces.labels]
    if videos and SMOOTHED_LABEL in faces.columns:
        needed = [*CLIP_COLUMNS, *averages]
        missing = [name for name in needed if name not in faces.columns]
        if missing:
            raise TableError(
                f"{table.path} has {SMOOTHED_LABEL}, but not {short(', '.join(missing))}, from "
                f"which durations are computed. Restore the columns, or remove {SMOOTHED_LABEL} "
                "as well."
            )
        rules += [Rule(name, is_empty_in_clip, EMPTY) for name in needed]
    if videos:
        present = [name for name in averages if name in faces.columns]
        rules += [Rule(name, is_no_average, NO_AVERAGE) for name in present[:1]]  # of all at once
        rules += [LOST_LABEL, LESS_PROBABLE_ON_AVERAGE]
    labels = short(", ".join(faces.labels))
    for column, is_broken, problem in rules:
        if column not in faces.columns:
            continue
        broken = is_broken(faces, column)
        if broken.any():
            cell = short(str(faces.columns[column][broken.argmax()]))
            table.check(broken, problem.format(column=column, cell=cell, labels=labels))


def order_rows(faces: Labelled, table: Table) -> IntArray:
    """Returns the order of rows by path, frame or seconds, and face.

    Without the column `face`, faces are ordered by confidence, and two rows with equal
    probabilities count as one face. Raises TableError for a face that has two rows.
    """
    paths = faces.paths
    ranks = {path: float(rank) for rank, path in enumerate(sorted(set(paths)))}
    photo = np.array([ranks[path] for path in paths])  # (N,)
    time = "frame" if "frame" in faces.columns else "seconds"
    moment = faces.numbers(time)
    if time == "frame":
        table.check(
            np.isnan(moment) & ~np.isnan(faces.numbers("seconds")),
            "expected a number in `frame`, since there are seconds, but it is empty. Restore it, "
            "or remove the column `frame`.",
        )
    if "face" in faces.columns:
        face = [faces.numbers("face")]
    else:
        face = [-faces.numbers("confidence"), *faces.probabilities.T]
    order, twice = distinct_rows([photo, moment, *face])

    # In one frame, a track has only one face.
    if twice is None and "track" in faces.columns:
        track = faces.numbers("track")
        tracked = np.flatnonzero(~np.isnan(track))
        _, twice_tracked = distinct_rows([photo[tracked], moment[tracked], track[tracked]])
        if twice_tracked:
            first, second = twice_tracked
            twice = (int(tracked[first]), int(tracked[second]))
    if twice:
        first, second = twice
        name = short(paths[first])
        if not np.isnan(moment[first]):
            name += f", {time} {moment[first]:g}"
        raise TableError(
            f"{table.row_name(second)}: {name} repeats the face or track of "
            f"{table.earlier_row_name(first)}. Delete the duplicate rows."
        )
    return order


def distinct_rows(keys: Sequence[Array]) -> tuple[IntArray, tuple[int, int] | None]:
    """Returns the order of rows (N,), sorted by the first key, then the next; and two equal rows.

    Each key is (N,). NaN comes first and equals NaN. Without equal rows, the pair is None.
    """
    filled = [np.where(np.isnan(key), -np.inf, key) for key in keys]
    order = np.lexsort(filled[::-1])
    equal = np.ones(max(len(order) - 1, 0), bool)  # whether a row equals the row before
    for key in filled:
        equal &= key[order[1:]] == key[order[:-1]]
    if not equal.any():
        return order, None
    index = int(equal.argmax())
    first, second = sorted((int(order[index]), int(order[index + 1])))
    return order, (first, second)


def check_times(faces: Labelled, table: Table) -> None:
    """Raises TableError when the frames of a clip rise, but its seconds fall or are all equal.

    `faces` are in the order of `order_rows`. The frames of a damaged video may be swapped: times
    may fall by `MAX_FALL`.
    """
    frame = faces.numbers("frame")
    seconds = faces.numbers("seconds")
    timed = ~np.isnan(frame) & ~np.isnan(seconds)
    frame = frame[timed]
    seconds = seconds[timed]
    paths = faces.paths[timed]
    rows = faces.rows[timed]

    # pairs of adjacent rows: the same clip, another frame
    within = (paths[1:] == paths[:-1]) & (frame[1:] != frame[:-1])
    falls = within & (seconds[1:] < seconds[:-1] - MAX_FALL)
    if falls.any():
        index = int(falls.argmax())
        raise TableError(
            f"{table.row_name(rows[index + 1])}: expected `seconds` that rise with "
            f"`frame`, but got {seconds[index + 1]:g} after {seconds[index]:g}. Restore both as "
            "`predict` wrote them."
        )
    changes = within & (seconds[1:] != seconds[:-1])
    moving = set(paths[1:][changes])
    for index in (np.flatnonzero(within) + 1).tolist():
        if paths[index] not in moving:
            raise TableError(
                f"{table.row_name(rows[index])}: expected `seconds` that rise with `frame`, "
                f"but all of {short(paths[index])} are {seconds[index]:g}. Restore them as "
                "`predict` wrote them."
            )
