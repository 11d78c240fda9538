"""Tokens: their layout, positions, hard attention and region dropout.

B images, P patch size, N patches, R regions of k x k tokens, T = prefix + N + R k^2 tokens, D
width.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """Tokens in the encoder. The centre of class and register tokens is the middle of the crop."""

    x: Tensor  # (B, T, D), embeddings, with position embeddings added
    # (B, T), False for the tokens of missing regions; None: all tokens are present
    valid: Tensor | None
    centres: Tensor  # (B, T, 2), (x, y) in crop pixels

    def present(self) -> Tensor:
        """Returns a new mask (B, T) of the tokens that are present."""
        if self.valid is None:
            return self.x.new_ones(self.x.shape[:2], dtype=torch.bool)
        return self.valid.clone()


@dataclass(frozen=True)
class TokenLayout:
    """Order of the tokens: prefix tokens, patches row by row, regions with k x k tokens each."""

    num_prefix: int  # how many class and register tokens; a class token comes first
    grid: tuple[int, int]  # rows and columns of patches; (0, 0) without patch tokens
    num_regions: int  # 0 without region tokens
    region_grid: int  # k

    @property
    def num_patches(self) -> int:
        """The number of patches N."""
        return self.grid[0] * self.grid[1]

    @property
    def tokens_per_region(self) -> int:
        """The number of tokens k^2 of a region."""
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
        """The number of tokens T."""
        return self.num_prefix + self.num_patches + self.num_regions * self.tokens_per_region

    def patch_map(self, scores: Tensor) -> Tensor:
        """Arranges the scores of the patches as a map: (..., T) -> (..., rows, columns)."""
        rows, columns = self.grid
        return scores[..., self.patches].reshape(*scores.shape[:-1], rows, columns)


def keep_patches(
    tokens: Tokens, scores: Tensor, layout: TokenLayout, num_patches: int, by_mask: bool = False
) -> Tokens:
    """Hard attention: keeps the patches with the highest scores, in their original order.

    Prefix and region tokens always stay. Liang et al., "Not All Patches Are What You Need:
    Expediting Vision Transformers via Token Reorganizations" (ICLR 2022), without the fused token
    of that paper.

    Args:
        tokens: The T' tokens that earlier blocks have left.
        scores: The scores (B, T') of these tokens.
        layout: The order of all T tokens.
        num_patches: How many patches are kept.
        by_mask: Whether all other patches are masked instead of removed.
    """
    stop = tokens.x.shape[1] - layout.num_regions * layout.tokens_per_region
    patches = slice(layout.num_prefix, stop)
    scores = scores[:, patches]
    if tokens.valid is not None:
        scores = scores.masked_fill(~tokens.valid[:, patches], -torch.inf)
    best = scores.topk(num_patches).indices.sort().values + layout.num_prefix  # (B, num_patches)

    if by_mask:
        valid = tokens.present()  # (B, T')
        valid[:, patches] = False
        return tokens._replace(valid=valid.scatter(1, best, True))

    indices = torch.arange(tokens.x.shape[1], device=best.device).expand(best.shape[0], -1)
    index = torch.cat([indices[:, : layout.num_prefix], best, indices[:, stop:]], dim=1)

    def take(values: Tensor) -> Tensor:  # (B, T', ...) -> (B, prefix + num_patches + R k^2, ...)
        # with `take_along_dim`, an exported model would have a fixed B
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))

    kept_valid = None if tokens.valid is None else tokens.valid.gather(1, index)
    return Tokens(x=take(tokens.x), valid=kept_valid, centres=take(tokens.centres))


def drop_regions(tokens: Tokens, layout: TokenLayout, rate: float) -> Tokens:
    """Hides all tokens of random regions, as for missing regions.

    A face is chosen with probability `rate`, and loses a share of its regions. The share is uniform
    in [0, 1]: a model that was never trained on faces without regions would fail for them.
    """
    if tokens.valid is None:
        return tokens
    batch = len(tokens.x)
    device = tokens.x.device
    share = torch.rand(batch, 1, device=device)
    chosen = torch.rand(batch, 1, device=device) < rate
    keep = torch.rand(batch, layout.num_regions, device=device) >= share * chosen
    valid = tokens.valid.clone()
    valid[:, layout.regions] &= keep.repeat_interleave(layout.tokens_per_region, dim=1)
    return tokens._replace(valid=valid)


def patch_centres(grid: tuple[int, int]) -> Tensor:
    """Returns the centres (N, 2) of a grid of patches, (x, y) in units of a patch, row by row."""
    rows, columns = grid
    y = torch.arange(rows) + 0.5
    x = torch.arange(columns) + 0.5
    return torch.cartesian_prod(y, x).flip(1)


def token_centres(boxes: Tensor, grid: int) -> Tensor:
    """Returns the centres (..., grid^2, 2) of the tokens of boxes, (x, y) in pixels, row by row.

    Boxes (..., 4) are xyxy in pixels, and have grid x grid tokens each.
    """
    fractions = patch_centres((grid, grid)).to(boxes) / grid  # (grid^2, 2), (x, y)
    corner = boxes[..., None, :2]
    side = boxes[..., None, 2:] - corner
    return corner + side * fractions


def sincos_1d(position: Tensor, dim: int) -> Tensor:
    """Encodes positions (...), in units of a token, by sines and cosines (Vaswani et al. 2017).

    Returns (..., D), with sines and cosines alternating. D is even.
    """
    steps = torch.arange(0, dim, 2, device=position.device)
    angles = position.float()[..., None] * 10000.0 ** (-steps / dim)  # (..., D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def sincos_2d(centres: Tensor, dim: int, patch_size: float) -> Tensor:
    """Encodes points (..., 2), (x, y) in pixels, with a patch as the unit of length.

    Returns (..., D): the sines of x, the cosines of x, then the same of y. D is a multiple of 4.
    """
    code = sincos_1d(centres / patch_size, dim // 2)  # (..., 2, D/2), sines and cosines alternating
    return torch.cat([code[..., ::2], code[..., 1::2]], dim=-1).flatten(-2)
