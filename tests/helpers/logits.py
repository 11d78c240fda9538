"""Logits of the faces of a manifest."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fer_vit.data.dataset import FaceDataset, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.face.crop import Cropped, CropSpec, crop_face
from fer_vit.geometry import Array, Image
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer
from tests.helpers.crops import as_tensors

MIRRORED = [1, 0, 2, 4, 3]
"""The landmark at the place of each landmark in a mirror image."""


def crop_mirrored(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
    """The mirror image of a face's crop, as a dataset takes it."""
    crop, points, to_crop, _ = crop_face(image, landmarks, spec, framed=True)
    swapped = points[MIRRORED] * (-1, 1) + (crop.shape[1], 0)
    return Cropped(np.ascontiguousarray(crop[:, ::-1]), swapped, to_crop, mirrored=True)


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
