"""A trained model on the labelled faces of a manifest, and the temperature that calibrates it."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from fer_vit.data.dataset import FaceDataset
from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Batch, collate
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, crop_face, mirror
from fer_vit.geometry import Array, Image
from fer_vit.labels import Merge, merge_names
from fer_vit.predict.recognizer import CHUNK, Recognizer


@torch.inference_mode()
def evaluate_logits(
    model: Recognizer, manifest: str | Path, split: Split = "val", mirrored: bool = False
) -> tuple[Tensor, Tensor]:
    """Computes the logits of the labelled faces of a manifest; arguments and errors as for `labelled_batches`.

    Returns:
        Logits (N, C) before the temperature, and the fraction of votes for every class (N, C).
    """
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
    """Reads the labelled faces of a manifest under a progress bar.

    Args:
        model: Determines how the faces are cropped.
        manifest: A Parquet table of `fer-vit prepare` with the model's labels in their order.
        split: The rows to read.
        mirrored: Whether every face is mirrored.
        max_faces: Take at most this many, evenly spaced. None: all.

    Returns:
        Batches ready for the model, and the fraction of votes for every class (N, C).

    Raises:
        FerVitError: The manifest does not exist or has other labels, or a row has none.
    """
    rows, targets = labelled_rows(model, manifest, split)
    number = min(max_faces or len(rows), len(rows))
    chosen = np.linspace(0, len(rows) - 1, number).round().astype(int).tolist()
    return face_batches(model, rows, chosen, mirrored), targets[chosen]


def labelled_rows(model: Recognizer, manifest: str | Path, split: Split = "val") -> tuple[Manifest, Tensor]:
    """Returns the rows of a split and the fractions of votes (N, C); arguments and errors as `labelled_batches`."""
    rows = Manifest.read(manifest, [split]).split(split)
    check_same_labels(model, rows)
    targets = rows.targets()
    if targets is None or not len(rows):
        raise FerVitError(f"Expected rows with labels in the {split} split of {manifest}. Prepare it with labels.")
    return rows, torch.from_numpy(targets).float()


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


def check_same_labels(model: Recognizer, rows: Manifest) -> None:
    """Raises FerVitError when a manifest does not have the model's labels in their order."""
    if list(rows.names) != model.labels:
        expected, got = ", ".join(model.labels), ", ".join(rows.names)
        raise FerVitError(f"Expected labels {expected} in {rows.path}, but got {got}.")


def face_batches(model: Recognizer, rows: Manifest, chosen: Sequence[int], mirrored: bool = False) -> Iterator[Batch]:
    """Returns the chosen rows of a manifest, mirrored or not, in batches ready for the model, under a progress bar."""
    dataset = FaceDataset(rows, model.crop_spec, crop_mirrored if mirrored else None)
    loader = DataLoader(Subset(dataset, chosen), CHUNK, collate_fn=collate)
    bar = tqdm(loader, unit=" batches", disable=None, leave=False)
    return (batch.ready(model.device) for batch in bar)


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """Returns the divisor of logits (N, C), from 0.05 to 20, with the lowest cross-entropy against class indices (N,).

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), target))

    return math.exp(minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded").x)


def crop_mirrored(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> tuple[Image, Array, Array]:
    """Crops a face and mirrors the crop; the matrix maps to the crop before mirroring."""
    crop, points, to_crop = crop_face(image, landmarks, spec, framed=True)
    return *mirror(crop, points), to_crop
