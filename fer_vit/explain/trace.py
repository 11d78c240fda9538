"""Forward passes for explanations, recorded or with masked tokens, and the place of tokens in the face.

B images, H heads, T tokens, R regions, C classes, U units: sets of tokens that are masked together, N boxes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fer_vit.errors import FerVitError
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.pooling import Pooled
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout, Tokens


class Trace(NamedTuple):
    """One pass through the encoder and the classifier; gradients of the logits reach back to `tokens.x`.

    `where` is what every token was cut from, empty for class, register and missing tokens; `membership` how much of
    each token belongs to each region: 1 for its own tokens, the covered fraction for patches, else 0.
    """

    image: Tensor  # face crops (B, 3, S, S), RGB in [0, 1]
    boxes: Tensor  # of regions (B, R, 4), xyxy in crop pixels; 0 for a missing region
    valid: Tensor  # which regions are present (B, R)
    tokens: Tokens
    attention: list[Tensor]  # weights (B, H, T, T) of every block, rows summing to 1
    pooled: Pooled
    logits: Tensor  # (B, C)
    where: Tensor  # (B, T, 4), xyxy in crop pixels
    membership: Tensor  # (B, R, T)
    layout: TokenLayout


def trace(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor) -> Trace:
    """Classifies faces and records what explanations need. Raises FerVitError under `torch.inference_mode`."""
    if torch.is_inference_mode_enabled():
        raise FerVitError("Explanations need gradients: call this outside torch.inference_mode().")
    boxes = boxes.masked_fill(~valid[..., None], 0.0)
    with evaluating(net), record_attention(net) as attention:
        with torch.no_grad():
            tokens = net.tokenize(image, boxes, valid)
        with torch.enable_grad():
            tokens = tokens._replace(x=tokens.x.requires_grad_())
            pooled = net.pool(net.forward_features(tokens))
            logits = net.classify(pooled.x)
    where = token_boxes(net.layout, net.patch_size, tokens.centres, boxes)
    parts = membership(net.layout, net.patch_size, boxes, valid)
    return Trace(image, boxes, valid, tokens, attention, pooled, logits, where, parts, net.layout)


@contextmanager
def record_attention(model: RegionViT) -> Iterator[list[Tensor]]:
    """Records the attention weights of every block in a list, one (B, H, T, T) each, rows summing to 1.

    Unfused attention of timm passes them through `attn_drop`, where a hook reads them.
    """
    recorded: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        if torch.is_grad_enabled():
            inputs[0].requires_grad_()  # weights of a frozen network that do not depend on the tokens
        recorded.append(inputs[0])

    blocks, by_mask = model.vit.blocks, model.drop_by_mask
    before = use_fused_attention(blocks, fused=False)
    model.drop_by_mask = True
    hooks = [blocks.get_submodule(f"{name}.attn_drop").register_forward_hook(keep) for name in before]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
        model.drop_by_mask = by_mask
        for name, fused in before.items():
            blocks.get_submodule(name).fused_attn = fused


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


def drops(net: RegionViT, tokens: Tokens, units: Tensor) -> Tensor:
    """How much the logits of a model in evaluation mode fall when each unit (B, U, T) is masked alone: (B, U, C)."""
    # Not the logits of a trace: other kernels may have computed them, which matters in bfloat16.
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
    """Returns how much of every token belongs to each region (B, R, T), see `Trace`."""
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
