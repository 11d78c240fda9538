"""timm's vision transformer as configured; the only file that uses private names of timm."""

import warnings
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import timm
import torch
from timm.layers import Attention
from timm.models import load_state_dict
from timm.models.vision_transformer import (
    Block,
    VisionTransformer,
    checkpoint_filter_fn,
    init_weights_vit_timm,
)
from torch import Tensor, nn

from fer_vit.errors import FerVitError
from fer_vit.model.attention import AdditiveAttention, DotAttention, GaussianAttention
from fer_vit.model.config import RegionViTConfig, check_config
from fer_vit.model.embedding import ConvStem
from fer_vit.model.pooling import POOLS, ExpressionLinear


class PostNormBlock(Block):
    """The block of "Attention Is All You Need": normalisation after each residual sum, ReLU in the feed-forward."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{**options, "act_layer": nn.ReLU})

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = self.norm1(x + self.drop_path1(self.ls1(self.attn(x, attn_mask=attn_mask, is_causal=is_causal))))
        return self.norm2(x + self.drop_path2(self.ls2(self.mlp(x))))  # type: ignore[no-any-return]


def class_attention(block: Block, x: Tensor, relation: Tensor | None) -> Tensor:
    """Attention of the class token to each token (B, T), averaged over heads, for a block's input x (B, T, D)."""
    x = x if isinstance(block, PostNormBlock) else block.norm1(x)
    return block.attn.weights(x, relation, slice(0, 1)).mean(1)[:, 0]  # type: ignore[no-any-return]


ATTENTION: dict[str, type[DotAttention]] = {
    "dot": DotAttention,
    "additive": AdditiveAttention,
    "gaussian": GaussianAttention,
}
BLOCK = {"pre_norm": Block, "post_norm": PostNormBlock}


def create_backbone(config: RegionViTConfig, num_classes: int) -> VisionTransformer:
    """Creates the timm vision transformer that a configuration describes, with its attention, blocks and classifier.

    timm resamples pretrained position embeddings and patch kernels for another image or patch size.
    Raises FerVitError when the name is not a timm vision transformer, or settings contradict each other.
    """
    check_config(config)
    try:
        vit = timm.create_model(config.backbone, num_classes=num_classes, **_timm_options(config))
    except (AssertionError, TypeError, ValueError, RuntimeError, OSError, UnpicklingError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FerVitError(f"Cannot build the backbone {config.backbone}: {reason}") from error
    _check_backbone(vit, config)
    if isinstance(config.pretrained, str):
        _check_loaded(vit, config.pretrained, config.backbone)
    if num_classes and POOLS[config.pool].per_expression:
        vit.head = ExpressionLinear(vit.embed_dim, num_classes)
        init_weights_vit_timm(vit.head)
    return vit


def prepend_prefix(vit: VisionTransformer, patches: Tensor) -> Tensor:
    """Adds positions to patches (B, N, D) and puts class and register tokens before them: (B, prefix + N, D)."""
    # No public name: timm does it inside `forward_features`. Models differ in whether prefix tokens have positions.
    x: Tensor = vit._pos_embed(patches)
    return vit.pos_drop(x) if vit.pos_embed is None else x  # timm applies dropout after adding positions


def _timm_options(config: RegionViTConfig) -> dict[str, object]:
    """Returns a configuration as arguments of `timm.create_model`; without None, which keeps the backbone's default."""
    options: dict[str, object] = {
        **{name: getattr(config, name) for name in ("patch_size", "embed_dim", "depth", "num_heads", "reg_tokens")},
        **dict.fromkeys(("pos_drop_rate", "proj_drop_rate", "attn_drop_rate"), config.dropout),
        "pretrained": bool(config.pretrained),
        "img_size": config.img_size,
        "in_chans": config.in_chans,
        "global_pool": "token" if POOLS[config.pool].needs_class_token else "avg",
        "fc_norm": False,  # the norm stays before the pooling, where pretrained weights have it
        "pos_embed": "none" if config.pos_embed == "none" else "learn",
        "drop_path_rate": config.drop_path_rate,
        "embed_layer": partial(ConvStem, convs=config.stem_convs) if config.stem == "conv" else None,
        "final_norm": False if config.block == "post_norm" else None,  # every block ends in one
    }
    if config.needs_own_blocks:
        options |= {"attn_layer": ATTENTION[config.attention], "block_fn": BLOCK[config.block]}
    if isinstance(config.pretrained, str):
        if not Path(config.pretrained).is_file():
            raise FerVitError(f"Expected a state dict at {config.pretrained} (network.pretrained), but there is none.")
        options["pretrained_cfg_overlay"] = {"file": config.pretrained}
    return {name: value for name, value in options.items() if value is not None}


def _check_backbone(vit: nn.Module, config: RegionViTConfig) -> None:
    """Raises FerVitError when a configuration does not fit its backbone."""
    if not isinstance(vit, VisionTransformer):
        raise FerVitError(f"Expected a plain timm vision transformer as backbone, but {config.backbone} is not one.")
    if config.needs_own_blocks:
        with torch.device("meta"):
            block = timm.create_model(config.backbone, depth=1).blocks[0]
        if type(block) is not Block or type(block.attn) is not Attention:  # else plain ones would replace special ones
            raise FerVitError(
                f"{config.backbone} has special blocks: use a plain one, for example vit_small_patch16_224, with "
                "attention, block or keep_rate."
            )
    side, depth, rates = vit.patch_embed.patch_size[0], len(vit.blocks), config.keep_rate
    if config.tokens != "region" and config.img_size % side:
        raise FerVitError(f"Expected img_size to be a multiple of the patch size {side}, but got {config.img_size}.")
    if rates and len(rates) != depth:
        raise FerVitError(
            f"Expected network.keep_rate to have a number for each of the {depth} blocks, but got {len(rates)}."
        )
    if rates and not vit.has_class_token:
        raise FerVitError(f"network.keep_rate ranks patches by the class token, but {config.backbone} has none.")
    if config.tokens == "region" and not vit.num_prefix_tokens:  # a face without landmarks would have no token
        raise FerVitError(f"{config.backbone} has no class token: with tokens: region add reg_tokens: 1.")


def _check_loaded(vit: VisionTransformer, file: str, name: str) -> None:
    """Raises FerVitError when a file lacks a tenth of a backbone's tensors or more; warns when it lacks any.

    timm loads tensors with known names and logs the rest.
    """
    given = checkpoint_filter_fn(load_state_dict(file), vit)
    tensors = [key for key in vit.state_dict() if not key.startswith("head.")]
    missing = [key for key in tensors if key not in given]
    if len(missing) > len(tensors) / 10:
        raise FerVitError(
            f"Expected the weights of {name} in {file} (network.pretrained), but it has only "
            f"{len(tensors) - len(missing)} of {len(tensors)} tensors. `--model.init` starts from a model of fer-vit."
        )
    if missing:
        warnings.warn(f"Not in {file}, so they start at random: {', '.join(missing)}", stacklevel=2)
