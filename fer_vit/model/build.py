"""The parts of a RegionViT that a configuration chooses: positions, region embedding, pooling."""

import copy
import math
from functools import partial
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.pooling import AdditivePool, AveragePool, QueryPool, TokenPool
from fer_vit.model.positions import Position, sincos_2d, sincos_reading
from fer_vit.model.region_embed import RegionEmbed
from fer_vit.model.tokens import NoPatches


def choose_position(config: RegionViTConfig, dim: int, patch_size: int) -> Position | None:
    """Chooses the sinusoidal code of centres in crop pixels; None when there are no positions."""
    if config.pos_embed == "none":
        return None
    if config.pos_embed == "sincos_1d":
        return partial(sincos_reading, dim=dim, patch_size=patch_size, columns=math.ceil(config.img_size / patch_size))
    return partial(sincos_2d, dim=dim, patch_size=patch_size)


def fix_positions(vit: VisionTransformer, code: Tensor) -> None:
    """Replaces the learned patch positions by fixed codes (N, D); prefix tokens get none."""
    full = torch.zeros_like(vit.pos_embed)  # (1, prefix + N or N, D)
    full[0, -len(code) :] = code
    vit.pos_embed = nn.Parameter(full, requires_grad=False)


def create_region_embed(vit: VisionTransformer, config: RegionViTConfig, position: Position | None) -> RegionEmbed:
    """Creates the embedding of regions: its own weights, initialised from the patch embedding (maybe pretrained).

    For regions cut from the stem's features, where a cell is half a patch, 3 x 3 cells become a token.
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
    """Removes what only patch tokens need."""
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
        most = max(1, dim // 64)  # heads as wide as in every ViT size, or wider
        num_heads = config.num_heads or next(heads for heads in range(most, 0, -1) if dim % heads == 0)
        return QueryPool(prefix, dim, num_heads, num_classes, config.causal)
    return TokenPool()


def kept_patches(patches: int, rate: float) -> int:
    """Returns how many of `patches` a keep rate keeps: rounded up, floating-point error aside."""
    return math.ceil(patches * rate - 1e-9)
