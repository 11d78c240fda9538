"""How well the terms of an additive head predict what hiding a region at the input changes.

Tokens have exchanged information before the head reads them, so the two need not agree.

B faces, R regions, K outputs of a head.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fer_vit.explain.methods import blur
from fer_vit.geometry import Array
from fer_vit.model.region_vit import RegionViT


class Effects(NamedTuple):
    """The terms of regions, and how much the raw outputs fall when each region is hidden.

    (B, R, K) each.
    """

    terms: Tensor
    masked: Tensor  # the token of the region is left out
    blurred: Tensor  # its pixels are blurred, for patches as well


@torch.inference_mode()
def region_effects(
    net: RegionViT, head: str, image: Tensor, boxes: Tensor, valid: Tensor
) -> Effects:
    """Returns the terms and effects of all regions of faces; arguments as for `RegionViT`.

    Missing regions have 0.
    """
    layer: Any = net.heads[head]
    tokens = net.encode(net.tokenize(image, boxes, valid))
    terms = layer.terms(tokens).regions  # (B, R, K)
    whole = layer(tokens)  # (B, K)
    hidden = blur(image)

    masked = []
    blurred = []
    for region in range(boxes.shape[1]):
        fewer = valid.clone()
        fewer[:, region] = False
        seen = torch.where(inside(boxes[:, region], image.shape[-1]), hidden, image)
        without = layer(net.encode(net.tokenize(image, boxes, fewer)))
        covered = layer(net.encode(net.tokenize(seen, boxes, valid)))
        masked.append(whole - without)
        blurred.append(whole - covered)
    present = valid[..., None]
    return Effects(
        terms * present, torch.stack(masked, 1) * present, torch.stack(blurred, 1) * present
    )


def inside(boxes: Tensor, size: int) -> Tensor:
    """Returns which pixels (B, 1, S, S) have their centre in a box (B, 4) of each face."""
    centres = torch.arange(size, device=boxes.device) + 0.5
    left, top, right, bottom = boxes[:, :, None].unbind(1)  # (B, 1) each
    across = (centres >= left) & (centres < right)  # (B, S)
    down = (centres >= top) & (centres < bottom)
    return (down[:, :, None] & across[:, None, :])[:, None]


class Agreement(NamedTuple):
    """How well terms predict effects, means over faces (K,)."""

    rank: Array  # Spearman's correlation over the regions of a face
    first: Array  # how often the region with the largest term has the largest effect


def agreement(terms: Array, effects: Array) -> Agreement:
    """Compares terms with effects (B, R, K), both signed."""
    order = terms.argsort(1).argsort(1).astype(float)
    other = effects.argsort(1).argsort(1).astype(float)
    order -= order.mean(1, keepdims=True)
    other -= other.mean(1, keepdims=True)
    norm = np.sqrt((order**2).sum(1) * (other**2).sum(1))  # (B, K), above 0 for two regions or more
    rank = (order * other).sum(1) / norm
    first = np.abs(terms).argmax(1) == np.abs(effects).argmax(1)
    return Agreement(rank.mean(0), first.mean(0))
