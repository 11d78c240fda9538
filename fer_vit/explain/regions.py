"""Which tokens belong to which facial region, its own and the patches under its box, and where all of them lie.

B images, T tokens, R regions, N patches; `membership` is how much of every token belongs to each region (B, R, T).
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fer_vit.model.tokens import TokenLayout


def no_autocast(values: Tensor) -> torch.autocast:
    """Keeps products in float32, which a caller's autocast would round to bfloat16."""
    return torch.autocast(values.device.type, enabled=False)


def overlaps(boxes: Tensor, grid: tuple[int, ...], side: int) -> tuple[Tensor, Tensor]:
    """Fraction of each row (B, N, rows) and column (B, N, columns) of a grid that lies in each box (B, N, 4), xyxy.

    Args:
        boxes: In pixels.
        grid: Rows and columns.
        side: Side of a cell in pixels.
    """

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, N), (B, N) -> (B, N, cells)
        start = torch.arange(cells, device=boxes.device) * side
        common = torch.minimum(high[..., None], start + side) - torch.maximum(low[..., None], start)
        return common.clamp(min=0) / side

    left, top, right, bottom = boxes.float().unbind(-1)
    return inside(top, bottom, grid[0]), inside(left, right, grid[1])


def token_boxes(layout: TokenLayout, patch_size: int, centres: Tensor, boxes: Tensor) -> Tensor:
    """What every token was cut from (B, T, 4), xyxy in crop pixels; empty for class, register and missing tokens.

    Args:
        layout: Which token is which.
        patch_size: Side of a patch in pixels.
        centres: Of the tokens (B, T, 2).
        boxes: Of the regions (B, R, 4), 0 for a missing one.
    """
    half = torch.zeros_like(centres)
    half[:, layout.patches] = patch_size / 2
    if layout.num_regions:
        sides = (boxes[..., 2:] - boxes[..., :2]) / layout.region_grid
        half[:, layout.regions] = (sides / 2).repeat_interleave(layout.tokens_per_region, 1)
    return torch.cat([centres - half, centres + half], -1)


def membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """How much of every token belongs to each region: 1 for its own tokens, the covered fraction for patches.

    Class and register tokens, which have no position in the face, get 0. Boxes (B, R, 4) are xyxy in crop pixels; where
    not `valid` (B, R) they may be anything.
    """
    found = torch.zeros(*valid.shape, layout.num_tokens, device=boxes.device)
    rows, columns = overlaps(boxes.masked_fill(~valid[..., None], 0.0), layout.grid, patch_size)
    found[..., layout.patches] = (rows[..., None] * columns[..., None, :]).flatten(2)
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
