"""The faces to evaluate: a manifest that a model predicts, or a table of predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, known_names, suggest
from fer_vit.evaluation.evaluated import (
    EvaluatedFaces,
    UnpredictedFaces,
    open_manifest,
)
from fer_vit.evaluation.join import add_labels
from fer_vit.evaluation.predictions import read_predictions
from fer_vit.extras import require
from fer_vit.fields import is_owned
from fer_vit.labels import Merge
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.tables.images import AngleUnit
from fer_vit.tables.parts import is_predictions
from fer_vit.tables.read import is_table

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT

# Faces of a table, or of a manifest that a model predicts later.
OpenedFaces: TypeAlias = EvaluatedFaces | UnpredictedFaces


@dataclass(frozen=True)
class Conditions:
    """How a manifest is read and predicted: options of `fer-vit evaluate`.

    `split` is None if the option was not given.
    """

    split: Split | None = None
    merge: Merge | None = None
    prior: str | None = None
    classes: Sequence[str] = ()
    targets_unit: AngleUnit | None = None  # the unit of angles in a table of `--labels`

    def __post_init__(self) -> None:
        if self.classes and self.merge:
            raise FerVitError(
                "`--classes` and `--merge` exclude each other. A merge with null leaves out a "
                "class."
            )

    @property
    def chosen_split(self) -> Split:
        """The split to read from a manifest."""
        return self.split or "val"

    def read(self, path: Path) -> Manifest:
        """Reads the split of a manifest, merges labels, and leaves out faces of other classes."""
        manifest = Manifest.read(path).split(self.chosen_split)
        if self.merge:
            return manifest.merge_labels(self.merge)
        if self.classes:
            if not {*self.classes} & {*manifest.labels}:
                raise FerVitError(
                    f"Expected `--classes` among {', '.join(manifest.labels)}, the labels of "
                    f"{path}, but got {', '.join(self.classes)}."
                )
            merge: Merge = {}
            for label in manifest.labels:
                merge[label] = label if label in self.classes else None
            return manifest.merge_labels(merge)
        return manifest

    def open(
        self, manifest: Manifest, checkpoint: str | None, network: "str | RegionViT | None" = None
    ) -> UnpredictedFaces:
        """Loads a model and returns the faces that it will predict.

        `network` replaces the network of `checkpoint`; see `commands.find_network`.
        """
        model = load(network or checkpoint, prior=self.prior, classes=self.classes, name=checkpoint)
        merge = self.merge_for(model, manifest)
        faces = open_manifest(model, manifest, self.chosen_split, merge)
        facts: dict[str, str] = {"model": checkpoint or DEFAULT_MODEL, "split": self.chosen_split}
        changes = []
        for old, new in (self.merge or {}).items():
            if old != new:
                changes.append(f"{old}: {new or 'left out'}")
        if changes:
            facts["merge"] = ", ".join(changes)
        return replace(faces, facts=facts | faces.facts)

    def merge_for(self, model: Recognizer, manifest: Manifest) -> Merge | None:
        """Returns how a model's labels are merged; None if the model has the manifest's labels."""
        if not self.merge or model.labels == list(manifest.labels):
            return None
        return self.merge


def open_faces(
    data: Path,
    checkpoint: str | None,
    labels: Path | None,
    conditions: Conditions,
    network: "str | RegionViT | None" = None,
) -> OpenedFaces:
    """Reads a table of predictions, or a manifest and the model that predicts it later.

    `network` replaces the network of `checkpoint`; see `commands.find_network`.
    """
    if is_predictions(data):
        if any([checkpoint, conditions.merge, conditions.prior, conditions.classes]):
            raise FerVitError(
                "`--checkpoint`, `--merge`, `--prior` and `--classes` need a manifest, not a table."
            )
        is_split = labels is not None and not is_table(labels)
        if conditions.split is not None and not is_split:
            raise FerVitError(
                "`--split` is a split of a manifest, but there are only tables. Leave it out."
            )
        faces = read_predictions(data)
        if labels:
            faces = add_labels(faces, labels, conditions.chosen_split, conditions.targets_unit)
        _check_predicted(data, faces)
        return faces
    if labels is not None:
        raise FerVitError(
            f"`--labels` is for a table of predictions, but {data} is a manifest, which has labels."
        )
    require("torch", "The prediction of a manifest")
    manifest = conditions.read(data)
    return conditions.open(manifest, checkpoint, network)


def open_other(against: str, faces: OpenedFaces, conditions: Conditions) -> OpenedFaces:
    """Returns the faces of another table, or the same faces with another model."""
    if is_predictions(Path(against)):
        return read_predictions(Path(against))
    if not isinstance(faces, UnpredictedFaces):
        raise FerVitError(
            f"{against} is no table, and a model needs images. Name a manifest, or another table."
        )
    return conditions.open(faces.manifest, against)


def predict_faces(faces: OpenedFaces) -> EvaluatedFaces:
    """Returns the faces of a table, or predicts the faces of a manifest."""
    return faces.predict() if isinstance(faces, UnpredictedFaces) else faces


def _check_predicted(data: Path, faces: EvaluatedFaces) -> None:
    """Raises FerVitError when no face has a prediction."""
    if not faces.predicted.any():
        raise FerVitError(
            f"Expected a face with a prediction in {data}, but there is none. Name another table."
        )


def check_columns(data: Path, faces: EvaluatedFaces, names: Sequence[str]) -> None:
    """Raises FerVitError when no face has a prediction, or a column is missing."""
    _check_predicted(data, faces)
    check_group_columns(data, faces, names)


def check_group_columns(data: Path, faces: OpenedFaces, names: Sequence[str]) -> None:
    """Raises FerVitError when a column to group by is missing.

    `data` is the path of the faces, for messages.
    """
    given = [*faces.columns]
    if isinstance(faces, UnpredictedFaces) and faces.has_ambiguous:
        given.append("ambiguous")
    for name in names:
        if name not in given:
            raise _no_column(name, data, faces)


def check_needs(faces: OpenedFaces, *, against: bool, robustness: bool) -> None:
    """Raises FerVitError when an option needs labels or images, and there are none."""
    if isinstance(faces, UnpredictedFaces):
        has_truth = faces.has_truth
    else:
        has_truth = faces.targets is not None or bool(faces.heads)
    if against and not has_truth:
        raise FerVitError(
            "`--against` needs labels, or targets of further heads. Add `--labels`, or prepare "
            "with labels."
        )
    if robustness and not has_truth:
        raise FerVitError(
            "`--robustness` needs labels, or targets of further heads. Prepare with either."
        )
    if robustness and not isinstance(faces, UnpredictedFaces):
        raise FerVitError(
            "`--robustness` needs images, and there is only a table. Name a manifest."
        )


def _no_column(column: str, data: Path, faces: OpenedFaces) -> FerVitError:
    """Returns the error of a missing column, with the columns that a user may name."""
    names = list(faces.columns)
    if isinstance(faces, UnpredictedFaces):
        known = f"It has {known_names(column, names)}."
    else:
        added = [name for name in names if not is_owned(name, faces.labels)]
        known = "`fer-vit predict --help` lists the columns of `predict`"
        if added:
            known += f"; others are {known_names(column, added)}"
        known += "."
    hint = suggest(column, names)
    return FerVitError(
        f"There is no column `{column}` in {data}.{hint} {known} `--columns` adds a table."
    )
