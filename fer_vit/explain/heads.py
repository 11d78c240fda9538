"""Attention: which regions attend to which, and what each head does.

What a region takes from another is a mean over the other's tokens and the patches under it, so that a large region does
not win by its size. Attention to class and register tokens and to patches outside all regions is left out.

B images, H heads, T tokens, R regions, V views: the whole encoder, then every head of every block, then the query of
every expression with pooling "query".
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from fer_vit.explain.trace import Trace, no_autocast, region_means


class Views(NamedTuple):
    """Attention to draw on a face.

    A head's relations are without earlier blocks or residual paths; rows of regions that are missing, or attend to no
    region, sum to 0. What regions give is a mean over their tokens and the patches under them. The distance is from
    Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), figure 7; NaN for the whole encoder and queries.
    """

    relations: Tensor  # how much each region (row) takes from each (column) (B, V, R, R); 0 for queries
    output: Tensor  # how much each region gives to what is classified (B, V, R); sums to 1
    patches: Tensor  # the same for patches (B, V, rows, columns); with region tokens it sums to 1
    distance: Tensor  # how far patch and region tokens look on average (B, V), in crop pixels


@torch.no_grad()
def attention_views(seen: Trace) -> Views:
    """Returns attention through the whole encoder, by every head, and by the query of every expression."""
    maps, distance = head_maps(seen)
    queries = seen.pooled.weights.float().mean(1)  # (B, 1 or C, T)
    queries = queries if queries.shape[1] > 1 else queries[:, :0]
    maps = normalize(torch.cat([attention_to_output(seen)[:, None], maps, queries], 1), p=1, dim=-1)  # (B, V, T)
    heads = [_between(seen.membership, head) for block in seen.attention for head in block.unbind(1)]
    between = torch.stack([relations(seen), *heads], 1)
    output = normalize(region_means(seen.membership, maps.mT).mT, p=1, dim=-1)
    between = pad(between, (0, 0, 0, 0, 0, queries.shape[1]))
    distance = pad(distance, (1, queries.shape[1]), value=torch.nan)
    return Views(between, output, seen.layout.patch_map(maps), distance)


@torch.no_grad()
def head_maps(seen: Trace) -> tuple[Tensor, Tensor]:
    """Returns where the classified tokens look through every head (B, heads, T), and how far each looks (B, heads)."""
    classified = seen.pooled.weights.float().mean((1, 2))[:, None, None]  # (B, 1, 1, T)
    centres = seen.tokens.centres.float()
    distances = torch.cdist(centres, centres)[:, None]  # (B, 1, T, T), in pixels
    maps, distance = [], []
    for weights in seen.attention:
        located = weights.float().clone()  # (B, H, T, T)
        located[..., : seen.layout.num_prefix] = 0.0
        with no_autocast(located):
            maps.append((classified @ located)[:, :, 0])
        # A token that no other attends to is missing, or dropped by hard attention: it does not attend either.
        there = located.sum((1, 2)) > 0  # (B, T)
        far = (normalize(located, p=1, dim=-1) * distances).sum(-1)  # (B, H, T)
        distance.append((far * there[:, None]).sum(-1) / there.sum(-1).clamp(min=1)[:, None])
    return torch.cat(maps, 1), torch.cat(distance, 1)


@torch.no_grad()
def relations(seen: Trace) -> Tensor:
    """How much each region (row) takes from each region (column) by attention rollout, heads averaged: (B, R, R).

    Rows sum to 1, rows of missing regions to 0. The diagonal includes the residual paths.
    """
    return _between(seen.membership, _rollout(seen))


@torch.no_grad()
def attention_to_output(seen: Trace) -> Tensor:
    """How much the output takes from each token by attention rollout, heads averaged: (B, T); 0 for prefix tokens."""
    flow = _rollout(seen)
    with no_autocast(flow):
        output = (seen.pooled.weights.float().mean((1, 2))[:, None] @ flow)[:, 0]
    output[:, : seen.layout.num_prefix] = 0.0
    return output


def _rollout(seen: Trace) -> Tensor:
    """Attention through all blocks, heads averaged, half of every token by the residual paths: (B, T, T)."""
    flow = torch.eye(seen.membership.shape[-1], device=seen.membership.device).expand(len(seen.membership), -1, -1)
    with no_autocast(flow):
        for weights in seen.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return flow


def _between(membership: Tensor, flow: Tensor) -> Tensor:
    """From tokens (B, T, T) to regions (B, R, R), rows scaled to a sum of 1."""
    with no_autocast(membership):
        taken = region_means(membership, region_means(membership, flow.float()).mT).mT
    return normalize(taken, p=1, dim=-1)
