"""The parts that a configuration asks for: timm's vision transformer, region embedding, positions, pooling."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm
import torch
from timm.layers import Attention, PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn

from fer_vit.errors import FerVitError
from fer_vit.model.attention import AdditiveAttention, DotAttention, GaussianAttention
from fer_vit.model.blocks import PostNormBlock, PreNormBlock
from fer_vit.model.config import RegionViTConfig, check_config
from fer_vit.model.pooling import AdditivePool, AveragePool, ExpressionLinear, QueryPool, TokenPool
from fer_vit.model.positions import Position, patch_centres, sincos_2d, sincos_reading
from fer_vit.model.tokens import ConvStem, RegionEmbed

ATTENTION: dict[str, type[DotAttention]] = {
    "dot": DotAttention,
    "additive": AdditiveAttention,
    "gaussian": GaussianAttention,
}
BLOCK = {"pre_norm": PreNormBlock, "post_norm": PostNormBlock}


def create_backbone(config: RegionViTConfig, num_classes: int) -> VisionTransformer:
    """Creates the timm vision transformer that a configuration describes, its mechanisms in place.

    timm resamples pretrained position embeddings and patch kernels where image or patch size differ from its own.

    Raises:
        FerVitError: The name is not a timm vision transformer, or the choices do not fit together.
    """
    check_config(config)
    asked = {name: getattr(config, name) for name in ("patch_size", "embed_dim", "depth", "num_heads", "reg_tokens")}
    overrides: dict[str, object] = {name: value for name, value in asked.items() if value is not None}
    overrides |= dict.fromkeys(("pos_drop_rate", "proj_drop_rate", "attn_drop_rate"), config.dropout)
    if config.stem == "conv":
        overrides["embed_layer"] = ConvStem
    if config.needs_own_blocks:
        overrides |= {"attn_layer": ATTENTION[config.attention], "block_fn": BLOCK[config.block]}
    if config.block == "post_norm":
        overrides["final_norm"] = False  # every block ends in one
    if isinstance(config.pretrained, str):
        if not Path(config.pretrained).is_file():
            raise FerVitError(f"Expected a state dict at {config.pretrained} (network.pretrained), but there is none.")
        overrides["pretrained_cfg_overlay"] = {"file": config.pretrained}
    try:
        vit = timm.create_model(
            config.backbone,
            pretrained=bool(config.pretrained),
            img_size=config.img_size,
            in_chans=config.in_chans,
            num_classes=num_classes,
            global_pool="token" if config.head == "token" else "avg",
            fc_norm=False,  # the norm stays before the pooling, where pretrained weights have it
            pos_embed="none" if config.pos_embed == "none" else "learn",
            drop_path_rate=config.drop_path_rate,
            **overrides,
        )
    except (AssertionError, TypeError, ValueError, RuntimeError, OSError, UnpicklingError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FerVitError(f"Cannot build the backbone {config.backbone}: {reason}") from error
    _check_backbone(vit, config)
    if config.pos_embed.startswith("sincos"):
        _fix_positions(vit, config)
    if config.head == "query":
        vit.head = ExpressionLinear(vit.embed_dim, num_classes)
        init_weights_vit_timm(vit.head)
    return vit


def _check_backbone(vit: nn.Module, config: RegionViTConfig) -> None:
    """Raises FerVitError when a configuration does not fit what its backbone turned out to be."""
    if not isinstance(vit, VisionTransformer):
        raise FerVitError(f"Expected a plain timm vision transformer as backbone, but {config.backbone} is not one.")
    if config.needs_own_blocks:
        _check_replaceable(config.backbone)
    size = vit.patch_embed.patch_size[0]
    if config.img_size % size:
        raise FerVitError(f"Expected img_size to be a multiple of the patch size {size}, but got {config.img_size}.")
    if config.keep_rate and len(config.keep_rate) != len(vit.blocks):
        raise FerVitError(
            f"Expected network.keep_rate to have a number for each of the {len(vit.blocks)} blocks, "
            f"but got {len(config.keep_rate)}."
        )
    if config.keep_rate and not vit.has_class_token:
        raise FerVitError(f"network.keep_rate asks the class token, but {config.backbone} has none.")
    if config.tokens == "region" and not vit.num_prefix_tokens:
        # A face without landmarks would have no token at all
        raise FerVitError(f"{config.backbone} has no class token: with tokens: region add reg_tokens: 1.")


def _check_replaceable(name: str) -> None:
    """Raises FerVitError when a backbone has blocks of its own kind, which would silently become plain ones."""
    with torch.device("meta"):
        vit = timm.create_model(name, depth=1)
    if type(vit.blocks[0]) is not Block or type(vit.blocks[0].attn) is not Attention:
        raise FerVitError(
            f"{name} has blocks of its own: use a plain one, for example vit_small_patch16_224, with attention, block "
            "or keep_rate."
        )


def create_region_embed(vit: VisionTransformer, config: RegionViTConfig) -> RegionEmbed:
    """Creates the embedding of regions: weights of its own, which start as the patch embedding's (maybe pretrained).

    Regions that are cut from the stem's features, where half a patch is a cell, become a token by 3 x 3 cells.
    """
    stem: Any = vit.patch_embed
    grid, size, stride = config.region_grid, stem.patch_size[0], 1.0
    if config.region_source == "stem":
        size, stride = 3, patch_side(vit, config) / 2
        patch_embed: Any = PatchEmbed(grid * size, size, stem.early_width, vit.embed_dim)
    else:
        patch_embed = copy.deepcopy(stem)
        if config.stem == "patch":
            patch_embed.set_input_size(img_size=(grid * size,) * 2)
    return RegionEmbed(patch_embed, config.regions, size, stride, grid, vit.embed_dim, position_code(vit, config))


def remove_patches(vit: VisionTransformer, config: RegionViTConfig) -> None:
    """Takes away what only patch tokens need."""
    if config.region_source == "stem":
        vit.patch_embed.late = nn.Identity()
    else:
        vit.patch_embed = nn.Identity()
    if vit.pos_embed is not None:
        own = 0 if vit.no_embed_class else vit.num_prefix_tokens
        vit.pos_embed = nn.Parameter(vit.pos_embed[:, :own].detach().clone(), vit.pos_embed.requires_grad)


def create_pool(vit: VisionTransformer, config: RegionViTConfig, num_classes: int) -> nn.Module:
    """Creates what turns encoded tokens into the vectors that are classified."""
    prefix, dim = vit.num_prefix_tokens, vit.embed_dim
    num_heads = config.num_heads or max(1, dim // 64)  # the width of a head in every ViT size
    makers: dict[str, Callable[[], nn.Module]] = {
        "token": TokenPool,
        "avg": partial(AveragePool, prefix),
        "additive": partial(AdditivePool, prefix, dim),
        "query": partial(QueryPool, prefix, dim, num_heads, num_classes, config.causal),
    }
    return makers[config.head]()


def patch_side(vit: VisionTransformer, config: RegionViTConfig) -> int:
    """Returns the side of a patch in crop pixels."""
    return int(vit.patch_embed.patch_size[0])


def position_code(vit: VisionTransformer, config: RegionViTConfig) -> Position | None:
    """Chooses the sinusoidal code of centres in crop pixels; None when there are no positions."""
    patch_size = patch_side(vit, config)
    if config.pos_embed == "none":
        return None
    if config.pos_embed == "sincos_1d":
        columns = config.img_size // patch_size
        return partial(sincos_reading, dim=vit.embed_dim, patch_size=patch_size, columns=columns)
    return partial(sincos_2d, dim=vit.embed_dim, patch_size=patch_size)


def _fix_positions(vit: VisionTransformer, config: RegionViTConfig) -> None:
    """Puts fixed codes in the place of the learned patch positions; prefix tokens keep none."""
    code = position_code(vit, config)
    assert code is not None
    patches: Tensor = code(patch_centres(vit.patch_embed.grid_size) * patch_side(vit, config))  # (N, D)
    full = torch.zeros_like(vit.pos_embed)
    full[0, -len(patches) :] = patches
    vit.pos_embed = nn.Parameter(full, requires_grad=False)
