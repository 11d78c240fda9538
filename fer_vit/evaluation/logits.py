"""Logits of labelled faces, and the temperature that calibrates a model."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from fer_vit.data.dataset import FaceDataset, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.face.finder import Crops
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer


def predict_logits(model: Recognizer, batches: Iterable[Crops]) -> Tensor:
    """Returns the logits (N, C) of all faces of the batches, before the logit adjustment."""
    return torch.cat([torch.from_numpy(model.engine.run(batch).logits) for batch in batches])


class LabelledCrops(NamedTuple):
    """N labelled faces of a manifest."""

    batches: Iterator[Crops]  # reading them shows a progress bar
    target: Tensor  # (N, C), the fraction of votes by class
    rows: list[int]  # (N,), the rows among the labelled rows of the split


def labelled_batches(
    model: Recognizer,
    manifest: Manifest,
    split: Split = "val",
    max_faces: int | None = None,
) -> LabelledCrops:
    """Returns a manifest's labelled faces, at most `max_faces`, evenly spaced in the manifest.

    Raises:
        FerVitError: The manifest has other labels than the model, or no row has a label.
    """
    labelled = labelled_rows(manifest, split)
    labelled.check_labels(model.labels)
    targets = labelled.targets()
    if targets is None or not len(labelled):
        raise FerVitError(
            f"Expected rows with labels in the {split} split of {labelled.path}. "
            "Prepare it with labels."
        )

    num_faces = min(max_faces or len(labelled), len(labelled))
    rows = np.linspace(0, len(labelled) - 1, num_faces).round().astype(int).tolist()
    dataset = FaceDataset(labelled, model.crop_spec)
    batches = face_crops(dataset, rows, FACES_PER_PASS)
    return LabelledCrops(batches, torch.from_numpy(targets).float()[rows], rows)


def labelled_rows(manifest: Manifest, split: Split) -> Manifest:
    """Returns the rows of a split that have a label."""
    rows = manifest.split(split)
    return rows.select(rows.table["label"].is_valid())


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """Returns the divisor of the logits (N, C) that minimizes the loss for class indices (N,).

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), target))

    bounds = (math.log(0.05), math.log(20))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)
