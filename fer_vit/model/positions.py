"""Positions of tokens, and their sinusoidal codes.

N patches, k tokens along the side of a region, D width.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.model.config import RegionViTConfig

Position = Callable[[Tensor], Tensor]
"""Codes (..., D) of centres (..., 2) in crop pixels."""


def token_centres(boxes: Tensor, grid: int) -> Tensor:
    """Returns the centres of the grid x grid tokens of boxes (..., 4) in pixels, row by row: (..., grid^2, 2)."""
    steps = (torch.arange(grid, device=boxes.device, dtype=boxes.dtype) + 0.5) / grid
    fractions = torch.cartesian_prod(steps, steps).flip(1)  # (grid^2, 2), (x, y)
    corner, side = boxes[..., None, :2], boxes[..., None, 2:] - boxes[..., None, :2]
    centres: Tensor = corner + side * fractions
    return centres


def sincos_1d(position: Tensor, dim: int, temperature: float = 10000.0) -> Tensor:
    """Sinusoidal code (..., D) of positions (...) in units of a token; D is even.

    sin and cos of position / temperature^(2 i / D), alternating (Vaswani et al. 2017).
    """
    steps = torch.arange(0, dim, 2, device=position.device)
    angles = position.float()[..., None] * temperature ** (-steps / dim)  # (..., D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def sincos_2d(centres: Tensor, dim: int, patch_size: float) -> Tensor:
    """Sinusoidal code (..., D) of points (..., 2), (x, y) in pixels; D is a multiple of 4, a patch the unit.

    Half the width is for x, half for y, each with the sines before the cosines.
    """
    code = sincos_1d(centres / patch_size, dim // 2)  # (..., 2, D/2), sines and cosines alternating
    return torch.cat([code[..., ::2], code[..., 1::2]], dim=-1).flatten(-2)


def sincos_reading(centres: Tensor, dim: int, patch_size: float, columns: int) -> Tensor:
    """Sinusoidal code (..., D) of points (..., 2) in pixels by their index in reading order, row by row from 0."""
    x, y = (centres / patch_size).unbind(-1)
    return sincos_1d(y.floor() * columns + x - 0.5, dim)


def patch_centres(grid: tuple[int, int]) -> Tensor:
    """Returns the centres of a patch grid's cells in units of a patch, row by row: (N, 2)."""
    return torch.cartesian_prod(*(torch.arange(cells) + 0.5 for cells in grid)).flip(1)


def choose_position(config: RegionViTConfig, dim: int, patch_size: int) -> Position | None:
    """Chooses the sinusoidal code of centres in crop pixels; None when there are no positions."""
    if config.pos_embed == "none":
        return None
    if config.pos_embed == "sincos_1d":
        return partial(sincos_reading, dim=dim, patch_size=patch_size, columns=math.ceil(config.img_size / patch_size))
    return partial(sincos_2d, dim=dim, patch_size=patch_size)


def fix_positions(vit: VisionTransformer, code: Tensor) -> None:
    """Replaces the learned patch positions by fixed codes (N, D); prefix tokens get none."""
    full = torch.zeros_like(vit.pos_embed)  # (1, prefix + N or N, D)
    full[0, -len(code) :] = code
    vit.pos_embed = nn.Parameter(full, requires_grad=False)
