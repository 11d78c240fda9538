"""Attribution of a score to pixels, and sums over the boxes of tokens and regions.

B images, E scores, C classes, N boxes, T tokens, R regions, S crop size; `membership` is how much of every token
belongs to each region (B, R, T).
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout

PASSES = 8
"""Forward passes of integrated gradients, from the blurred face to the face."""
ROUNDING = 1e-5
"""Depths that differ by less are equal: so that a face and its mirror image share pixels equally."""


def integrated_gradients(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, directions: Tensor) -> Tensor:
    """How much each pixel adds to a score on the way from the blurred face to the face; the regions stay in place.

    Sundararajan, Taly & Yan, "Axiomatic Attribution for Deep Networks" (ICML 2017), by the midpoints of `PASSES` equal
    steps: over all pixels the sum is about the score of the face minus the score of the blurred face. The model is in
    evaluation mode; other arguments as for `methods.explain_each`. -> (E, B, S, S), negative where a pixel lowers the
    score.
    """
    start = blur(image)
    found = image.new_zeros(*directions.shape[:2], *image.shape[2:])
    with torch.enable_grad():
        for step in range(PASSES):
            between = torch.lerp(start, image, (step + 0.5) / PASSES).requires_grad_()
            logits = net(between, boxes, valid)
            for total, direction in zip(found, directions, strict=True):
                (gradient,) = torch.autograd.grad(logits, between, direction.to(logits), retain_graph=True)
                total += ((image - start) * gradient).sum(1) / PASSES
    return found


def blur(image: Tensor) -> Tensor:
    """Blurs faces (B, 3, S, S) beyond recognition, by a Gaussian with a sigma of an eighth of their side."""
    size = image.shape[-1]
    at = torch.arange(size, device=image.device)
    weights = (-((at[:, None] - at) / (size / 8)).square() / 2).exp()
    weights = (weights / weights.sum(1, keepdim=True)).to(image.dtype)
    with no_autocast(image):
        return weights @ image @ weights.T


def no_autocast(values: Tensor) -> torch.autocast:
    """Keeps products in float32; a caller's autocast would round them to bfloat16."""
    return torch.autocast(values.device.type, enabled=False)


def overlaps(boxes: Tensor, grid: tuple[int, ...], side: int) -> tuple[Tensor, Tensor]:
    """Fraction of each row (B, N, rows) and column (B, N, columns) of a grid that lies in each box (B, N, 4), xyxy.

    `grid` is rows and columns, `side` the side of a cell in pixels.
    """

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, N), (B, N) -> (B, N, cells)
        start = torch.arange(cells, device=boxes.device) * side
        common = torch.minimum(high[..., None], start + side) - torch.maximum(low[..., None], start)
        return common.clamp(min=0) / side

    left, top, right, bottom = boxes.float().unbind(-1)
    return inside(top, bottom, grid[0]), inside(left, right, grid[1])


def box_sums(pixels: Tensor, boxes: Tensor) -> Tensor:
    """Adds up the scores of pixels (B, S, S) inside each box (B, N, 4), xyxy: (B, N). Pixels on an edge count in part.

    Where boxes overlap, a pixel counts in each of them.
    """
    rows, columns = overlaps(boxes, pixels.shape[1:], 1)
    with no_autocast(pixels):
        return torch.einsum("bny,byx,bnx->bn", rows, pixels, columns)


def region_sums(pixels: Tensor, boxes: Tensor) -> Tensor:
    """Adds up the scores of pixels (E, B, S, S) by region, whose boxes are (B, R, 4), xyxy: (E, B, R).

    Boxes overlap: a pixel counts in the one that it lies deepest in, 0 being its edge and 1 its middle. Boxes that it
    lies equally deep in share it.
    """
    size = pixels.shape[-1]
    start, stop = boxes.float()[..., None].tensor_split(2, dim=2)  # (B, R, 2, 1)
    away = (
        (torch.arange(size, device=boxes.device) + 0.5 - (start + stop) / 2).abs() * 2 / (stop - start).clamp(min=1e-6)
    )
    depth = 1 - torch.maximum(away[:, :, 1, :, None], away[:, :, 0, None])  # (B, R, S, S)
    edge = depth.new_zeros(len(depth), 1, size, size)
    deepest = (depth >= torch.cat([edge, depth], dim=1).amax(1, keepdim=True) - ROUNDING).float()
    with no_autocast(pixels):
        return torch.einsum("brsx,ebsx->ebr", deepest / deepest.sum(1, keepdim=True).clamp(min=1), pixels)


def spread(scores: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Spreads the score of each box (B, N) evenly over its pixels: (B, S, S). Where boxes overlap, scores add up."""
    rows, columns = overlaps(boxes, (size, size), 1)
    density = scores / (rows.sum(-1) * columns.sum(-1)).clamp(min=1)
    with no_autocast(scores):
        return torch.einsum("bn,bny,bnx->byx", density, rows, columns)


def covered(boxes: Tensor, size: int) -> Tensor:
    """Which pixels (B, S, S) have their centre in one of the boxes (B, N, 4)."""
    rows, columns = ((part >= 0.5).float() for part in overlaps(boxes, (size, size), 1))
    return torch.einsum("bny,bnx->byx", rows, columns) > 0


def token_boxes(layout: TokenLayout, patch_size: int, centres: Tensor, boxes: Tensor) -> Tensor:
    """What every token was cut from (B, T, 4), xyxy in crop pixels; empty for class, register and missing tokens.

    Centres of the tokens are (B, T, 2), boxes of the regions (B, R, 4), 0 for a missing one.
    """
    half = torch.zeros_like(centres)
    half[:, layout.patches] = patch_size / 2
    if layout.num_regions:
        sides = (boxes[..., 2:] - boxes[..., :2]) / layout.region_grid
        half[:, layout.regions] = (sides / 2).repeat_interleave(layout.tokens_per_region, 1)
    return torch.cat([centres - half, centres + half], -1)


def membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """How much of every token belongs to each region: 1 for its tokens, the covered fraction for patches.

    Class and register tokens, which have no position in the face, get 0. Boxes (B, R, 4) are xyxy in crop pixels; they
    are ignored where not `valid` (B, R).
    """
    found = torch.zeros(*valid.shape, layout.num_tokens, device=boxes.device)
    rows, columns = overlaps(boxes.masked_fill(~valid[..., None], 0.0), layout.grid, patch_size)
    found[..., layout.patches] = (rows[..., None] * columns[..., None, :]).flatten(2)
    if layout.num_regions:
        own = torch.eye(layout.num_regions, device=boxes.device) * valid[..., None]  # (B, R, R)
        found[..., layout.regions] = own.repeat_interleave(layout.tokens_per_region, -1)
    return found


def units(layout: TokenLayout, membership: Tensor) -> Tensor:
    """Each region as a set of tokens (B, R, T): its tokens, and patches of which half or more lie in its box.

    A region that covers half of no patch has the patch that it covers most.
    """
    chosen = membership > 0
    if layout.num_patches:
        covered = membership[..., layout.patches]
        chosen[..., layout.patches] &= covered >= covered.amax(-1, keepdim=True).clamp(max=0.5)
    return chosen


def region_means(membership: Tensor, values: Tensor) -> Tensor:
    """Mean (B, R, ...) of values (B, T, ...) over the tokens of each region; 0 for missing regions."""
    return torch.einsum("brt,bt...->br...", normalize(membership, p=1, dim=-1), values)
