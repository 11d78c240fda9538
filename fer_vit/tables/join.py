"""Joins faces by path with their labels, further columns, and the predictions of another model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fer_vit.errors import FerVitError, short
from fer_vit.fields import is_owned
from fer_vit.heads import HeadOutputs
from fer_vit.labels import find_label
from fer_vit.tables.cells import is_missing
from fer_vit.tables.groups import check_groups
from fer_vit.tables.images import Truth, read_images
from fer_vit.tables.labelled import Columns, Labelled, pair_outputs
from fer_vit.tables.paths import match_paths
from fer_vit.wording import counted


def add_truth(faces: Labelled, truth: Truth, name: str) -> Labelled:
    """Returns the first face of each labelled image with its label and targets.

    `name` is the name of the truth in notes. Raises FerVitError when the predictions lack an image.
    """
    known = faces.take(match_paths(truth.paths, faces.paths, "the table of predictions"))
    notes = list(truth.notes)
    num_unlabelled = len(set(faces.paths)) - len(set(known.paths))
    if num_unlabelled:
        notes.append(f"{name}: {counted(num_unlabelled, 'image')} without a label left out.")
    missing = [column for column in truth.outputs if column not in known.columns]
    if missing:
        notes.append(f"{name}: the predictions have no {short(', '.join(missing))}.")
    values = {column: known.numbers(column) for column in truth.outputs if column not in missing}
    return replace(
        known,
        targets=truth.votes,
        columns=truth.columns | known.columns,  # the columns of `predict` stay
        outputs=pair_outputs(values, truth.outputs),
        notes=(*known.notes, *notes),
    )


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


def with_columns(
    faces: Labelled, data: Path, columns: Path | None, groups: Sequence[str]
) -> Labelled:
    """Returns faces with the columns of another table; None: there is none.

    `data` is the path of the faces, for messages. Raises FerVitError for one of the `groups`, the
    columns to group by, as `check_groups`.
    """
    if columns is not None:
        faces = add_columns(faces, columns)
    remedy = " `--columns` adds a table."
    check_groups(faces.columns, faces.paths.tolist(), groups, data, faces.labels, remedy)
    return faces


def align(faces: Labelled, second: Labelled, name: str) -> Labelled:
    """Returns the predictions of another model in the order of `faces` (N) and of its labels (C).

    Its outputs are those that both models have, with the targets of `faces`.

    Args:
        faces: The faces.
        second: The same faces with the other model's predictions; NaN for an image without a face.
        name: The name of the other model or of its table, for messages.

    Raises:
        FerVitError: A path or label of `faces` is not among the other model's, or no photo with a
            label has a face for both models.
    """
    aligned = second.take(match_paths(faces.paths, second.paths, name))
    values = {output.column: pair.values for output, pair in aligned.outputs.items()}
    for column in HeadOutputs.among(aligned.columns).columns:
        values[column] = aligned.numbers(column)
    targets = {output.column: pair.targets for output, pair in faces.outputs.items()}
    aligned = replace(aligned, outputs=pair_outputs(values, targets))
    if faces.targets is None:
        return aligned

    order = [find_label(label, second.labels, "The first model") for label in faces.labels]
    aligned = replace(aligned, labels=faces.labels, probabilities=aligned.probabilities[:, order])
    if not (faces.labelled & faces.predicted & aligned.predicted).any():
        raise FerVitError(
            f"No face was found both by the first model and in {name}. Choose another."
        )
    return aligned
