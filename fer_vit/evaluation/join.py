"""Joins predictions by path with tables of labels and of other columns, and describes groups."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, short
from fer_vit.evaluation.labelled import (
    Columns,
    Labelled,
    Pair,
    pair_outputs,
)
from fer_vit.evaluation.similar_names import look_alikes
from fer_vit.faces import as_objects
from fer_vit.fields import is_owned
from fer_vit.geometry import Array
from fer_vit.heads import HeadOutputs
from fer_vit.labels import find_label
from fer_vit.tables.cells import is_missing
from fer_vit.tables.images import AngleUnit, Truth, read_images, read_truth_table
from fer_vit.tables.layout import PATH
from fer_vit.tables.paths import match_paths
from fer_vit.tables.read import is_table
from fer_vit.wording import counted

MAX_NAME_LENGTH = 200  # most characters of a group's or person's name

# A long number as spreadsheets and R write it: the last digits may be lost.
SHORTENED = re.compile(r"[+-]?\d([.,]\d+)?[eE]\+\d{2,3}")

# What a spreadsheet or a person writes where there is no name: #REF!, -, ...
NO_NAME = re.compile(r"#.*|[\W_]+")

EXCEL_DIGITS = 15  # digits that a spreadsheet keeps of a number; further digits become zeros
LONG_NUMBER = re.compile(rf"[+-]?\d{{{EXCEL_DIGITS}}}(\d+)")


def add_labels(
    faces: Labelled, path: Path, split: Split, angle_unit: AngleUnit | None = None
) -> Labelled:
    """Returns the first face of each labelled image with its label.

    `path` names a manifest, from which `split` is read, or a table. The table has the column
    `path`, and the column `label`, outputs of heads (`move_*`, `yaw`, `valence` ...), or both;
    `angle_unit` is the unit of its angles.

    Raises:
        FerVitError: The model lacks a label, or the predictions lack an image.
    """
    if is_table(path):
        truth = read_truth_table(path, faces.labels, angle_unit)
    else:
        truth = _manifest_truth(faces.labels, path, split)
    known = faces.take(match_paths(truth.paths, faces.paths, "the table of predictions"))

    notes = list(truth.notes)
    num_unlabelled = len(set(faces.paths)) - len(set(known.paths))
    if num_unlabelled:
        notes.append(f"{path.name}: {counted(num_unlabelled, 'image')} without a label left out.")
    outputs = {}
    missing_outputs = []
    for name in truth.outputs:
        if name in known.columns:
            outputs[name] = known.columns[name].astype(float)
        else:
            missing_outputs.append(name)
    if missing_outputs:
        missing = short(", ".join(missing_outputs))
        notes.append(f"{path.name}: the predictions have no {missing}.")
    return replace(
        known,
        targets=truth.votes,
        columns=truth.columns | known.columns,  # the columns of `predict` stay
        outputs=pair_outputs(outputs, truth.outputs),
        notes=(*known.notes, *notes),
    )


def _manifest_truth(labels: Sequence[str], path: Path, split: Split) -> Truth:
    """Reads targets in a split of a manifest, with votes for the labels (C) of a model."""
    manifest = Manifest.read(path).split(split)
    votes = manifest.model_targets(labels)
    outputs = manifest.target_values()
    if votes is None and not outputs:
        raise no_label(path, split)
    columns = {name: as_objects(cells) for name, cells in manifest.describing_columns().items()}
    return Truth(as_objects(manifest.image_names()), votes, outputs, columns)


def add_columns(faces: Labelled, path: Path) -> Labelled:
    """Returns faces with further columns, from a table whose column `path` names their images.

    The table may fill a column of the faces that is empty.

    Raises:
        FerVitError: The table names no image of the faces, or has a column that the faces have.
    """
    table_paths, columns, notes = read_images(path)
    for name in columns:
        taken = name in faces.columns and not is_missing(faces.columns[name]).all()
        if taken or is_owned(name, faces.labels):
            raise FerVitError(
                f"{path} has the column `{short(name)}`, which the predictions have as "
                "well. Rename it."
            )

    images = faces.paths
    row = match_paths(images, table_paths, path, partial=True)  # (N,); -1: no row
    added: Columns = {}
    for name, cells in columns.items():
        joined = cells[row]
        joined[row < 0] = None  # replaces cells[-1]
        added[name] = joined

    without_row = set(images[row < 0])
    if without_row:
        count = f"{len(without_row):,} of {len(set(images)):,} images"
        example = short(min(without_row))
        notes.append(f"{path.name}: no row for {count}, for example {example}.")
    unused = np.setdiff1d(np.arange(len(table_paths)), row)
    if len(unused):
        example = short(table_paths[unused[0]])
        notes.append(
            f"{path.name}: {len(unused):,} of {len(table_paths):,} rows name no predicted image, "
            f"for example {example}."
        )
    return replace(faces, columns=faces.columns | added, notes=(*faces.notes, *notes))


def align_probabilities(faces: Labelled, second: Labelled, path: object) -> Array:
    """Returns a second model's probabilities (N, C), in the order of `faces` and of its labels.

    Args:
        faces: N faces with C labels.
        second: The same faces with the second model's predictions; NaN for an image without a face.
        path: The name of the second model or of its table, for messages.

    Raises:
        FerVitError: A path or label of `faces` is not among the second model's, or no photo has a
            face for both models.
    """
    order = [find_label(label, second.labels, "The first model") for label in faces.labels]
    rows = match_paths(faces.paths, second.paths, path)
    probabilities = second.probabilities[rows][:, order]
    if not (faces.predicted & np.isfinite(probabilities[:, 0])).any():
        raise FerVitError(
            f"No face was found both by the first model and in {path}. Choose another."
        )
    return probabilities


def align_outputs(faces: Labelled, second: Labelled, path: object) -> dict[str, Pair]:
    """Returns the outputs that both models have, with the second model's values, by column.

    Arguments as for `align_probabilities`.
    """
    rows = match_paths(faces.paths, second.paths, path)
    values = {name: pair.values[rows] for name, pair in second.outputs.items()}
    for name in HeadOutputs.among(second.columns).columns:
        values[name] = second.columns[name].astype(float)[rows]
    return pair_outputs(values, {name: pair.targets for name, pair in faces.outputs.items()})


def describe_groups(faces: Labelled, columns: Iterable[str]) -> list[str]:
    """Returns lines about missing names in columns to group by.

    Raises FerVitError for a cell that is no name, such as `-` or `#REF!`, a name that a spreadsheet
    has shortened or that is too long, and for two names that a reader takes for one.
    """
    notes = []
    for column in dict.fromkeys(columns):
        if column == PATH:  # always complete; `check_rows` has checked it
            continue
        _check_group_names(faces, column)
        missing = is_missing(faces.columns[column][faces.predicted])
        if missing.any():
            count = f"{missing.sum():,} of {len(missing):,}"
            notes.append(f"`{column}` is missing for {count} faces.")
    return notes


def _check_group_names(faces: Labelled, column: str) -> None:
    """Raises the errors of `describe_groups`, also for rows without a face."""
    first_paths: dict[str, str] = {}  # the image of the first cell with each name
    for cell, path in zip(faces.columns[column].tolist(), faces.paths, strict=True):
        if cell is not None:
            first_paths.setdefault(str(cell), path)
    names = list(first_paths)
    for name in names:
        if NO_NAME.fullmatch(name) and name not in faces.labels:
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
