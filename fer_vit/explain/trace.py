"""Forward passes for explanations, recorded or with masked tokens; places of tokens; attention.

The attention from region A to region B is a mean over B's tokens and the patches under B, so that
large regions have no advantage. Attention to class tokens, to register tokens and to patches
outside of all regions is left out.

B images, H attention heads of a block, T tokens, R regions, C classes, O raw outputs: C logits and
the outputs of further heads such as `movements`; U units: sets of tokens that are masked together;
N boxes, L attention heads of all blocks, V views of attention: the whole encoder, then the L
attention heads, then, with pooling "query", the query of each expression.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fer_vit.errors import FerVitError
from fer_vit.model.attention import Pooled, use_fused_attention
from fer_vit.model.region_vit import RegionViT, share_tensors
from fer_vit.model.tokens import TokenLayout, Tokens

# How many regions, with the largest effects, have interactions measured: each pair of regions takes
# a forward pass.
MAX_INTERACTING = 6

# Smallest interaction that is drawn, as a share of the largest effect of a region. Smaller
# interactions may be noise.
MIN_INTERACTION = 0.25


class Trace(NamedTuple):
    """One pass through the encoder and the classifier.

    Gradients of the logits reach back to `tokens.x`.
    """

    image: Tensor  # (B, 3, S, S), the face crops, RGB in [0, 1]
    boxes: Tensor  # (B, R, 4), boxes of the regions, xyxy in crop pixels; 0 for a missing region
    valid: Tensor  # (B, R), which regions are present
    tokens: Tokens
    attention: list[Tensor]  # (B, H, T, T) for each block, the attention weights; rows sum to 1
    encoded: Tokens  # the tokens after the last block, the input of further heads
    pooled: Pooled
    logits: Tensor  # (B, C)
    outputs: Tensor  # (B, O), the raw outputs of all heads; the first C are the logits
    # (B, T, 4), the box from which each token was cut, xyxy in crop pixels; the box is empty for
    # class, register and missing tokens
    where: Tensor
    # (B, R, T), how much of each token belongs to each region: 1 for the region's tokens, the
    # covered fraction for patches, 0 for all other tokens
    membership: Tensor
    layout: TokenLayout


def trace(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor) -> Trace:
    """Classifies faces and records what explanations need; arguments as for `RegionViT.forward`.

    Raises FerVitError under `torch.inference_mode`.
    """
    if torch.is_inference_mode_enabled():
        raise FerVitError("Explanations need gradients: call this outside torch.inference_mode().")
    boxes = boxes.masked_fill(~valid[..., None], 0.0)

    # Blocks add their weights to `attention` during the pass.
    recorder, attention = attention_recorder(net)
    with torch.no_grad():
        tokens = recorder.tokenize(image, boxes, valid)
    with torch.enable_grad():
        tokens = tokens._replace(x=tokens.x.requires_grad_())
        encoded = recorder.encode(tokens)
        pooled = recorder.pool(encoded)
        logits = recorder.classify(pooled.x)
        outputs = _join_outputs(logits, recorder, encoded)

    return Trace(
        image=image,
        boxes=boxes,
        valid=valid,
        tokens=tokens,
        attention=attention,
        encoded=encoded,
        pooled=pooled,
        logits=logits,
        outputs=outputs,
        where=token_boxes(net.layout, net.patch_size, tokens.centres, boxes),
        membership=token_membership(net.layout, net.patch_size, boxes - net.patch_origin, valid),
        layout=net.layout,
    )


def raw_outputs(net: RegionViT, encoded: Tokens) -> Tensor:
    """Returns the raw outputs (B, O) of all heads for encoded tokens, in float32; logits first."""
    return _join_outputs(net.forward_head(encoded), net, encoded)


def _join_outputs(logits: Tensor, net: RegionViT, encoded: Tokens) -> Tensor:
    further = [head(encoded).float() for head in net.heads.values()]
    return torch.cat([logits.float(), *further], 1)


def attention_recorder(net: RegionViT) -> tuple[RegionViT, list[Tensor]]:
    """Returns a network with the weights of `net`, and a list in which it records its attention.

    In a forward pass, each block appends its attention weights (B, H, T, T); rows sum to 1. The
    returned network is in evaluation mode. `net` is not changed: other threads may use it at the
    same time.
    """
    recorded: list[Tensor] = []

    def record_weights(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        weights = inputs[0]
        weights.requires_grad_()  # in a frozen network, the weights may not depend on the tokens
        recorded.append(weights)

    recorder = share_tensors(net).eval()
    recorder.drop_by_mask = True
    use_fused_attention(recorder.vit.blocks, fused=False)
    for block in recorder.vit.blocks:
        # without fused attention, timm passes the weights through this layer
        block.attn.attn_drop.register_forward_hook(record_weights)
    return recorder, recorded


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and restores the mode of each module afterwards."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def masked_outputs(net: RegionViT, tokens: Tokens, hidden: Tensor) -> Tensor:
    """Returns the raw outputs (B, O) when the tokens `hidden` (B, T) are masked.

    Class and register tokens are never hidden.
    """
    valid = ~hidden
    if tokens.valid is not None:
        valid = tokens.valid & valid
    valid[:, : net.layout.num_prefix] = True
    return raw_outputs(net, net.encode(tokens._replace(valid=valid)))


def output_decreases(
    net: RegionViT, tokens: Tokens, units: Tensor, intact: Tensor | None = None
) -> Tensor:
    """Returns how far the raw outputs fall (B, U, O) when each of the units (B, U, T) is masked.

    The model must be in evaluation mode. `intact` holds the outputs (B, O) with all tokens; None:
    the outputs are computed.
    """
    if intact is None:
        # Computed again, since the outputs of a trace may be from other kernels, which round
        # differently. In bfloat16, the difference matters.
        intact = raw_outputs(net, net.encode(tokens))
    decreases = intact.new_zeros(len(intact), units.shape[1], intact.shape[1])  # (B, U, O)
    for index, unit in enumerate(units.unbind(1)):
        decreases[:, index] = intact - masked_outputs(net, tokens, unit)
    # The logit of an impossible class is -inf with and without the unit.
    impossible = intact.isneginf()[:, None]  # (B, 1, O)
    return decreases.masked_fill(impossible, 0.0)


def no_autocast(values: Tensor) -> torch.autocast:
    """Returns a context in which products on the device of `values` stay in float32.

    Without it, the autocast of a caller would round products to bfloat16.
    """
    return torch.autocast(values.device.type, enabled=False)


def overlaps(boxes: Tensor, grid: tuple[int, ...], side: int) -> tuple[Tensor, Tensor]:
    """Returns which fraction of each row and of each column of a grid lies in each box.

    Boxes (B, N, 4) are xyxy in pixels from the corner of the grid. The grid has (rows, columns)
    cells with sides of `side` pixels. Returns (B, N, rows) and (B, N, columns).
    """

    def inside(low: Tensor, high: Tensor, cells: int) -> Tensor:  # (B, N), (B, N) -> (B, N, cells)
        start = torch.arange(cells, device=boxes.device) * side
        stop = start + side
        common = torch.minimum(high[..., None], stop) - torch.maximum(low[..., None], start)
        return common.clamp(min=0) / side

    left, top, right, bottom = boxes.float().unbind(-1)
    rows = inside(top, bottom, grid[0])
    columns = inside(left, right, grid[1])
    return rows, columns


def token_boxes(layout: TokenLayout, patch_size: int, centres: Tensor, boxes: Tensor) -> Tensor:
    """Returns the box (B, T, 4) from which each token was cut, as in `Trace.where`.

    `centres` (B, T, 2) are the centres of the tokens, and `boxes` (B, R, 4) the boxes of the
    regions, in crop pixels.
    """
    half = torch.zeros_like(centres)
    half[:, layout.patches] = patch_size / 2
    if layout.num_regions:
        sides = (boxes[..., 2:] - boxes[..., :2]) / layout.region_grid
        half[:, layout.regions] = (sides / 2).repeat_interleave(layout.tokens_per_region, 1)
    return torch.cat([centres - half, centres + half], -1)


def token_membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """Returns how much of each token belongs to each region (B, R, T), as in `Trace.membership`.

    Boxes (B, R, 4) of the regions are xyxy in pixels from the corner of the grid of patches.
    """
    batch, regions = valid.shape
    membership = torch.zeros(batch, regions, layout.num_tokens, device=boxes.device)  # (B, R, T)
    rows, columns = overlaps(boxes, layout.grid, patch_size)
    membership[..., layout.patches] = (rows[..., None] * columns[..., None, :]).flatten(2)
    if layout.num_regions:
        diagonal = torch.eye(layout.num_regions, device=boxes.device)
        present = diagonal * valid[..., None]  # (B, R, R)
        membership[..., layout.regions] = present.repeat_interleave(layout.tokens_per_region, -1)
    return membership


def region_units(layout: TokenLayout, membership: Tensor) -> Tensor:
    """Returns a mask (B, R, T) of the tokens of each region.

    A region has its region tokens, and each patch that it covers by half or more. If there is no
    such patch, the region has the patch that it covers most.
    """
    chosen = membership > 0
    if layout.num_patches:
        covered = membership[..., layout.patches]
        chosen[..., layout.patches] &= covered >= covered.amax(-1, keepdim=True).clamp(max=0.5)
    return chosen


def region_means(membership: Tensor, values: Tensor) -> Tensor:
    """Returns the mean (B, R, ...) of values (B, T, ...) over the tokens of each region.

    The mean of a missing region is 0.
    """
    weights = normalize(membership, p=1, dim=-1)  # (B, R, T)
    return torch.einsum("brt,bt...->br...", weights, values)


class Views(NamedTuple):
    """Attention to draw on a face.

    Attributes:
        relations: How much each region (row) takes from each region (column), (B, V, R, R). Rows
            sum to 1, or to 0 for a region that takes nothing. The relations of an attention head
            leave out earlier blocks and residual paths.
        output: How much each region gives to the classified vectors (B, V, R), as a mean over the
            region's tokens; sums to 1.
        patches: How much each patch gives to the classified vectors (B, V, rows, columns); sums to
            1 together with the region tokens.
        distance: The mean distance (B, L) over which each attention head attends, in crop pixels
            (Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, figure 7).
    """

    relations: Tensor
    output: Tensor
    patches: Tensor
    distance: Tensor


@torch.no_grad()
def attention_views(traced: Trace) -> Views:
    """Returns the views of attention of traced faces."""
    # the tokens that each view attends to: the encoder, the attention heads, and queries if there
    # are several
    heads, distance = head_maps(traced)  # (B, L, T), (B, L)
    queries = traced.pooled.weights.float().mean(1)  # (B, 1 or C, T)
    if queries.shape[1] == 1:
        queries = queries[:, :0]
    maps = torch.cat([rollout(traced)[:, None], heads, queries], 1)  # (B, V, T)

    # what regions take from each other; queries have no such relations
    relations = [_between_regions(traced.membership, _all_blocks(traced))]  # (B, R, R) each
    for block in traced.attention:
        for head in block.unbind(1):
            relations.append(_between_regions(traced.membership, head))
    for _ in range(queries.shape[1]):
        relations.append(torch.zeros_like(relations[0]))

    maps = normalize(maps, p=1, dim=-1)  # (B, V, T)
    output = normalize(region_means(traced.membership, maps.mT).mT, p=1, dim=-1)  # (B, V, R)
    patches = traced.layout.patch_map(maps)  # (B, V, rows, columns)
    return Views(torch.stack(relations, 1), output, patches, distance)


@torch.no_grad()
def interactions(net: RegionViT, traced: Trace) -> Tensor:
    """Returns how far the effects of two regions on the predicted logit interact (B, R, R).

    An interaction is the fall of the logit without both regions, minus the falls without each of
    the regions. This is the negative interaction of Grabisch & Roubens ("An axiomatic approach to
    the concept of interaction among players in cooperative games", 1999).

    Only pairs of the `MAX_INTERACTING` regions with the largest effects are measured. All other
    interactions, and small ones (see `MIN_INTERACTION`), are 0.
    """
    alone = region_units(traced.layout, traced.membership)  # (B, R, T)
    batch, regions, _ = alone.shape
    faces = torch.arange(batch)
    label = traced.logits.argmax(1)  # (B,)
    result = traced.logits.new_zeros(batch, regions, regions)
    with evaluating(net):
        intact = raw_outputs(net, net.encode(traced.tokens))  # (B, O)
        single = output_decreases(net, traced.tokens, alone, intact)[faces, :, label]  # (B, R)
        strongest = single.abs().topk(min(MAX_INTERACTING, regions)).indices.sort().values
        for a, b in combinations(strongest.unbind(1), 2):  # (B,) each, indices of regions
            either = alone[faces, a] | alone[faces, b]  # (B, T)
            without_both = masked_outputs(net, traced.tokens, either)  # (B, O)
            both = (intact - without_both)[faces, label]  # (B,)
            change = both - single[faces, a] - single[faces, b]
            notable = change.abs() >= MIN_INTERACTION * single.abs().amax(1)
            change = change * notable
            result[faces, a, b] = change
            result[faces, b, a] = change
    return result


@torch.no_grad()
def head_maps(traced: Trace) -> tuple[Tensor, Tensor]:
    """Returns the attention of the classified vectors through each attention head (B, L, T).

    Also returns the mean distance (B, L) over which each attention head attends, in crop pixels.
    """
    classified = traced.pooled.weights.float().mean((1, 2))[:, None, None]  # (B, 1, 1, T)
    centres = traced.tokens.centres.float()  # (B, T, 2)
    distances = torch.cdist(centres, centres)[:, None]  # (B, 1, T, T), in pixels
    maps = []
    means = []
    for weights in traced.attention:
        located = weights.float().clone()  # (B, H, T, T)
        located[..., : traced.layout.num_prefix] = 0.0
        with no_autocast(located):
            looks = (classified @ located)[:, :, 0]  # (B, H, T)
        maps.append(looks)

        # A token that gets no attention is missing, or dropped by hard attention. Such a token does
        # not attend to other tokens, and does not count for the distance.
        present = located.sum((1, 2)) > 0  # (B, T)
        mean_distances = (normalize(located, p=1, dim=-1) * distances).sum(-1)  # (B, H, T)
        num_present = present.sum(-1).clamp(min=1)[:, None]  # (B, 1)
        means.append((mean_distances * present[:, None]).sum(-1) / num_present)
    return torch.cat(maps, 1), torch.cat(means, 1)


@torch.no_grad()
def rollout(traced: Trace) -> Tensor:
    """Returns how much the output takes from each token (B, T), by attention rollout.

    Attention heads are averaged; prefix tokens get 0.
    """
    flow = _all_blocks(traced)  # (B, T, T)
    classified = traced.pooled.weights.float().mean((1, 2))[:, None]  # (B, 1, T)
    with no_autocast(flow):
        output = (classified @ flow)[:, 0]
    output[:, : traced.layout.num_prefix] = 0.0
    return output


def _all_blocks(traced: Trace) -> Tensor:
    """Returns the attention (B, T, T) through all blocks.

    Attention heads are averaged; the residual path of a block counts as much as the attention.
    """
    batch, _, tokens = traced.membership.shape
    flow = torch.eye(tokens, device=traced.membership.device).expand(batch, -1, -1)
    with no_autocast(flow):
        for weights in traced.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return flow


def _between_regions(membership: Tensor, flow: Tensor) -> Tensor:
    """Averages attention between tokens (B, T, T) to regions (B, R, R); rows sum to 1."""
    with no_autocast(membership):
        received = region_means(membership, region_means(membership, flow.float()).mT).mT
    return normalize(received, p=1, dim=-1)
