"""Tables of `predict` as faces: checked, typed, and in the order of photos, frames and faces."""

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
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import SURE, is_uncertain
from fer_vit.fields import BOX, FEATURE, ORIGIN, PROBABILITY, SMOOTHED
from fer_vit.geometry import Array, Image, IntArray
from fer_vit.heads import outputs_of
from fer_vit.labels import EXPRESSIONS, SYNONYMS
from fer_vit.predict.results import table_columns, table_labels
from fer_vit.predict.tables import find_tables, format_counts, read_facts

MARGIN = 0.15  # margin of a picture on each side of a face's box, as a fraction of the box
ROUNDED = 0.01  # probabilities that were rounded sum to 1 within this
EXACT = 0.002  # probabilities as `predict` writes them sum to 1 within this
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
    """Reads a table, or a folder of tables, of `predict`, with `videos` also of frames; checks that
    it is complete.

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
    columns, words = _read_others(table, labels, numbers)
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
    decimal = ["decimal commas"] if mark == "," else []
    notes = [*table.assumption(*decimal), *words]
    notes += _describe_rows(path, columns, probabilities, labels)
    uncertain = sum(map(is_uncertain, score.tolist()))
    if uncertain:
        notes.append(
            f"{uncertain:,} of {predicted.sum():,} faces are uncertain (score below {SURE})."
        )
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


def leave_out_uncertain(faces: EvaluatedFaces) -> EvaluatedFaces:
    """Returns the faces without the uncertain ones in photos that have a certain face as well;
    frames of videos stay.

    Such a face is often none, and a mean over both would count it as much as the other.
    """
    nothing = objects([None] * len(faces.paths))
    uncertain = np.array(
        [is_uncertain(score) for score in faces.columns.get("score", nothing)], bool
    )
    photos = np.array([frame is None for frame in faces.columns.get("frame", nothing)], bool)
    certain = {*faces.paths[faces.predicted & ~uncertain]}
    dropped = uncertain & photos & np.array([path in certain for path in faces.paths], bool)
    if not dropped.any():
        return faces
    note = (
        f"{dropped.sum():,} uncertain faces are left out, because their photos have a certain face "
        "(`--uncertain` uses them)."
    )
    return replace(faces.take(~dropped), notes=(*faces.notes, note))


def _facts(path: Path, columns: Columns) -> dict[str, str]:
    """Returns how a table was made, by the metadata of its file or else by the rows,
    on printable lines.
    """
    with readable(path):
        facts = read_facts(metadata(path))
    if not facts:
        facts = {name: " and ".join(values) for name, values in _origins(columns).items() if values}
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
    candidates = table_labels(table.names)
    known = {*EXPRESSIONS, *SYNONYMS, *_labels_in(table)}
    known |= {name.removeprefix(SMOOTHED) for name in table.names if name.startswith(SMOOTHED)}
    sure = [label for label in candidates if label in known]
    labels = candidates
    if len(sure) < len(candidates):
        mark = _find_mark(table, [PROBABILITY + label for label in sure])
        everything = _spread(table, candidates, mark)
        fewer = _spread(table, sure, mark)
        if everything > EXACT and fewer <= ROUNDED:
            labels = sure
        else:
            labels = [label for label in candidates if label in sure or _occurs(table, label, mark)]
    if len(labels) < 2:
        expected = (
            "a table of `fer-vit predict` with path, confidence and, for each expression, p_NAME"
        )
        came = short(", ".join(map(printable, table.names)))
        raise TableError(f"Expected {expected}, but {table.path} has {came}.")
    return labels


def _labels_in(table: Table) -> set[str]:
    """Returns the labels that faces have."""
    columns = [name for name in ("label", SMOOTHED_LABEL) if name in table.names]
    names = [read_names(table[column])[0] for column in columns]
    return {name for cells in names for name in cells if name is not None}


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
    """Returns how far the probabilities of any face are from a sum of 1;
    infinite if one is no probability.
    """
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
    """Returns the columns that are not probabilities or features,
    and notes about words for missing values.
    """
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
    return objects([None if value != value else kind(value) for value in values.tolist()])


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
    """Raises FerVitError for a row that `predict` did not write: without confidence or status
    beside probabilities.

    Spreadsheets add rows of totals, which are no photos.
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
    """Returns paths (N,) in which all spellings of a file are the first one,
    such as `./a.png` and `a.png`.
    """
    first: dict[str, str] = {}
    spelled = {path: first.setdefault(normal_path(path), path) for path in dict.fromkeys(paths)}
    return objects([spelled[path] for path in paths.tolist()])


def _order(
    table: Table, paths: NDArray[np.object_], numbers: dict[str, Array], labels: Sequence[str]
) -> IntArray:
    """Returns the order of rows by path, frame or seconds, and face; raises FerVitError for a row
    that is there twice.

    Without the column `face`, faces are ordered by confidence, and equal ones are taken for one.
    """
    ranks = {path: float(rank) for rank, path in enumerate(sorted({*paths.tolist()}))}
    place = np.array([ranks[path] for path in paths.tolist()])
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
        faces = [numbers["face"]]
    else:
        faces = [-numbers["confidence"], *(numbers[PROBABILITY + label] for label in labels)]
    order, twice = distinct_rows([place, moment, *faces])
    if twice is None and "track" in numbers:
        tracked = np.flatnonzero(~np.isnan(numbers["track"]))
        _, places = distinct_rows([key[tracked] for key in (place, moment, numbers["track"])])
        twice = places and (int(tracked[places[0]]), int(tracked[places[1]]))
    if twice:
        first, second = twice
        number = f", {time} {moment[first]:g}" if not np.isnan(moment[first]) else ""
        raise TableError(
            f"{table.row_name(second)}: {printable(short(paths[first]))}{number} repeats the face "
            f"or track of row {first + 1}. Delete the rows that are there twice."
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
    rows = order[~np.isnan(numbers["frame"][order]) & ~np.isnan(numbers["seconds"][order])]
    seconds = numbers["seconds"][rows]
    before, after = rows[:-1], rows[1:]
    within = (paths[before] == paths[after]) & (numbers["frame"][before] != numbers["frame"][after])
    falls = within & (seconds[1:] < seconds[:-1] - FALL)
    if falls.any():
        place = int(falls.argmax())
        raise FerVitError(
            f"{table.row_name(rows[place + 1])}: expected `seconds` that rise with `frame`, but "
            f"got {seconds[place + 1]:g} after {seconds[place]:g}. Restore both as `predict` wrote "
            "them."
        )
    moving = {*paths[after[within & (seconds[1:] != seconds[:-1])]].tolist()}
    still = [row for row in after[within].tolist() if paths[row] not in moving]
    if still:
        raise FerVitError(
            f"{table.row_name(still[0])}: expected `seconds` that rise with `frame`, but all of "
            f"{printable(short(paths[still[0]]))} are {numbers['seconds'][still[0]]:g}. Restore "
            "them as `predict` wrote them."
        )


def _check_clips(table: Table, columns: Columns, labels: Sequence[str]) -> None:
    """Raises FerVitError when durations of expressions cannot be computed."""
    needed = (*CLIP, *(SMOOTHED + label for label in labels))
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
        label = columns["label"]
        index = {name: place for place, name in enumerate(labels)}
        place = np.array([index.get(name, -1) for name in label])
        chosen = np.take_along_axis(probabilities, place.clip(0)[:, None], 1)[:, 0]
        with np.errstate(invalid="ignore"):
            other = predicted & (place >= 0) & (chosen < probabilities.max(1) - ROUNDED)
        if other.any():
            notes.append(
                f"{path.name}: in {other.sum():,} of {predicted.sum():,} rows `label` is not the "
                "most probable expression. Labels of people need another column."
            )
    return notes


def cut_face(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with `MARGIN`."""
    image = read_image(Path(table[PATH][row]))
    box: list[Any] = [table[name][row] for name in BOX if name in table]
    if len(box) < len(BOX) or None in box:
        return image
    left, top, right, bottom = box
    x = (right - left) * MARGIN
    y = (bottom - top) * MARGIN
    edges = np.array([left - x, top - y, right + x, bottom + y])
    left, top, right, bottom = edges.round().astype(int).clip(0)
    face = image[top:bottom, left:right]
    if not face.size:
        raise ImageError("the face lies outside of the photo")
    return face
