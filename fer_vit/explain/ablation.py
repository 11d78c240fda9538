"""What a prediction loses when tokens are masked: exact, because the model has a mask for what is not there.

B images, C classes, T tokens, R regions, N patches, U units: sets of tokens that are masked together.
"""

import torch
from torch import Tensor

from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout, Tokens


def masked_logits(net: RegionViT, tokens: Tokens, hidden: Tensor) -> Tensor:
    """Logits (B, C) without the tokens that are `hidden` (B, T); class and register tokens always stay."""
    hidden = hidden.clone()
    hidden[:, : net.layout.num_prefix] = False
    valid = ~hidden if tokens.valid is None else tokens.valid & ~hidden
    return net.forward_head(net.forward_features(tokens._replace(valid=valid))).float()


def drops(net: RegionViT, tokens: Tokens, units: Tensor) -> Tensor:
    """How much the logits fall when each unit is masked alone.

    Args:
        net: The model, in evaluation mode.
        tokens: What enters its encoder.
        units: Which tokens belong to each unit (B, U, T).

    Returns:
        Falls (B, U, C), negative where a logit rises.
    """
    whole = net.forward_head(net.forward_features(tokens)).float()
    falls = [whole - masked_logits(net, tokens, unit) for unit in units.unbind(1)]
    return torch.stack(falls, dim=1) if falls else whole.new_zeros(len(whole), 0, whole.shape[1])


def coverage(layout: TokenLayout, patch_size: int, boxes: Tensor) -> Tensor:
    """Part of every patch that lies in each box.

    Args:
        layout: Which token is which.
        patch_size: Side of a patch in crop pixels.
        boxes: Boxes (B, R, 4), xyxy in crop pixels.

    Returns:
        Parts in [0, 1], (B, R, N).
    """

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, R), (B, R) -> (B, R, cells)
        start = torch.arange(cells, device=boxes.device) * patch_size
        return (torch.minimum(high[..., None], start + patch_size) - torch.maximum(low[..., None], start)).clamp(min=0)

    left, top, right, bottom = boxes.float().unbind(-1)
    rows, columns = layout.grid
    area = inside(top, bottom, rows)[..., None] * inside(left, right, columns)[..., None, :]  # (B, R, rows, columns)
    return area.flatten(2) / patch_size**2


def region_units(layout: TokenLayout, covered: Tensor) -> Tensor:
    """Each region as a unit: its own tokens, and the patches of which half or more lie in its box, or else the one of
    which most does.

    Args:
        layout: Which token is which.
        covered: Parts of the patches in the regions' boxes (B, R, N), see `coverage`.

    Returns:
        (B, R, T).
    """
    batch, regions = covered.shape[:2]
    units = covered.new_zeros(batch, regions, layout.num_tokens, dtype=torch.bool)
    if layout.num_patches:
        most = covered.amax(-1, keepdim=True)
        units[..., layout.patches] = (covered >= most.clamp(max=0.5)) & (covered > 0)
    if layout.num_regions:
        own = torch.eye(regions, dtype=torch.bool, device=covered.device)
        units[..., layout.regions] = own.repeat_interleave(layout.tokens_per_region, 1)
    return units
