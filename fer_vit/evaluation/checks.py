"""Checks of the columns of a table of `predict`, and the order of its rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, printable, short
from fer_vit.evaluation.columns import SUM_TOLERANCE
from fer_vit.evaluation.evaluated import Columns
from fer_vit.faces import as_objects
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.tables.cells import distinct_rows, is_missing
from fer_vit.tables.layout import PATH
from fer_vit.tables.read import Table

MAX_FALL = 1.0  # seconds by which times may fall from a frame to the next
MOMENT_COLUMNS = ("frame", "seconds")  # of videos; photos have neither
CLIP_COLUMNS = ("frame", "seconds", "track", "face")  # what durations are computed from


class TypedTable(NamedTuple):
    """A table of `predict` with N rows and C expressions, its columns as types."""

    table: Table  # as it was read
    labels: list[str]  # the expressions (C,)
    paths: NDArray[np.object_]  # (N,), None where empty
    shares: Array  # (N, C), the columns of probabilities
    numbers: dict[str, Array]  # all columns of numbers by name (N,), NaN where missing
    columns: Columns  # all columns but the path, probabilities and features, None where missing

    @property
    def predicted(self) -> Mask:
        """Which rows (N,) have a face."""
        return ~np.isnan(self.numbers["confidence"])

    def name_first(self, wrong: Mask) -> str:
        """Returns the name of the first row in which a cell is wrong (N,)."""
        return self.table.row_name(int(wrong.argmax()))


def check_rows(typed: TypedTable, videos: bool) -> None:
    """Raises FerVitError for the first cell that contradicts another, or is missing.

    Without `videos`, frames of videos are an error, too.
    """
    if not videos:
        _refuse_frames(typed)
    _refuse_empty_paths(typed)
    _check_probabilities(typed)
    _check_labels(typed)
    _check_complete(typed)
    if videos and SMOOTHED_LABEL in typed.columns:
        _check_clips(typed)


def _refuse_frames(typed: TypedTable) -> None:
    moments = [typed.numbers.get(name, np.nan) for name in MOMENT_COLUMNS]
    if any(np.isfinite(moment).any() for moment in moments):
        raise TableError(
            f"{typed.table.path} has frames of videos, but `evaluate` needs photos. "
            "Predict photos only."
        )


def _refuse_empty_paths(typed: TypedTable) -> None:
    empty = is_missing(typed.paths)
    if empty.any():
        raise TableError(
            f"{typed.name_first(empty)}: expected a {PATH}, but it is empty. "
            "Fill it in, or delete the row."
        )


def _check_probabilities(typed: TypedTable) -> None:
    """Raises FerVitError for probabilities of a face that are negative, or do not sum to 1."""
    right = (typed.shares >= 0).all(1) & (abs(typed.shares.sum(1) - 1) < SUM_TOLERANCE)
    wrong = typed.predicted & ~right
    if wrong.any():
        expected = f"probabilities of {short(', '.join(typed.labels))} that sum to 1"
        raise TableError(
            f"{typed.name_first(wrong)}: expected {expected}. Restore them as `predict` wrote them."
        )


def _check_labels(typed: TypedTable) -> None:
    """Raises FerVitError for a label without a probability."""
    for name in ("label", SMOOTHED_LABEL):
        cells = typed.columns.get(name, as_objects([]))
        strange = {*cells.tolist()} - {None, *typed.labels}
        if strange:
            label = min(strange)
            row = typed.name_first(cells == label)
            raise TableError(
                f"{row}: expected one of {short(', '.join(typed.labels))} in `{name}`, but got "
                f"`{printable(short(label))}`. Keep the labels of `predict`, and give your column "
                "another name."
            )


def _check_complete(typed: TypedTable) -> None:
    """Raises FerVitError for probabilities without confidence or status.

    `predict` writes no such row. Spreadsheets add rows of totals, which are no photos.
    """
    face = np.isfinite(typed.shares).any(1)
    missing = {"confidence": ~typed.predicted}
    if "status" in typed.columns:
        missing["status"] = is_missing(typed.columns["status"])
    for name, empty in missing.items():
        wrong = face & empty
        if wrong.any():
            raise FerVitError(
                f"{typed.name_first(wrong)}: expected a value in `{name}`, since "
                "there are probabilities, but it is empty. Restore it, or delete the row."
            )


def _check_clips(typed: TypedTable) -> None:
    """Raises FerVitError when durations of expressions cannot be computed.

    The smoothed label is empty below `--min_confidence` of `predict`.
    """
    columns = typed.columns
    smoothed = [SMOOTHED + label for label in typed.labels]
    needed = [*CLIP_COLUMNS, *smoothed]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise TableError(
            f"{typed.table.path} has {SMOOTHED_LABEL}, but not {short(', '.join(missing))}, from "
            f"which durations are computed. Restore the columns, or remove {SMOOTHED_LABEL} as "
            "well."
        )
    of_clip = ~is_missing(columns["face"]) & ~is_missing(columns["seconds"])
    for name in needed:
        wrong = of_clip & is_missing(columns[name])
        if wrong.any():
            raise TableError(
                f"{typed.name_first(wrong)}: expected a value in `{name}`, but it is "
                "empty. Restore it, or delete the row."
            )

    # all faces below the least confidence have no label, and none above it
    unlabelled = of_clip & is_missing(columns[SMOOTHED_LABEL])
    labelled = of_clip & ~unlabelled
    averages = np.column_stack([columns[name] for name in smoothed])  # (N, C)
    largest = np.where(of_clip[:, None], averages, np.nan).astype(float).max(1)  # (N,)
    wrong = unlabelled & (largest > largest[labelled].min(initial=np.inf))
    if wrong.any():
        raise TableError(
            f"{typed.name_first(wrong)}: expected a value in `{SMOOTHED_LABEL}`, "
            "which faces with a lower average have, but it is empty. Restore it, or predict all "
            "videos with one `--min_confidence`."
        )


def order_rows(typed: TypedTable) -> IntArray:
    """Returns the order of rows by path, frame or seconds, and face.

    Without the column `face`, faces are ordered by confidence, and equal ones are taken for one.
    Raises FerVitError for a face that has two rows.
    """
    paths = typed.paths
    numbers = typed.numbers
    ranks = {path: float(rank) for rank, path in enumerate(sorted(set(paths)))}
    photo = np.array([ranks[path] for path in paths])  # (N,)
    time = "frame" if "frame" in numbers else "seconds"
    moment = numbers.get(time, np.full(len(paths), np.nan))
    if time == "frame" and "seconds" in numbers:
        wrong = np.isnan(moment) & ~np.isnan(numbers["seconds"])
        if wrong.any():
            raise TableError(
                f"{typed.name_first(wrong)}: expected a number in `frame`, since "
                "there are seconds, but it is empty. Restore it, or remove the column `frame`."
            )
    if "face" in numbers:
        face = [numbers["face"]]
    else:
        face = [-numbers["confidence"]]
        face += list(typed.shares.T)
    order, twice = distinct_rows([photo, moment, *face])

    # a track has one face in a frame
    if twice is None and "track" in numbers:
        tracked = np.flatnonzero(~np.isnan(numbers["track"]))
        keys = [photo[tracked], moment[tracked], numbers["track"][tracked]]
        _, twice_tracked = distinct_rows(keys)
        if twice_tracked:
            first, second = twice_tracked
            twice = (int(tracked[first]), int(tracked[second]))
    if twice:
        first, second = twice
        name = printable(short(paths[first]))
        if not np.isnan(moment[first]):
            name += f", {time} {moment[first]:g}"
        raise TableError(
            f"{typed.table.row_name(second)}: {name} repeats the face or track of "
            f"{typed.table.earlier_row_name(first)}. Delete the rows that are there twice."
        )
    return order


def find_moments(columns: Columns) -> NDArray[np.object_]:
    """Returns what orders the rows (N,) of a video: the frame, or else seconds; None in a photo."""
    for name in MOMENT_COLUMNS:
        if name in columns:
            return columns[name]
    return as_objects([None] * len(columns[PATH]))


def check_times(typed: TypedTable, order: IntArray) -> None:
    """Raises FerVitError when the seconds of a clip fall while its frames rise, or stand still.

    Frames of damaged videos may be swapped, so that times fall a little.
    """
    paths = typed.paths
    numbers = typed.numbers
    if not {"frame", "seconds"} <= numbers.keys():
        return
    timed = ~np.isnan(numbers["frame"]) & ~np.isnan(numbers["seconds"])
    in_order = order[timed[order]]
    frame = numbers["frame"][in_order]
    seconds = numbers["seconds"][in_order]

    # neighbouring rows of different frames of one clip
    before = in_order[:-1]
    after = in_order[1:]
    within = (paths[before] == paths[after]) & (frame[:-1] != frame[1:])
    falls = within & (seconds[1:] < seconds[:-1] - MAX_FALL)
    if falls.any():
        index = int(falls.argmax())
        raise FerVitError(
            f"{typed.table.row_name(in_order[index + 1])}: expected `seconds` that rise with "
            f"`frame`, but got {seconds[index + 1]:g} after {seconds[index]:g}. Restore both as "
            "`predict` wrote them."
        )
    changes = within & (seconds[1:] != seconds[:-1])
    moving = set(paths[after[changes]])
    for row in after[within].tolist():
        if paths[row] not in moving:
            raise FerVitError(
                f"{typed.table.row_name(row)}: expected `seconds` that rise with `frame`, but all "
                f"of {printable(short(paths[row]))} are {numbers['seconds'][row]:g}. Restore them "
                "as `predict` wrote them."
            )
