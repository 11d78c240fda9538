"""The faces to evaluate: a manifest that a model predicts, or tables of predictions, labels and other columns.

Tables are joined by the paths of images.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fer_vit.data.manifest import Manifest, find_label, no_label
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluate.faces import Columns, Faces, Merged, as_objects, predict_manifest
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Image, IntArray
from fer_vit.labels import Merge, canonical
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.predict.results import BOX, PROBABILITY, table_columns, table_labels
from fer_vit.predict.tables import find_tables
from fer_vit.report.table import FACTS, SUFFIXES, csv_value
from fer_vit.store.hub import DEFAULT

MARGIN = 0.15  # margin of a picture on each side of a face's box, as a fraction of the box


@dataclass(frozen=True)
class Conditions:
    """How a manifest is read and predicted; see the options of `fer-vit evaluate`."""

    split: Split = "val"
    merge: Merge | None = None
    prior: str | None = None
    classes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.classes and self.merge:
            raise FerVitError(
                "`--classes` and `--merge` exclude each other. A merge with null leaves out a class."
            )

    def read(self, path: Path) -> Manifest:
        """Reads the split of a manifest, with merged labels and without the faces of impossible classes."""
        rows = Manifest.read(path, [self.split]).split(self.split)
        merge = self.merge or {name: name if name in self.classes else None for name in rows.names}
        return rows.merge_labels(merge) if self.merge or self.classes else rows

    def predict(self, checkpoint: str | None, rows: Manifest) -> tuple[Faces, Recognizer]:
        """Predicts a manifest; probabilities are merged, unless the model was trained with the merged labels."""
        model = load(checkpoint, prior=self.prior, classes=self.classes)
        if self.merge and model.labels != list(rows.names):
            model = Merged(model, self.merge)
        faces = predict_manifest(model, rows, self.split)
        facts: dict[str, str] = {"model": checkpoint or DEFAULT, "split": self.split}
        if changes := [
            f"{old}: {new or 'left out'}" for old, new in (self.merge or {}).items() if old != new
        ]:
            facts["merge"] = ", ".join(changes)
        return replace(faces, facts=facts | faces.facts), model


def read_faces(
    data: Path, checkpoint: str | None, labels: Path | None, conditions: Conditions
) -> tuple[Faces, Recognizer | None, Manifest | None]:
    """Reads a table of predictions, or predicts a manifest, which is returned with the model."""
    if is_predictions(data):
        if any([checkpoint, conditions.merge, conditions.prior, conditions.classes]):
            raise FerVitError(
                "`--checkpoint`, `--merge`, `--prior` and `--classes` need a manifest, not a table."
            )
        faces = read_predictions(data)
        return (add_labels(faces, labels, conditions.split) if labels else faces), None, None
    if labels is not None:
        raise FerVitError(
            f"`--labels` is for a table of predictions, but {data} is a manifest, which has labels."
        )
    rows = conditions.read(data)
    return *conditions.predict(checkpoint, rows), rows


def read_other(faces: Faces, against: str, rows: Manifest | None, conditions: Conditions) -> Array:
    """Returns the probabilities of another table, or of another model for the same rows (N, C)."""
    if is_predictions(Path(against)):
        return align_probabilities(faces, read_predictions(Path(against)), against)
    if rows is None:
        raise FerVitError(
            f"{against} is no table, and a model needs images. Name a manifest, or another table."
        )
    return align_probabilities(faces, conditions.predict(against, rows)[0], against)


def check_options(faces: Faces, by: Sequence[str], needs_labels: bool, needs_images: bool) -> None:
    """Raises FerVitError when a column is missing, or the labels or images that an option needs."""
    if not faces.predicted.any():
        raise FerVitError("No image has a face with a prediction. Name a table with faces.")
    if missing := [column for column in by if column not in faces.columns]:
        known, hint = ", ".join(faces.columns), suggest(missing[0], faces.columns)
        raise FerVitError(
            f"There is no column `{missing[0]}`, only {known}.{hint} `--columns` adds a table."
        )
    if needs_labels and faces.targets is None:
        raise FerVitError(
            "`--against` and `--robustness` need labels. Add `--labels`, or prepare with labels."
        )
    if needs_images:
        raise FerVitError(
            "`--robustness` needs images, and there is only a table. Name a manifest."
        )


def is_table(path: Path) -> bool:
    """Returns whether a path names a table rather than a manifest, which may be a Parquet file as well."""
    return path.suffix.lower() in SUFFIXES and b"fer_vit" not in _metadata(path)


def _metadata(path: Path) -> dict[bytes, bytes]:
    """Returns the metadata of a Parquet file, {} for another file or a folder."""
    if path.suffix.lower() != ".parquet" or path.is_dir():
        return {}
    with _readable(path):
        return pq.read_schema(path).metadata or {}


def is_predictions(path: Path) -> bool:
    """Returns whether a path is a table, or a folder of tables of `predict`."""
    return is_table(path) or any(path.glob("part-*-of-*.parquet"))


def read_table(*paths: Path) -> Columns:
    """Reads a table, or several Parquet tables as one: the cells by column, None where empty. A CSV has text."""
    with _readable(paths[0]):
        if (suffix := paths[0].suffix.lower()) == ".parquet":
            tables = []
            for path in paths:
                with _readable(path):
                    tables.append(pq.read_table(path, partitioning=None))
            columns: dict[str, list[Any]] = pa.concat_tables(
                tables, promote_options="default"
            ).to_pydict()
        else:
            columns = (_read_json_lines if suffix == ".jsonl" else _read_csv)(paths[0])
    if "path" in columns:  # text, even where the file has a number
        columns["path"] = [cell if cell is None else str(cell) for cell in columns["path"]]
    return {name: as_objects(cells) for name, cells in columns.items()}


def _read_json_lines(path: Path) -> dict[str, list[Any]]:
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line is no object")
    return {
        name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))
    }


def _read_csv(path: Path) -> dict[str, list[str | None]]:
    """Reads a CSV without its blank rows; all have as many cells as the head."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)  # spreadsheets leave `,,` where a row was emptied
        lines = [
            (reader.line_num, [*map(_plain, line)]) for line in reader if any(map(str.strip, line))
        ]
    if lines and len(lines[0][1]) == 1 and re.search("[;\t]", lines[0][1][0] or ""):
        raise ValueError("its cells are separated by semicolons or tabs: save it with commas")
    for number, line in lines:
        if len(line) != len(lines[0][1]):
            raise ValueError(
                f"line {number} has {len(line)} cells, but the head has {len(lines[0][1])}"
            )
    return {name or "": cells for name, *cells in zip(*(line for _, line in lines), strict=True)}


def _plain(cell: str) -> str | None:
    """Reverses `csv_text`; None for an empty cell."""
    return csv_value(cell) or None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or short(error)
        raise FerVitError(
            f"Expected a table in {path}, but it cannot be read ({reason})."
        ) from error


def _row_name(path: Path, index: int | np.integer) -> str:
    return f"{path}, row {index + 1} (counted after the head, without blank rows)"


def read_predictions(path: Path, videos: bool = False) -> Faces:
    """Reads a table, or a folder of tables, of `predict`, with `videos` also of frames; checks that it is complete."""
    tables, left = find_tables(path)
    if left:
        rest = "Run the same `fer-vit predict` again to complete it."
        raise FerVitError(f"{path} lacks {left:,} of its {left + len(tables):,} tables. {rest}")
    files = tables or [path]
    table = read_table(*files)
    labels = table_labels(table)
    if not {"path", "confidence"} <= table.keys() or None in table["path"] or len(labels) < 2:
        expected = (
            "a table of `fer-vit predict` with path, confidence and, for each expression, p_NAME"
        )
        raise FerVitError(f"Expected {expected}, but {path} has {short(', '.join(table))}.")
    types = table_columns(labels, videos=True)
    with _readable(path):
        facts = json.loads(_metadata(files[0]).get(FACTS.encode(), b"{}"))
        table = {name: _parse_cells(cells, types.get(name, str)) for name, cells in table.items()}
    if not videos and (table.get("frame", np.array(None)) != np.array(None)).any():
        raise FerVitError(
            f"{path} has frames of videos, but `evaluate` needs photos. Predict photos only."
        )
    probabilities = _join_probabilities(table, labels, path)
    predicted = np.isfinite(probabilities[:, 0])
    return Faces(
        labels=labels,
        paths=table["path"],
        probabilities=probabilities,
        detected=predicted & (table.get("score", predicted) != 0),
        targets=None,
        columns={name: cells for name, cells in table.items() if not name.startswith(PROBABILITY)},
        rows=np.arange(len(predicted)),
        picture=lambda row: cut_face(table, row),
        facts={str(name): str(fact) for name, fact in facts.items()},
    )


def _join_probabilities(table: Columns, labels: list[str], path: Path) -> Array:
    """Returns the probabilities in a table (N, C); NaN without a confidence."""
    predicted = table["confidence"] != np.array(None)
    probabilities = np.column_stack([table[PROBABILITY + label].astype(float) for label in labels])
    wrong = predicted & ~((probabilities >= 0).all(1) & (abs(probabilities.sum(1) - 1) < 0.01))
    if wrong.any():
        expected = f"probabilities of {short(', '.join(labels))} that sum to 1"
        raise FerVitError(f"{_row_name(path, wrong.argmax())}: expected {expected}.")
    return np.where(predicted[:, None], probabilities, np.nan)


def _parse_cells(cells: NDArray[np.object_], kind: type) -> NDArray[np.object_]:
    """Converts a column (N,), text in a CSV, to a type; None stays. Raises ValueError or KeyError for other cells."""

    def parse(cell: Any) -> Any:
        return (
            {"true": True, "false": False}[str(cell).lower()] if kind is bool else kind(float(cell))
        )

    return (
        cells
        if kind is str
        else as_objects([cell if cell is None else parse(cell) for cell in cells])
    )


def cut_face(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with `MARGIN`."""
    image, box = (
        read_image(Path(table["path"][row])),
        [table[name][row] for name in BOX if name in table],
    )
    if len(box) < len(BOX) or None in box:
        return image
    left, top, right, bottom = box
    x, y = (right - left) * MARGIN, (bottom - top) * MARGIN
    left, top, right, bottom = (
        np.array([left - x, top - y, right + x, bottom + y]).round().astype(int).clip(0)
    )
    if not (face := image[top:bottom, left:right]).size:
        raise ImageError("the face lies outside of the photo")
    return face


def add_labels(faces: Faces, labels: Path, split: Split) -> Faces:
    """Returns the predictions of labelled images with the labels; of each image only the most confident face.

    Labels are in a split of a manifest, or in a table with columns path and label. Raises FerVitError when the model
    lacks a label, or its predictions lack an image.
    """
    if is_table(labels):
        columns = _read_joinable(labels, "path", "label")
        names = [
            name if name in faces.labels else canonical(name) for name in map(str, columns["label"])
        ]
        indices = [find_label(name, faces.labels, labels) for name in names]
        paths, targets = columns["path"], np.eye(len(faces.labels))[indices]
    else:
        rows = Manifest.read(labels, [split]).split(split)
        votes = rows.model_targets(faces.labels)
        if votes is None:
            raise no_label(labels, split)
        columns = {name: as_objects(cells) for name, cells in rows.describing_columns().items()}
        paths, targets = as_objects(rows.image_names()), votes
    known = faces.take(match_paths(paths, faces.paths, "the table of predictions"))
    return replace(known, targets=targets, columns=columns | known.columns)


def _read_joinable(path: Path, *needed: str) -> Columns:
    """Reads a table with one row for each image; raises FerVitError when a needed column is missing or has no cell."""
    table, names = read_table(path), " and ".join(needed)
    if not set(needed) <= table.keys() or not len(table["path"]):
        rows, columns = len(next(iter(table.values()), ())), short(", ".join(table)) or "no column"
        raise FerVitError(
            f"Expected rows with {names} in {path}, but got {rows:,} rows with {columns}."
        )
    empty = (np.stack([table[name] for name in needed]) == np.array(None)).any(0)
    if empty.any():
        raise FerVitError(
            f"{_row_name(path, empty.argmax())}: expected {names}, but one is empty. Leave the row out."
        )
    if twice := [image for image, rows in Counter(map(str, table["path"])).items() if rows > 1]:
        raise FerVitError(
            f"Expected one row for each image in {path}, but {short(twice[0])} has several. Leave one."
        )
    return table


def add_columns(faces: Faces, path: Path) -> Faces:
    """Adds the columns of a table whose column `path` names the images. Raises FerVitError when it names none."""
    table = _read_joinable(path, "path")
    row = match_paths(faces.paths, table["path"], path, some=True)
    added = {
        name: np.where(row >= 0, cells[row], np.array(None))
        for name, cells in table.items()
        if name != "path"
    }
    return replace(faces, columns=faces.columns | added)


def align_probabilities(faces: Faces, other: Faces, path: object) -> Array:
    """Returns another model's probabilities of the same faces (N, C), with the labels in the order of `faces`."""
    order = [find_label(label, other.labels, "The first model") for label in faces.labels]
    probabilities = other.probabilities[match_paths(faces.paths, other.paths, path)][:, order]
    if not (faces.predicted & np.isfinite(probabilities[:, 0])).any():
        raise FerVitError(
            f"No face was found both by the first model and in {path}. Choose another."
        )
    return probabilities


def match_paths(
    paths: Iterable[str], known: Iterable[str], where: object, some: bool = False
) -> IntArray:
    """Returns the first row of `known` for each path: equal paths, or paths of which one ends in the other.

    Raises FerVitError when a path has no row (with `some`: none has one, and the others get -1), or two have the same.
    """
    rows = _find_rows(paths, known)
    missing = [path for path, row in rows.items() if row < 0]
    if missing and (not some or len(missing) == len(rows)):
        lost = f"{len(missing):,} of {len(rows):,} are not there, for example {short(missing[0])}"
        raise FerVitError(
            f"Expected all images in {where}, but {lost}. Is it about the same photos?"
        )
    if len({*rows.values()} - {-1}) < len(rows) - len(missing):
        raise FerVitError(
            f"Two images match one row of {where}. Name each by a longer part of its path."
        )
    return np.array([rows[path] for path in paths], int)


def _find_rows(paths: Iterable[str], known: Iterable[str]) -> dict[str, int]:
    """Returns the row of each path, as `match_paths` does; -1 for a path without one or with several."""
    exact = {_normalise(path): row for row, path in reversed([*enumerate(map(str, known))])}
    ends = _distinct((end, row) for path, row in exact.items() for end in _ends(path))
    exact = _distinct((_without_dots(path), row) for path, row in exact.items()) | exact
    rows = {}
    for path in paths:
        name = _normalise(path)
        rows[path] = next(
            (exact[end] for end in _ends(name) if end in exact), ends.get(_without_dots(name), -1)
        )
    return rows


def _distinct(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns the row of each name, -1 for a name of several."""
    found: dict[str, int] = {}
    for name, row in rows:
        found[name] = -1 if name in found else row
    return found


def _normalise(path: str) -> str:
    """Returns a path with slashes and composed accents: macOS separates them in file names."""
    return normalize("NFC", path.replace("\\", "/"))


def _without_dots(path: str) -> str:
    return re.sub(r"^(\.{1,2}/)+", "", path)


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]
