"""RegionViT: a vision transformer over patch tokens and tokens of regions around landmarks.

Encoder, class and register tokens, patch positions and classifier are timm's (see `backbone`). Only
this file and `backbone` use timm's private names.

B images, S crop size, N patches, R regions of k x k tokens, T = prefix + N + R k^2 tokens, D width,
C classes.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.face.crop import CropSpec
from fer_vit.geometry import Array
from fer_vit.heads import EXPRESSION, HeadOutputs
from fer_vit.model.additive import AdditiveHead
from fer_vit.model.attention import (
    ATTENTION,
    POOLS,
    class_attention,
)
from fer_vit.model.backbone import (
    create_backbone,
    find_origin,
    fix_positions,
    grid_centres,
    remove_patches,
)
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.embedding import Normalize, RegionEmbed, position_code
from fer_vit.model.tokens import TokenLayout, Tokens, keep_patches, token_centres
from fer_vit.model_settings import ModelSettings


class Parts(NamedTuple):
    """The parts of a RegionViT that `build_model` creates."""

    vit: VisionTransformer  # encoder, patch embedding, prefix tokens, classifier
    normalize: Normalize
    region_embed: RegionEmbed | None  # None: no region tokens
    pool: nn.Module  # the pooling of encoded tokens into the vectors that are classified
    heads: nn.ModuleDict  # further heads by name
    layout: TokenLayout  # the order of the tokens in the encoder's input
    patch_size: int  # the side of a patch in crop pixels


class RegionViT(nn.Module):
    """Vision transformer over patch and region tokens; `build_model` creates one.

    Attributes:
        config: The architecture.
        settings: The settings that prediction needs besides the network.
        offset: What the logit adjustment adds to the logits (C,). None: nothing.
        changed_offset: What replaces `offset` under another prior (see `change_prior`). None:
            nothing.
        centres: The centres of prefix and patch tokens (prefix + N, 2), (x, y) in crop pixels.
    """

    offset: Tensor | None
    changed_offset: Tensor | None
    centres: Tensor

    def __init__(self, config: RegionViTConfig, settings: ModelSettings, parts: Parts) -> None:
        super().__init__()
        self.config = config
        self.settings = settings
        self.vit = parts.vit
        self.normalize = parts.normalize
        self.region_embed = parts.region_embed
        self.pool: Any = parts.pool
        self.heads = parts.heads
        self.layout = parts.layout
        self.patch_size = parts.patch_size

        # the function that computes the mask or the squared distances of pairs of tokens
        self.pairs = ATTENTION[config.attention].pairs
        # the number of patches in the input of each block, then in the output of the last block
        rates = config.keep_rate or [1.0] * len(self.vit.blocks)
        self.num_kept = [self.layout.num_patches]
        for rate in rates:
            # - 1e-9: a rounding error of the product must not keep one more patch
            self.num_kept.append(math.ceil(self.num_kept[-1] * rate - 1e-9))
        # If True, hard attention masks patches instead of removing them, for callers that need T
        # tokens in each block. Masking is slower. The outputs are equal up to rounding errors,
        # which in bfloat16 may change the order of almost equal scores.
        self.drop_by_mask = False

        middle = torch.full((self.layout.num_prefix, 2), config.img_size / 2)
        patches = grid_centres(config, self.patch_size, self.layout.grid)  # (N, 2)
        self.register_buffer("centres", torch.cat([middle, patches]), persistent=False)
        self.register_buffer("offset", self._as_offset(settings.offset()), persistent=False)
        self.register_buffer("changed_offset", None, persistent=False)

    @property
    def patch_origin(self) -> float:
        """The left edge, and equally the upper edge, of the grid of patches in crop pixels."""
        return find_origin(self.config, self.patch_size)

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Computes the raw outputs of all heads.

        Args:
            image: Face crops (B, 3, S, S), RGB in [0, 1].
            boxes: Region boxes (B, R, 4), xyxy in crop pixels, in the order of `config.regions`.
                None: all regions are missing.
            valid: Which regions are present (B, R). None: all regions, if there are `boxes`.

        Returns:
            Raw outputs by the name of the head: logits (B, C) of `expression`, if the model has
            labels, and (B, K) of each head in `settings.outputs`.
        """
        tokens = self.tokenize(image, boxes, valid)
        tokens = self.encode(tokens)
        return self.outputs_by_head(tokens)

    def logits(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Returns the logits (B, C) of the head `expression` alone; arguments as for `forward`."""
        return self.classify(self.pool_features(image, boxes, valid))

    def outputs_by_head(self, tokens: Tokens) -> dict[str, Tensor]:
        """Computes the raw outputs of all heads from encoded tokens; returns as `forward`."""
        outputs = {name: head(tokens) for name, head in self.heads.items()}
        if self.settings.labels:
            outputs = {EXPRESSION: self.forward_head(tokens)} | outputs
        return outputs

    def tokenize(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tokens:
        """Embeds faces as tokens: `embed`, then `place`; arguments as for `forward`."""
        boxes, valid = self.fill_regions(image, boxes, valid)  # (B, R, 4), (B, R)
        patches, regions = self.embed(image, boxes, valid)  # (B, N, D), (B, R k^2, D)
        return self.place(patches, regions, boxes, valid)

    def embed(self, image: Tensor, boxes: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds the contents of patches and regions, without positions.

        Boxes and `valid` are as `fill_regions` returns them. Returns patch tokens (B, N, D) and
        region tokens (B, R k^2, D); (B, 0, D) for a model without region tokens.
        """
        patches, source = self.embed_patches(self.normalize(image))  # (B, N, D), (B, C', H, W)
        if self.region_embed is None:
            return patches, patches[:, :0]
        return patches, self.region_embed(source, boxes, valid)

    def place(self, patches: Tensor, regions: Tensor, boxes: Tensor, valid: Tensor) -> Tokens:
        """Adds prefix tokens, names of regions and positions to the tokens that `embed` returns.

        Boxes and `valid` are as for `embed`.
        """
        x, centres = self._place_patches(patches)  # (B, prefix + N, D), (B, prefix + N, 2)
        if self.region_embed is None:
            return Tokens(x=self.vit.norm_pre(x), valid=None, centres=centres)

        # names and positions of regions
        region_centres = token_centres(boxes, self.layout.region_grid)  # (B, R, k^2, 2)
        region_centres = region_centres.flatten(1, 2)  # (B, R k^2, 2)
        present = valid.repeat_interleave(self.layout.tokens_per_region, dim=1)  # (B, R k^2)
        positions = position_code(
            self.config, region_centres, self.vit.embed_dim, self.patch_size
        )  # (B, R k^2, D)
        regions = regions + self.region_embed.name_codes()
        regions = regions + positions
        regions = self.vit.pos_drop(regions.masked_fill(~present[..., None], 0.0))

        always = present.new_ones(x.shape[0], x.shape[1])  # (B, prefix + N)
        return Tokens(
            x=self.vit.norm_pre(torch.cat([x, regions], dim=1)),  # (B, T, D)
            valid=torch.cat([always, present], dim=1),  # (B, T)
            centres=torch.cat([centres, region_centres], dim=1),  # (B, T, 2)
        )

    def _place_patches(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Adds prefix tokens and positions to patch tokens (B, N, D).

        Returns tokens (B, prefix + N, D) and their centres (B, prefix + N, 2), in crop pixels.
        """
        x = self.vit._pos_embed(patches)
        if self.vit.pos_embed is None:  # with positions, timm has applied dropout already
            x = self.vit.pos_drop(x)
        return x, self.centres.expand(x.shape[0], -1, -1)

    def embed_patches(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds the patches of normalised images (B, C, S, S).

        Returns patch tokens (B, N, D), and the source from which regions are cut: the image, or the
        stem's features (B, C', 2 S/P, 2 S/P), rounded up.
        """
        embed = self.vit.patch_embed
        from_stem = self.config.region_source == "stem"
        source = embed.early(image) if from_stem else image
        if not self.layout.num_patches:
            patches = source.new_zeros(image.shape[0], 0, self.vit.embed_dim)
        elif from_stem:
            patches = embed.finish(source)
        else:
            patches = embed(image)
        return patches, source

    def fill_regions(
        self, image: Tensor, boxes: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns boxes (B, R, 4), and which regions are present (B, R), with defaults for None.

        Boxes of missing regions are 0.
        """
        if boxes is None:
            boxes = image.new_zeros(image.shape[0], self.layout.num_regions, 4)
            valid = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
        elif valid is None:
            valid = torch.ones_like(boxes[..., 0], dtype=torch.bool)
        # The box of a missing region may be NaN, and NaN times an attention weight of 0 is NaN.
        return boxes.masked_fill(~valid[..., None], 0.0), valid

    def forward_features(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tokens:
        """Encodes face crops: `tokenize`, then `encode`; arguments as for `forward`.

        The `x` of the result is (B, T, D). `forward_head` classifies the result.
        """
        return self.encode(self.tokenize(image, boxes, valid))

    def encode(self, tokens: Tokens) -> Tokens:
        """Applies the blocks and the final norm to the tokens that `tokenize` returns.

        Missing regions get no attention. With a keep rate, the result has fewer patches.
        """
        pairs = self.pairs(tokens)
        for index, block in enumerate(self.vit.blocks):
            num_before = self.num_kept[index]
            num_after = self.num_kept[index + 1]
            if num_after < num_before:
                scores = class_attention(block, tokens.x, pairs)  # (B, T')
                tokens = keep_patches(tokens, scores, self.layout, num_after, self.drop_by_mask)
                pairs = self.pairs(tokens)
            tokens = tokens._replace(x=block(tokens.x, attn_mask=pairs))  # (B, T', D)
        return tokens._replace(x=self.vit.norm(tokens.x))

    def pool_features(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Returns the vectors for `classify`: (B, D), or (B, C, D); arguments as for `forward`."""
        tokens = self.tokenize(image, boxes, valid)
        tokens = self.encode(tokens)
        pooled: Tensor = self.pool(tokens).x
        return pooled

    def forward_head(self, tokens: Tokens) -> Tensor:
        """Pools and classifies encoded tokens; returns logits (B, C)."""
        return self.classify(self.pool(tokens).x)

    def classify(self, pooled: Tensor) -> Tensor:
        """Returns logits (B, C) of a vector per face (B, D), or per expression (B, C, D)."""
        logits = self.score(pooled)
        offset = self.offset if self.changed_offset is None else self.changed_offset
        if offset is not None:
            logits = logits + offset
        return logits

    def score(self, pooled: Tensor) -> Tensor:
        """Returns logits before any offset is added; the argument is as for `classify`."""
        logits: Tensor = self.vit.head(self.vit.head_drop(self.vit.fc_norm(pooled)))
        return logits

    def change_prior(self, prior: Sequence[float] | None, possible: Sequence[bool]) -> None:
        """Adapts the probabilities to another prior and to the `possible` classes.

        Arguments as for `ModelSettings.offset`. Each call starts from the trained network: None,
        with all classes possible, restores its probabilities.
        """
        self.changed_offset = None
        if prior is not None or not all(possible):
            self.changed_offset = self._as_offset(self.settings.offset(prior, possible))

    def _as_offset(self, offset: Array | None) -> Tensor | None:
        return None if offset is None else torch.from_numpy(offset).to(self.centres)

    def adjust(self, prior: Sequence[float], adjustment: float) -> None:
        """Sets the prior, and the strength with which its log is subtracted from the logits.

        A call of `change_prior` before this has no effect any longer, since its result depends on
        the former prior.
        """
        self.settings.prior = tuple(prior)
        self.settings.adjustment = adjustment
        self.offset = self._as_offset(self.settings.offset())
        self.changed_offset = None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Returns the calibrated probabilities (B, C) of logits (B, C), in float32."""
        return (logits.float() / self.settings.temperature).softmax(-1)

    def no_weight_decay(self) -> set[str]:
        """Returns patterns of parameters without weight decay, as timm's optimisers expect them."""
        patterns = {"*pos_embed", "*cls_token", "*reg_token", "*name_embed*"}
        label_rows = getattr(self.pool, "label_rows", ())  # an encoder has no pooling
        patterns.update(f"pool.{name}" for name in label_rows)
        return patterns

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Returns the layers for timm's layer-wise learning rate decay, as regular expressions.

        The layers are the embeddings, each block, and the head.
        """
        return {
            "stem": r"^region_embed|^vit\.(?:cls_token|reg_token|pos_embed|patch_embed|norm_pre)",
            "blocks": [(r"^vit\.blocks\.(\d+)", None), (r"^vit\.(?:norm|fc_norm)", (99999,))],
        }


def share_tensors(net: RegionViT) -> RegionViT:
    """Returns a copy of a network, with the same parameters, buffers and settings in memory."""
    # `deepcopy` does not copy the objects in its memo
    shared: dict[int, Any] = {id(net.settings): net.settings}
    for tensor in chain(net.parameters(), net.buffers()):
        shared[id(tensor)] = tensor
    return deepcopy(net, shared)


def build_model(
    config: RegionViTConfig,
    labels: Sequence[str],
    *,
    initialize: bool = True,
    crop: CropSpec | None = None,
    outputs: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> RegionViT:
    """Builds a RegionViT.

    Args:
        config: The architecture.
        labels: The C expressions in the order of the logits. Empty: an encoder without classifier.
        initialize: Whether timm draws random weights for the blocks. A network that gets its
            weights from a file needs none.
        crop: How a face becomes a crop, with the size and regions of `config`. None: by default.
        outputs: The names of the outputs of further heads, by head.
        **settings: Further arguments of `ModelSettings`.

    Raises:
        FerVitError: As for `create_backbone`.
    """
    crop = crop or CropSpec(config.img_size, tuple(config.regions))
    further = HeadOutputs.of_names(outputs or {}, "The model")
    model_settings = ModelSettings(list(labels), crop, outputs=further, **settings)
    return build_from_parts(config, model_settings, initialize)


def build_from_parts(
    config: RegionViTConfig, settings: ModelSettings, initialize: bool = True
) -> RegionViT:
    """Builds a RegionViT from a configuration and settings; arguments as for `build_model`.

    The network has a copy of `settings`: methods such as `adjust` change them.
    """
    settings = deepcopy(settings)
    num_classes = len(settings.labels)
    vit = create_backbone(config, num_classes, initialize)
    normalize = Normalize(
        mean=vit.pretrained_cfg["mean"],
        std=vit.pretrained_cfg["std"],
        in_chans=config.in_chans,
        standardize=config.standardize,
    )
    if config.pos_embed not in ("learn", "none"):
        fix_positions(vit, config)

    # `RegionEmbed` copies the patch embedding, which `remove_patches` removes below
    regions = () if config.tokens == "patch" else config.regions
    region_embed = RegionEmbed(config, vit) if regions else None
    patch_size = int(vit.patch_embed.patch_size[0])
    grid = vit.patch_embed.grid_size
    if config.tokens == "region":
        grid = (0, 0)
        remove_patches(vit, config)
    layout = TokenLayout(vit.num_prefix_tokens, grid, len(regions), config.region_grid)

    pool: nn.Module = nn.Identity()
    if num_classes:
        pool = POOLS[config.pool](
            num_prefix=vit.num_prefix_tokens,
            dim=vit.embed_dim,
            num_classes=num_classes,
            num_heads=config.num_heads,
            causal=config.causal,
        )
    heads = nn.ModuleDict()
    for head, of_head in settings.outputs.by_head.items():
        heads[head] = AdditiveHead(len(of_head), regions, layout, vit.embed_dim)
    parts = Parts(
        vit=vit,
        normalize=normalize,
        region_embed=region_embed,
        pool=pool,
        heads=heads,
        layout=layout,
        patch_size=patch_size,
    )
    return RegionViT(config, settings, parts)
