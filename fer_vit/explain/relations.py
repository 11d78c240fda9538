"""Which regions look at which: attention between the regions of a face instead of between tokens.

What a region takes from another is a mean over the other's tokens and the patches under it, so that a large region does
not win by its size. What goes to class and register tokens or to patches outside all regions is left out.

B images, L blocks, H heads, T tokens, R regions.
"""

import torch
from torch import Tensor

from fer_vit.explain.attention import exact
from fer_vit.explain.regions import region_means
from fer_vit.explain.trace import Trace


@torch.no_grad()
def relations(seen: Trace) -> Tensor:
    """Follows attention through all blocks, heads averaged (attention rollout).

    Returns:
        How much each region (row) takes from each region (column), (B, R, R); rows sum to 1, those of missing regions
        to 0. The diagonal is what a region has of itself, by the residual paths too.
    """
    flow = torch.eye(seen.parts.shape[-1], device=seen.parts.device).expand(len(seen.parts), -1, -1)
    with exact(flow):
        for weights in seen.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return _between(seen.parts, flow)


@torch.no_grad()
def head_relations(seen: Trace) -> Tensor:
    """Takes the attention of every head by itself, without what came before it or passes it by.

    Returns:
        (B, L, H, R, R); rows sum to 1, those of missing regions, and of regions that look at no region, to 0.
    """
    blocks = [torch.stack([_between(seen.parts, head) for head in weights.unbind(1)], 1) for weights in seen.attention]
    return torch.stack(blocks, 1)


def _between(parts: Tensor, flow: Tensor) -> Tensor:
    """From tokens (B, T, T) to regions (B, R, R), rows scaled to a sum of 1."""
    with exact(parts):
        taken = region_means(parts, region_means(parts, flow.float()).mT).mT
    return taken / taken.sum(-1, keepdim=True).clamp(min=1e-12)
