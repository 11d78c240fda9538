"""The configuration of a RegionViT, as plain values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import timm

from fer_vit.errors import FerVitError, check_number, short

RANGES = {
    "img_size": (1, 2048),
    "patch_size": (1, 2048),
    "embed_dim": (1, 16_384),
    "depth": (1, 200),
    "num_heads": (1, 1024),
    "stem_convs": (1, 16),
    "region_grid": (1, 64),
    "reg_tokens": (0, 1024),
    "dropout": (0, 1),
    "drop_path_rate": (0, 1),
}
"""Smallest and largest values: a stranger's file must not cost hours before its weights are read."""


@dataclass(frozen=True)
class RegionViTConfig:
    """Everything that shapes a RegionViT. None keeps the backbone's own value.

    Attributes:
        backbone: Name of a timm vision transformer, for example vit_tiny_patch16_224 or vit_small_patch16_224.
        pretrained: Load timm's weights: true (downloaded by timm), false, or the path of a state dict.
        img_size: Side S of the square input in pixels; with patch tokens a multiple of the patch size.
        in_chans: 3 for RGB, 1 to read images as grey.
        patch_size: Side of a patch in pixels.
        embed_dim: Width D, a multiple of 4.
        depth: Number of blocks.
        num_heads: Heads per block.
        stem: "patch" is ViT's linear patch embedding, "conv" strided convolutions, for training on small images.
        stem_convs: Convolutions of stem "conv" for every halving: with fewer, a token sees less of its surroundings.
        standardize: Bring every crop to the same mean and deviation of grey levels.
        tokens: What the encoder reads: "patch", "region" or "both".
        regions: Names of the regions (see face.regions).
        region_grid: k: a region becomes k x k tokens.
        region_source: Regions are cut from the "image", with an embedding of their own, or from the features of the
            convolutional "stem" before its last halving: cheaper next to patches, and aware of their surroundings.
        pos_embed: Positions of the patches: "learn", "sincos_2d", "sincos_1d" (their rank in reading order) or "none".
            Regions have the sinusoidal code of their centre: 1-D with "sincos_1d", none with "none", else 2-D.
        attention: Score of the encoder's attention: "dot" product, "additive" (Bahdanau) or "gaussian" kernel of the
            distance between tokens (Nadaraya-Watson).
        block: "pre_norm" as in ViT, or "post_norm" with ReLU as in "Attention Is All You Need".
        keep_rate: Hard attention: the fraction of patches that each block keeps, chosen by the class token's attention
            in it; one number per block, relative to the block before. Empty: all patches everywhere. With "gaussian"
            attention the same patches are kept in every face.
        head: "token" classifies the class token, "avg" the mean of the patch and region tokens, "additive" their mean
            with learned weights, "query" the result of a query per expression (Transformer decoder).
        causal: With head "query": a query sees only itself and the queries of earlier expressions.
        reg_tokens: Number of register tokens.
        dropout: Dropout in the encoder: of embeddings, attention weights, and around attention and feed-forward.
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
    stem_convs: int = 3
    standardize: bool = False
    tokens: Literal["patch", "region", "both"] = "both"
    regions: tuple[str, ...] = ()
    region_grid: int = 2
    region_source: Literal["image", "stem"] = "image"
    pos_embed: Literal["learn", "sincos_2d", "sincos_1d", "none"] = "learn"
    attention: Literal["dot", "additive", "gaussian"] = "dot"
    block: Literal["pre_norm", "post_norm"] = "pre_norm"
    keep_rate: tuple[float, ...] = ()
    head: Literal["token", "avg", "additive", "query"] = "token"
    causal: bool = False
    reg_tokens: int | None = None
    dropout: float = 0.0
    drop_path_rate: float = 0.0

    @property
    def needs_own_blocks(self) -> bool:
        """Whether a mechanism needs this project's blocks instead of the backbone's own."""
        return (self.attention, self.block) != ("dot", "pre_norm") or bool(self.keep_rate)


RETIRED = {"patch_downscale": 1, "head_drop_rate": 0}
"""Options of older versions, and their values in a model that did not use them."""


def drop_retired(network: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration from a file without the options that have been removed.

    Raises:
        FerVitError: The model uses one of them.
    """
    for name, unused in RETIRED.items():
        value = network.get(name, unused)
        if not isinstance(value, int | float) or value != unused:
            raise FerVitError(
                f"Expected network.{name} to be {unused}, because the option was removed, but got {short(value)}. "
                "Use another model, or train again without it."
            )
    return {name: value for name, value in network.items() if name not in RETIRED}


RULES: tuple[tuple[Callable[[RegionViTConfig], object], str], ...] = (
    (
        lambda c: (c.embed_dim or 0) % 4,
        "Expected network.embed_dim to be a multiple of 4, but got {0.embed_dim}.",
    ),
    (
        lambda c: not all(0 < rate <= 1 for rate in c.keep_rate),
        "Expected network.keep_rate to hold numbers above 0, up to 1, but got {0.keep_rate}.",
    ),
    (
        lambda c: c.tokens != "patch" and not c.regions,
        "Expected at least one region with tokens: {0.tokens}, but got none (tokens: patch).",
    ),
    (
        lambda c: c.tokens == "region" and c.keep_rate,
        "network.keep_rate drops patches: use tokens: both or patch.",
    ),
    (
        lambda c: c.region_source == "stem" and c.stem != "conv",
        "network.region_source: stem cuts regions from the features of stem: conv. Set that as well.",
    ),
    (
        lambda c: c.stem == "conv" and c.pretrained,
        "Pretrained weights have no convolutional stem: use stem: patch or pretrained: false. To start from a model of "
        "fer-vit, use `--model.init`.",
    ),
    (
        lambda c: c.stem == "conv" and c.patch_size not in [2**step for step in range(1, 12)],
        "Expected a power of two as patch_size with stem: conv, but got {0.patch_size}.",
    ),
    (
        lambda c: c.pretrained and (c.attention, c.block) != ("dot", "pre_norm"),
        "Pretrained weights are for attention: dot and block: pre_norm. Use those, or pretrained: false.",
    ),
    (
        lambda c: c.causal and c.head != "query",
        "Only the decoder of head: query can be causal, but the head is {0.head}.",
    ),
)
"""What a configuration must not be, and the message for it."""


def check_config(config: RegionViTConfig) -> None:
    """Raises FerVitError when a configuration contradicts itself or names what does not exist."""
    for name, kind in get_type_hints(RegionViTConfig).items():  # checkpoints and Python may pass any value
        if not _is_a(value := getattr(config, name), kind):
            raise FerVitError(f"Expected network.{name} to be {_words(kind)}, but got {short(value)}.")
    if not timm.is_model(config.backbone):
        close = ", ".join(timm.list_models(f"*{config.backbone.split('_')[0]}*patch*")[:3])
        hint = close or "vit_tiny_patch16_224"
        raise FerVitError(f"Expected a timm model as backbone (for example {hint}), but got {config.backbone}.")
    for name, (least, most) in RANGES.items():
        if (number := getattr(config, name)) is not None:
            check_number(f"network.{name}", number, least, most)
    for broken, words in RULES:
        if broken(config):
            raise FerVitError(words.format(config))


def _words(kind: Any) -> str:
    """Describes a type for messages: "int | None", "one of 1, 3"."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _is_a(value: Any, kind: Any) -> bool:
    """Tells whether a value is of a type used above; a list will do for a tuple."""
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return any(value == option and type(value) is type(option) for option in options)
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_is_a(item, options[0]) for item in value)
    if options:
        return any(_is_a(value, option) for option in options)
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
