"""Checks between the columns of a table of `predict`, and the order of its rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, printable, short
from fer_vit.evaluation.cells import distinct_rows
from fer_vit.evaluation.columns import ROUNDED
from fer_vit.evaluation.evaluated import Columns
from fer_vit.evaluation.read import Table
from fer_vit.faces import as_objects
from fer_vit.fields import PROBABILITY, SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray

FALL = 1.0  # seconds by which times may fall from a frame to the next
CLIP = ("frame", "seconds", "track", "face")  # what durations are computed from


def check_label_column(table: Table, columns: Columns, labels: Sequence[str]) -> None:
    """Raises FerVitError for a label without a probability."""
    for name in ("label", SMOOTHED_LABEL):
        cells = columns.get(name, as_objects([]))
        strange = {*cells.tolist()} - {None, *labels}
        if strange:
            label = min(strange)
            row = int((cells == label).argmax())
            raise TableError(
                f"{table.row_name(row)}: expected one of {short(', '.join(labels))} in `{name}`, "
                f"but got `{printable(short(label))}`. Keep the labels of `predict`, and give your "
                "column another name."
            )


def refuse_empty(table: Table, name: str, cells: NDArray[np.object_]) -> None:
    """Raises FerVitError for an empty cell of a column (N,)."""
    empty = cells == np.array(None)
    if empty.any():
        raise TableError(
            f"{table.row_name(int(empty.argmax()))}: expected a {name}, but it is empty. "
            "Fill it in, or delete the row."
        )


def join_probabilities(table: Table, numbers: dict[str, Array], labels: Sequence[str]) -> Array:
    """Returns the probabilities in a table (N, C); NaN without a confidence."""
    predicted = ~np.isnan(numbers["confidence"])
    probabilities = np.column_stack([numbers[PROBABILITY + label] for label in labels])
    right = (probabilities >= 0).all(1) & (abs(probabilities.sum(1) - 1) < ROUNDED)
    wrong = predicted & ~right
    if wrong.any():
        expected = f"probabilities of {short(', '.join(labels))} that sum to 1"
        row = table.row_name(int(wrong.argmax()))
        raise TableError(f"{row}: expected {expected}. Restore them as `predict` wrote them.")
    return np.where(predicted[:, None], probabilities, np.nan)


def check_complete(
    table: Table, columns: Columns, numbers: dict[str, Array], labels: Sequence[str]
) -> None:
    """Raises FerVitError for probabilities without confidence or status.

    `predict` writes no such row. Spreadsheets add rows of totals, which are no photos.
    """
    shares = np.column_stack([numbers[PROBABILITY + label] for label in labels])
    face = np.isfinite(shares).any(1)
    missing = {"confidence": np.isnan(numbers["confidence"])}
    if "status" in columns:
        missing["status"] = columns["status"] == np.array(None)
    for name, empty in missing.items():
        wrong = face & empty
        if wrong.any():
            raise FerVitError(
                f"{table.row_name(int(wrong.argmax()))}: expected a value in `{name}`, since there "
                "are probabilities, but it is empty. Restore it, or delete the row."
            )


def order_rows(
    table: Table, paths: NDArray[np.object_], numbers: dict[str, Array], labels: Sequence[str]
) -> IntArray:
    """Returns the order of rows by path, frame or seconds, and face.

    Without the column `face`, faces are ordered by confidence, and equal ones are taken for one.
    Raises FerVitError for a face that has two rows.
    """
    ranks = {path: float(rank) for rank, path in enumerate(sorted(set(paths)))}
    photo = np.array([ranks[path] for path in paths])  # (N,)
    time = "frame" if "frame" in numbers else "seconds"
    moment = numbers.get(time, np.full(len(paths), np.nan))
    if time == "frame" and "seconds" in numbers:
        wrong = np.isnan(moment) & ~np.isnan(numbers["seconds"])
        if wrong.any():
            raise TableError(
                f"{table.row_name(int(wrong.argmax()))}: expected a number in `frame`, since there "
                "are seconds, but it is empty. Restore it, or remove the column `frame`."
            )
    if "face" in numbers:
        face = [numbers["face"]]
    else:
        face = [-numbers["confidence"]]
        face += [numbers[PROBABILITY + label] for label in labels]
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
            f"{table.row_name(second)}: {name} repeats the face or track of row {first + 1}. "
            "Delete the rows that are there twice."
        )
    return order


def check_times(
    table: Table, paths: NDArray[np.object_], numbers: dict[str, Array], order: IntArray
) -> None:
    """Raises FerVitError when the seconds of a clip fall while its frames rise, or stand still.

    Frames of damaged videos may be swapped, so that times fall a little.
    """
    if not {"frame", "seconds"} <= numbers.keys():
        return
    timed = ~np.isnan(numbers["frame"]) & ~np.isnan(numbers["seconds"])
    rows = order[timed[order]]
    frame = numbers["frame"][rows]
    seconds = numbers["seconds"][rows]

    # neighbouring rows of different frames of one clip
    before = rows[:-1]
    after = rows[1:]
    within = (paths[before] == paths[after]) & (frame[:-1] != frame[1:])
    falls = within & (seconds[1:] < seconds[:-1] - FALL)
    if falls.any():
        place = int(falls.argmax())
        raise FerVitError(
            f"{table.row_name(rows[place + 1])}: expected `seconds` that rise with `frame`, but "
            f"got {seconds[place + 1]:g} after {seconds[place]:g}. Restore both as `predict` wrote "
            "them."
        )
    changes = within & (seconds[1:] != seconds[:-1])
    moving = set(paths[after[changes]])
    for row in after[within].tolist():
        if paths[row] not in moving:
            raise FerVitError(
                f"{table.row_name(row)}: expected `seconds` that rise with `frame`, but all of "
                f"{printable(short(paths[row]))} are {numbers['seconds'][row]:g}. Restore them as "
                "`predict` wrote them."
            )


def check_clips(table: Table, columns: Columns, labels: Sequence[str]) -> None:
    """Raises FerVitError when durations of expressions cannot be computed.

    The smoothed label is empty below `--min_confidence` of `predict`.
    """
    needed = [*CLIP, *(SMOOTHED + label for label in labels)]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise TableError(
            f"{table.path} has {SMOOTHED_LABEL}, but not {short(', '.join(missing))}, from which "
            f"durations are computed. Restore the columns, or remove {SMOOTHED_LABEL} as well."
        )
    none = np.array(None)
    of_clip = (columns["face"] != none) & (columns["seconds"] != none)
    for name in needed:
        wrong = of_clip & (columns[name] == none)
        if wrong.any():
            raise TableError(
                f"{table.row_name(int(wrong.argmax()))}: expected a value in `{name}`, but it is "
                "empty. Restore it, or delete the row."
            )

    # all faces below the least confidence have no label, and none above it
    unlabelled = of_clip & (columns[SMOOTHED_LABEL] == none)
    labelled = of_clip & ~unlabelled
    averages = np.column_stack([columns[SMOOTHED + label] for label in labels])  # (N, C)
    largest = np.where(of_clip[:, None], averages, np.nan).astype(float).max(1)  # (N,)
    wrong = unlabelled & (largest > largest[labelled].min(initial=np.inf))
    if wrong.any():
        raise TableError(
            f"{table.row_name(int(wrong.argmax()))}: expected a value in `{SMOOTHED_LABEL}`, "
            "which faces with a lower average have, but it is empty. Restore it, or predict all "
            "videos with one `--min_confidence`."
        )
