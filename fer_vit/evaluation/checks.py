"""Rules for the rows of a table of `predict`, and the order of its rows."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, short
from fer_vit.evaluation.labelled import Columns
from fer_vit.faces import as_objects
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.tables.cells import is_missing
from fer_vit.tables.layout import PATH
from fer_vit.tables.predicted import SUM_TOLERANCE, PredictedTable

MAX_FALL = 1.0  # most seconds by which the time may fall from one frame to the next
MOMENT_COLUMNS = ("frame", "seconds")  # empty for photos
CLIP_COLUMNS = ("frame", "seconds", "track", "face")  # needed to compute durations


class Fault(NamedTuple):
    """The rows that break a rule, and what the rule expects."""

    wrong: Mask  # (N,)
    problem: str


def check_rows(table: PredictedTable, videos: bool) -> None:
    """Raises TableError for the first cell that is missing, or contradicts another cell.

    Without `videos`, a frame of a video is an error, too.
    """
    moments = [table.columns[name] for name in MOMENT_COLUMNS if name in table.columns]
    if not videos and not all(is_missing(cells).all() for cells in moments):
        raise TableError(
            f"{table.source.path} has frames of videos, but `evaluate` needs photos. "
            "Predict photos only."
        )
    faults = [find_faults(table)]
    if videos and SMOOTHED_LABEL in table.columns:
        faults.append(find_clip_faults(table))
    for wrong, problem in chain(*faults):
        if wrong.any():
            raise TableError(f"{table.name_first(wrong)}: {problem}")


def find_faults(table: PredictedTable) -> Iterator[Fault]:
    """Yields the rows that break each rule of all tables."""
    problem = f"expected a {PATH}, but it is empty. Fill it in, or delete the row."
    yield Fault(is_missing(table.paths), problem)
    labels = short(", ".join(table.labels))
    sums = abs(table.shares.sum(1) - 1) < SUM_TOLERANCE
    problem = (
        f"expected probabilities of {labels} that sum to 1. Restore them as `predict` wrote them."
    )
    yield Fault(table.predicted & ~((table.shares >= 0).all(1) & sums), problem)
    for name in ("label", SMOOTHED_LABEL):
        cells = table.columns.get(name, as_objects([]))
        for strange in sorted({*cells.tolist()} - {None, *table.labels})[:1]:
            problem = (
                f"expected one of {labels} in `{name}`, but got `{short(strange)}`. Keep the "
                "labels of `predict`, and give your column another name."
            )
            yield Fault(np.asarray(cells == strange), problem)

    # A spreadsheet may have added a row of totals.
    face = np.isfinite(table.shares).any(1)
    missing = {"confidence": ~table.predicted}
    if "status" in table.columns:
        missing["status"] = is_missing(table.columns["status"])
    for name, empty in missing.items():
        problem = (
            f"expected a value in `{name}`, since there are probabilities, but it is empty. "
            "Restore it, or delete the row."
        )
        yield Fault(face & empty, problem)
    if "label" in table.columns:
        problem = (
            "expected the most probable expression in `label`, the column of the model. Restore "
            "it, and move labels that people gave to another column."
        )
        yield Fault(find_other_labels(table), problem)


def find_other_labels(table: PredictedTable) -> Mask:
    """Returns whether the `label` of each row (N,) is less probable than another expression."""
    index = {label: column for column, label in enumerate(table.labels)}
    rows = np.flatnonzero(table.predicted & ~is_missing(table.columns["label"]))
    chosen = [index[label] for label in table.columns["label"][rows]]
    wrong = np.zeros(len(table.paths), bool)
    wrong[rows] = table.shares[rows, chosen] < table.shares[rows].max(1) - SUM_TOLERANCE
    return wrong


def find_clip_faults(table: PredictedTable) -> Iterator[Fault]:
    """Yields the rows of clips from which durations of expressions cannot be computed.

    The smoothed label is empty below `--min_confidence` of `predict`.
    """
    columns = table.columns
    smoothed = [SMOOTHED + label for label in table.labels]
    needed = [*CLIP_COLUMNS, *smoothed]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise TableError(
            f"{table.source.path} has {SMOOTHED_LABEL}, but not {short(', '.join(missing))}, from "
            f"which durations are computed. Restore the columns, or remove {SMOOTHED_LABEL} as "
            "well."
        )
    in_clip = ~is_missing(columns["face"]) & ~is_missing(columns["seconds"])
    for name in needed:
        problem = f"expected a value in `{name}`, but it is empty. Restore it, or delete the row."
        yield Fault(in_clip & is_missing(columns[name]), problem)

    # Faces below `--min_confidence` have no label; all other faces have one.
    unlabelled = in_clip & is_missing(columns[SMOOTHED_LABEL])
    labelled = in_clip & ~unlabelled
    averages = np.column_stack([columns[name] for name in smoothed])  # (N, C)
    largest = np.where(in_clip[:, None], averages, np.nan).astype(float).max(1)  # (N,)
    problem = (
        f"expected a value in `{SMOOTHED_LABEL}`, which faces with a lower average have, but it is "
        "empty. Restore it, or predict all videos with one `--min_confidence`."
    )
    yield Fault(unlabelled & (largest > largest[labelled].min(initial=np.inf)), problem)


def order_rows(table: PredictedTable) -> IntArray:
    """Returns the order of rows by path, frame or seconds, and face.

    Without the column `face`, faces are ordered by confidence, and two rows with equal
    probabilities count as one face. Raises FerVitError for a face that has two rows.
    """
    paths = table.paths
    numbers = table.numbers
    ranks = {path: float(rank) for rank, path in enumerate(sorted(set(paths)))}
    photo = np.array([ranks[path] for path in paths])  # (N,)
    time = "frame" if "frame" in numbers else "seconds"
    moment = numbers.get(time, np.full(len(paths), np.nan))
    if time == "frame" and "seconds" in numbers:
        wrong = np.isnan(moment) & ~np.isnan(numbers["seconds"])
        if wrong.any():
            raise TableError(
                f"{table.name_first(wrong)}: expected a number in `frame`, since "
                "there are seconds, but it is empty. Restore it, or remove the column `frame`."
            )
    if "face" in numbers:
        face = [numbers["face"]]
    else:
        face = [-numbers["confidence"]]
        face += list(table.shares.T)
    order, twice = distinct_rows([photo, moment, *face])

    # In one frame, a track has only one face.
    if twice is None and "track" in numbers:
        tracked = np.flatnonzero(~np.isnan(numbers["track"]))
        keys = [photo[tracked], moment[tracked], numbers["track"][tracked]]
        _, twice_tracked = distinct_rows(keys)
        if twice_tracked:
            first, second = twice_tracked
            twice = (int(tracked[first]), int(tracked[second]))
    if twice:
        first, second = twice
        name = short(paths[first])
        if not np.isnan(moment[first]):
            name += f", {time} {moment[first]:g}"
        raise TableError(
            f"{table.source.row_name(second)}: {name} repeats the face or track of "
            f"{table.source.earlier_row_name(first)}. Delete the rows that are there twice."
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


def find_moments(columns: Columns) -> NDArray[np.object_]:
    """Returns the frame of each row (N,), or the seconds without frames; None for a photo."""
    for name in MOMENT_COLUMNS:
        if name in columns:
            return columns[name]
    return as_objects([None] * len(columns[PATH]))


def check_times(table: PredictedTable, order: IntArray) -> None:
    """Raises FerVitError when the frames of a clip rise, but its seconds fall or are all equal.

    The frames of a damaged video may be swapped: times may fall by `MAX_FALL`.
    """
    paths = table.paths
    numbers = table.numbers
    if not {"frame", "seconds"} <= numbers.keys():
        return
    timed = ~np.isnan(numbers["frame"]) & ~np.isnan(numbers["seconds"])
    in_order = order[timed[order]]
    frame = numbers["frame"][in_order]
    seconds = numbers["seconds"][in_order]

    # pairs of adjacent rows: the same clip, another frame
    before = in_order[:-1]
    after = in_order[1:]
    within = (paths[before] == paths[after]) & (frame[:-1] != frame[1:])
    falls = within & (seconds[1:] < seconds[:-1] - MAX_FALL)
    if falls.any():
        index = int(falls.argmax())
        raise FerVitError(
            f"{table.source.row_name(in_order[index + 1])}: expected `seconds` that rise with "
            f"`frame`, but got {seconds[index + 1]:g} after {seconds[index]:g}. Restore both as "
            "`predict` wrote them."
        )
    changes = within & (seconds[1:] != seconds[:-1])
    moving = set(paths[after[changes]])
    for row in after[within].tolist():
        if paths[row] not in moving:
            raise FerVitError(
                f"{table.source.row_name(row)}: expected `seconds` that rise with `frame`, but all "
                f"of {short(paths[row])} are {numbers['seconds'][row]:g}. Restore them "
                "as `predict` wrote them."
            )
