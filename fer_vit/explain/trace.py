"""Forward passes for explanations, recorded or with masked tokens; the place of tokens in the face; attention.

What a region takes from another is a mean over the other's tokens and the patches under it, so that a large region does
not win by its size. Attention to class and register tokens and to patches outside all regions is left out.

B images, H heads, T tokens, R regions, C classes, U units: sets of tokens that are masked together, N boxes, V views of
attention: the whole encoder, then every head of every block, then the query of every expression with pooling "query";
in a report, last, the interactions of regions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from fer_vit.errors import FerVitError
from fer_vit.model.attention import Pooled, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout, Tokens

STRONGEST = 6
"""Number of regions with the largest effects. Their interactions are measured, and each pair costs an encoder pass."""
NOTABLE = 0.25
"""Smallest interaction that is drawn, as a share of the largest effect of a region: smaller ones may have no cause."""


class Trace(NamedTuple):
    """One pass through the encoder and the classifier; gradients of the logits reach back to `tokens.x`."""

    image: Tensor  # face crops (B, 3, S, S), RGB in [0, 1]
    boxes: Tensor  # of regions (B, R, 4), xyxy in crop pixels; 0 for a missing region
    valid: Tensor  # which regions are present (B, R)
    tokens: Tokens
    attention: list[Tensor]  # weights (B, H, T, T) of every block, rows summing to 1
    pooled: Pooled
    logits: Tensor  # (B, C)
    where: Tensor  # the box that each token was cut from (B, T, 4); empty for class, register and missing tokens
    membership: Tensor  # in each region (B, R, T): 1 for its own tokens, the covered fraction for patches, else 0
    layout: TokenLayout


def trace(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor) -> Trace:
    """Classifies faces and records what explanations need. Raises FerVitError under `torch.inference_mode`."""
    if torch.is_inference_mode_enabled():
        raise FerVitError("Explanations need gradients: call this outside torch.inference_mode().")
    boxes = boxes.masked_fill(~valid[..., None], 0.0)
    recorder, attention = attention_recorder(net)
    with torch.no_grad():
        tokens = recorder.tokenize(image, boxes, valid)
    with torch.enable_grad():
        tokens = tokens._replace(x=tokens.x.requires_grad_())
        pooled = recorder.pool(recorder.forward_features(tokens))
        logits = recorder.classify(pooled.x)
    layout, side = net.layout, net.patch_size
    where = token_boxes(layout, side, tokens.centres, boxes)
    parts = membership(layout, side, boxes - net.patch_origin, valid)
    return Trace(image, boxes, valid, tokens, attention, pooled, logits, where, parts, layout)


def attention_recorder(net: RegionViT) -> tuple[RegionViT, list[Tensor]]:
    """Returns a network with the weights of `net`, in evaluation mode, that records its attention in a list.

    Each block adds its weights (B, H, T, T), rows summing to 1. `net` itself is not changed: other
    threads may use it at the same time.
    """
    recorded: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        inputs[0].requires_grad_()  # weights of a frozen network that do not depend on the tokens
        recorded.append(inputs[0])

    # The copy shares what is in the memo: all tensors.
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    recorder = deepcopy(net, shared).eval()
    recorder.drop_by_mask = True
    use_fused_attention(recorder.vit.blocks, fused=False)
    for block in recorder.vit.blocks:
        # timm's attention that is not fused passes the weights through this layer.
        block.attn.attn_drop.register_forward_hook(keep)
    return recorder, recorded


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and each of its modules back into its previous mode afterwards."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def masked_logits(net: RegionViT, tokens: Tokens, hidden: Tensor) -> Tensor:
    """Logits (B, C) without the tokens that are `hidden` (B, T); class and register tokens are never hidden."""
    valid = ~hidden if tokens.valid is None else tokens.valid & ~hidden
    valid[:, : net.layout.num_prefix] = True
    return net.forward_head(net.forward_features(tokens._replace(valid=valid))).float()


def drops(net: RegionViT, tokens: Tokens, units: Tensor, intact: Tensor | None = None) -> Tensor:
    """How much the logits of a model in evaluation mode fall when each unit (B, U, T) is masked alone: (B, U, C)."""
    if (
        intact is None
    ):  # not the logits of a trace: other kernels may have computed them, which matters in bfloat16
        intact = net.forward_head(net.forward_features(tokens)).float()
    falls = [intact - masked_logits(net, tokens, unit) for unit in units.unbind(1)]
    return torch.stack(falls, dim=1) if falls else intact.new_zeros(len(intact), 0, intact.shape[1])


def no_autocast(values: Tensor) -> torch.autocast:
    """Keeps products in float32; a caller's autocast would round them to bfloat16."""
    return torch.autocast(values.device.type, enabled=False)


def overlaps(boxes: Tensor, grid: tuple[int, ...], side: int) -> tuple[Tensor, Tensor]:
    """Fractions of the rows (B, N, rows) and columns (B, N, columns) of a grid of cells in each box (B, N, 4)."""

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, N), (B, N) -> (B, N, cells)
        start = torch.arange(cells, device=boxes.device) * side
        common = torch.minimum(high[..., None], start + side) - torch.maximum(low[..., None], start)
        return common.clamp(min=0) / side

    left, top, right, bottom = boxes.float().unbind(-1)
    return inside(top, bottom, grid[0]), inside(left, right, grid[1])


def token_boxes(layout: TokenLayout, patch_size: int, centres: Tensor, boxes: Tensor) -> Tensor:
    """Returns what tokens with their centres (B, T, 2) were cut from (B, T, 4), see `Trace`."""
    half = torch.zeros_like(centres)
    half[:, layout.patches] = patch_size / 2
    if layout.num_regions:
        sides = (boxes[..., 2:] - boxes[..., :2]) / layout.region_grid
        half[:, layout.regions] = (sides / 2).repeat_interleave(layout.tokens_per_region, 1)
    return torch.cat([centres - half, centres + half], -1)


def membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """Returns how much of every token belongs to each region (B, R, T), see `Trace`.

    The boxes (B, R, 4) are in crop pixels from the corner of the grid of patches.
    """
    found = torch.zeros(*valid.shape, layout.num_tokens, device=boxes.device)
    rows, columns = overlaps(boxes, layout.grid, patch_size)
    found[..., layout.patches] = (rows[..., None] * columns[..., None, :]).flatten(2)
    if layout.num_regions:
        own = torch.eye(layout.num_regions, device=boxes.device) * valid[..., None]  # (B, R, R)
        found[..., layout.regions] = own.repeat_interleave(layout.tokens_per_region, -1)
    return found


def units(layout: TokenLayout, membership: Tensor) -> Tensor:
    """Each region as a set of tokens (B, R, T): its own, and patches half covered, or else the most covered one."""
    chosen = membership > 0
    if layout.num_patches:
        covered = membership[..., layout.patches]
        chosen[..., layout.patches] &= covered >= covered.amax(-1, keepdim=True).clamp(max=0.5)
    return chosen


def region_means(membership: Tensor, values: Tensor) -> Tensor:
    """Mean (B, R, ...) of values (B, T, ...) over the tokens of each region; 0 for missing regions."""
    return torch.einsum("brt,bt...->br...", normalize(membership, p=1, dim=-1), values)


class Views(NamedTuple):
    """Attention to draw on a face.

    A head's relations are without earlier blocks or residual paths. The distance is from Dosovitskiy et al., "An Image
    is Worth 16x16 Words" (ICLR 2021), figure 7.
    """

    relations: Tensor  # how much each region (row) takes from each (B, V, R, R); rows sum to 1, or 0 if they take none
    output: Tensor  # how much each region gives to what is classified, as a mean over its tokens (B, V, R); sums to 1
    patches: Tensor  # the same for patches (B, V, rows, columns); with region tokens it sums to 1
    distance: Tensor  # how far tokens look on average, in crop pixels (B, V); NaN for all but heads


@torch.no_grad()
def attention_views(seen: Trace, *more: Tensor) -> Views:
    """Returns the views of attention, then a view for each of the relations `more` (B, R, R), whose rest is 0."""
    maps, distance = head_maps(seen)
    queries = seen.pooled.weights.float().mean(1)  # (B, 1 or C, T)
    queries = queries if queries.shape[1] > 1 else queries[:, :0]
    maps = pad(torch.cat([rollout(seen)[:, None], maps, queries], 1), (0, 0, 0, len(more)))
    maps = normalize(maps, p=1, dim=-1)  # (B, V, T)
    flows = [
        _all_blocks(seen),
        *(head for block in seen.attention for head in block.unbind(1)),
    ]  # (B, T, T) each
    between = [_between(seen.membership, flow) for flow in flows]
    between += [torch.zeros_like(between[0])] * queries.shape[1]
    output = normalize(region_means(seen.membership, maps.mT).mT, p=1, dim=-1)
    distance = pad(distance, (1, queries.shape[1] + len(more)), value=torch.nan)
    return Views(torch.stack([*between, *more], 1), output, seen.layout.patch_map(maps), distance)


@torch.no_grad()
def interactions(net: RegionViT, seen: Trace) -> Tensor:
    """How far the effects of two regions on the predicted logit depend on each other (B, R, R); all add up to 1, or 0.

    The change without both regions, less the changes without each of them, without its sign (Grabisch & Roubens, "An
    axiomatic approach to the concept of interaction among players in cooperative games", 1999). Only pairs of the
    `STRONGEST` regions are considered, and small values are 0 (see `NOTABLE`).
    """
    alone, faces, label = (
        units(seen.layout, seen.membership),
        torch.arange(len(seen.logits)),
        seen.logits.argmax(1),
    )
    found = seen.logits.new_zeros(*alone.shape[:2], alone.shape[1])
    with evaluating(net):
        intact = net.forward_head(net.forward_features(seen.tokens)).float()
        single = drops(net, seen.tokens, alone, intact)[faces, :, label]  # (B, R)
        strongest = (
            single.abs().topk(min(STRONGEST, single.shape[1])).indices.sort().values.unbind(1)
        )  # (B,) each
        for a, b in combinations(strongest, 2):
            both = intact - masked_logits(
                net, seen.tokens, alone[faces, a] | alone[faces, b]
            )  # (B, C)
            change = (both[faces, label] - single[faces, a] - single[faces, b]).abs()
            found[faces, a, b] = found[faces, b, a] = change * (
                change >= NOTABLE * single.abs().amax(1)
            )
    return normalize(found.flatten(1), p=1, dim=1).view_as(found)


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
def rollout(seen: Trace) -> Tensor:
    """How much the output takes from each token by attention rollout, heads averaged: (B, T); 0 for prefix tokens."""
    flow = _all_blocks(seen)
    with no_autocast(flow):
        output = (seen.pooled.weights.float().mean((1, 2))[:, None] @ flow)[:, 0]
    output[:, : seen.layout.num_prefix] = 0.0
    return output


def _all_blocks(seen: Trace) -> Tensor:
    """Attention through all blocks, heads averaged, half of every token by the residual paths: (B, T, T)."""
    flow = torch.eye(seen.membership.shape[-1], device=seen.membership.device).expand(
        len(seen.membership), -1, -1
    )
    with no_autocast(flow):
        for weights in seen.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return flow


def _between(membership: Tensor, flow: Tensor) -> Tensor:
    """From tokens (B, T, T) to regions (B, R, R), rows scaled to a sum of 1."""
    with no_autocast(membership):
        taken = region_means(membership, region_means(membership, flow.float()).mT).mT
    return normalize(taken, p=1, dim=-1)
