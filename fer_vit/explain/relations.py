"""Which regions look at which: attention between the regions of a face.

B images, T tokens, R regions.
"""

import torch
from torch import Tensor

from fer_vit.explain.ablation import coverage
from fer_vit.explain.attention import record_attention
from fer_vit.explain.explain import evaluating
from fer_vit.model.region_vit import RegionViT


@torch.no_grad()
def relations(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
    """Follows attention from region to region, through all blocks, heads averaged (attention rollout).

    A region is its own tokens, where the model has them, and the patches as far as it covers them; what it takes from
    another is a mean over the other's tokens, so that a large region does not win by its size. What flows to class and
    register tokens or to patches outside all regions is left out.

    Args:
        net: The model; it is left as it is found.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are there (B, R).

    Returns:
        How much each region (row) takes from each region (column), (B, R, R); rows sum to 1, those of missing regions
        to 0. The diagonal is what a region has of itself, by the residual paths too.
    """
    layout = net.layout
    boxes = boxes.masked_fill(~valid[..., None], 0.0)
    with evaluating(net), record_attention(net) as attention:
        tokens = net.tokenize(image, boxes, valid)
        net.forward_features(tokens)
    parts = boxes.new_zeros(*valid.shape, layout.num_tokens)  # (B, R, T): how much of each token is in each region
    parts[..., layout.patches] = coverage(layout, net.patch_size, boxes)
    if layout.num_regions:
        own = torch.eye(layout.num_regions, device=boxes.device)
        parts[..., layout.regions] = (own * valid[..., None]).repeat_interleave(layout.tokens_per_region, -1)

    flow = torch.eye(layout.num_tokens, device=boxes.device).expand(len(parts), -1, -1)
    for weights in attention:
        flow = (weights.float().mean(1) @ flow + flow) / 2
    parts = parts / parts.sum(-1, keepdim=True).clamp(min=1e-12)
    taken = parts @ flow @ parts.mT
    return taken / taken.sum(-1, keepdim=True).clamp(min=1e-12)
