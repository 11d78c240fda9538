"""Faces with what a model says of them and, where it is known, the truth: out of a manifest or a table of `predict`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fer_vit.conformal import in_set
from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, short
from fer_vit.evaluate.labelled import face_batches
from fer_vit.face.image import ImageError, decode_image, read_image
from fer_vit.geometry import Array, Image
from fer_vit.predict.plan import NAME, Plan
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import BOX, DOUBTS
from fer_vit.report.table import as_objects, is_table, read_table, read_tables, row_place

Columns = dict[str, NDArray[np.object_]]
"""What is known of each face by name (N,); None where it is not."""
MARGIN = 0.15
"""What a picture shows on each side of a face's box, as a part of the box."""


@dataclass(frozen=True, eq=False)
class Faces:
    """N faces.

    Attributes:
        labels: The C expressions in the order of the probabilities.
        paths: The image of each face (N,).
        probabilities: What the model says (N, C); NaN for an image without a face.
        found: Whether there is a face (N,): the detector found one, or did not look for it.
        shares: Share of every expression by those who labelled (N, C), rows summing to 1; None without labels.
        columns: What else is known.
        rows: Where each face is in its manifest or table (N,).
        picture: Reads the image of a row; raises FerVitError when it cannot.
    """

    labels: list[str]
    paths: NDArray[np.object_]
    probabilities: Array
    found: NDArray[np.bool_]
    shares: Array | None
    columns: Columns
    rows: NDArray[np.int64]
    picture: Callable[[int], Image]

    def take(self, which: NDArray[Any]) -> "Faces":
        """Returns some of the faces, by a mask or indices."""
        arrays = {name: getattr(self, name)[which] for name in ("paths", "probabilities", "found", "rows")}
        shares = None if self.shares is None else self.shares[which]
        return replace(self, shares=shares, columns={k: v[which] for k, v in self.columns.items()}, **arrays)

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """Which faces have probabilities (N,)."""
        return np.isfinite(self.probabilities[:, 0])

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """The person (column `person`), else the image, of each face as a number from 0 (N,)."""
        persons = self.columns.get("person", self.paths)
        pairs = zip(persons, self.paths, strict=True)
        names = [f"image {path}" if person is None else f"person {person}" for person, path in pairs]
        return np.unique(names, return_inverse=True)[1]

    @property
    def clustered(self) -> bool:
        """Whether several faces are of one person or image, and no independent trials."""
        return len(np.unique(self.units)) < len(self.units)

    @cached_property
    def unsure(self) -> Array:
        """Whether each face has not exactly one expression that cannot be left out (N,): 1, 0, or NaN when unknown."""
        words = [str(value).lower() for value in self.columns.get("unsure", [None] * len(self.paths))]
        return np.array([{"true": 1.0, "false": 0.0}.get(word, np.nan) for word in words])

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which faces the model names as those who labelled (N,)."""
        assert self.shares is not None
        right: NDArray[np.bool_] = self.probabilities.argmax(1) == self.shares.argmax(1)
        return right


def predict_manifest(model: Recognizer, rows: Manifest, split: Split) -> Faces:
    """Predicts the faces of a manifest that holds one split.

    Raises:
        FerVitError: There are none, only some have labels, or a label is not the model's.
    """
    if not len(rows):
        raise FerVitError(
            f"Expected faces in the {split} split of {rows.path}, but it is empty. Name another `--split`."
        )
    paths, shares, columns = manifest_truth(rows, model.labels, split)
    batches = face_batches(model, rows, range(len(rows)))
    probabilities = np.array([row for batch in batches for row in model.probabilities(batch)])
    if model.net.thresholds and model.labels == model.net.labels:  # they say nothing of merged labels
        columns["unsure"] = as_objects((in_set(probabilities, model.net.thresholds).sum(1) != 1).tolist())
    return Faces(
        labels=model.labels,
        paths=paths,
        probabilities=probabilities,
        found=~np.isnan(rows.landmarks()[:, 0, 0]) & (np.array(rows.column("score"), float) != 0),
        shares=shares,
        columns=columns,
        rows=np.arange(len(rows)),
        picture=lambda row: decode_image(rows.image_bytes(row)),
    )


def manifest_truth(
    rows: Manifest, labels: Sequence[str], split: Split
) -> tuple[NDArray[np.object_], Array | None, Columns]:
    """Returns the images, the shares of a model's labels (None without) and the other columns of a manifest."""
    targets = rows.targets()
    if targets is None and rows.table["label"].null_count < len(rows):
        raise no_label(rows.path, split)
    shares = np.zeros((len(rows), len(labels)))
    for name, column in zip(rows.names, () if targets is None else targets.T, strict=False):
        if column.any():
            shares[:, position(name, labels, rows.path)] = column
    hidden = ("image", "split", "votes", "landmarks")
    columns = {k: as_objects(rows.table[k].to_pylist()) for k in rows.table.column_names if k not in hidden}
    names = as_objects([rows.name(row) for row in range(len(rows))])
    return names, None if targets is None else shares, columns


def position(label: str, labels: Sequence[str], path: object) -> int:
    """Returns the index of a label among a model's."""
    if label not in labels:
        raise FerVitError(
            f"{path} has the label `{short(label)}`, but the model knows {short(', '.join(labels))}. Leave these faces "
            "out, or take another model."
        )
    return labels.index(label)


def is_predictions(path: Path) -> bool:
    """Tells a table, or a folder of tables that `predict` wrote, from anything else."""
    return is_table(path) or (path / NAME).is_file()


def read_predictions(path: Path) -> Faces:
    """Reads a table, or a folder of tables, that `predict` wrote.

    Raises:
        FerVitError: It is another table, is damaged or not complete, or a row has no proper probabilities.
    """
    table = read_parts(Plan(path)) if path.is_dir() else read_table(path)
    names = list(table)
    labels = names[names.index("confidence") + 1 :] if "confidence" in names else []
    labels = list(takewhile(lambda name: name not in DOUBTS, labels))
    if "path" not in table or None in table["path"] or len(labels) < 2:
        raise FerVitError(
            "Expected a table of `fer-vit predict` with columns path, confidence and then one for each expression, but "
            f"{path} has {short(', '.join(names))}."
        )
    if any(cell is not None for cell in table.get("frame", ())):
        raise FerVitError(
            f"{path} has frames of videos, and only photos can be evaluated. Predict them without videos."
        )
    judged = as_objects([cell is not None for cell in table["confidence"]]).astype(bool)
    return Faces(
        labels=labels,
        paths=table["path"],
        probabilities=_probabilities(table, labels, judged, path),
        found=judged & (_numbers(table, ["score"], path)[:, 0] != 0 if "score" in table else True),
        shares=None,
        columns={name: cells for name, cells in table.items() if name not in labels},
        rows=np.arange(len(judged)),
        picture=partial(_picture, table),
    )


def read_parts(plan: Plan) -> Columns:
    """Reads the tables of a plan as one. Raises FerVitError when some are still missing, or cannot be read."""
    if left := plan.missing():
        raise FerVitError(
            f"{plan.folder} lacks {len(left):,} of its {len(plan.chunks):,} tables. Run the same `fer-vit predict` "
            "again: it makes them."
        )
    return read_tables([plan.table(chunk) for chunk in plan.chunks])


def _probabilities(table: Columns, labels: Sequence[str], judged: NDArray[np.bool_], path: Path) -> Array:
    """Returns the probabilities of the faces that were judged (N, C), NaN for others."""
    cells = _numbers(table, labels, path)
    wrong = judged & ~((cells >= 0).all(1) & (abs(cells.sum(1) - 1) < 0.01))
    if wrong.any():
        raise FerVitError(
            f"{row_place(path, wrong.argmax())}: expected probabilities of {short(', '.join(labels))} that sum to 1."
        )
    return np.where(judged[:, None], cells, np.nan)


def _numbers(table: Columns, names: Sequence[str], path: Path) -> Array:
    """Returns columns as numbers (N, M), NaN where empty: a CSV has text."""
    try:
        return np.column_stack([table[name].astype(float) for name in names])
    except (TypeError, ValueError) as error:
        raise FerVitError(f"{path}: expected numbers in {short(', '.join(names))}, but {error}.") from error


def _picture(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with some margin."""
    image, box = read_image(Path(table["path"][row])), [table[name][row] for name in BOX if name in table]
    if len(box) < len(BOX) or None in box:
        return image
    try:
        left, top, right, bottom = map(float, box)
    except ValueError as error:
        raise ImageError(str(error)) from error
    x, y = (right - left) * MARGIN, (bottom - top) * MARGIN
    left, top, right, bottom = np.array([left - x, top - y, right + x, bottom + y]).round().astype(int).clip(0)
    if not (face := image[top:bottom, left:right]).size:
        raise ImageError("the face lies outside of the photo")
    return face
