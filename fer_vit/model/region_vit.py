"""RegionViT: a vision transformer that reads patch tokens and landmark-cropped region tokens together.

The encoder, its class and register tokens, patch position embeddings and classifier are timm's `VisionTransformer`, so
that timm's pretrained weights load; this file adds the region tokens and the mask of the missing ones. What else a
configuration asks for is put in its place by `backbone`.

B images, S crop size, R regions, T tokens, D width, C classes (see `tokens`).
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fer_vit.model.backbone import (
    ATTENTION,
    create_backbone,
    create_pool,
    create_region_embed,
    patch_side,
    remove_patches,
)
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.positions import patch_centres, token_centres
from fer_vit.model.tokens import RegionEmbed, TokenLayout, Tokens, keep_patches


class RegionViT(nn.Module):
    """Vision transformer over patch and region tokens.

    It carries what its use needs beside the weights, so that a file of it (see `store`) is a whole model.

    Args:
        config: What to build.
        labels: The C expressions in the order of the logits.
        align: How faces are cropped for it: "landmarks" or "crop" (see `data.crop`).
        template: Where the five landmarks belong in a crop, as fractions of its side. Empty: not known.
        temperature: What logits are divided by before the softmax, so that confidence is right as often as it says.

    Attributes:
        layout: Which token is which when they enter the encoder.
        patch_size: Side of a patch in crop pixels.
        drop_by_mask: Hard attention masks patches instead of taking them out: the same result without the saving (but
            for rounding, which in bfloat16 may choose other patches), for those who want T tokens in every block.

    Raises:
        FerVitError: The configuration does not fit together.
    """

    mean: Tensor
    std: Tensor
    centres: Tensor

    def __init__(
        self,
        config: RegionViTConfig,
        labels: Sequence[str],
        align: Literal["landmarks", "crop"] = "landmarks",
        template: Sequence[tuple[float, float]] = (),
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.config = config
        self.labels = list(labels)
        self.align = align
        self.template = tuple((x, y) for x, y in template)
        self.temperature = temperature
        self.drop_by_mask = False
        self.vit = vit = create_backbone(config, len(self.labels))
        self.patch_size = patch_side(vit, config)
        self.region_embed: RegionEmbed | None = None
        if config.tokens != "patch" and config.regions:
            self.region_embed = create_region_embed(vit, config)
        grid = vit.patch_embed.grid_size
        if config.tokens == "region":
            grid = (0, 0)
            remove_patches(vit, config)
        self.relation = ATTENTION[config.attention].relation
        self.pool: Any = create_pool(vit, config, len(self.labels))

        num_regions = 0 if self.region_embed is None else len(config.regions)
        self.layout = TokenLayout(vit.num_prefix_tokens, grid, num_regions, config.region_grid)
        rates = config.keep_rate or (1.0,) * len(vit.blocks)
        self.num_kept = tuple(
            accumulate(rates, kept_patches, initial=self.layout.num_patches)
        )  # at first, in each block
        middle = torch.full((vit.num_prefix_tokens, 2), config.img_size / 2)
        centres = torch.cat([middle, patch_centres(grid) * self.patch_size])  # of all tokens but the regions'
        self.register_buffer("centres", centres, persistent=False)
        pixels = vit.pretrained_cfg  # timm's note of the mean and deviation that the backbone expects
        self.register_buffer("mean", _per_channel(pixels["mean"], config.in_chans), persistent=False)
        self.register_buffer("std", _per_channel(pixels["std"], config.in_chans), persistent=False)

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
        vit, batch = self.vit, image.shape[0]
        image = self.normalize(image)
        patches, source = self.embed_patches(image)
        x = vit._pos_embed(patches)  # (B, prefix + N, D)
        if vit.pos_embed is None:
            x = vit.pos_drop(x)  # which timm does after adding positions
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
        where = token_centres(boxes, self.layout.region_grid).flatten(1, 2)  # (B, R k^2, 2)
        regions = self.region_embed(source, boxes, where)
        present = valid.repeat_interleave(self.layout.tokens_per_region, dim=1)  # (B, R k^2)
        regions = regions.masked_fill(~present[..., None], 0.0)
        x = vit.norm_pre(torch.cat([x, vit.pos_drop(regions)], dim=1))  # (B, T, D)
        centres = torch.cat([centres, where], dim=1)
        always = present.new_ones(batch, self.layout.regions.start)
        return Tokens(x, torch.cat([always, present], dim=1), centres)

    def normalize(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] -> (B, in_chans, S, S) with the backbone's mean and deviation."""
        if self.config.in_chans == 1:
            weights = image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # ITU-R BT.601 luma
            image = (image * weights).sum(1, keepdim=True)
        return (image - self.mean) / self.std

    def embed_patches(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds the patches of a normalised image (B, C, S, S).

        Returns:
            Patches (B, N, D), and what the regions are cut from: the image itself, or the stem's features of it.
        """
        embed, patches = self.vit.patch_embed, image.new_zeros(image.shape[0], 0, self.vit.embed_dim)
        if self.config.region_source == "stem":
            features = embed.early(image)
            return embed.patches(features) if self.layout.num_patches else patches, features
        return embed(image) if self.layout.num_patches else patches, image

    def forward_features(self, tokens: Tokens) -> Tokens:
        """Encodes tokens. Those of missing regions get no attention; with a keep rate fewer patches come out."""
        relation = self.relation(tokens)
        for block, before, kept in zip(self.vit.blocks, self.num_kept, self.num_kept[1:], strict=False):
            if kept < before:
                scores = block.class_attention(tokens.x, relation)
                tokens = keep_patches(tokens, scores, self.layout, kept, self.drop_by_mask)
                relation = self.relation(tokens)
            tokens = tokens._replace(x=block(tokens.x, attn_mask=relation))
        return tokens._replace(x=self.vit.norm(tokens.x))

    def forward_head(self, tokens: Tokens) -> Tensor:
        """Pools encoded tokens and classifies them. -> (B, C)."""
        return self.classify(self.pool(tokens).x)

    def classify(self, pooled: Tensor) -> Tensor:
        """Classifies a vector for each face (B, D), or for each of its expressions (B, C, D). -> (B, C)."""
        return self.vit.head(self.vit.head_drop(self.vit.fc_norm(pooled)))  # type: ignore[no-any-return]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of logits (B, C), in float32."""
        return (logits.float() / self.temperature).softmax(-1)

    def no_weight_decay(self) -> set[str]:
        """Patterns of parameters that weight decay must leave alone, as timm's optimisers ask for them."""
        return {"*pos_embed", "*cls_token", "*reg_token", "*name_embed*", "pool.query"}

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Layers for timm's layer-wise learning rate decay: embeddings, block by block, head."""
        return {
            "stem": r"^region_embed|^vit\.(?:cls_token|reg_token|pos_embed|patch_embed|norm_pre)",
            "blocks": [(r"^vit\.blocks\.(\d+)", None), (r"^vit\.(?:norm|fc_norm)", (99999,))],
        }


def kept_patches(patches: int, rate: float) -> int:
    """How many of some patches a rate keeps: rounded up, but for what floating point adds to a whole number."""
    return math.ceil(patches * rate - 1e-9)


def _per_channel(values: tuple[float, ...], in_chans: int) -> Tensor:
    tensor = torch.tensor(values).view(-1, 1, 1)
    return tensor.mean(0, keepdim=True) if in_chans == 1 else tensor
