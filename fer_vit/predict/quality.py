"""How much of a face its photo shows."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fer_vit.geometry import Array, apply, invert

SIDE = 48
"""Blur is measured in pixels of a crop with so many on a side, whatever the model's."""
LAPLACIAN = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def blur(crops: Tensor) -> Tensor:
    """Returns how blurred crops (B, C, S, S) are (B,), in pixels of `SIDE`; NaN where there is no contrast.

    The variance of the Laplacian (Pech-Pacheco et al. 2000) is divided into that of the grey levels, so that contrast
    does not count, and the fourth root taken, which makes it a length.
    """
    grey = F.interpolate(crops.mean(1, keepdim=True), (SIDE, SIDE), mode="bilinear", antialias=True)
    edges = F.conv2d(grey, LAPLACIAN.to(grey)[None, None])
    return (grey.var((1, 2, 3)) / edges.var((1, 2, 3))) ** 0.25


def inside(regions: Mapping[str, Array], to_crop: Array, size: tuple[int, int]) -> list[str]:
    """Returns the regions, boxes (4,) in crop pixels, whose centre lies in the photo of width and height `size`."""
    boxes = np.array([*regions.values()]).reshape(-1, 4)  # also when there is none
    centres = apply(invert(to_crop), (boxes[:, :2] + boxes[:, 2:]) / 2)
    there = np.all((centres >= 0) & (centres < size), axis=1).tolist()
    return [name for name, its in zip(regions, there, strict=True) if its]
