"""Compares the terms of an additive head with the effects of hiding regions at the input.

Tokens exchange information in the encoder, so terms and effects may differ.

B faces, R regions, K outputs of a head.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from fer_vit.explain.attribution import blur, inside
from fer_vit.geometry import Array
from fer_vit.model.region_vit import RegionViT


class Effects(NamedTuple):
    """The terms of regions, and how far the raw outputs fall when a region is hidden."""

    terms: Tensor  # (B, R, K), the term of each region
    masked: Tensor  # (B, R, K), the fall when the tokens of the region are left out
    blurred: Tensor  # (B, R, K), the fall when the pixels of the region are blurred


# The field of `Effects` for each way to hide a region, in words.
HIDING = {"token left out": "masked", "pixels blurred": "blurred"}


@torch.inference_mode()
def region_effects(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor
) -> dict[str, Effects]:
    """Returns the terms and effects of regions by further head; arguments as for `RegionViT`.

    Missing regions get 0.
    """
    heads: Mapping[str, Any] = dict(net.heads.items())
    tokens = net.encode(net.tokenize(image, boxes, valid))
    intact = {head: layer(tokens) for head, layer in heads.items()}  # (B, K) each
    blurred_image = blur(image)

    masked: dict[str, list[Tensor]] = {head: [] for head in heads}
    blurred: dict[str, list[Tensor]] = {head: [] for head in heads}
    for region in range(boxes.shape[1]):
        other_regions = valid.clone()  # (B, R)
        other_regions[:, region] = False
        in_region = inside(boxes[:, [region]], image.shape[-1])  # (B, 1, S, S)
        partly_blurred = torch.where(in_region, blurred_image, image)
        masked_tokens = net.encode(net.tokenize(image, boxes, other_regions))
        blurred_tokens = net.encode(net.tokenize(partly_blurred, boxes, valid))
        for head, layer in heads.items():
            masked[head].append(intact[head] - layer(masked_tokens))  # (B, K)
            blurred[head].append(intact[head] - layer(blurred_tokens))

    present = valid[..., None]  # (B, R, 1)
    effects = {}
    for head, layer in heads.items():
        effects[head] = Effects(
            terms=layer.terms(tokens).regions * present,
            masked=torch.stack(masked[head], 1) * present,
            blurred=torch.stack(blurred[head], 1) * present,
        )
    return effects


class Agreement(NamedTuple):
    """How well terms predict effects, for each face and output.

    Both values are NaN where the terms of all regions are equal, or the effects of all regions.
    """

    correlation: Array  # (B, K), Spearman's rank correlation over the regions of a face
    # (B, K), 1 if the same region has the largest absolute term and effect, otherwise 0
    first: Array


def agreement(terms: Array, effects: Array) -> Agreement:
    """Compares signed terms (B, R, K) with signed effects (B, R, K), for two regions or more."""
    # Spearman: Pearson's correlation of the ranks (B, R, K)
    term_ranks = rankdata(terms, axis=1)
    effect_ranks = rankdata(effects, axis=1)
    term_ranks -= term_ranks.mean(1, keepdims=True)
    effect_ranks -= effect_ranks.mean(1, keepdims=True)
    norm = np.sqrt((term_ranks**2).sum(1) * (effect_ranks**2).sum(1))  # (B, K)
    unknown = np.full(norm.shape, np.nan)
    correlation = np.divide((term_ranks * effect_ranks).sum(1), norm, out=unknown, where=norm > 0)

    # whether the largest term and the largest effect are of the same region
    term_size = np.abs(terms)
    effect_size = np.abs(effects)
    first = (term_size.argmax(1) == effect_size.argmax(1)).astype(float)
    all_equal = (np.ptp(term_size, axis=1) == 0) | (np.ptp(effect_size, axis=1) == 0)
    first[all_equal] = np.nan
    return Agreement(correlation, first)
