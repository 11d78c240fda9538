"""Which regions look at which: attention between the regions of a face instead of between tokens.

What a region takes from another is a mean over the other's tokens and the patches under it, so that a large region does
not win by its size. What goes to class and register tokens or to patches outside all regions is left out.

B images, L blocks, H heads, T tokens, R regions.
"""

import torch
from torch import Tensor

from fer_vit.explain.attention import no_autocast
from fer_vit.explain.regions import region_means
from fer_vit.explain.trace import Trace


@torch.no_grad()
def relations(seen: Trace) -> Tensor:
    """Follows attention through all blocks, heads averaged (attention rollout).

    Returns:
        How much each region (row) takes from each region (column), (B, R, R); rows sum to 1, those of missing regions
        to 0. The diagonal is what a region has of itself, by the residual paths too.
    """
    flow = torch.eye(seen.membership.shape[-1], device=seen.membership.device).expand(len(seen.membership), -1, -1)
    with no_autocast(flow):
        for weights in seen.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return _between(seen.membership, flow)


@torch.no_grad()
def head_relations(seen: Trace) -> Tensor:
    """Takes the attention of every head by itself, without what came before it or passes it by.

    Returns:
        (B, L, H, R, R); rows sum to 1, those of missing regions, and of regions that look at no region, to 0.
    """
    tokens = seen.membership
    heads = (torch.stack([_between(tokens, head) for head in block.unbind(1)], 1) for block in seen.attention)
    return torch.stack(list(heads), 1)


def _between(membership: Tensor, flow: Tensor) -> Tensor:
    """From tokens (B, T, T) to regions (B, R, R), rows scaled to a sum of 1."""
    with no_autocast(membership):
        taken = region_means(membership, region_means(membership, flow.float()).mT).mT
    return taken / taken.sum(-1, keepdim=True).clamp(min=1e-12)
