"""Logits of the faces of a manifest."""

from pathlib import Path

import torch
from torch import Tensor

from fer_vit.data.dataset import FaceDataset, crop_mirrored, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer
from tests.helpers.crops import as_tensors


def labelled_logits(
    model: Recognizer, manifest: Path, split: Split = "val", mirrored: bool = False
) -> tuple[Tensor, Tensor]:
    """The logits of labelled faces, before the temperature, and their votes (N, C)."""
    rows = Manifest.read(manifest).labelled(split)
    dataset = FaceDataset(rows, model.crop_spec, crop_mirrored if mirrored else None)
    logits = []
    with torch.inference_mode():
        for crops in face_crops(dataset, range(len(rows)), FACES_PER_PASS):
            logits.append(model.net.logits(*as_tensors(crops)))
    return torch.cat(logits), torch.from_numpy(rows.targets()).float()
