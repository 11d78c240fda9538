"""Attention by itself: which regions attend to which, and what each head does.

What a region takes from another is a mean over the other's tokens and the patches under it, so that a large region does
not win by its size. Attention to class and register tokens and to patches outside all regions is left out.

B images, L blocks, H heads, T tokens, C expressions, R regions, V views: the whole encoder, then every head of every
block, then the query of every expression.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from fer_vit.explain.pixels import no_autocast, region_means
from fer_vit.explain.trace import Trace


@torch.no_grad()
def relations(seen: Trace) -> Tensor:
    """How much each region (row) takes from each region (column) by attention rollout, heads averaged: (B, R, R).

    Rows sum to 1, rows of missing regions to 0. The diagonal includes the residual paths.
    """
    return _between(seen.membership, _rollout(seen))


def _rollout(seen: Trace) -> Tensor:
    """Attention through all blocks, heads averaged, half of every token by the residual paths: (B, T, T)."""
    flow = torch.eye(seen.membership.shape[-1], device=seen.membership.device).expand(len(seen.membership), -1, -1)
    with no_autocast(flow):
        for weights in seen.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return flow


@torch.no_grad()
def attention_to_output(seen: Trace) -> Tensor:
    """How much the output takes from each token by attention rollout, heads averaged: (B, T); 0 for prefix tokens."""
    flow = _rollout(seen)
    with no_autocast(flow):
        output = (seen.pooled.weights.float().mean((1, 2))[:, None] @ flow)[:, 0]
    output[:, : seen.layout.num_prefix] = 0.0
    return output


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


class Views(NamedTuple):
    """Attention to draw on a face.

    Attributes:
        relations: How much each region (row) takes from each (column) (B, V, R, R), see `relations`; 0 for queries.
        output: How much each region gives to what is classified (B, V, R), a mean over its tokens and the patches
            under it; sums to 1.
        patches: The same for every patch (B, V, rows, columns); over all patches and region tokens it sums to 1.
        distance: See `HeadRoles` (B, V); NaN for the whole encoder and queries.
    """

    relations: Tensor
    output: Tensor
    patches: Tensor
    distance: Tensor


@torch.no_grad()
def attention_views(seen: Trace) -> Views:
    """Returns attention through the whole encoder, by every head, and by the query of every expression."""
    roles, output = head_roles(seen), normalize(attention_to_output(seen), p=1, dim=-1)
    maps = torch.cat([output[:, None], roles.maps.flatten(1, 2), roles.expressions], 1)
    between = torch.cat([relations(seen)[:, None], roles.relations.flatten(1, 2)], 1)
    queries = roles.expressions.shape[1]
    regions = region_means(seen.membership, maps.mT).mT
    distance = pad(roles.distance.flatten(1), (1, queries), value=torch.nan)
    return Views(
        pad(between, (0, 0, 0, 0, 0, queries)), normalize(regions, p=1, dim=-1), seen.layout.patch_map(maps), distance
    )
