"""RegionViT: a vision transformer that reads patch tokens and landmark-cropped region tokens together.

B images, S crop size, N patches, R regions of k x k tokens, T = prefix + N + R k^2 tokens, D width, C classes.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fer_vit.model.backbone import ATTENTION, class_attention, create_backbone, prepend_prefix
from fer_vit.model.config import ModelSettings, RegionViTConfig
from fer_vit.model.embedding import (
    Normalize,
    RegionEmbed,
    choose_position,
    create_region_embed,
    fix_positions,
    remove_patches,
)
from fer_vit.model.pooling import POOLS
from fer_vit.model.tokens import Cover, TokenLayout, Tokens, count_kept, keep_patches, patch_centres, token_centres


class RegionViT(nn.Module):
    """Vision transformer over patch and region tokens, built from its parts by `build_model`.

    The encoder, its class and register tokens, patch positions and classifier are timm's `VisionTransformer`, so that
    timm's pretrained weights load. The settings make the model's file (see `store`) self-contained.

    Attributes:
        settings: What prediction needs besides the network.
        offset: Added to the logits (C,): the logit adjustment, or another prior. None: nothing, as in distillation.
        layout: Order of the tokens at the encoder's input.
        patch_size: Side of a patch in crop pixels.
        relation: Computes the mask or distances of tokens for attention.
        num_kept: Number of patches at first, and in each block.
        drop_by_mask: Hard attention masks patches instead of removing them, for callers that want T tokens in every
            block: slower, with the same result up to rounding, by which bfloat16 may choose other patches.
    """

    offset: Tensor | None
    centres: Tensor  # of prefix and patch tokens (prefix + N, 2), (x, y) in crop pixels

    def __init__(
        self,
        config: RegionViTConfig,
        settings: ModelSettings,
        vit: VisionTransformer,
        region_embed: RegionEmbed | None,
        pool: nn.Module,
        layout: TokenLayout,
    ) -> None:
        super().__init__()
        self.config, self.settings, self.layout = config, settings, layout
        self.register_buffer("offset", None, persistent=False)
        self.adjust(settings.prior, settings.adjustment)
        pixels = vit.pretrained_cfg  # has the mean and deviation that the backbone expects
        self.normalize = Normalize(pixels["mean"], pixels["std"], config.in_chans, config.standardize)
        self.vit, self.region_embed = vit, region_embed
        self.pool: Any = pool
        self.patch_size = int(vit.patch_embed.patch_size[0])
        self.relation = ATTENTION[config.attention].relation
        rates = config.keep_rate or (1.0,) * len(vit.blocks)
        self.num_kept = tuple(accumulate(rates, count_kept, initial=layout.num_patches))
        self.drop_by_mask = False
        middle = torch.full((layout.num_prefix, 2), config.img_size / 2)
        patches = patch_centres(layout.grid) * self.patch_size
        self.register_buffer("centres", torch.cat([middle, patches]), persistent=False)

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Classifies faces.

        Args:
            image: Face crops (B, 3, S, S), RGB in [0, 1].
            boxes: Region boxes (B, R, 4), xyxy in crop pixels, in the order of `config.regions`. None: all missing.
            valid: Which regions are present (B, R). None: all that `boxes` gives.

        Returns:
            Logits (B, C).
        """
        tokens = self.tokenize(image, boxes, valid)  # T tokens
        tokens = self.forward_features(tokens)  # T, or fewer with a keep rate
        return self.forward_head(tokens)  # (B, C)

    def tokenize(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None, cover: Cover | None = None
    ) -> Tokens:
        """Turns images into tokens with positions; arguments as for `forward`, and the tokens to cover."""
        image = self.normalize(image)  # (B, in_chans, S, S)
        patches, source = self.embed_patches(image)  # (B, N, D), and what regions are cut from
        patches = patches if cover is None else cover.over(patches, 0)
        x = prepend_prefix(self.vit, patches)  # (B, prefix + N, D)
        centres = self.centres.expand(x.shape[0], -1, -1)  # (B, prefix + N, 2)
        if self.region_embed is None:
            return Tokens(self.vit.norm_pre(x), None, centres)
        boxes, valid = self.fill_regions(image, boxes, valid)  # (B, R, 4), (B, R)
        where = token_centres(boxes, self.layout.region_grid).flatten(1, 2)  # (B, R k^2, 2)
        present = valid.repeat_interleave(self.layout.tokens_per_region, dim=1)  # (B, R k^2)
        regions = self.region_embed(source, boxes, where, valid, cover)  # (B, R k^2, D)
        regions = self.vit.pos_drop(regions.masked_fill(~present[..., None], 0.0))
        always = present.new_ones(x.shape[0], x.shape[1])  # (B, prefix + N)
        return Tokens(
            self.vit.norm_pre(torch.cat([x, regions], dim=1)),  # (B, T, D)
            torch.cat([always, present], dim=1),  # (B, T)
            torch.cat([centres, where], dim=1),  # (B, T, 2)
        )

    def embed_patches(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a normalised image's patches (B, N, D), and the source of regions: image or stem features."""
        embed = self.vit.patch_embed
        if self.config.region_source == "image":
            return embed(image), image
        features = embed.early(image)  # (B, C', 2 S/P, 2 S/P), rounded up
        return embed.late(features), features

    def fill_regions(self, image: Tensor, boxes: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns boxes (B, R, 4) and which are present (B, R), with defaults for None."""
        if boxes is None:
            boxes = image.new_zeros(image.shape[0], self.layout.num_regions, 4)
            valid = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
        if valid is None:
            valid = torch.ones_like(boxes[..., 0], dtype=torch.bool)
        # The box of a missing region may be anything, even NaN, and NaN times a weight of 0 would still be NaN.
        return boxes.masked_fill(~valid[..., None], 0.0), valid

    def forward_features(self, tokens: Tokens) -> Tokens:
        """Encodes tokens. Missing regions get no attention; with a keep rate fewer patches come out."""
        relation = self.relation(tokens)
        for block, before, kept in zip(self.vit.blocks, self.num_kept, self.num_kept[1:], strict=False):
            if kept < before:
                scores = class_attention(block, tokens.x, relation)  # (B, T')
                tokens = keep_patches(tokens, scores, self.layout, kept, self.drop_by_mask)
                relation = self.relation(tokens)
            tokens = tokens._replace(x=block(tokens.x, attn_mask=relation))  # (B, T', D)
        return tokens._replace(x=self.vit.norm(tokens.x))

    def pool_features(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Returns what `classify` takes: (B, D), or (B, C, D); arguments as for `forward`."""
        pooled: Tensor = self.pool(self.forward_features(self.tokenize(image, boxes, valid))).x
        return pooled

    def forward_head(self, tokens: Tokens) -> Tensor:
        """Pools encoded tokens and classifies them. -> (B, C)."""
        return self.classify(self.pool(tokens).x)

    def classify(self, pooled: Tensor) -> Tensor:
        """Classifies a vector per face (B, D), or per expression (B, C, D). -> (B, C)."""
        logits: Tensor = self.vit.head(self.vit.head_drop(self.vit.fc_norm(pooled)))
        return logits if self.offset is None else logits + self.offset

    def change_prior(self, prior: Sequence[float] | None, possible: Sequence[bool]) -> None:
        """Changes the probabilities to other class shares (C,), and to 0 for classes that are not `possible` (C,).

        They are divided by the training prior and multiplied by the new one (Saerens et al. 2002), which replaces the
        logit adjustment. Prediction sets were calibrated under the old prior, so the thresholds are removed.
        """
        here = self.centres.device
        offset = 0 if self.offset is None else self.offset
        if prior is not None:
            new, old = torch.tensor([prior, self.settings.prior], device=here).log()
            offset = self.settings.temperature * (new - old)
        self.offset, self.settings.thresholds = offset + torch.tensor(possible, device=here).float().log(), {}

    def adjust(self, prior: Sequence[float], adjustment: float) -> None:
        """Stores the class shares of the training faces, and subtracts a part of their logarithm from the logits."""
        self.settings.prior, self.settings.adjustment = tuple(prior), adjustment
        self.offset = -adjustment * torch.tensor(prior).log() if adjustment else None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of logits (B, C), in float32."""
        return (logits.float() / self.settings.temperature).softmax(-1)

    def no_weight_decay(self) -> set[str]:
        """Patterns of parameters without weight decay, in the form that timm's optimisers expect."""
        return {"*pos_embed", "*cls_token", "*reg_token", "*name_embed*", "pool.query"}

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Layers for timm's layer-wise learning rate decay: embeddings, block by block, head."""
        return {
            "stem": r"^region_embed|^vit\.(?:cls_token|reg_token|pos_embed|patch_embed|norm_pre)",
            "blocks": [(r"^vit\.blocks\.(\d+)", None), (r"^vit\.(?:norm|fc_norm)", (99999,))],
        }


def build_model(config: RegionViTConfig, labels: Sequence[str], **settings: Any) -> RegionViT:
    """Builds the parts of a RegionViT from a configuration; the other arguments are of `ModelSettings`.

    Raises FerVitError when settings contradict each other, or timm cannot build the backbone.
    """
    vit = create_backbone(config, len(labels))
    patch_size, grid = vit.patch_embed.patch_size[0], vit.patch_embed.grid_size
    position = choose_position(config, vit.embed_dim, patch_size)
    if position is not None and config.pos_embed != "learn":
        fix_positions(vit, position(patch_centres(grid) * patch_size))
    regions = () if config.tokens == "patch" else config.regions
    region_embed = create_region_embed(vit, config, position) if regions else None
    if config.tokens == "region":
        grid = (0, 0)
        remove_patches(vit, config.region_source)
    layout = TokenLayout(vit.num_prefix_tokens, grid, len(regions), config.region_grid)
    sizes = (vit.num_prefix_tokens, vit.embed_dim, len(labels), config.num_heads)
    pool = POOLS[config.pool](*sizes, config.causal) if labels else nn.Identity()
    return RegionViT(config, ModelSettings(list(labels), **settings), vit, region_embed, pool, layout)
