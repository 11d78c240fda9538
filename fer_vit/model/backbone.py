"""Creates timm's vision transformer with the attention, blocks and positions of a RegionViT.

N patches, D width.
"""

import warnings
from functools import partial

import timm
import torch
from timm.layers import Attention
from timm.models import is_model_in_modules
from timm.models.vision_transformer import (
    Block,
    VisionTransformer,
    checkpoint_filter_fn,
    init_weights_vit_timm,
)
from torch import Tensor, nn

from fer_vit.errors import FerVitError
from fer_vit.model.attention import ATTENTION, POOLS, ExpressionLinear, PostNormBlock
from fer_vit.model.config import RegionViTConfig, check_config
from fer_vit.model.embedding import ConvStem, position_code
from fer_vit.model.pretrained import read_weights
from fer_vit.model.tokens import patch_centres

# Models from these modules of timm have the parts that a RegionViT uses.
PLAIN = ("vision_transformer", "deit")


def grid_centres(config: RegionViTConfig, patch_size: int, grid: tuple[int, int]) -> Tensor:
    """Returns the centres (N, 2) of a grid of patches, (x, y) in crop pixels, row by row."""
    return find_origin(config, patch_size) + patch_centres(grid) * patch_size


def find_origin(config: RegionViTConfig, patch_size: int) -> float:
    """Returns the left edge, and equally the upper edge, of the grid of patches in crop pixels.

    Patches begin at 0, with one exception: strided convolutions are centred on the first pixel of a
    patch. On a crop of n P + 1 pixels, for patches of P pixels, this makes the grid symmetric, and
    the centre of the first patch is 0.5.
    """
    symmetric = config.img_size % patch_size == 1 and config.stem == "conv"
    return 0.5 - patch_size / 2 if symmetric else 0.0


def fix_positions(vit: VisionTransformer, config: RegionViTConfig) -> None:
    """Replaces learned positions by a fixed encoding of patches, and zeros for prefix tokens."""
    patch_size = int(vit.patch_embed.patch_size[0])
    centres = grid_centres(config, patch_size, vit.patch_embed.grid_size)  # (N, 2)
    code = torch.zeros_like(vit.pos_embed)  # (1, prefix + N or N, D)
    code[0, -len(centres) :] = position_code(config, centres, vit.embed_dim, patch_size)
    vit.pos_embed = nn.Parameter(code, requires_grad=False)


def remove_patches(vit: VisionTransformer, config: RegionViTConfig) -> None:
    """Removes the weights that only patches need, and the positions of patches."""
    if config.region_source == "stem":
        vit.patch_embed.late = nn.Identity()
    else:
        vit.patch_embed = nn.Identity()
    if vit.pos_embed is not None:
        num_prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
        prefix_positions = vit.pos_embed[:, :num_prefix].detach().clone()
        vit.pos_embed = nn.Parameter(prefix_positions, vit.pos_embed.requires_grad)


def create_backbone(
    config: RegionViTConfig, num_classes: int, initialize: bool = True
) -> VisionTransformer:
    """Creates timm's vision transformer with the configured attention, blocks and classifier.

    For another image or patch size, timm resamples pretrained position embeddings and kernels of
    patches. Raises FerVitError when settings contradict each other, or timm cannot build the
    backbone.
    """
    check_config(config)
    if not is_model_in_modules(config.backbone, PLAIN):
        raise FerVitError(
            "Expected a plain vision transformer of timm, such as vit_small_patch16_224, but got "
            f"{config.backbone}."
        )
    state = read_weights(config.pretrained) if isinstance(config.pretrained, str) else None
    options = _timm_options(config, state)
    if not initialize:
        options["weight_init"] = "skip"
    try:
        vit = timm.create_model(config.backbone, num_classes=num_classes, **options)
    except (AssertionError, TypeError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "class token" in reason and POOLS[config.pool].needs_class_token:
            reason = (
                f"it has no class token, which `--model.network.pool {config.pool}` reads. "
                "Use `--model.network.pool avg`."
            )
        raise FerVitError(f"Cannot build the backbone {config.backbone}: {reason}") from error
    _check_backbone(vit, config)
    if state is not None:
        vit.pretrained_cfg["state_dict"] = None  # frees as much memory as the network takes
        _check_loaded(vit, state, config)
    if num_classes and POOLS[config.pool].per_expression:
        vit.head = ExpressionLinear(vit.embed_dim, num_classes)
        init_weights_vit_timm(vit.head)
    return vit


def _timm_options(config: RegionViTConfig, state: dict[str, Tensor] | None) -> dict[str, object]:
    """Returns the arguments of `timm.create_model` for a configuration."""
    options: dict[str, object] = {
        "pretrained": bool(config.pretrained),
        "img_size": config.img_size,
        "in_chans": config.in_chans,
        "global_pool": "token" if POOLS[config.pool].needs_class_token else "avg",
        "fc_norm": False,  # the norm stays before the pooling, as in pretrained weights
        "pos_embed": "none" if config.pos_embed == "none" else "learn",
        "pos_drop_rate": config.dropout,
        "proj_drop_rate": config.dropout,
        "attn_drop_rate": config.dropout,
        "drop_path_rate": config.drop_path_rate,
    }

    # None keeps the backbone's default
    for name in ("patch_size", "embed_dim", "depth", "num_heads", "reg_tokens"):
        value = getattr(config, name)
        if value is not None:
            options[name] = value

    if config.stem == "conv":
        options["embed_layer"] = partial(
            ConvStem, convs=config.stem_convs, last_convs=config.stem_last_convs
        )
    if config.block == "post_norm":
        options["final_norm"] = False  # each block ends in a norm
    if _replaces_blocks(config):
        options["attn_layer"] = ATTENTION[config.attention]
        options["block_fn"] = PostNormBlock if config.block == "post_norm" else Block
    if state is not None:
        options["pretrained_cfg_overlay"] = {"state_dict": state}
    return options


def _replaces_blocks(config: RegionViTConfig) -> bool:
    return bool(config.keep_rate) or (config.attention, config.block) != ("dot", "pre_norm")


def _check_backbone(vit: VisionTransformer, config: RegionViTConfig) -> None:
    """Raises FerVitError when the backbone does not fit the configuration."""
    if hasattr(vit, "head_dist"):
        raise FerVitError(
            f"{config.backbone} has a second classifier, for distillation, that would not be "
            f"trained. Use {config.backbone.replace('_distilled', '')}."
        )
    if _replaces_blocks(config):
        with torch.device("meta"):
            block = timm.create_model(config.backbone, depth=1).blocks[0]
        if type(block) is not Block or type(block.attn) is not Attention:
            raise FerVitError(
                f"{config.backbone} has special blocks. Attention, block and keep_rate need a "
                "plain one, for example vit_small_patch16_224."
            )

    patch_size = vit.patch_embed.patch_size[0]
    remainder = config.img_size % patch_size
    fits = remainder == 0 or (remainder == 1 and config.stem == "conv")
    if config.tokens != "region" and not fits:
        raise FerVitError(
            f"Expected `--model.network.img_size` to be a multiple of the patch size {patch_size}, "
            f"or one more with `--model.network.stem conv`, but got {config.img_size}."
        )

    depth = len(vit.blocks)
    if config.keep_rate and len(config.keep_rate) != depth:
        raise FerVitError(
            f"Expected `--model.network.keep_rate` to have {depth} numbers, one per block, but got "
            f"{len(config.keep_rate)}."
        )
    if config.keep_rate and not vit.has_class_token:
        raise FerVitError(
            "`--model.network.keep_rate` ranks patches by the class token, but "
            f"{config.backbone} has none."
        )

    # without this check, a face without landmarks would have no token
    if config.tokens == "region" and not vit.num_prefix_tokens:
        raise FerVitError(
            f"{config.backbone} has no class token: with `--model.network.tokens region` add "
            "`--model.network.reg_tokens 1`."
        )


def _check_loaded(
    vit: VisionTransformer, state: dict[str, Tensor], config: RegionViTConfig
) -> None:
    """Warns of missing tensors; raises FerVitError when over a tenth of them are missing.

    timm only logs missing tensors.
    """
    converted = checkpoint_filter_fn(state, vit)
    tensors = [key for key in vit.state_dict() if not key.startswith("head.")]
    missing = [key for key in tensors if key not in converted]
    if len(missing) > len(tensors) / 10:
        raise FerVitError(
            f"Expected the weights of {config.backbone} in {config.pretrained} "
            f"(`--model.network.pretrained`), but got only {len(tensors) - len(missing)} of "
            f"{len(tensors)} tensors. `--model.init` starts from a model of fer-vit."
        )
    if missing:
        names = ", ".join(missing)
        warnings.warn(f"Not in {config.pretrained}, so they start at random: {names}", stacklevel=2)
