"""The configuration of a RegionViT, as plain values."""

from dataclasses import dataclass
from typing import Literal

import timm

from fer_vit.errors import FerVitError, check_number
from fer_vit.face.crop import MAX_CROP
from fer_vit.model.attention import POOLS
from fer_vit.wording import describe_entries, fill_docstring, join_names

# Smallest and largest values: building the network of an untrusted file must not take hours.
ARCHITECTURE_RANGES = {
    "img_size": (1, MAX_CROP),
    "patch_size": (1, 2048),
    "embed_dim": (1, 16_384),
    "depth": (1, 200),
    "num_heads": (1, 1024),
    "stem_convs": (1, 16),
    "stem_last_convs": (1, 16),
    "region_grid": (1, 64),
    "reg_tokens": (0, 1024),
    "dropout": (0, 1),
    "drop_path_rate": (0, 1),
}


@fill_docstring(POOLS=describe_entries({name: pool.meaning for name, pool in POOLS.items()}))
@dataclass(frozen=True)
class RegionViTConfig:
    """All settings of a RegionViT. None keeps the backbone's default.

    Attributes:
        backbone: Name of a timm vision transformer, for example vit_tiny_patch16_224.
        pretrained: Load timm's weights: true (downloaded by timm), false, or the path of a state
            dict.
        img_size: Side S of the square input in pixels. With patch tokens, a multiple of the patch
            size; with stem "conv", also one pixel more, so that mirroring maps the grid of patches
            to itself.
        in_chans: 3 for RGB, 1 to read images as grey.
        patch_size: Side of a patch in pixels.
        embed_dim: Width D, a multiple of 4.
        depth: Number of blocks.
        num_heads: Attention heads per block.
        stem: "patch" is ViT's linear patch embedding; "conv" is a stack of strided convolutions,
            for training on small images.
        stem_convs: Convolutions of stem "conv" per halving; fewer mean a smaller receptive field.
        stem_last_convs: Convolutions of the last halving of stem "conv", which only patches use.
            None: as `stem_convs`.
        standardize: Scale every crop to the same mean and standard deviation of grey levels.
        tokens: Input of the encoder: "patch", "region" or "both".
        regions: Names of the regions (see `face.crop.REGIONS`).
        region_grid: Number k of tokens along each side of a region: a region becomes k x k tokens.
        region_source: Cut regions from the "image", with a separate embedding, or from the features
            of the "conv" "stem" before its last halving: cheaper with patch tokens, but with a
            larger receptive field.
        pos_embed: Positions of the patches: "learn", "sincos_2d", "sincos_1d" (in reading order),
            "mirror" (encodes x and S - x, so that mirroring swaps the halves) or "none". Regions
            encode their centres: in 1-D with "sincos_1d", as patches with "mirror" and "none", else
            in 2-D.
        attention: Score of the encoder's attention: "dot" product, "additive" (Bahdanau) or
            "gaussian" kernel of the distance between tokens (Nadaraya-Watson).
        block: "pre_norm" as in ViT, or "post_norm" with ReLU as in "Attention Is All You Need".
        keep_rate: Hard attention: the fraction of patches that each block keeps, those with the
            most attention of the class token. Empty: all. With "gaussian" attention, every face
            keeps the same patches.
        pool: What is classified. {POOLS}.
        causal: With pool "query": a query sees only itself and the queries of earlier expressions.
        reg_tokens: Number of register tokens.
        dropout: Dropout rate of embeddings, attention weights, and outputs of attention and
            feed-forward.
        drop_path_rate: Stochastic depth rate of the last block, rising linearly from 0 in the
            first.
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
    stem_convs: int = 3
    stem_last_convs: int | None = None
    standardize: bool = False
    tokens: Literal["patch", "region", "both"] = "both"
    regions: tuple[str, ...] = ()
    region_grid: int = 2
    region_source: Literal["image", "stem"] = "image"
    pos_embed: Literal["learn", "sincos_2d", "sincos_1d", "mirror", "none"] = "learn"
    attention: Literal["dot", "additive", "gaussian"] = "dot"
    block: Literal["pre_norm", "post_norm"] = "pre_norm"
    keep_rate: tuple[float, ...] = ()
    pool: str = "token"
    causal: bool = False
    reg_tokens: int | None = None
    dropout: float = 0.0
    drop_path_rate: float = 0.0


def check_config(config: RegionViTConfig) -> None:
    """Raises FerVitError when a configuration contradicts itself or names something unknown."""
    if not timm.is_model(config.backbone):
        raise FerVitError(
            "Expected a timm model as backbone, like vit_tiny_patch16_224, but got "
            f"{config.backbone}."
        )
    if config.pool not in POOLS:
        raise FerVitError(
            f"Expected `--model.network.pool` to be one of {', '.join(POOLS)}, but got "
            f"{config.pool}."
        )
    for name, (low, high) in ARCHITECTURE_RANGES.items():
        number = getattr(config, name)
        if number is not None:
            check_number(f"model.network.{name}", number, low, high)
    _check_width(config)
    _check_tokens(config)
    _check_stem(config)
    _check_blocks(config)


def _check_width(config: RegionViTConfig) -> None:
    """Raises FerVitError when the position encoding cannot have the width."""
    if config.embed_dim is None:
        return
    if config.embed_dim % 4:
        raise FerVitError(
            "Expected `--model.network.embed_dim` to be a multiple of 4, but got "
            f"{config.embed_dim}."
        )
    if config.pos_embed == "mirror" and config.embed_dim % 8:
        raise FerVitError(
            "`--model.network.pos_embed mirror` needs `--model.network.embed_dim` to be a multiple "
            f"of 8, but got {config.embed_dim}."
        )


def _check_tokens(config: RegionViTConfig) -> None:
    """Raises FerVitError when there would be no region tokens, or a keep rate is wrong."""
    if not all(0 < rate <= 1 for rate in config.keep_rate):
        raise FerVitError(
            "Expected `--model.network.keep_rate` to hold numbers above 0, up to 1, but got "
            f"{config.keep_rate}."
        )
    if config.tokens != "patch" and not config.regions:
        raise FerVitError(
            f"Expected at least one region with `--model.network.tokens {config.tokens}`, but got "
            "none."
        )
    if config.tokens == "region" and config.keep_rate:
        raise FerVitError(
            "`--model.network.keep_rate` drops patches: use `--model.network.tokens both` or "
            "`--model.network.tokens patch`."
        )


def _check_stem(config: RegionViTConfig) -> None:
    """Raises FerVitError when other settings do not fit the stem."""
    if config.stem != "conv":
        if config.region_source == "stem":
            raise FerVitError(
                "`--model.network.region_source stem` needs `--model.network.stem conv`."
            )
        return
    if config.pretrained:
        raise FerVitError(
            "Pretrained weights have no convolutional stem: use `--model.network.stem patch` or "
            "`--model.init`."
        )
    powers = [2**exponent for exponent in range(1, 12)]
    if config.patch_size not in powers:
        raise FerVitError(
            "Expected a power of two as `--model.network.patch_size` with "
            f"`--model.network.stem conv`, but got {config.patch_size}."
        )


def _check_blocks(config: RegionViTConfig) -> None:
    """Raises FerVitError when other settings do not fit the blocks or the pooling."""
    if config.pretrained and (config.attention, config.block) != ("dot", "pre_norm"):
        raise FerVitError(
            "Pretrained weights are for `--model.network.attention dot` and "
            "`--model.network.block pre_norm`."
        )
    if config.causal and not POOLS[config.pool].can_be_causal:
        names = join_names([name for name, pool in POOLS.items() if pool.can_be_causal])
        raise FerVitError(
            f"Only the decoder of `--model.network.pool {names}` can be causal, "
            f"but pool is {config.pool}."
        )
