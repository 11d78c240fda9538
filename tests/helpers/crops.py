"""Crops of faces for engines, and what a network computes for them."""

import numpy as np
import torch
from torch import Tensor

from fer_vit.face.crop import CropSpec
from fer_vit.faces import Crops
from fer_vit.model.region_vit import RegionViT


def noise_crops(spec: CropSpec, count: int, missing: float = 0.2) -> Crops:
    """Crops of random pixels; a share of the regions is missing."""
    rng = np.random.default_rng(0)
    regions = len(spec.regions)
    corner = rng.random((count, regions, 2)) * spec.size / 2
    boxes = np.concatenate([corner, corner + spec.size / 3], 2).astype(np.float32)
    valid = rng.random((count, regions)) >= missing
    return Crops(
        image=rng.integers(0, 256, (count, spec.size, spec.size, 3), np.uint8),
        boxes=np.where(valid[..., None], boxes, np.float32(0)),
        valid=valid,
        to_crop=np.tile(np.eye(2, 3), (count, 1, 1)),
    )


def as_tensors(crops: Crops) -> tuple[Tensor, Tensor, Tensor]:
    """What a network of torch takes."""
    image = torch.from_numpy(crops.image).permute(0, 3, 1, 2) / 255
    return image, torch.from_numpy(crops.boxes), torch.from_numpy(crops.valid)


@torch.inference_mode()
def probabilities(net: RegionViT, *inputs: Tensor) -> Tensor:
    """The calibrated probabilities of a network (B, C)."""
    return net.probabilities(net.logits(*inputs))
