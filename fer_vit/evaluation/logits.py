"""Crops of the labelled faces of a manifest, for a model that is not evaluated."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fer_vit.data.dataset import FaceDataset, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.face.finder import Crops
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer


class LabelledCrops(NamedTuple):
    """N labelled faces of a manifest."""

    manifest: Manifest  # these faces
    batches: Iterator[Crops]  # reading them shows a progress bar
    target: Tensor  # (N, C), the fraction of votes by class


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
    labelled = manifest.labelled(split)
    labelled.check_labels(model.labels)
    if max_faces is not None and max_faces < len(labelled):
        rows = np.linspace(0, len(labelled) - 1, max_faces).round().astype(int)
        labelled = labelled.select(np.isin(np.arange(len(labelled)), rows))
    targets = labelled.targets()
    if targets is None or not len(labelled):
        raise FerVitError(
            f"Expected rows with labels in the {split} split of {labelled.path}. "
            "Prepare it with labels."
        )
    dataset = FaceDataset(labelled, model.crop_spec)
    batches = face_crops(dataset, range(len(labelled)), FACES_PER_PASS)
    return LabelledCrops(labelled, batches, torch.from_numpy(targets).float())
