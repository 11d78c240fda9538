"""What the single attention heads do: where each one looks, and how far.

B images, L blocks, H heads, T tokens, C expressions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fer_vit.explain.attention import record_attention
from fer_vit.model.region_vit import RegionViT


class HeadRoles(NamedTuple):
    """The jobs of the heads; attention to class and register tokens, which lie nowhere, is left out.

    Attributes:
        maps: Where the tokens that are classified look (B, L, H, T); patches and regions of a face together have 1.
        distance: How far patch and region tokens look on average (B, L, H), in crop pixels: Dosovitskiy et al., "An
            Image is Worth 16x16 Words" (ICLR 2021), figure 7.
        expressions: Where the query of each expression looks (B, C, T), mean over the decoder's heads; C is 0 for
            other heads than "query".
    """

    maps: Tensor
    distance: Tensor
    expressions: Tensor


@torch.inference_mode()
def head_roles(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor) -> HeadRoles:
    """Looks at every head.

    Args:
        net: The model, in evaluation mode.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are there (B, R).
    """
    tokens = net.tokenize(image, boxes, valid)
    with record_attention(net) as attention:
        encoded = net.forward_features(tokens)
    pool = net.pool(encoded).weights.mean(1).float()  # (B, 1 or C, T)
    looking = pool.mean(1)[:, None, None]  # (B, 1, 1, T)
    apart = torch.cdist(tokens.centres.float(), tokens.centres.float())[:, None]  # (B, 1, T, T), in pixels
    maps, distance = [], []
    for weights in attention:
        places = weights.float().clone()  # (B, H, T, T)
        places[..., : net.layout.num_prefix] = 0.0
        maps.append(_shares(looking @ places)[:, :, 0])
        # A token that nobody looks at is missing, or hard attention took it out: it does not look either.
        there = places.sum((1, 2)) > 0  # (B, T)
        far = (_shares(places) * apart).sum(-1)  # (B, H, T)
        distance.append((far * there[:, None]).sum(-1) / there.sum(-1).clamp(min=1)[:, None])
    expressions = _shares(pool) if net.config.head == "query" else pool[:, :0]
    return HeadRoles(torch.stack(maps, 1), torch.stack(distance, 1), expressions)


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
