"""From an image to tokens: embeddings, the layout of tokens, hard attention and region dropout.

B images, S crop size, P patch size, N patches, R regions of k x k tokens, T = prefix + N + R k^2 tokens, D width.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


class Tokens(NamedTuple):
    """Input of the encoder.

    Attributes:
        x: Token embeddings with their positions (B, T, D).
        valid: False for the tokens of missing regions (B, T); None when the model has no region tokens.
        centres: Centres of the tokens (B, T, 2), (x, y) in crop pixels; class and register tokens lie in the middle.
    """

    x: Tensor
    valid: Tensor | None
    centres: Tensor


class Cover(NamedTuple):
    """Patch and region tokens whose content is hidden for masked pretraining, but not their positions.

    Attributes:
        hidden: True for hidden tokens (B, N + R k^2), patches before regions.
        token: Their replacement (D,).
    """

    hidden: Tensor
    token: Tensor

    def over(self, x: Tensor, first: int) -> Tensor:
        """Covers the embeddings (B, m, D) of m tokens from the one with index `first` on."""
        return torch.where(self.hidden[:, first : first + x.shape[1], None], self.token.to(x.dtype), x)


@dataclass(frozen=True)
class TokenLayout:
    """Order of the tokens: prefix tokens, then patches row by row, then regions with k x k tokens each.

    Attributes:
        num_prefix: Number of class and register tokens; the class token, if there is one, comes first.
        grid: Rows and columns of patches; (0, 0) without patch tokens.
        num_regions: Number of regions; 0 without region tokens.
        region_grid: k, the tokens along each side of a region.
    """

    num_prefix: int
    grid: tuple[int, int]
    num_regions: int
    region_grid: int

    @property
    def num_patches(self) -> int:
        """N, the number of patches."""
        return self.grid[0] * self.grid[1]

    @property
    def tokens_per_region(self) -> int:
        """k^2, the number of tokens per region."""
        return self.region_grid**2

    @property
    def patches(self) -> slice:
        """Indices of the patch tokens."""
        return slice(self.num_prefix, self.num_prefix + self.num_patches)

    @property
    def regions(self) -> slice:
        """Indices of the region tokens."""
        return slice(self.patches.stop, self.num_tokens)

    @property
    def num_tokens(self) -> int:
        """T, the number of all tokens."""
        return self.num_prefix + self.num_patches + self.num_regions * self.tokens_per_region

    def patch_map(self, scores: Tensor) -> Tensor:
        """Cuts the patches out of scores per token and lays them out: (..., T) -> (..., rows, columns)."""
        return scores[..., self.patches].reshape(*scores.shape[:-1], *self.grid)

    def region_scores(self, scores: Tensor) -> Tensor:
        """Adds up the scores of each region's tokens: (..., T) -> (..., R)."""
        shape = (*scores.shape[:-1], self.num_regions, self.tokens_per_region)
        return scores[..., self.regions].reshape(shape).sum(-1)


def keep_patches(tokens: Tokens, scores: Tensor, layout: TokenLayout, number: int, by_mask: bool = False) -> Tokens:
    """Hard attention: keeps the patches with the highest scores, in their original order.

    Prefix tokens and regions always stay. Liang et al., "Not All Patches Are What You Need: Expediting Vision
    Transformers via Token Reorganizations" (ICLR 2022), without their fused token.

    Args:
        tokens: T' tokens, from which patches may have been removed already.
        scores: A score per token (B, T').
        layout: The layout of all T tokens.
        number: Patches to keep, no more than there are.
        by_mask: Mask the others instead of removing them.
    """
    stop = tokens.x.shape[1] - layout.num_regions * layout.tokens_per_region
    patches = slice(layout.num_prefix, stop)
    scores = scores[:, patches]
    if tokens.valid is not None:
        scores = scores.masked_fill(~tokens.valid[:, patches], -torch.inf)
    best = scores.topk(number).indices.sort().values + layout.num_prefix  # (B, number)
    every = torch.arange(tokens.x.shape[1], device=best.device).expand(best.shape[0], -1)  # (B, T')
    if by_mask:
        present = torch.ones_like(every, dtype=torch.bool) if tokens.valid is None else tokens.valid.clone()
        present[:, patches] = False
        return tokens._replace(valid=present.scatter(1, best, True))
    index = torch.cat([every[:, : layout.num_prefix], best, every[:, stop:]], dim=1)

    def take(values: Tensor) -> Tensor:  # (B, T', ...) -> (B, prefix + number + R k^2, ...)
        # `take_along_dim` would export a fixed B
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))

    valid = None if tokens.valid is None else tokens.valid.gather(1, index)
    return Tokens(take(tokens.x), valid, take(tokens.centres))


def count_kept(patches: int, rate: float) -> int:
    """Returns how many of `patches` a keep rate keeps: rounded up, floating-point error aside."""
    return math.ceil(patches * rate - 1e-9)


def drop_regions(tokens: Tokens, layout: TokenLayout, rate: float) -> Tokens:
    """Hides regions, each with all its tokens, like missing ones.

    A face is chosen with probability `rate` and loses a share of its regions drawn uniformly from none to all: a model
    that never saw a face without regions would fail where none are visible.
    """
    if tokens.valid is None:
        return tokens
    batch, device = len(tokens.x), tokens.x.device
    share = torch.rand(batch, 1, device=device) * (torch.rand(batch, 1, device=device) < rate)
    keep = torch.rand(batch, layout.num_regions, device=device) >= share
    valid = tokens.valid.clone()
    valid[:, layout.regions] &= keep.repeat_interleave(layout.tokens_per_region, dim=1)
    return tokens._replace(valid=valid)


FLAT = 0.01
"""Added to a crop's deviation, so that the noise of an almost even crop is not blown up; grey levels lie in [0, 1]."""


class Normalize(nn.Module):
    """Normalises crops as a backbone expects: by its mean and deviation, and to grey if it reads one channel.

    With `standardize` by the mean and deviation of each crop's pixels instead, so that neither brightness nor contrast
    matters.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], in_chans: int, standardize: bool = False
    ) -> None:
        super().__init__()
        self.in_chans = in_chans
        self.standardize = standardize
        for name, values in (("mean", mean), ("std", std)):
            channels = torch.tensor(values).view(-1, 1, 1)
            channels = channels.mean(0) if in_chans == 1 else channels
            self.register_buffer(name, channels, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] -> (B, in_chans, S, S)."""
        if self.in_chans == 1:
            image = to_grey(image)
        if self.standardize:
            deviation, mean = torch.std_mean(image, (1, 2, 3), keepdim=True)
            return (image - mean) / (deviation + FLAT)
        return (image - self.mean) / self.std


def to_grey(image: Tensor) -> Tensor:
    """Returns the luma (ITU-R BT.601) of RGB images: (B, 3, S, S) -> (B, 1, S, S)."""
    return (image * image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)


class ConvStem(nn.Module):
    """Patch embedding by 3x3 convolutions, `convs` for every halving, for small images trained from scratch.

    Replaces timm's `PatchEmbed` (an `embed_layer`); the patch size is a power of two. After Xiao et al.,
    "Early Convolutions Help Transformers See Better" (NeurIPS 2021), who use one convolution for every halving.
    """

    def __init__(
        self,
        img_size: int,
        patch_size: int,
        in_chans: int = 3,
        embed_dim: int = 192,
        bias: bool = True,
        convs: int = 3,
        **_: object,
    ) -> None:
        super().__init__()
        self.patch_size = (patch_size, patch_size)
        self.grid_size = (img_size // patch_size,) * 2
        self.num_patches = self.grid_size[0] ** 2
        steps = int(math.log2(patch_size))
        widths = [in_chans, *(embed_dim // 2**step for step in reversed(range(steps)))]
        *early, late = (downsample(before, after, convs) for before, after in pairwise(widths))
        self.early = nn.Sequential(*early)
        self.late = nn.Sequential(late, nn.Conv2d(embed_dim, embed_dim, 1, bias=bias), Rows())
        self.early_width = widths[-2]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, S, S) -> (B, N, D); between `early` and `late` it is a map (B, C', 2 S/P, 2 S/P), rounded up."""
        return self.late(self.early(x))  # type: ignore[no-any-return]


class Rows(nn.Module):
    """Turns a feature map into tokens, row by row."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, H W, D)."""
        return x.flatten(2).transpose(1, 2)


class NoPatches(nn.Module):
    """Replaces the patch embedding in a model without patch tokens."""

    def __init__(self, embed_dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__()
        self.embed_dim, self.patch_size = embed_dim, patch_size

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, 0, D)."""
        return x.new_zeros(x.shape[0], 0, self.embed_dim)


def remove_patches(vit: VisionTransformer, region_source: str) -> None:
    """Removes the layers and positions of patch tokens."""
    nothing = NoPatches(vit.embed_dim, vit.patch_embed.patch_size)
    if region_source == "stem":
        vit.patch_embed.late = nothing
    else:
        vit.patch_embed = nothing
    if vit.pos_embed is not None:
        prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
        vit.pos_embed = nn.Parameter(vit.pos_embed[:, :prefix].detach().clone(), vit.pos_embed.requires_grad)


def downsample(before: int, after: int, convs: int) -> nn.Sequential:
    """Creates 3x3 convolutions, each with batch norm and GELU: (B, before, H, W) -> (B, after, H/2, W/2)."""
    layers: list[nn.Module] = []
    for channels, stride in ((before, 2), *[(after, 1)] * (convs - 1)):
        layers += [nn.Conv2d(channels, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.GELU()]
    return nn.Sequential(*layers)
