"""The faces to evaluate: predicted by a model, or read from a table; and another model's predictions of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, suggest
from fer_vit.evaluate.faces import Faces, predict_manifest
from fer_vit.evaluate.labelled import Merged
from fer_vit.evaluate.tables import add_labels, align_probabilities, is_predictions, read_predictions
from fer_vit.geometry import Array
from fer_vit.labels import Merge
from fer_vit.predict.recognizer import Recognizer, load


@dataclass(frozen=True)
class Conditions:
    """How a manifest is read and predicted; see the options of `fer-vit evaluate`."""

    split: Split = "val"
    merge: Merge | None = None
    prior: str | None = None
    classes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.classes and self.merge:
            raise FerVitError("`--classes` and `--merge` exclude each other. A merge with null leaves out a class.")

    def read(self, data: Path) -> Manifest:
        """Reads the split of a manifest, with merged labels, without faces whose label is left out."""
        rows = Manifest.read(data, [self.split]).split(self.split)
        merge = {name: name if name in self.classes else None for name in rows.names} if self.classes else self.merge
        return rows.merge_labels(merge) if merge else rows

    def load(self, checkpoint: str | None, rows: Manifest) -> Recognizer:
        """Loads a model; its probabilities are merged, unless it was trained with the merged labels."""
        model = load(checkpoint, prior=self.prior, classes=self.classes)
        return Merged(model, self.merge) if self.merge and model.labels != list(rows.names) else model


def read_faces(
    data: Path, checkpoint: str | None, labels: Path | None, conditions: Conditions
) -> tuple[Faces, Recognizer | None, Manifest | None]:
    """Reads a table of predictions, or predicts a manifest, which is returned with the model."""
    if is_predictions(data):
        if checkpoint is not None:
            raise FerVitError("`--checkpoint` is for manifests. Leave it out, or predict with it first.")
        if conditions.merge or conditions.prior or conditions.classes:
            raise FerVitError(
                "`--merge`, `--prior` and `--classes` are for manifests. Leave them out, or name a manifest."
            )
        faces = read_predictions(data)
        return (add_labels(faces, labels, conditions.split) if labels else faces), None, None
    if labels is not None:
        raise FerVitError(f"`--labels` is for a table of predictions, but {data} is a manifest, which has labels.")
    rows = conditions.read(data)
    model = conditions.load(checkpoint, rows)
    return predict_manifest(model, rows, conditions.split), model, rows


def read_other(faces: Faces, against: str | None, rows: Manifest | None, conditions: Conditions) -> Array:
    """Returns the probabilities of another table, or of another model for the same rows (N, C); NaN without one."""
    if against is None:
        return np.full_like(faces.probabilities, np.nan)
    if is_predictions(Path(against)):
        return align_probabilities(faces, read_predictions(Path(against)), against)
    if rows is None:
        raise FerVitError(f"{against} is no table, and a model needs images. Name a manifest, or another table.")
    return align_probabilities(faces, predict_manifest(conditions.load(against, rows), rows, conditions.split), against)


def check_options(faces: Faces, by: Sequence[str], needs_labels: bool, needs_images: bool) -> None:
    """Raises FerVitError when a column is missing, or the labels or images that an option needs."""
    if not faces.predicted.any():
        raise FerVitError("No image has a face with a prediction. Name a table with faces.")
    if missing := [column for column in by if column not in faces.columns]:
        known, hint = ", ".join(faces.columns), suggest(missing[0], faces.columns)
        raise FerVitError(f"There is no column `{missing[0]}`, only {known}.{hint} `--columns` adds a table.")
    if needs_labels and faces.targets is None:
        raise FerVitError(
            "`--against` and `--robustness` need labels. Add `--labels` to a table, or prepare with labels."
        )
    if needs_images:
        raise FerVitError("`--robustness` needs images, and there is only a table. Name a manifest.")
