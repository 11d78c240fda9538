"""What each attention head does: where it looks, and how far.

B images, L blocks, H heads, T tokens, C expressions, R regions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fer_vit.explain.attention import no_autocast
from fer_vit.explain.relations import head_relations
from fer_vit.explain.trace import Trace


class HeadRoles(NamedTuple):
    """What the heads do; attention to class and register tokens, which lie nowhere in the face, is left out.

    Attributes:
        maps: Where the tokens that are classified look (B, L, H, T); patches and regions of a face together have 1.
        distance: How far patch and region tokens look on average (B, L, H), in crop pixels: Dosovitskiy et al., "An
            Image is Worth 16x16 Words" (ICLR 2021), figure 7.
        expressions: Where the query of each expression looks (B, C, T), mean over the decoder's heads; C is 0 for
            classifiers other than "query".
        relations: How much each region takes from each one through a head (B, L, H, R, R), see `head_relations`.
    """

    maps: Tensor
    distance: Tensor
    expressions: Tensor
    relations: Tensor


@torch.no_grad()
def head_roles(seen: Trace) -> HeadRoles:
    """Looks at every head."""
    pool = seen.pooled.weights.mean(1).float()  # (B, 1 or C, T)
    looking = pool.mean(1)[:, None, None]  # (B, 1, 1, T)
    apart = torch.cdist(seen.tokens.centres.float(), seen.tokens.centres.float())[:, None]  # (B, 1, T, T), in pixels
    maps, distance = [], []
    for weights in seen.attention:
        located = weights.float().clone()  # (B, H, T, T)
        located[..., : seen.layout.num_prefix] = 0.0
        with no_autocast(located):
            maps.append(_shares(looking @ located)[:, :, 0])
        # A token that nobody looks at is missing, or hard attention took it out: it does not look either.
        there = located.sum((1, 2)) > 0  # (B, T)
        far = (_shares(located) * apart).sum(-1)  # (B, H, T)
        distance.append((far * there[:, None]).sum(-1) / there.sum(-1).clamp(min=1)[:, None])
    expressions = _shares(pool) if pool.shape[1] > 1 else pool[:, :0]
    return HeadRoles(torch.stack(maps, 1), torch.stack(distance, 1), expressions, head_relations(seen))


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
