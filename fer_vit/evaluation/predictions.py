"""Tables of `predict` as faces: checked, typed, and in the order of photos, frames and faces."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fer_vit.errors import FerVitError, TableError, printable, short
from fer_vit.evaluation.cells import (
    AmbiguousMarkError,
    BadCellError,
    check_size,
    check_whole,
    distinct_rows,
    find_mark,
    normal_path,
    objects,
    read_names,
    read_numbers,
    read_paths,
    read_truth,
)
from fer_vit.evaluation.evaluated import Columns, EvaluatedFaces
from fer_vit.evaluation.read import PATH, Table, is_table, metadata, read_table, readable
from fer_vit.face.detectors import DEFAULT_DETECTOR, DETECTORS
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import SEPARATOR, UNCERTAIN, are_uncertain
from fer_vit.fields import BOX, FEATURE, ORIGIN, PROBABILITY, SMOOTHED
from fer_vit.geometry import Array, Image, IntArray, Mask
from fer_vit.heads import outputs_of
from fer_vit.labels import EXPRESSIONS, SYNONYMS
from fer_vit.predict.results import table_columns, table_labels
from fer_vit.predict.tables import find_tables, format_counts, read_facts

BOX_MARGIN = 0.15  # margin of a picture on each side of a face's box, as a fraction of the box
ROUNDED = 0.01  # probabilities that were rounded sum to 1 within this
EXACT_SUM = 0.002  # probabilities as `predict` writes them sum to 1 within this
LARGEST = 1e12  # sums and ratios of larger numbers overflow
FALL = 1.0  # seconds by which times may fall from a frame to the next
CLIP = ("frame", "seconds", "track", "face")  # what durations are computed from
SMOOTHED_LABEL = "label_smoothed"


def is_predictions(path: Path) -> bool:
    """Returns whether a path is a table, or a folder of tables of `predict`."""
    return is_table(path) or any(path.glob("part-*-of-*.parquet"))


def is_owned(name: str, labels: Sequence[str]) -> bool:
    """Returns whether `predict` writes a column of this name for a model with these labels."""
    plain = name.removeprefix(SMOOTHED)  # outputs of heads are smoothed, too
    return name in table_columns(labels, videos=True) or is_feature(name) or is_output(plain)


def is_output(name: str) -> bool:
    """Returns whether a column has an output of a further head."""
    return bool(outputs_of([name]))


def _column_types(table: Table, labels: Sequence[str]) -> dict[str, type]:
    """Returns the types of the columns that `predict` writes into a table like this."""
    return table_columns(labels, videos=True, outputs=list(filter(is_output, table.names)))


def is_feature(name: str) -> bool:
    """Returns whether a column has a feature of the network."""
    return re.fullmatch(rf"{FEATURE}\d+", name) is not None


def read_predictions(path: Path, videos: bool = False) -> EvaluatedFaces:
    """Reads a table, or a folder of tables, of `predict`; with `videos` also of frames.

    Faces are in the order of path, frame and face, not of the rows. Raises FerVitError when the
    table is incomplete, has a row twice, or a cell that does not fit its column.
    """
    tables, left = find_tables(path)
    if left:
        rest = "Run the same `fer-vit predict` again to complete it."
        raise TableError(f"{path} lacks {left:,} of its {left + len(tables):,} tables. {rest}")
    files = tables or [path]
    table = read_table(*files)
    table.require(PATH, "confidence")

    # columns as types
    labels = find_labels(table)
    numbers, mark = _read_columns(table, labels)
    if not videos and not np.isnan(numbers.get("frame", np.nan)).all():
        raise TableError(
            f"{path} has frames of videos, but `evaluate` needs photos. Predict photos only."
        )
    paths = read_paths(table[PATH])
    _refuse_empty(table, PATH, paths)
    paths = _one_spelling(paths)
    probabilities = _join_probabilities(table, numbers, labels)  # (N, C)
    columns, word_notes = _read_others(table, labels, numbers)

    # rows in order
    _check_complete(table, columns, numbers, labels)
    if videos and SMOOTHED_LABEL in columns:
        _check_clips(table, columns, labels)
    order = _order(table, paths, numbers, labels)
    if videos:
        _check_times(table, paths, numbers, order)
    columns = {name: cells[order] for name, cells in columns.items()}
    columns[PATH] = paths[order]
    probabilities = probabilities[order]
    predicted = np.isfinite(probabilities[:, 0])
    score = numbers.get("score", np.full(len(table), np.nan))[order]

    # what was assumed and left out
    decimal = ["decimal commas"] if mark == "," else []
    notes = [*table.assumption(*decimal), *word_notes]
    notes += _describe_rows(path, columns, probabilities, labels)
    uncertain = find_uncertain(columns)
    if uncertain.any():
        notes.append(f"{uncertain.sum():,} of {predicted.sum():,} faces are uncertain.")
    return EvaluatedFaces(
        labels=labels,
        paths=columns[PATH],
        probabilities=probabilities,
        detected=predicted & (score != 0),
        targets=None,
        columns=columns,
        rows=np.arange(len(predicted)),
        picture=lambda row: cut_face(columns, row),
        facts=_facts(files[0], columns),
        notes=tuple(notes),
    )


def find_uncertain(columns: Columns) -> Mask:
    """Returns which rows (N,) of a table are uncertain faces.

    Rows are, if their warning names it. Tables of 0.1 have no such warning: their rows, and those
    of detectors in `DETECTORS`, also are by the score. The scores of other detectors have an
    unknown scale.
    """
    unknown = objects([None] * len(columns[PATH]))
    warnings = columns.get("warning", unknown)
    detectors = columns.get("detector", unknown)
    score = np.array(columns.get("score", unknown), float)  # NaN without one
    sure_scores = {name: detector.sure_score for name, detector in DETECTORS.items()}

    named = [UNCERTAIN in str(cell).split(SEPARATOR) for cell in warnings]
    uncertain = np.array(named, bool)
    for name in {*detectors.tolist()}:
        by_score = are_uncertain(score, sure_scores.get(name or DEFAULT_DETECTOR))
        uncertain |= (detectors == name) & by_score
    return uncertain


def leave_out_uncertain(faces: EvaluatedFaces) -> EvaluatedFaces:
    """Returns the faces without uncertain ones in photos that have a certain face as well.

    Such a face is often none, and a mean over both would count it as much as the certain one.
    Frames of videos stay.
    """
    unknown = objects([None] * len(faces.paths))
    frames = faces.columns.get("frame", unknown)
    uncertain = find_uncertain(faces.columns)
    photos = np.array([frame is None for frame in frames], bool)
    certain = set(faces.paths[faces.predicted & ~uncertain])
    with_certain = np.array([path in certain for path in faces.paths], bool)
    dropped = uncertain & photos & with_certain
    if not dropped.any():
        return faces
    note = (
        f"{dropped.sum():,} uncertain faces are left out, because their photos have a certain face "
        "(`--uncertain` uses them)."
    )
    return replace(faces.take(~dropped), notes=(*faces.notes, note))


def _facts(path: Path, columns: Columns) -> dict[str, str]:
    """Returns how a table was made, by its metadata or else its rows, on printable lines."""
    with readable(path):
        facts = read_facts(metadata(path))
    if not facts:
        for name, values in _origins(columns).items():
            if values:
                facts[name] = " and ".join(values)
    return {printable(short(name)): printable(short(fact)) for name, fact in facts.items()}


def _origins(columns: Columns) -> dict[str, list[str]]:
    """Returns the different values of each column that records what made a row."""
    names = [field.name for field in ORIGIN if field.name in columns]
    return {name: sorted({*columns[name].tolist()} - {None}) for name in names}


def find_labels(table: Table) -> list[str]:
    """Returns the expressions of a table.

    A column such as `p_id` of a participant is no probability: an expression has a common name,
    occurs in the table as a label, or is needed for the sum of 1.
    """
    labels = _choose_labels(table, table_labels(table.names))
    if len(labels) < 2:
        came = short(", ".join(map(printable, table.names)))
        raise TableError(
            "Expected a table of `fer-vit predict` with path, confidence and, for each expression, "
            f"p_NAME, but {table.path} has {came}."
        )
    return labels


def _choose_labels(table: Table, candidates: list[str]) -> list[str]:
    """Returns which candidates are expressions."""
    known = {*EXPRESSIONS, *SYNONYMS} | _labels_in(table)
    for name in table.names:
        if name.startswith(SMOOTHED):
            known.add(name.removeprefix(SMOOTHED))
    sure = [label for label in candidates if label in known]
    if len(sure) == len(candidates):
        return candidates

    mark = _find_mark(table, [PROBABILITY + label for label in sure])
    spread_of_all = _spread(table, candidates, mark)
    spread_of_sure = _spread(table, sure, mark)
    if spread_of_all > EXACT_SUM and spread_of_sure <= ROUNDED:
        return sure
    return [label for label in candidates if label in sure or _occurs(table, label, mark)]


def _labels_in(table: Table) -> set[str]:
    """Returns the labels that faces have."""
    labels: set[str] = set()
    for column in ("label", SMOOTHED_LABEL):
        if column in table.names:
            names, _ = read_names(table[column])
            labels.update(name for name in names if name is not None)
    return labels


def _find_mark(table: Table, names: Sequence[str]) -> str:
    """Returns the decimal mark of columns."""
    try:
        return find_mark([table[name] for name in names])
    except AmbiguousMarkError as error:
        raise TableError(
            f"Expected numbers with one decimal mark in {table.path}, but got {error}. "
            "Save the numbers without marks for thousands."
        ) from error


def _occurs(table: Table, label: str, mark: str) -> bool:
    """Returns whether a probability is above zero in any row."""
    try:
        return bool((read_numbers(table[PROBABILITY + label], mark) > 0).any())
    except BadCellError:
        return True


def _spread(table: Table, labels: Sequence[str], mark: str) -> float:
    """Returns how far the sum of any face's probabilities is from 1; infinite if one is invalid."""
    if not labels:
        return np.inf
    try:
        columns = [read_numbers(table[PROBABILITY + label], mark) for label in labels]
        confidence = read_numbers(table["confidence"], mark)
    except BadCellError:
        return np.inf
    probabilities = np.column_stack(columns)[~np.isnan(confidence)]
    if not len(probabilities):
        return 0.0
    if not (probabilities >= 0).all():
        return np.inf
    return float(np.abs(probabilities.sum(1) - 1).max())


def _read_columns(table: Table, labels: Sequence[str]) -> tuple[dict[str, Array], str]:
    """Returns the numbers of a table by column (N,), NaN where missing, and their decimal mark."""
    types = _column_types(table, labels)
    names = [name for name in table.names if types.get(name) in (int, float)]
    mark = _find_mark(table, names)
    numbers = {}
    for name in names:
        try:
            numbers[name] = read_numbers(table[name], mark)
            check_size(numbers[name], LARGEST)
            if types[name] is int:
                check_whole(numbers[name])
        except BadCellError as error:
            raise _bad_cell(table, name, error) from error
    return numbers, mark


def _bad_cell(table: Table, name: str, error: BadCellError) -> FerVitError:
    came = printable(short(error.cell))
    return FerVitError(
        f"{table.row_name(error.row)}: expected {error.expected} in `{name}`, but got `{came}`. "
        "Correct the cell, or restore the column as `predict` wrote it."
    )


def _read_others(
    table: Table, labels: Sequence[str], numbers: dict[str, Array]
) -> tuple[Columns, list[str]]:
    """Returns columns but probabilities and features, and notes about words for missing values."""
    types = _column_types(table, labels)
    columns: Columns = {}
    notes = []
    for name in table.names:
        probability = name.startswith(PROBABILITY) and name in types
        if name == PATH or probability or is_feature(name):
            continue
        if name in numbers:
            columns[name] = _number_cells(numbers[name], types[name])
        elif types.get(name) is bool:
            try:
                columns[name] = read_truth(table[name])
            except BadCellError as error:
                raise _bad_cell(table, name, error) from error
        else:
            columns[name], words = read_names(table[name])
            if name not in types:
                notes += missing_note(table, name, words)
    _check_labels(table, columns, labels)
    return columns, notes


def _number_cells(values: Array, kind: type) -> NDArray[np.object_]:
    """Returns numbers (N,) as cells of a type, None where missing."""
    return objects([None if math.isnan(value) else kind(value) for value in values.tolist()])


def missing_note(table: Table, name: str, words: Counter[str]) -> list[str]:
    """Returns a line about words that were read as missing values."""
    if not words:
        return []
    return [f"{table.path.name}: read as missing in `{printable(name)}`: {format_counts(words)}."]


def _check_labels(table: Table, columns: Columns, labels: Sequence[str]) -> None:
    """Raises FerVitError for a label without a probability."""
    for name in ("label", SMOOTHED_LABEL):
        cells = columns.get(name, objects([]))
        strange = {*cells.tolist()} - {None, *labels}
        if strange:
            label = min(strange)
            row = int((cells == label).argmax())
            raise TableError(
                f"{table.row_name(row)}: expected one of {short(', '.join(labels))} in `{name}`, "
                f"but got `{printable(short(label))}`. Keep the labels of `predict`, and give your "
                "column another name."
            )


def _refuse_empty(table: Table, name: str, cells: NDArray[np.object_]) -> None:
    empty = cells == np.array(None)
    if empty.any():
        raise TableError(
            f"{table.row_name(int(empty.argmax()))}: expected a {name}, but it is empty. "
            "Fill it in, or delete the row."
        )


def _join_probabilities(table: Table, numbers: dict[str, Array], labels: Sequence[str]) -> Array:
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


def _check_complete(
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


def _one_spelling(paths: NDArray[np.object_]) -> NDArray[np.object_]:
    """Returns paths (N,) in one spelling for each file: `./a.png` and `a.png` become the first."""
    first: dict[str, str] = {}
    spelled = {}
    for path in dict.fromkeys(paths):
        spelled[path] = first.setdefault(normal_path(path), path)
    return objects([spelled[path] for path in paths.tolist()])


def _order(
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


def _check_times(
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


def _check_clips(table: Table, columns: Columns, labels: Sequence[str]) -> None:
    """Raises FerVitError when durations of expressions cannot be computed."""
    needed = [*CLIP, *(SMOOTHED + label for label in labels)]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise TableError(
            f"{table.path} has {SMOOTHED_LABEL}, but not {short(', '.join(missing))}, from which "
            f"durations are computed. Restore the columns, or remove {SMOOTHED_LABEL} as well."
        )
    none = np.array(None)
    of_clip = (columns["face"] != none) & (columns["seconds"] != none)
    for name in (SMOOTHED_LABEL, *needed):
        wrong = of_clip & (columns[name] == none)
        if wrong.any():
            raise TableError(
                f"{table.row_name(int(wrong.argmax()))}: expected a value in `{name}`, but it is "
                "empty. Restore it, or delete the row."
            )


def _describe_rows(
    path: Path, columns: Columns, probabilities: Array, labels: Sequence[str]
) -> list[str]:
    """Returns lines about rows without a face, and labels that are not the most probable."""
    notes = []
    predicted = np.isfinite(probabilities[:, 0])
    if not predicted.all():
        status = columns.get("status", np.full(len(predicted), None))
        counts = Counter(str(cell or "no status") for cell in status[~predicted])
        known = printable(format_counts(counts, 5))
        notes.append(
            f"{path.name}: {(~predicted).sum():,} of {len(predicted):,} rows have no face and are "
            f"left out ({known})."
        )
    for name, values in _origins(columns).items():
        if len(values) > 1 and name != "predicted_on":
            shown = printable(short(", ".join(values)))
            notes.append(f"{path.name}: its rows have {len(values)} values of `{name}`: {shown}.")
    if "label" in columns and predicted.any():
        chosen = np.full(len(predicted), np.nan)  # the probability of the label
        for index, label in enumerate(labels):
            with_label = columns["label"] == label
            chosen[with_label] = probabilities[with_label, index]
        with np.errstate(invalid="ignore"):  # rows without a face or label
            less_probable = chosen < probabilities.max(1) - ROUNDED
        if less_probable.any():
            notes.append(
                f"{path.name}: in {less_probable.sum():,} of {predicted.sum():,} rows `label` is "
                "not the most probable expression. Labels of people need another column."
            )
    return notes


def cut_face(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with `BOX_MARGIN`."""
    image = read_image(Path(table[PATH][row]))
    box: list[Any] = [table[name][row] for name in BOX if name in table]
    if len(box) < len(BOX) or None in box:
        return image
    left, top, right, bottom = box
    x = (right - left) * BOX_MARGIN
    y = (bottom - top) * BOX_MARGIN
    edges = np.array([left - x, top - y, right + x, bottom + y])
    left, top, right, bottom = edges.round().astype(int).clip(0)
    face = image[top:bottom, left:right]
    if not face.size:
        raise ImageError("the face lies outside of the photo")
    return face
