"""RegionViT: a vision transformer that reads patch tokens and landmark-cropped region tokens together.

The encoder, its class and register tokens, patch position embeddings and classifier are timm's `VisionTransformer`, so
that timm's pretrained weights load; this file adds the region tokens and the mask of the missing ones.

B images, S crop size, R regions, T tokens, D width, C classes (see `tokens`).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import timm
import torch
from timm.models.vision_transformer import VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn

from fer_vit.errors import FerVitError, check_number
from fer_vit.model.attention import AdditiveAttention, DotAttention, GaussianAttention, HeadDrop
from fer_vit.model.blocks import PostNormBlock, PreNormBlock
from fer_vit.model.pooling import AdditivePool, AveragePool, ExpressionLinear, QueryPool, TokenPool
from fer_vit.model.tokens import (
    ConvStem,
    Position,
    RegionEmbed,
    TokenLayout,
    Tokens,
    keep_patches,
    patch_centres,
    sincos_2d,
    sincos_reading,
    token_centres,
)

ATTENTION = {"dot": DotAttention, "additive": AdditiveAttention, "gaussian": GaussianAttention}
BLOCK = {"pre_norm": PreNormBlock, "post_norm": PostNormBlock}


@dataclass(frozen=True)
class RegionViTConfig:
    """Everything that shapes a RegionViT. None keeps what the backbone has by its name.

    Attributes:
        backbone: Name of a timm vision transformer, for example vit_tiny_patch16_224 or vit_small_patch16_224.
        pretrained: Load timm's weights: true (downloaded by timm), false, or the path of a state dict.
        img_size: Side S of the square input in pixels, a multiple of the patch size.
        in_chans: 3 for RGB, 1 to read images as grey.
        patch_size: Side of a patch in pixels.
        embed_dim: Width D, a multiple of 4.
        depth: Number of blocks.
        num_heads: Heads per block.
        stem: "patch" is ViT's linear patch embedding, "conv" strided convolutions for small images from scratch.
        tokens: What the encoder reads: "patch", "region" or "both".
        regions: Names of the regions (see face.regions).
        region_grid: k: a region becomes k x k tokens.
        patch_downscale: Foveated tokens: the patch grid sees the image at 1/2 or 1/4 of its size, the regions at full.
        pos_embed: Positions of the patches: "learn", "sincos_2d", "sincos_1d" (their rank in reading order) or "none".
            Regions have the sinusoidal code of their centre: 1-D with "sincos_1d", none with "none", else 2-D.
        attention: Score of the encoder's attention: "dot" product, "additive" (Bahdanau) or "gaussian" kernel of the
            distance between tokens (Nadaraya-Watson).
        block: "pre_norm" as in ViT, or "post_norm" with ReLU as in "Attention Is All You Need".
        keep_rate: Hard attention: part of the patches that enters each block, chosen by the class token's attention
            in it; one number per block, of the patches that the block before had. Empty: all patches everywhere.
        head: "token" classifies the class token, "avg" the mean of the patch and region tokens, "additive" their mean
            with learned weights, "query" what a query for each expression finds in them (Transformer decoder).
        causal: With head "query": a query sees only the queries of expressions that come before its own.
        reg_tokens: Number of register tokens.
        dropout: Dropout of embeddings, attention weights and outputs of attention and feed-forward.
        drop_path_rate: Stochastic depth of the last block; rises linearly from 0.
        head_drop_rate: Probability that a training face loses a random attention head in a block.
    """

    backbone: str = "vit_tiny_patch16_224"
    pretrained: bool | str = False
    img_size: int = 224
    in_chans: Literal[1, 3] = 3
    patch_size: int | None = None
    embed_dim: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    stem: Literal["patch", "conv"] = "patch"
    tokens: Literal["patch", "region", "both"] = "both"
    regions: tuple[str, ...] = ()
    region_grid: int = 2
    patch_downscale: Literal[1, 2, 4] = 1
    pos_embed: Literal["learn", "sincos_2d", "sincos_1d", "none"] = "learn"
    attention: Literal["dot", "additive", "gaussian"] = "dot"
    block: Literal["pre_norm", "post_norm"] = "pre_norm"
    keep_rate: tuple[float, ...] = ()
    head: Literal["token", "avg", "additive", "query"] = "token"
    causal: bool = False
    reg_tokens: int | None = None
    dropout: float = 0.0
    drop_path_rate: float = 0.0
    head_drop_rate: float = 0.0


class RegionViT(nn.Module):
    """Vision transformer over patch and region tokens.

    Args:
        config: What to build.
        num_classes: Number C of classes.

    Attributes:
        layout: Which token is which when they enter the encoder.
        patch_size: Side of a patch in crop pixels.
        drop_by_mask: Hard attention masks patches instead of taking them out: the same result without the saving, for
            those who want to see T tokens in every block.

    Raises:
        FerVitError: The configuration does not fit together.
    """

    mean: Tensor
    std: Tensor
    centres: Tensor

    def __init__(self, config: RegionViTConfig, num_classes: int) -> None:
        super().__init__()
        self.config = config
        self.drop_by_mask = False
        self.vit = vit = create_backbone(config, num_classes)
        dim, prefix, grid = vit.embed_dim, vit.num_prefix_tokens, vit.patch_embed.grid_size
        self.reduce = nn.AvgPool2d(config.patch_downscale) if config.patch_downscale > 1 else nn.Identity()
        self.patch_size: int = vit.patch_embed.patch_size[0] * config.patch_downscale
        pixels = vit.pretrained_cfg  # timm's note of the mean and deviation that the backbone expects
        self.register_buffer("mean", _per_channel(pixels["mean"], config.in_chans), persistent=False)
        self.register_buffer("std", _per_channel(pixels["std"], config.in_chans), persistent=False)
        position = _position(config, dim, self.patch_size)
        if position is not None and config.pos_embed != "learn":
            _fix_positions(vit, position(patch_centres(grid) * self.patch_size))
        self.region_embed: RegionEmbed | None = None
        if config.tokens != "patch" and config.regions:
            # Its own weights, started from the patch embedding's: pretrained where that is.
            patch_embed = copy.deepcopy(vit.patch_embed)
            side = patch_embed.patch_size[0]
            if config.stem == "patch":
                patch_embed.set_input_size(img_size=(config.region_grid * side,) * 2)
            self.region_embed = RegionEmbed(patch_embed, config.regions, side, config.region_grid, dim, position)
        if config.tokens == "region":
            vit.patch_embed = nn.Identity()
            grid = (0, 0)
            if vit.pos_embed is not None:
                own = 0 if vit.no_embed_class else prefix
                vit.pos_embed = nn.Parameter(vit.pos_embed[:, :own].detach().clone(), vit.pos_embed.requires_grad)
        num_regions = 0 if self.region_embed is None else len(config.regions)
        self.layout = TokenLayout(prefix, grid, num_regions, config.region_grid)
        middle = torch.full((prefix, 2), config.img_size / 2)
        centres = torch.cat([middle, patch_centres(grid) * self.patch_size])
        self.register_buffer("centres", centres, persistent=False)  # of all tokens but the regions'
        self.pool: Any = _pool(config, vit, num_classes)
        if config.head == "query":
            vit.head = ExpressionLinear(dim, num_classes)
            init_weights_vit_timm(vit.head)
        if config.head_drop_rate:
            for block in vit.blocks:
                block.attn.norm = nn.Sequential(HeadDrop(block.attn.num_heads, config.head_drop_rate), block.attn.norm)
        rates = config.keep_rate or (1.0,) * len(vit.blocks)
        counts = accumulate(rates, lambda patches, rate: math.ceil(patches * rate), initial=self.layout.num_patches)
        self.num_kept = tuple(counts)  # patches at the start, and in each block

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Classifies faces.

        Args:
            image: Face crops (B, 3, S, S), RGB in [0, 1].
            boxes: Region boxes (B, R, 4), xyxy in crop pixels, in the order of `config.regions`. None: all missing.
            valid: Which regions are there (B, R). None: all that `boxes` gives.

        Returns:
            Logits (B, C).
        """
        return self.forward_head(self.forward_features(self.tokenize(image, boxes, valid)))

    def tokenize(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tokens:
        """Turns images into tokens with their positions; arguments as for `forward`."""
        vit, batch = self.vit, len(image)
        image = self.normalize(image)
        patches = image.new_zeros(batch, 0, vit.embed_dim)
        if self.layout.num_patches:
            patches = vit.patch_embed(self.reduce(image))
        x = vit._pos_embed(patches)  # (B, prefix + N, D)
        centres = self.centres.expand(batch, -1, -1)
        if self.region_embed is None:
            return Tokens(vit.norm_pre(vit.patch_drop(x)), None, centres)
        if boxes is None:
            boxes = image.new_zeros(batch, self.layout.num_regions, 4)
            valid = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
        if valid is None:
            valid = torch.ones_like(boxes[..., 0], dtype=torch.bool)
        # A missing region may hold anything, NaN too, and NaN times a weight of 0 would still be NaN.
        boxes = boxes.masked_fill(~valid[..., None], 0.0)
        regions = self.region_embed(image, boxes)
        present = valid.repeat_interleave(self.layout.tokens_per_region, dim=1)  # (B, R k^2)
        regions = regions.masked_fill(~present[..., None], 0.0)
        x = vit.norm_pre(torch.cat([x, vit.pos_drop(regions)], dim=1))  # (B, T, D)
        centres = torch.cat([centres, token_centres(boxes, self.layout.region_grid).flatten(1, 2)], dim=1)
        always = present.new_ones(batch, self.layout.regions.start)
        return Tokens(x, torch.cat([always, present], dim=1), centres)

    def normalize(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] -> (B, in_chans, S, S) with the backbone's mean and deviation."""
        if self.config.in_chans == 1:
            weights = image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # ITU-R BT.601 luma
            image = (image * weights).sum(1, keepdim=True)
        return (image - self.mean) / self.std

    def forward_features(self, tokens: Tokens) -> Tokens:
        """Encodes tokens. Those of missing regions get no attention; with a keep rate fewer patches come out."""
        relation = self.vit.blocks[0].attn.relation(tokens)
        for block, before, kept in zip(self.vit.blocks, self.num_kept, self.num_kept[1:], strict=False):
            if kept < before:
                scores = block.class_attention(tokens.x, relation)
                tokens = keep_patches(tokens, scores, self.layout, kept, self.drop_by_mask)
                relation = block.attn.relation(tokens)
            tokens = tokens._replace(x=block(tokens.x, attn_mask=relation))
        return tokens._replace(x=self.vit.norm(tokens.x))

    def forward_head(self, tokens: Tokens) -> Tensor:
        """Pools encoded tokens and classifies them. -> (B, C)."""
        pooled = self.vit.fc_norm(self.pool(tokens))  # (B, D), or (B, C, D): a vector for each expression
        return self.vit.head(self.vit.head_drop(pooled))  # type: ignore[no-any-return]

    def no_weight_decay(self) -> set[str]:
        """Patterns of parameters that weight decay must leave alone, as timm's optimisers ask for them."""
        return {"*pos_embed", "*cls_token", "*reg_token", "*name_embed*", "pool.query"}

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Layers for timm's layer-wise learning rate decay: embeddings, block by block, head."""
        return {
            "stem": r"^region_embed|^vit\.(?:cls_token|reg_token|pos_embed|patch_embed|norm_pre)",
            "blocks": [(r"^vit\.blocks\.(\d+)", None), (r"^vit\.(?:norm|fc_norm)", (99999,))],
        }


def create_backbone(config: RegionViTConfig, num_classes: int) -> VisionTransformer:
    """Creates the timm vision transformer that a configuration describes.

    timm resamples pretrained position embeddings and patch kernels where image or patch size differ from its own.

    Raises:
        FerVitError: The name is not a timm vision transformer, or the sizes do not fit together.
    """
    check_config(config)
    asked = {name: getattr(config, name) for name in ("patch_size", "embed_dim", "depth", "num_heads", "reg_tokens")}
    overrides: dict[str, object] = {name: value for name, value in asked.items() if value is not None}
    if config.stem == "conv":
        overrides["embed_layer"] = ConvStem
    if config.block == "post_norm":
        overrides["final_norm"] = False  # every block ends in one
    dropout = dict.fromkeys(("pos_drop_rate", "proj_drop_rate", "attn_drop_rate"), config.dropout)
    if isinstance(config.pretrained, str):
        if not Path(config.pretrained).is_file():
            raise FerVitError(f"Expected a state dict at {config.pretrained} (network.pretrained), but there is none.")
        overrides["pretrained_cfg_overlay"] = {"file": config.pretrained}
    try:
        vit = timm.create_model(
            config.backbone,
            pretrained=bool(config.pretrained),
            img_size=config.img_size // config.patch_downscale,
            in_chans=config.in_chans,
            num_classes=num_classes,
            global_pool="token" if config.head == "token" else "avg",
            fc_norm=False,  # the norm stays before the pooling, where pretrained weights have it
            pos_embed="none" if config.pos_embed == "none" else "learn",
            attn_layer=ATTENTION[config.attention],
            block_fn=BLOCK[config.block],
            drop_path_rate=config.drop_path_rate,
            **dropout,
            **overrides,
        )
    except (AssertionError, TypeError, ValueError, RuntimeError, OSError, UnpicklingError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FerVitError(f"Cannot build the backbone {config.backbone}: {reason}") from error
    if not isinstance(vit, VisionTransformer):
        raise FerVitError(f"Expected a plain timm vision transformer as backbone, but {config.backbone} is not one.")
    patch = vit.patch_embed.patch_size[0] * config.patch_downscale
    if config.img_size % patch:
        times = f" times patch_downscale {config.patch_downscale}" if config.patch_downscale > 1 else ""
        size = patch // config.patch_downscale
        raise FerVitError(
            f"Expected img_size to be a multiple of the patch size {size}{times}, but got {config.img_size}."
        )
    if config.keep_rate and len(config.keep_rate) != len(vit.blocks):
        raise FerVitError(
            f"Expected network.keep_rate to have a number for each of the {len(vit.blocks)} blocks, "
            f"but got {len(config.keep_rate)}."
        )
    if config.keep_rate and not vit.has_class_token:
        raise FerVitError(f"network.keep_rate asks the class token, but {config.backbone} has none.")
    return vit


def check_config(config: RegionViTConfig) -> None:
    """Raises FerVitError when a configuration contradicts itself or names what does not exist."""
    if not timm.is_model(config.backbone):
        close = ", ".join(timm.list_models(f"*{config.backbone.split('_')[0]}*patch*")[:3])
        hint = f"for example {close}" if close else "for example vit_tiny_patch16_224"
        raise FerVitError(f"Expected a timm model as backbone ({hint}), but got {config.backbone}.")
    if config.tokens != "patch" and not config.regions:
        raise FerVitError(f"Expected at least one region with tokens: {config.tokens}, but got none (tokens: patch).")
    for name in ("dropout", "drop_path_rate", "head_drop_rate"):
        check_number(f"network.{name}", getattr(config, name), 0, 1)
    for rate in config.keep_rate:
        check_number("network.keep_rate", rate, 0, 1)
    if config.pretrained and (config.attention, config.block) != ("dot", "pre_norm"):
        raise FerVitError(
            "Pretrained weights are of attention: dot and block: pre_norm. Use those or pretrained: false."
        )
    if config.causal and config.head != "query":
        raise FerVitError(f"Only the decoder of head: query can be causal, but the head is {config.head}.")
    for name in ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "region_grid"):
        if (number := getattr(config, name)) is not None:
            check_number(f"network.{name}", number, 1)
    if config.embed_dim is not None and config.embed_dim % 4:
        raise FerVitError(f"Expected network.embed_dim to be a multiple of 4, but got {config.embed_dim}.")
    if config.stem == "conv":
        if config.pretrained:
            raise FerVitError("Pretrained weights have no convolutional stem: use stem: patch or pretrained: false.")
        patch = config.patch_size or 0
        if patch < 2 or patch & (patch - 1):
            raise FerVitError(f"Expected a power of two as patch_size with stem: conv, but got {config.patch_size}.")


def _per_channel(values: tuple[float, ...], in_chans: int) -> Tensor:
    tensor = torch.tensor(values).view(-1, 1, 1)
    return tensor.mean(0, keepdim=True) if in_chans == 1 else tensor


def _position(config: RegionViTConfig, dim: int, patch_size: int) -> Position | None:
    """Chooses the sinusoidal code of centres in crop pixels."""
    if config.pos_embed == "none":
        return None
    if config.pos_embed == "sincos_1d":
        return partial(sincos_reading, dim=dim, patch_size=patch_size, columns=config.img_size // patch_size)
    return partial(sincos_2d, dim=dim, patch_size=patch_size)


def _fix_positions(vit: VisionTransformer, code: Tensor) -> None:
    """Puts fixed codes (N, D) in the place of the learned patch positions; prefix tokens keep none."""
    full = torch.zeros_like(vit.pos_embed)
    full[0, -len(code) :] = code
    vit.pos_embed = nn.Parameter(full, requires_grad=False)


def _pool(config: RegionViTConfig, vit: VisionTransformer, num_classes: int) -> nn.Module:
    prefix, dim, num_heads = vit.num_prefix_tokens, vit.embed_dim, vit.blocks[0].attn.num_heads
    makers: dict[str, Callable[[], nn.Module]] = {
        "token": TokenPool,
        "avg": partial(AveragePool, prefix),
        "additive": partial(AdditivePool, prefix, dim),
        "query": partial(QueryPool, prefix, dim, num_heads, num_classes, config.causal),
    }
    return makers[config.head]()
