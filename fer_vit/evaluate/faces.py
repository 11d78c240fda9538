"""Faces with the probabilities of a model and, where they are known, labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fer_vit.conformal import in_set
from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, short
from fer_vit.evaluate.labelled import face_batches
from fer_vit.face.image import decode_image
from fer_vit.geometry import Array, Image
from fer_vit.predict.recognizer import Recognizer

Columns = dict[str, NDArray[np.object_]]
"""Cells by column name (N,); None is empty."""


@dataclass(frozen=True, eq=False)
class Faces:
    """N faces.

    Attributes:
        labels: The C expressions in the order of the probabilities.
        paths: The image of each face (N,).
        probabilities: The model's probabilities (N, C); NaN for an image without a face.
        detected: Whether there is a face (N,): the detector found one, or was not used.
        targets: Fraction of the votes for every expression (N, C), rows summing to 1; None without labels.
        columns: Everything else.
        rows: Index of each face in its manifest or table (N,).
        picture: Reads the image of a row; raises FerVitError when it cannot.
        facts: How the predictions were made.
    """

    labels: list[str]
    paths: NDArray[np.object_]
    probabilities: Array
    detected: NDArray[np.bool_]
    targets: Array | None
    columns: Columns
    rows: NDArray[np.int64]
    picture: Callable[[int], Image]
    facts: dict[str, str] = field(default_factory=dict)

    def take(self, which: NDArray[Any]) -> "Faces":
        """Returns some of the faces, by a mask or indices."""
        arrays = {name: getattr(self, name)[which] for name in ("paths", "probabilities", "detected", "rows")}
        targets = None if self.targets is None else self.targets[which]
        return replace(self, targets=targets, columns={k: v[which] for k, v in self.columns.items()}, **arrays)

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
        """Whether several faces belong to one person or image, so that they are not independent."""
        return len(np.unique(self.units)) < len(self.units)

    @cached_property
    def ambiguous(self) -> Array:
        """Whether each face's prediction set does not have exactly one expression (N,): 1, 0, or NaN when unknown."""
        return self.columns.get("ambiguous", np.full(len(self.paths), None)).astype(float)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which predictions equal the label, the expression with most votes (N,)."""
        assert self.targets is not None
        correct: NDArray[np.bool_] = self.probabilities.argmax(1) == self.targets.argmax(1)
        return correct


def predict_manifest(model: Recognizer, rows: Manifest, split: Split) -> Faces:
    """Predicts the faces of a manifest that holds one split.

    Raises:
        FerVitError: There are none, only some have labels, or the model lacks a label.
    """
    if not len(rows):
        raise FerVitError(
            f"Expected faces in the {split} split of {rows.path}, but it is empty. Name another `--split`."
        )
    paths, targets, columns = manifest_targets(rows, model.labels, split)
    batches = face_batches(model, rows, range(len(rows)))
    probabilities = np.array([row for batch in batches for row in model.probabilities(batch)])
    if model.net.thresholds and model.labels == model.net.labels:  # thresholds do not hold for merged labels
        columns["ambiguous"] = as_objects((in_set(probabilities, model.net.thresholds).sum(1) != 1).tolist())
    return Faces(
        labels=model.labels,
        paths=paths,
        probabilities=probabilities,
        detected=~np.isnan(rows.landmarks()[:, 0, 0]) & (np.array(rows.column("score"), float) != 0),
        targets=targets,
        columns=columns,
        rows=np.arange(len(rows)),
        picture=lambda row: decode_image(rows.image_bytes(row)),
        facts=model.conditions,
    )


def manifest_targets(
    rows: Manifest, labels: Sequence[str], split: Split
) -> tuple[NDArray[np.object_], Array | None, Columns]:
    """Returns the images of a manifest, their votes for a model's labels (None without) and the other columns."""
    votes = rows.targets()
    if votes is None and rows.table["label"].null_count < len(rows):
        raise no_label(rows.path, split)
    targets = np.zeros((len(rows), len(labels)))
    for name, column in zip(rows.names, () if votes is None else votes.T, strict=False):
        if column.any():
            targets[:, find_label(name, labels, rows.path)] = column
    hidden = ("image", "split", "votes", "landmarks")
    columns = {k: as_objects(rows.table[k].to_pylist()) for k in rows.table.column_names if k not in hidden}
    names = as_objects([rows.name(row) for row in range(len(rows))])
    return names, None if votes is None else targets, columns


def find_label(label: str, labels: Sequence[str], path: object) -> int:
    """Returns the index of a label among a model's."""
    if label not in labels:
        raise FerVitError(
            f"{path} has the label `{short(label)}`, but the model has {short(', '.join(labels))}. Leave these faces "
            "out, or use another model."
        )
    return labels.index(label)


def as_objects(values: Sequence[object]) -> NDArray[np.object_]:
    """Returns values as an array of objects (N,)."""
    return np.fromiter(values, object, len(values))
