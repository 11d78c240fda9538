"""Builds the parts of a RegionViT: the one place that knows what each choice of a configuration means.

B images, N patches, T tokens, D width, C classes.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.model.backbone import ATTENTION, create_backbone
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.pooling import AdditivePool, AveragePool, QueryPool, TokenPool
from fer_vit.model.positions import Position, patch_centres, sincos_2d, sincos_reading
from fer_vit.model.tokens import NoPatches, Normalize, RegionEmbed, TokenLayout, Tokens


class Parts(NamedTuple):
    """What a RegionViT is made of.

    Attributes:
        normalize: Crops as the backbone expects them.
        vit: Patch embedding, class and register tokens, blocks and classifier.
        region_embed: Embedding of the regions; None when the model has no region tokens.
        pool: From encoded tokens to what is classified.
        relation: What attention must know of the tokens besides their content.
        layout: Which token is which when they enter the encoder.
        patch_size: Side of a patch in crop pixels.
        num_kept: Patches at first, and in each block.
        centres: Where prefix and patch tokens lie (prefix + N, 2), (x, y) in crop pixels.
    """

    normalize: Normalize
    vit: VisionTransformer
    region_embed: RegionEmbed | None
    pool: nn.Module
    relation: Callable[[Tokens], Tensor | None]
    layout: TokenLayout
    patch_size: int
    num_kept: tuple[int, ...]
    centres: Tensor


def build(config: RegionViTConfig, num_classes: int) -> Parts:
    """Builds what a configuration asks for, with fresh or pretrained weights.

    Raises:
        FerVitError: The choices do not fit together, or timm cannot build the backbone.
    """
    vit = create_backbone(config, num_classes)
    patch_size, grid = int(vit.patch_embed.patch_size[0]), vit.patch_embed.grid_size
    position = choose_position(config, vit.embed_dim, patch_size)
    if position is not None and config.pos_embed != "learn":
        fix_positions(vit, position(patch_centres(grid) * patch_size))
    regions = () if config.tokens == "patch" else config.regions
    region_embed = create_region_embed(vit, config, position) if regions else None
    if config.tokens == "region":
        grid = (0, 0)
        remove_patches(vit, config.region_source)
    layout = TokenLayout(vit.num_prefix_tokens, grid, len(regions), config.region_grid)
    rates = config.keep_rate or (1.0,) * len(vit.blocks)
    middle = torch.full((layout.num_prefix, 2), config.img_size / 2)
    pixels = vit.pretrained_cfg  # timm's note of the mean and deviation that the backbone expects
    return Parts(
        normalize=Normalize(pixels["mean"], pixels["std"], config.in_chans),
        vit=vit,
        region_embed=region_embed,
        pool=create_pool(vit, config, num_classes),
        relation=ATTENTION[config.attention].relation,
        layout=layout,
        patch_size=patch_size,
        num_kept=tuple(accumulate(rates, kept_patches, initial=layout.num_patches)),
        centres=torch.cat([middle, patch_centres(grid) * patch_size]),
    )


def choose_position(config: RegionViTConfig, dim: int, patch_size: int) -> Position | None:
    """Chooses the sinusoidal code of centres in crop pixels; None when there are no positions."""
    if config.pos_embed == "none":
        return None
    if config.pos_embed == "sincos_1d":
        return partial(sincos_reading, dim=dim, patch_size=patch_size, columns=config.img_size // patch_size)
    return partial(sincos_2d, dim=dim, patch_size=patch_size)


def fix_positions(vit: VisionTransformer, code: Tensor) -> None:
    """Puts fixed codes (N, D) in the place of the learned patch positions; prefix tokens keep none."""
    full = torch.zeros_like(vit.pos_embed)  # (1, prefix + N or N, D)
    full[0, -len(code) :] = code
    vit.pos_embed = nn.Parameter(full, requires_grad=False)


def create_region_embed(vit: VisionTransformer, config: RegionViTConfig, position: Position | None) -> RegionEmbed:
    """Creates the embedding of regions: weights of its own, which start as the patch embedding's (maybe pretrained).

    Regions that are cut from the stem's features, where half a patch is a cell, become a token by 3 x 3 cells.
    """
    stem: Any = vit.patch_embed
    grid, side, stride = config.region_grid, stem.patch_size[0], 1.0
    if config.region_source == "stem":
        side, stride = 3, side / 2
        patch_embed: Any = PatchEmbed(grid * side, side, stem.early_width, vit.embed_dim)
    else:
        patch_embed = copy.deepcopy(stem)
        if config.stem == "patch":
            patch_embed.set_input_size(img_size=(grid * side,) * 2)
    return RegionEmbed(patch_embed, config.regions, side, stride, grid, vit.embed_dim, position)


def remove_patches(vit: VisionTransformer, region_source: str) -> None:
    """Takes away what only patch tokens need."""
    if region_source == "stem":
        vit.patch_embed.late = NoPatches(vit.embed_dim)
    else:
        vit.patch_embed = NoPatches(vit.embed_dim)
    if vit.pos_embed is not None:
        own = 0 if vit.no_embed_class else vit.num_prefix_tokens
        vit.pos_embed = nn.Parameter(vit.pos_embed[:, :own].detach().clone(), vit.pos_embed.requires_grad)


def create_pool(vit: VisionTransformer, config: RegionViTConfig, num_classes: int) -> nn.Module:
    """Creates what turns encoded tokens into the vectors that are classified."""
    prefix, dim = vit.num_prefix_tokens, vit.embed_dim
    if config.head == "avg":
        return AveragePool(prefix)
    if config.head == "additive":
        return AdditivePool(prefix, dim)
    if config.head == "query":
        num_heads = config.num_heads or max(1, dim // 64)  # the width of a head in every ViT size
        return QueryPool(prefix, dim, num_heads, num_classes, config.causal)
    return TokenPool()


def kept_patches(patches: int, rate: float) -> int:
    """Returns how many of some patches a rate keeps: rounded up, but for what floating point adds to a whole number."""
    return math.ceil(patches * rate - 1e-9)
