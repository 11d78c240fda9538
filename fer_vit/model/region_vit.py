"""RegionViT: a vision transformer over patch tokens and tokens of regions around landmarks.

Encoder, class and register tokens, patch positions and classifier are timm's, see `backbone`. Only
these two files use timm's private names.

B images, S crop size, N patches, R regions of k x k tokens, T = prefix + N + R k^2 tokens, D width,
C classes.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.heads import EXPRESSION
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
from fer_vit.model.config import ModelSettings, RegionViTConfig
from fer_vit.model.embedding import Normalize, RegionEmbed, position_code
from fer_vit.model.tokens import TokenLayout, Tokens, keep_patches, token_centres


class Parts(NamedTuple):
    """The parts of a RegionViT that `build_model` creates."""

    vit: VisionTransformer  # encoder, patch embedding, prefix tokens, classifier
    normalize: Normalize
    region_embed: RegionEmbed | None  # None: no region tokens
    pool: nn.Module  # from encoded tokens to what is classified
    heads: nn.ModuleDict  # further heads by name
    layout: TokenLayout  # of the encoder's input
    patch_size: int  # side in crop pixels


class RegionViT(nn.Module):
    """Vision transformer over patch and region tokens, with the settings of its file.

    `build_model` creates it.
    """

    offset: Tensor | None  # added to the logits (C,): their adjustment; None: nothing
    changed_offset: Tensor | None  # replaces `offset` under another prior; see `change_prior`
    centres: Tensor  # of prefix and patch tokens (prefix + N, 2), (x, y) in crop pixels

    def __init__(self, config: RegionViTConfig, settings: ModelSettings, parts: Parts) -> None:
        super().__init__()
        self.config = config
        self.settings = settings
        self.vit = parts.vit
        offset = adjustment_offset(settings.prior, settings.adjustment)
        self.register_buffer("offset", offset, persistent=False)
        self.register_buffer("changed_offset", None, persistent=False)
        self.normalize = parts.normalize
        self.region_embed = parts.region_embed
        self.pool: Any = parts.pool
        self.heads = parts.heads
        self.layout = parts.layout
        self.patch_size = parts.patch_size

        # computes the mask or distances of tokens
        self.pairs = ATTENTION[config.attention].pairs
        # patches at first, then after each block
        rates = config.keep_rate or [1.0] * len(self.vit.blocks)
        self.num_kept = [self.layout.num_patches]
        for rate in rates:
            # a floating-point error is not a patch
            self.num_kept.append(math.ceil(self.num_kept[-1] * rate - 1e-9))
        # Hard attention masks patches instead of removing them, for callers that want T tokens in
        # every block: slower; equal up to rounding (in bfloat16, near-ties may be ranked
        # differently).
        self.drop_by_mask = False

        middle = torch.full((self.layout.num_prefix, 2), config.img_size / 2)
        patches = grid_centres(config, self.patch_size, self.layout.grid)  # (N, 2)
        self.register_buffer("centres", torch.cat([middle, patches]), persistent=False)

    @property
    def patch_origin(self) -> float:
        """The left and upper edge of the grid of patches in crop pixels."""
        return find_origin(self.config, self.patch_size)

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Reads faces with every head.

        Args:
            image: Face crops (B, 3, S, S), RGB in [0, 1].
            boxes: Region boxes (B, R, 4), xyxy in crop pixels, in the order of `config.regions`.
                None: all missing.
            valid: Which regions are present (B, R). None: all that `boxes` gives.

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
        """Returns the raw outputs of encoded tokens by the name of the head, as `forward` does."""
        outputs = {name: head(tokens) for name, head in self.heads.items()}
        if self.settings.labels:
            outputs = {EXPRESSION: self.forward_head(tokens)} | outputs
        return outputs

    def tokenize(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tokens:
        """Embeds faces; arguments as for `forward`. This is `embed`, then `place`."""
        boxes, valid = self.fill_regions(image, boxes, valid)  # (B, R, 4), (B, R)
        patches, regions = self.embed(image, boxes, valid)  # (B, N, D), (B, R k^2, D)
        return self.place(patches, regions, boxes, valid)

    def embed(self, image: Tensor, boxes: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds the contents of patches and regions, without positions.

        Boxes and `valid` are of `fill_regions`. -> (B, N, D), (B, R k^2, D)
        """
        patches, source = self.embed_patches(self.normalize(image))  # (B, N, D), (B, C', H, W)
        if self.region_embed is None:
            return patches, patches[:, :0]
        return patches, self.region_embed(source, boxes, valid)

    def place(self, patches: Tensor, regions: Tensor, boxes: Tensor, valid: Tensor) -> Tokens:
        """Adds prefix tokens and positions to what `embed` returns; boxes as for `embed`."""
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
        """Adds prefix tokens and positions: (B, N, D) -> (B, prefix + N, D), (B, prefix + N, 2)."""
        x = self.vit._pos_embed(patches)
        if self.vit.pos_embed is None:  # else timm applied dropout
            x = self.vit.pos_drop(x)
        return x, self.centres.expand(x.shape[0], -1, -1)

    def embed_patches(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a normalised image's patches (B, N, D), and what regions are cut from.

        That is the image itself, or the stem's features (B, C', 2 S/P, 2 S/P), rounded up.
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
        """Returns boxes (B, R, 4) and which are present (B, R), with defaults for None."""
        if boxes is None:
            boxes = image.new_zeros(image.shape[0], self.layout.num_regions, 4)
            valid = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
        elif valid is None:
            valid = torch.ones_like(boxes[..., 0], dtype=torch.bool)
        # The box of a missing region may be anything, even NaN, and NaN times a weight of 0 would
        # still be NaN.
        return boxes.masked_fill(~valid[..., None], 0.0), valid

    def forward_features(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tokens:
        """Encodes face crops; arguments as for `forward`.

        This is `tokenize`, then `encode`. `forward_head` classifies the result, whose `x` is
        (B, T, D).
        """
        return self.encode(self.tokenize(image, boxes, valid))

    def encode(self, tokens: Tokens) -> Tokens:
        """Encodes the tokens of `tokenize`: the blocks and the norm after them.

        Missing regions get no attention; with a keep rate fewer patches come out.
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
        """Returns what `classify` takes: (B, D), or (B, C, D); arguments as for `forward`."""
        tokens = self.tokenize(image, boxes, valid)
        tokens = self.encode(tokens)
        pooled: Tensor = self.pool(tokens).x
        return pooled

    def forward_head(self, tokens: Tokens) -> Tensor:
        """Pools encoded tokens and classifies them. -> (B, C)."""
        return self.classify(self.pool(tokens).x)

    def classify(self, pooled: Tensor) -> Tensor:
        """Classifies a vector per face (B, D), or per expression (B, C, D). -> (B, C)."""
        pooled = self.vit.head_drop(self.vit.fc_norm(pooled))
        logits: Tensor = self.vit.head(pooled)
        offset = self.offset if self.changed_offset is None else self.changed_offset
        if offset is not None:
            logits = logits + offset
        return logits

    def change_prior(self, prior: Sequence[float] | None, possible: Sequence[bool]) -> None:
        """Adapts the probabilities to other class shares (C,), and to classes `possible` (C,).

        Other classes get 0. Probabilities are divided by the training prior and multiplied by
        the new one (Saerens et al. 2002). Each call starts from the trained network. With None and
        all classes possible, nothing is changed.
        """
        if prior is None and all(possible):
            self.changed_offset = None
            return
        device = self.centres.device
        offset = torch.tensor(possible, device=device).float().log()
        if prior is not None:
            new_log, old_log = torch.tensor([prior, self.settings.prior], device=device).log()
            offset = offset + self.settings.temperature * (new_log - old_log)
        elif self.offset is not None:
            offset = offset + self.offset
        self.changed_offset = offset

    def adjust(self, prior: Sequence[float], adjustment: float) -> None:
        """Stores the class shares of training, and subtracts a part of their log from logits.

        A prior of `change_prior`, which was computed from the former shares, has no effect any
        longer.
        """
        self.settings.prior = tuple(prior)
        self.settings.adjustment = adjustment
        self.offset = adjustment_offset(prior, adjustment)
        self.changed_offset = None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of logits (B, C), in float32."""
        return (logits.float() / self.settings.temperature).softmax(-1)

    def no_weight_decay(self) -> set[str]:
        """Patterns of parameters without weight decay, as timm's optimisers expect them."""
        patterns = {"*pos_embed", "*cls_token", "*reg_token", "*name_embed*"}
        label_rows = getattr(self.pool, "label_rows", ())  # an encoder has no pooling
        patterns.update(f"pool.{name}" for name in label_rows)
        return patterns

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Layers for timm's layer-wise learning rate decay: embeddings, block by block, head."""
        return {
            "stem": r"^region_embed|^vit\.(?:cls_token|reg_token|pos_embed|patch_embed|norm_pre)",
            "blocks": [(r"^vit\.blocks\.(\d+)", None), (r"^vit\.(?:norm|fc_norm)", (99999,))],
        }


def share_tensors(net: RegionViT) -> RegionViT:
    """Returns a copy of a network with the same parameters and buffers in memory."""
    # The copy shares what is in the memo.
    shared: dict[int, Any] = {}
    for tensor in chain(net.parameters(), net.buffers()):
        shared[id(tensor)] = tensor
    return deepcopy(net, shared)


def adjustment_offset(prior: Sequence[float], strength: float) -> Tensor | None:
    """Returns what an adjustment by class shares (C,) adds to logits (C,); None: nothing.

    Menon et al., "Long-tail learning via logit adjustment" (ICLR 2021).
    """
    if not strength:
        return None
    return -strength * torch.tensor(prior).log()


def build_model(
    config: RegionViTConfig, labels: Sequence[str], *, initialize: bool = True, **settings: Any
) -> RegionViT:
    """Builds a RegionViT.

    Args:
        config: The architecture.
        labels: The C expressions in the order of the logits; none: an encoder without classifier.
        initialize: Whether timm draws weights for its blocks; not needed for weights of a file.
        **settings: Other arguments of `ModelSettings`.

    Raises:
        FerVitError: As for `create_backbone`.
    """
    return build_from_parts(config, ModelSettings(list(labels), **settings), initialize)


def build_from_parts(
    config: RegionViTConfig, settings: ModelSettings, initialize: bool = True
) -> RegionViT:
    """Builds the parts of a RegionViT, and the network of them; arguments as for `build_model`.

    The network has a copy of `settings`, which it changes, for example in `adjust`.
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

    # regions copy the patch embedding, so they are created before it is removed
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
    for head, outputs in settings.outputs.items():
        heads[head] = AdditiveHead(len(outputs), regions, layout, vit.embed_dim)
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
