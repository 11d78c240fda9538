"""Attention by itself: which regions attend to which, and what each head does.

What a region takes from another is a mean over the other's tokens and the patches under it, so that a large region does
not win by its size. Attention to class and register tokens and to patches outside all regions is left out.

B images, L blocks, H heads, T tokens, C expressions, R regions.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fer_vit.explain.pixels import no_autocast, region_means
from fer_vit.explain.trace import Trace


@torch.no_grad()
def relations(seen: Trace) -> Tensor:
    """How much each region (row) takes from each region (column) by attention rollout, heads averaged: (B, R, R).

    Rows sum to 1, rows of missing regions to 0. The diagonal includes the residual paths.
    """
    flow = torch.eye(seen.membership.shape[-1], device=seen.membership.device).expand(len(seen.membership), -1, -1)
    with no_autocast(flow):
        for weights in seen.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return _between(seen.membership, flow)


@torch.no_grad()
def head_relations(seen: Trace) -> Tensor:
    """The same for every head, without earlier blocks or residual paths: (B, L, H, R, R).

    Rows of missing regions, and of regions that attend to no region, sum to 0.
    """
    blocks = ([_between(seen.membership, head) for head in block.unbind(1)] for block in seen.attention)
    return torch.stack([torch.stack(heads, 1) for heads in blocks], 1)


def _between(membership: Tensor, flow: Tensor) -> Tensor:
    """From tokens (B, T, T) to regions (B, R, R), rows scaled to a sum of 1."""
    with no_autocast(membership):
        taken = region_means(membership, region_means(membership, flow.float()).mT).mT
    return normalize(taken, p=1, dim=-1)


class HeadRoles(NamedTuple):
    """What every head does.

    Attributes:
        maps: Where the classified tokens look (B, L, H, T); over the patches and regions of a face they sum to 1.
        distance: How far patch and region tokens look on average (B, L, H), in crop pixels: Dosovitskiy et al., "An
            Image is Worth 16x16 Words" (ICLR 2021), figure 7.
        expressions: Where the query of each expression looks (B, C, T), mean over the decoder's heads; C is 0 for
            classifiers other than "query".
        relations: How much each region takes from each through a head (B, L, H, R, R), see `head_relations`.
    """

    maps: Tensor
    distance: Tensor
    expressions: Tensor
    relations: Tensor


@torch.no_grad()
def head_roles(seen: Trace) -> HeadRoles:
    """Summarises every head."""
    pool = seen.pooled.weights.mean(1).float()  # (B, 1 or C, T)
    classified = pool.mean(1)[:, None, None]  # (B, 1, 1, T)
    centres = seen.tokens.centres.float()
    distances = torch.cdist(centres, centres)[:, None]  # (B, 1, T, T), in pixels
    maps, distance = [], []
    for weights in seen.attention:
        located = weights.float().clone()  # (B, H, T, T)
        located[..., : seen.layout.num_prefix] = 0.0
        with no_autocast(located):
            maps.append(normalize(classified @ located, p=1, dim=-1)[:, :, 0])
        # A token that no other attends to is missing, or dropped by hard attention: it does not attend either.
        there = located.sum((1, 2)) > 0  # (B, T)
        far = (normalize(located, p=1, dim=-1) * distances).sum(-1)  # (B, H, T)
        distance.append((far * there[:, None]).sum(-1) / there.sum(-1).clamp(min=1)[:, None])
    expressions = normalize(pool, p=1, dim=-1) if pool.shape[1] > 1 else pool[:, :0]
    return HeadRoles(torch.stack(maps, 1), torch.stack(distance, 1), expressions, head_relations(seen))
