"""Tables joined by the paths of images: predictions with the truth, with other columns, with another model's."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, short
from fer_vit.evaluate.faces import Columns, Faces, manifest_truth, position
from fer_vit.geometry import Array
from fer_vit.labels import canonical
from fer_vit.report.table import is_table, read_table, row_place


def with_labels(faces: Faces, labels: Path, split: Split) -> Faces:
    """Returns the predictions of labelled images, of each its surest face, with the truth.

    Args:
        faces: Out of a table, the surest face of a photo first.
        labels: A manifest, of which one split is taken, or a table of path and label.
        split: The split.

    Raises:
        FerVitError: A label is not the model's, or an image is not in the table.
    """
    if is_table(labels):
        table = read_table(labels)
        check_labelled(table, labels)
        check_once(table, labels)
        paths, columns = table["path"], table
        names = [name if name in faces.labels else canonical(name) for name in map(str, table["label"])]
        shares: Array | None = np.eye(len(faces.labels))[[position(name, faces.labels, labels) for name in names]]
    else:
        rows = Manifest.read(labels, [split]).split(split)
        paths, shares, columns = manifest_truth(rows, faces.labels, split)
    if shares is None:
        raise no_label(labels, split)
    known = faces.take(match(paths, faces.paths, "the table of predictions"))
    return replace(known, shares=shares, columns=columns | known.columns)


def check_labelled(table: Columns, path: Path) -> None:
    """Raises FerVitError when a table has no columns path and label, no rows, or an empty cell in one of them."""
    if not {"path", "label"} <= table.keys() or not len(table["path"]):
        has = "no row" if {"path", "label"} <= table.keys() else short(", ".join(table)) or "none"
        raise FerVitError(f"Expected columns path and label and at least one row in {path}, but it has {has}.")
    empty = np.array([None in cells for cells in zip(table["path"], table["label"], strict=True)])
    if empty.any():
        raise FerVitError(
            f"{row_place(path, empty.argmax())}: expected a path and a label, but one is empty. Fill it in or leave "
            "the row out."
        )


def check_once(table: Columns, path: Path) -> None:
    """Raises FerVitError when a table has two rows for one image."""
    if twice := [image for image, rows in Counter(map(str, table["path"])).items() if rows > 1]:
        raise FerVitError(f"Expected one row for each image in {path}, but {short(twice[0])} has several. Leave one.")


def with_columns(faces: Faces, path: Path) -> Faces:
    """Adds the columns of a table with a column `path` that names the images. Raises FerVitError when none is there."""
    table = read_table(path)
    if "path" not in table:
        raise FerVitError(f"Expected a column `path` in {path}, but got {short(', '.join(table))}.")
    check_once(table, path)
    row = match(faces.paths, table["path"], path, some=True)
    added = {name: np.where(row >= 0, cells[row], np.array(None)) for name, cells in table.items() if name != "path"}
    return replace(faces, columns=faces.columns | added)


def aligned(faces: Faces, other: Faces, path: object) -> Array:
    """Returns what another model says of the same faces, in the same order of labels (N, C)."""
    order = [position(label, other.labels, "The first model") for label in faces.labels]
    theirs = other.probabilities[match(faces.paths, other.paths, path)][:, order]
    if not (faces.predicted & np.isfinite(theirs[:, 0])).any():
        raise FerVitError(f"There is no face that both the first model and {path} have found. Choose another.")
    return theirs


def match(ours: Iterable[str], theirs: Iterable[str], where: object, some: bool = False) -> NDArray[np.int64]:
    """Returns the first row of `theirs` for each of `ours`: paths that are equal, or one of which ends in the other.

    Raises:
        FerVitError: A path has no row (with `some`: none has one, and the others get -1), or two have the same.
    """
    exact = {_one_spelling(path): row for row, path in reversed([*enumerate(map(str, theirs))])}
    ends: dict[str, int] = {}
    bare: dict[str, int] = {}
    for path, row in exact.items():
        ends |= {end: -1 if end in ends else row for end in _ends(path)}
        if (name := _bare(path)) != path:
            bare[name] = -1 if name in bare else row
    exact = bare | exact
    found = {
        path: next((exact[end] for end in _ends(name) if end in exact), ends.get(_bare(name), -1))
        for path, name in ((path, _one_spelling(path)) for path in ours)
    }
    missing = [path for path, row in found.items() if row < 0]
    if missing and (not some or len(missing) == len(found)):
        raise FerVitError(
            f"Expected all images in {where}, but {len(missing):,} of {len(found):,} are not there, for example "
            f"{short(missing[0])}. Is it about the same photos?"
        )
    if len({*found.values()} - {-1}) < len(found) - len(missing):
        raise FerVitError(f"Two images match one row of {where}. Name each by enough of its path to tell them apart.")
    return np.array([found[path] for path in ours], int)


def _one_spelling(path: str) -> str:
    """Returns a path with slashes, and with accents as a keyboard writes them: macOS splits them off in file names."""
    return normalize("NFC", path.replace("\\", "/"))


def _bare(path: str) -> str:
    """Returns a path without a start such as "../", which says nothing about the photo."""
    return re.sub(r"^(\.{1,2}/)+", "", path)


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]
