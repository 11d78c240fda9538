"""RegionViT: a vision transformer that reads patch tokens and landmark-cropped region tokens together.

The encoder, its class and register tokens, patch position embeddings and classifier are timm's `VisionTransformer`, so
that timm's pretrained weights load; this file adds the region tokens and the mask of the missing ones.

B images, S crop size, R regions, T tokens, D width, C classes (see `tokens`).
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Literal

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.errors import FerVitError, check_number
from fer_vit.model.tokens import ConvStem, RegionEmbed, TokenLayout, Tokens, patch_centres, sincos_2d


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
        pos_embed: Positions of the patches: "learn", "sincos" (2-D) or "none" (then regions have none either).
        head: "token" classifies the class token, "avg" the mean of the patch and region tokens.
        reg_tokens: Number of register tokens.
        drop_path_rate: Stochastic depth of the last block; rises linearly from 0.
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
    pos_embed: Literal["learn", "sincos", "none"] = "learn"
    head: Literal["token", "avg"] = "token"
    reg_tokens: int | None = None
    drop_path_rate: float = 0.0


class RegionViT(nn.Module):
    """Vision transformer over patch and region tokens.

    Args:
        config: What to build.
        num_classes: Number C of classes.

    Attributes:
        layout: Which token is which.
        patch_size: Side of a patch in pixels.

    Raises:
        FerVitError: The configuration does not fit together.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: RegionViTConfig, num_classes: int) -> None:
        super().__init__()
        self.config = config
        self.vit = vit = create_backbone(config, num_classes)
        self.patch_size: int = vit.patch_embed.patch_size[0]
        pixels = vit.pretrained_cfg  # timm's note of the mean and deviation that the backbone expects
        self.register_buffer("mean", _per_channel(pixels["mean"], config.in_chans), persistent=False)
        self.register_buffer("std", _per_channel(pixels["std"], config.in_chans), persistent=False)
        if config.pos_embed == "sincos":
            _set_sincos(vit)
        self.region_embed: RegionEmbed | None = None
        if config.tokens != "patch" and config.regions:
            # Its own weights, started from the patch embedding's: pretrained where that is.
            patch_embed = copy.deepcopy(vit.patch_embed)
            if config.stem == "patch":
                patch_embed.set_input_size(img_size=(config.region_grid * self.patch_size,) * 2)
            self.region_embed = RegionEmbed(
                patch_embed,
                config.regions,
                self.patch_size,
                config.region_grid,
                vit.embed_dim,
                config.pos_embed != "none",
            )
        grid = vit.patch_embed.grid_size
        if config.tokens == "region":
            vit.patch_embed = nn.Identity()
            grid = (0, 0)
            if vit.pos_embed is not None:
                prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
                vit.pos_embed = nn.Parameter(vit.pos_embed[:, :prefix].detach().clone(), vit.pos_embed.requires_grad)
        num_regions = 0 if self.region_embed is None else len(config.regions)
        self.layout = TokenLayout(vit.num_prefix_tokens, grid, num_regions, config.region_grid)

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Classifies faces.

        Args:
            image: Face crops (B, 3, S, S), RGB in [0, 1].
            boxes: Region boxes (B, R, 4), xyxy in crop pixels, in the order of `config.regions`. None: all missing.
            valid: Which regions are there (B, R). None: all that `boxes` gives.

        Returns:
            Logits (B, C).
        """
        tokens = self.tokenize(image, boxes, valid)
        return self.forward_head(self.forward_features(tokens), tokens.valid)

    def tokenize(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tokens:
        """Turns images into tokens with their positions; arguments as for `forward`."""
        vit, batch = self.vit, len(image)
        image = self.normalize(image)
        patches = vit.patch_embed(image) if self.layout.num_patches else image.new_zeros(batch, 0, vit.embed_dim)
        x = vit._pos_embed(patches)  # (B, prefix + N, D)
        if self.region_embed is None:
            return Tokens(vit.norm_pre(vit.patch_drop(x)), None)
        if boxes is None:
            boxes = image.new_zeros(batch, self.layout.num_regions, 4)
            valid = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
        if valid is None:
            valid = torch.ones_like(boxes[..., 0], dtype=torch.bool)
        # A missing region may hold anything, NaN too, and NaN times a weight of 0 would still be NaN.
        regions = self.region_embed(image, boxes.masked_fill(~valid[..., None], 0.0))
        present = valid.repeat_interleave(self.layout.tokens_per_region, dim=1)  # (B, R k^2)
        regions = regions.masked_fill(~present[..., None], 0.0)
        x = vit.norm_pre(torch.cat([x, regions], dim=1))  # (B, T, D)
        always = present.new_ones(batch, self.layout.regions.start)
        return Tokens(x, torch.cat([always, present], dim=1))

    def normalize(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] -> (B, in_chans, S, S) with the backbone's mean and deviation."""
        if self.config.in_chans == 1:
            weights = image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # ITU-R BT.601 luma
            image = (image * weights).sum(1, keepdim=True)
        return (image - self.mean) / self.std

    def forward_features(self, tokens: Tokens) -> Tensor:
        """Encodes tokens; those of missing regions get no attention. -> (B, T, D)."""
        x = tokens.x
        mask = None if tokens.valid is None else tokens.valid[:, None, None, :]  # (B, 1, 1, T), broadcast over queries
        for block in self.vit.blocks:
            x = block(x, attn_mask=mask)
        return self.vit.norm(x)  # type: ignore[no-any-return]

    def forward_head(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Pools encoded tokens (B, T, D) over those that are valid (B, T) and classifies. -> (B, C)."""
        pooled = x[:, 0] if self.config.head == "token" else (x * self.pool_weights(x, valid)[..., None]).sum(1)
        return self.vit.head(self.vit.head_drop(self.vit.fc_norm(pooled)))  # type: ignore[no-any-return]

    def pool_weights(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Returns how much each of the tokens x (B, T, D) counts in what is classified (B, T).

        Rows sum to 1. A face without any token to average has 0 throughout: its logits are the head's bias.
        """
        weights = torch.zeros_like(x[..., 0])
        if self.config.head == "token":
            weights[:, 0] = 1.0
            return weights
        weights[:, self.layout.num_prefix :] = 1.0
        weights = weights if valid is None else weights * valid
        return weights / weights.sum(1, keepdim=True).clamp(min=1.0)

    def no_weight_decay(self) -> set[str]:
        """Patterns of parameters that weight decay must leave alone, as timm's optimisers ask for them."""
        return {"*pos_embed", "*cls_token", "*reg_token", "*name_embed*"}

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
            global_pool=config.head,
            fc_norm=False,  # the norm stays before the pooling, where pretrained weights have it
            pos_embed="none" if config.pos_embed == "none" else "learn",
            drop_path_rate=config.drop_path_rate,
            **overrides,
        )
    except (AssertionError, TypeError, ValueError, RuntimeError, OSError, UnpicklingError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FerVitError(f"Cannot build the backbone {config.backbone}: {reason}") from error
    if not isinstance(vit, VisionTransformer):
        raise FerVitError(f"Expected a plain timm vision transformer as backbone, but {config.backbone} is not one.")
    patch = vit.patch_embed.patch_size[0]
    if config.img_size % patch:
        raise FerVitError(f"Expected img_size to be a multiple of the patch size {patch}, but got {config.img_size}.")
    return vit


def check_config(config: RegionViTConfig) -> None:
    """Raises FerVitError when a configuration contradicts itself or names what does not exist."""
    if not timm.is_model(config.backbone):
        close = ", ".join(timm.list_models(f"*{config.backbone.split('_')[0]}*patch*")[:3])
        hint = f"for example {close}" if close else "for example vit_tiny_patch16_224"
        raise FerVitError(f"Expected a timm model as backbone ({hint}), but got {config.backbone}.")
    if config.tokens != "patch" and not config.regions:
        raise FerVitError(f"Expected at least one region with tokens: {config.tokens}, but got none (tokens: patch).")
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


def _set_sincos(vit: VisionTransformer) -> None:
    """Puts fixed sinusoidal codes in the place of the learned patch positions; prefix tokens keep none."""
    code = sincos_2d(patch_centres(vit.patch_embed.grid_size), vit.embed_dim)
    full = torch.zeros_like(vit.pos_embed)
    full[0, -len(code) :] = code
    vit.pos_embed = nn.Parameter(full, requires_grad=False)
