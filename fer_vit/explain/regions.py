"""Which tokens belong to which facial region: its own, and the patches under its box.

B images, T tokens, R regions, N patches.
"""

import torch
from torch import Tensor

from fer_vit.model.tokens import TokenLayout


def coverage(layout: TokenLayout, patch_size: int, boxes: Tensor) -> Tensor:
    """Fraction of every patch that lies in each box.

    Args:
        layout: Which token is which.
        patch_size: Side of a patch in crop pixels.
        boxes: Boxes (B, R, 4), xyxy in crop pixels.

    Returns:
        Fractions in [0, 1], (B, R, N).
    """

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, R), (B, R) -> (B, R, cells)
        start = torch.arange(cells, device=boxes.device) * patch_size
        return (torch.minimum(high[..., None], start + patch_size) - torch.maximum(low[..., None], start)).clamp(min=0)

    left, top, right, bottom = boxes.float().unbind(-1)
    rows, columns = layout.grid
    area = inside(top, bottom, rows)[..., None] * inside(left, right, columns)[..., None, :]  # (B, R, rows, columns)
    return area.flatten(2) / patch_size**2


def membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """How much of every token belongs to each region: all of its own tokens, patches as far as its box covers them.

    Args:
        layout: Which token is which.
        patch_size: Side of a patch in crop pixels.
        boxes: Region boxes (B, R, 4), xyxy in crop pixels; those of missing regions may hold anything.
        valid: Which regions are there (B, R); the others have no tokens.

    Returns:
        Fractions in [0, 1], (B, R, T); 0 for class and register tokens, which lie nowhere in the face.
    """
    found = torch.zeros(*valid.shape, layout.num_tokens, device=boxes.device)
    found[..., layout.patches] = coverage(layout, patch_size, boxes.masked_fill(~valid[..., None], 0.0))
    if layout.num_regions:
        own = torch.eye(layout.num_regions, device=boxes.device) * valid[..., None]  # (B, R, R)
        found[..., layout.regions] = own.repeat_interleave(layout.tokens_per_region, -1)
    return found


def units(layout: TokenLayout, membership: Tensor) -> Tensor:
    """Each region as a set: its own tokens, and the patches of which half or more lie in its box, or else the patch of
    which most does.

    Args:
        layout: Which token is which.
        membership: Of the tokens in the regions (B, R, T).

    Returns:
        (B, R, T).
    """
    chosen = membership > 0
    if layout.num_patches:
        covered = membership[..., layout.patches]
        chosen[..., layout.patches] &= covered >= covered.amax(-1, keepdim=True).clamp(max=0.5)
    return chosen


def region_means(membership: Tensor, values: Tensor) -> Tensor:
    """Mean of a value over the tokens of each region.

    Args:
        membership: Of the tokens in the regions (B, R, T).
        values: Of every token (B, T) or several of them (B, T, K).

    Returns:
        (B, R) or (B, R, K); 0 for missing regions.
    """
    return torch.einsum("brt,bt...->br...", membership / membership.sum(-1, keepdim=True).clamp(min=1e-12), values)
