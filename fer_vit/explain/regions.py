"""Which tokens belong to which facial region: its own, and the patches under its box.

B images, T tokens, R regions, N patches; `membership` is how much of every token belongs to each region (B, R, T).
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fer_vit.model.tokens import TokenLayout


def coverage(grid: tuple[int, int], patch_size: int, boxes: Tensor) -> Tensor:
    """Fraction (B, R, N) of every patch of a grid (rows, columns) that lies in each box (B, R, 4), xyxy in pixels."""

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, R), (B, R) -> (B, R, cells)
        start = torch.arange(cells, device=boxes.device) * patch_size
        return (torch.minimum(high[..., None], start + patch_size) - torch.maximum(low[..., None], start)).clamp(min=0)

    left, top, right, bottom = boxes.float().unbind(-1)
    rows, columns = grid
    area = inside(top, bottom, rows)[..., None] * inside(left, right, columns)[..., None, :]  # (B, R, rows, columns)
    return area.flatten(2) / patch_size**2


def membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """How much of every token belongs to each region: 1 for its own tokens, the covered fraction for patches.

    Class and register tokens, which have no position in the face, get 0. Boxes (B, R, 4) are xyxy in crop pixels; where
    not `valid` (B, R) they may be anything.
    """
    found = torch.zeros(*valid.shape, layout.num_tokens, device=boxes.device)
    found[..., layout.patches] = coverage(layout.grid, patch_size, boxes.masked_fill(~valid[..., None], 0.0))
    if layout.num_regions:
        own = torch.eye(layout.num_regions, device=boxes.device) * valid[..., None]  # (B, R, R)
        found[..., layout.regions] = own.repeat_interleave(layout.tokens_per_region, -1)
    return found


def units(layout: TokenLayout, membership: Tensor) -> Tensor:
    """Each region as a set of tokens (B, R, T): its own, and the patches of which half or more lie in its box, or else
    the patch that it covers most.
    """
    chosen = membership > 0
    if layout.num_patches:
        covered = membership[..., layout.patches]
        chosen[..., layout.patches] &= covered >= covered.amax(-1, keepdim=True).clamp(max=0.5)
    return chosen


def region_means(membership: Tensor, values: Tensor) -> Tensor:
    """Mean (B, R, ...) of values (B, T, ...) over the tokens of each region; 0 for missing regions."""
    return torch.einsum("brt,bt...->br...", normalize(membership, p=1, dim=-1), values)
