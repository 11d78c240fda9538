"""Labelled faces and the probabilities that a model gives them; the temperature that calibrates a model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from fer_vit.conformal import in_set
from fer_vit.data.dataset import FaceDataset, crop_mirrored, face_batches
from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Batch
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.geometry import Array, Image, IntArray, Mask
from fer_vit.labels import Merge, merge_names
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.stages import CHUNK

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
    detected: Mask
    targets: Array | None
    columns: Columns
    rows: IntArray
    picture: Callable[[int], Image]
    facts: dict[str, str] = field(default_factory=dict)

    def take(self, which: NDArray[Any]) -> "Faces":
        """Returns some of the faces, by a mask or indices."""
        arrays = {name: getattr(self, name)[which] for name in ("paths", "probabilities", "detected", "rows")}
        targets = None if self.targets is None else self.targets[which]
        return replace(self, targets=targets, columns={k: v[which] for k, v in self.columns.items()}, **arrays)

    @property
    def predicted(self) -> Mask:
        """Which faces have probabilities (N,)."""
        return np.isfinite(self.probabilities[:, 0])

    @cached_property
    def units(self) -> IntArray:
        """The person (column `person`), else the image, of each face as a number from 0 (N,)."""
        pairs = zip(self.columns.get("person", self.paths), self.paths, strict=True)
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
    def correct(self) -> Mask:
        """Which predictions equal the label, the expression with most votes (N,)."""
        assert self.targets is not None
        correct: Mask = self.probabilities.argmax(1) == self.targets.argmax(1)
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
    targets = rows.model_targets(model.labels)
    columns = {name: as_objects(cells) for name, cells in rows.describing_columns().items()}
    batches = face_batches(FaceDataset(rows, model.crop_spec), range(len(rows)), CHUNK, model.device)
    probabilities = np.array([row for batch in batches for row in model.probabilities(batch)])
    if (
        model.net.settings.thresholds and model.labels == model.net.settings.labels
    ):  # thresholds do not hold for merged labels
        columns["ambiguous"] = as_objects((in_set(probabilities, model.net.settings.thresholds).sum(1) != 1).tolist())
    return Faces(
        labels=model.labels,
        paths=as_objects(rows.image_names()),
        probabilities=probabilities,
        detected=~np.isnan(rows.landmarks()[:, 0, 0]) & (np.array(rows.column("score"), float) != 0),
        targets=targets,
        columns=columns,
        rows=np.arange(len(rows)),
        picture=rows.image,
        facts=model.conditions,
    )


def as_objects(values: Sequence[object]) -> NDArray[np.object_]:
    """Returns values as an array of objects (N,)."""
    return np.fromiter(values, object, len(values))


class Merged(Recognizer):
    """A model with merged labels: their probabilities add up; labels left out are renormalised over the others.

    Raises:
        FerVitError: The merge lacks one of the model's labels.
    """

    def __init__(self, model: Recognizer, merge: Merge) -> None:
        super().__init__(model.net)
        names, matrix = merge_names(model.labels, merge)
        self.labels, self.conditions = list(names), model.conditions
        self.matrix = torch.from_numpy(matrix).float().to(model.device)  # (C, N)

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Returns probabilities (B, N)."""
        merged = super().forward(image, boxes, valid) @ self.matrix
        return merged / merged.sum(-1, keepdim=True)


@torch.inference_mode()
def evaluate_logits(
    model: Recognizer, manifest: str | Path, split: Split = "val", mirrored: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the logits of labelled faces (N, C), before the temperature, and targets; see `labelled_batches`."""
    batches, targets = labelled_batches(model, manifest, split, mirrored)
    logits = [model.net(batch.image, batch.boxes, batch.valid).float().cpu() for batch in batches]
    return torch.cat(logits), targets


def labelled_batches(
    model: Recognizer,
    manifest: str | Path,
    split: Split = "val",
    mirrored: bool = False,
    max_faces: int | None = None,
) -> tuple[Iterator[Batch], Tensor]:
    """Reads the labelled faces of a manifest, mirrored or not, under a progress bar.

    The manifest has the model's labels in their order. `max_faces`: at most this many, evenly spaced; None: all.

    Returns:
        Batches ready for the model, and the fraction of votes for every class (N, C).

    Raises:
        FerVitError: The manifest does not exist or has other labels, or a row has none.
    """
    rows = Manifest.read(manifest, [split]).split(split)
    check_same_labels(model, rows)
    targets = rows.targets()
    if targets is None or not len(rows):
        raise FerVitError(f"Expected rows with labels in the {split} split of {manifest}. Prepare it with labels.")
    number = min(max_faces or len(rows), len(rows))
    chosen = np.linspace(0, len(rows) - 1, number).round().astype(int).tolist()
    dataset = FaceDataset(rows, model.crop_spec, crop_mirrored if mirrored else None)
    return face_batches(dataset, chosen, CHUNK, model.device), torch.from_numpy(targets).float()[chosen]


def check_same_labels(model: Recognizer, rows: Manifest) -> None:
    """Raises FerVitError when a manifest does not have the model's labels in their order."""
    if list(rows.names) != model.labels:
        expected, got = ", ".join(model.labels), ", ".join(rows.names)
        raise FerVitError(f"Expected labels {expected} in {rows.path}, but got {got}.")


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """Returns the divisor of logits (N, C), from 0.05 to 20, with the lowest cross-entropy against class indices (N,).

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), target))

    return math.exp(minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded").x)
