"""Forward passes for explanations: recorded, or with masked tokens; the tokens' places; attention.

What a region takes from another is a mean over the other's tokens and the patches under it, so that
a large region does not win by its size. Attention to class and register tokens and to patches
outside all regions is left out.

B images, H heads of a block, T tokens, R regions, C classes, O raw outputs: C logits and the
outputs of further heads such as `movements`; U units: sets of tokens that are masked together, N
boxes, L heads of all blocks, V views of attention: the whole encoder, then the L heads, then the
query of every expression with pooling "query".
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

# Regions with the largest effects, whose interactions are measured: each pair costs a pass.
MAX_INTERACTING = 6

# Smallest interaction that is drawn, as a share of the largest effect of a region: smaller ones may
# have no cause.
MIN_INTERACTION = 0.25


class Trace(NamedTuple):
    """One pass through the encoder and the classifier.

    Gradients of the logits reach back to `tokens.x`.
    """

    image: Tensor  # face crops (B, 3, S, S), RGB in [0, 1]
    boxes: Tensor  # of regions (B, R, 4), xyxy in crop pixels; 0 for a missing region
    valid: Tensor  # which regions are present (B, R)
    tokens: Tokens
    attention: list[Tensor]  # weights (B, H, T, T) of every block, rows summing to 1
    encoded: Tokens  # after the last block, which further heads read
    pooled: Pooled
    logits: Tensor  # (B, C)
    outputs: Tensor  # raw, of all heads (B, O); the first C are the logits
    # The box that each token was cut from (B, T, 4); empty for class, register and missing tokens.
    where: Tensor
    # How much of each token belongs to each region (B, R, T): 1 for its tokens, the covered
    # fraction for patches, else 0.
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
    """Returns the raw outputs of all heads (B, O) for encoded tokens, in float32; logits first."""
    return _join_outputs(net.forward_head(encoded), net, encoded)


def _join_outputs(logits: Tensor, net: RegionViT, encoded: Tokens) -> Tensor:
    further = [head(encoded).float() for head in net.heads.values()]
    return torch.cat([logits.float(), *further], 1)


def attention_recorder(net: RegionViT) -> tuple[RegionViT, list[Tensor]]:
    """Returns a network with the weights of `net` that records its attention in a list.

    Each block adds its weights (B, H, T, T), rows summing to 1. The network is in evaluation mode.
    `net` itself is not changed: other threads may use it at the same time.
    """
    recorded: list[Tensor] = []

    def record_weights(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        weights = inputs[0]
        weights.requires_grad_()  # in a frozen network they may not depend on the tokens
        recorded.append(weights)

    recorder = share_tensors(net).eval()
    recorder.drop_by_mask = True
    use_fused_attention(recorder.vit.blocks, fused=False)
    for block in recorder.vit.blocks:
        # timm's attention that is not fused passes the weights through this layer.
        block.attn.attn_drop.register_forward_hook(record_weights)
    return recorder, recorded


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and restores the mode of each of its modules."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def masked_outputs(net: RegionViT, tokens: Tokens, hidden: Tensor) -> Tensor:
    """Returns the raw outputs (B, O) without the tokens that are `hidden` (B, T).

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
    """Returns how far the raw outputs fall when a unit (B, U, T) is masked, by unit: (B, U, O).

    The model is in evaluation mode. `intact` are its outputs (B, O) with all tokens; None: they are
    computed.
    """
    if intact is None:
        # Not the outputs of a trace: other kernels may have computed them; this matters in
        # bfloat16.
        intact = raw_outputs(net, net.encode(tokens))
    decreases = intact.new_zeros(len(intact), units.shape[1], intact.shape[1])  # (B, U, O)
    for index, unit in enumerate(units.unbind(1)):
        decreases[:, index] = intact - masked_outputs(net, tokens, unit)
    # The logit of an impossible class is -inf with and without the unit.
    impossible = intact.isneginf()[:, None]  # (B, 1, O)
    return decreases.masked_fill(impossible, 0.0)


def no_autocast(values: Tensor) -> torch.autocast:
    """Keeps products in float32 on the device of `values`, a tensor of any shape.

    A caller's autocast would round them to bfloat16.
    """
    return torch.autocast(values.device.type, enabled=False)


def overlaps(boxes: Tensor, grid: tuple[int, ...], side: int) -> tuple[Tensor, Tensor]:
    """Returns which fractions of the rows and columns of a grid lie in each box (B, N, 4).

    Boxes are xyxy in pixels from the corner of the grid. The grid has (rows, columns) cells with
    sides of `side` pixels; the result is (B, N, rows) and (B, N, columns).
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
    """Returns the boxes (B, T, 4) that tokens were cut from, as in `Trace.where`.

    Centres (B, T, 2) are of the tokens, and boxes (B, R, 4) of the regions, in crop pixels.
    """
    half = torch.zeros_like(centres)
    half[:, layout.patches] = patch_size / 2
    if layout.num_regions:
        sides = (boxes[..., 2:] - boxes[..., :2]) / layout.region_grid
        half[:, layout.regions] = (sides / 2).repeat_interleave(layout.tokens_per_region, 1)
    return torch.cat([centres - half, centres + half], -1)


def token_membership(layout: TokenLayout, patch_size: int, boxes: Tensor, valid: Tensor) -> Tensor:
    """Returns how much of every token belongs to each region (B, R, T), as in `Trace.membership`.

    Boxes (B, R, 4) of the regions are in crop pixels from the corner of the grid of patches.
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
    """Returns each region as a set of tokens (B, R, T).

    A region has its region tokens, and the patches of which it covers half or more; without such a
    patch, the patch that it covers most.
    """
    chosen = membership > 0
    if layout.num_patches:
        covered = membership[..., layout.patches]
        chosen[..., layout.patches] &= covered >= covered.amax(-1, keepdim=True).clamp(max=0.5)
    return chosen


def region_means(membership: Tensor, values: Tensor) -> Tensor:
    """Returns the means (B, R, ...) of values (B, T, ...) over the tokens of each region.

    Missing regions have 0.
    """
    weights = normalize(membership, p=1, dim=-1)  # (B, R, T)
    return torch.einsum("brt,bt...->br...", weights, values)


class Views(NamedTuple):
    """Attention to draw on a face.

    A head's relations are without earlier blocks or residual paths. The distance is from
    Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), figure 7.
    """

    # How much each region (row) takes from each region (column) (B, V, R, R); rows sum to 1, or to
    # 0 for a region that takes nothing.
    relations: Tensor
    # How much each region gives to what is classified, as a mean over its tokens (B, V, R); sums
    # to 1.
    output: Tensor
    # The same for patches (B, V, rows, columns); with region tokens it sums to 1.
    patches: Tensor
    # How far the tokens of each head look on average, in crop pixels (B, L).
    distance: Tensor


@torch.no_grad()
def attention_views(traced: Trace) -> Views:
    """Returns the views of attention, see `Views`."""
    # Where each view looks: the encoder, the heads, the queries if there are several.
    heads, distance = head_maps(traced)  # (B, L, T), (B, L)
    queries = traced.pooled.weights.float().mean(1)  # (B, 1 or C, T)
    if queries.shape[1] == 1:
        queries = queries[:, :0]
    maps = torch.cat([rollout(traced)[:, None], heads, queries], 1)  # (B, V, T)

    # What regions take from each other: queries have no such relations.
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
    """How far the effects of two regions on the predicted logit depend on each other (B, R, R).

    In logits: the fall of the logit without both regions, less the falls without each of them. This
    is the negative interaction of Grabisch & Roubens ("An axiomatic approach to the concept of
    interaction among players in cooperative games", 1999).

    Only pairs of the `MAX_INTERACTING` regions with the largest effects are measured; others, and
    small values (see `MIN_INTERACTION`), are 0.
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
    """Returns where the classified tokens look through every head, and how far each head looks.

    The first is (B, L, T), the second, in crop pixels, (B, L).
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

        # A token that no other attends to is missing, or dropped by hard attention: it does not
        # attend either.
        present = located.sum((1, 2)) > 0  # (B, T)
        mean_distances = (normalize(located, p=1, dim=-1) * distances).sum(-1)  # (B, H, T)
        num_present = present.sum(-1).clamp(min=1)[:, None]  # (B, 1)
        means.append((mean_distances * present[:, None]).sum(-1) / num_present)
    return torch.cat(maps, 1), torch.cat(means, 1)


@torch.no_grad()
def rollout(traced: Trace) -> Tensor:
    """How much the output takes from each token by attention rollout (B, T).

    Heads are averaged; prefix tokens have 0.
    """
    flow = _all_blocks(traced)  # (B, T, T)
    classified = traced.pooled.weights.float().mean((1, 2))[:, None]  # (B, 1, T)
    with no_autocast(flow):
        output = (classified @ flow)[:, 0]
    output[:, : traced.layout.num_prefix] = 0.0
    return output


def _all_blocks(traced: Trace) -> Tensor:
    """Attention through all blocks (B, T, T).

    Heads are averaged, and half of every token takes the residual paths.
    """
    batch, _, tokens = traced.membership.shape
    flow = torch.eye(tokens, device=traced.membership.device).expand(batch, -1, -1)
    with no_autocast(flow):
        for weights in traced.attention:
            flow = (weights.float().mean(1) @ flow + flow) / 2
    return flow


def _between_regions(membership: Tensor, flow: Tensor) -> Tensor:
    """From tokens (B, T, T) to regions (B, R, R), rows scaled to a sum of 1."""
    with no_autocast(membership):
        received = region_means(membership, region_means(membership, flow.float()).mT).mT
    return normalize(received, p=1, dim=-1)
