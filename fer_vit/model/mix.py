"""Augmentation of tokens: mixup, CutMix, region dropout.

Two faces have their landmarks in different positions. If pixels were mixed, a region of one would be cut at the
other's landmarks; with tokens, the mouth of one is mixed with the mouth of the other.

B images, R regions, T tokens, D width, C classes.
"""

import torch
from torch import Tensor

from fer_vit.model.pooling import located_tokens
from fer_vit.model.positions import patch_centres
from fer_vit.model.tokens import TokenLayout, Tokens


def mixup(tokens: Tokens, target: Tensor, alpha: float) -> tuple[Tokens, Tensor]:
    """Blends every face's tokens and target with those of the next one in the batch (Zhang et al. 2018).

    A region token is present only when both faces have the region. Each face draws a weight from Beta(alpha,
    alpha); the target is the share of every class (B, C).
    """
    share = torch.distributions.Beta(alpha, alpha).sample((len(target),)).to(target)  # (B,)
    x = torch.lerp(tokens.x.roll(1, 0), tokens.x, share[:, None, None].to(tokens.x.dtype))
    valid = None if tokens.valid is None else tokens.valid & tokens.valid.roll(1, 0)
    centres = torch.lerp(tokens.centres.roll(1, 0), tokens.centres, share[:, None, None].to(tokens.centres.dtype))
    return Tokens(x, valid, centres), torch.lerp(target.roll(1, 0), target, share[:, None])


def cutmix(
    tokens: Tokens, target: Tensor, boxes: Tensor, layout: TokenLayout, patch_size: float
) -> tuple[Tokens, Tensor]:
    """Replaces the tokens inside a rectangle with those of the next face in the batch (Yun et al. 2019).

    The rectangle covers whole patches; a region is taken from the other face if the centre of its box (B, R, 4),
    xyxy in crop pixels, lies inside. The target, the share of every class (B, C), is mixed by the number of tokens from
    each face.
    """
    batch = len(target)
    share = torch.rand(batch, 1, device=target.device)  # of the area; Beta(1, 1), as in the paper
    grid = torch.tensor(layout.grid[::-1], device=target.device)  # columns, rows
    half = grid * share.sqrt() / 2  # (B, 2)
    centre = torch.rand(batch, 2, device=target.device) * grid

    def inside(points: Tensor) -> Tensor:  # (B, M, 2) in units of a patch -> (B, M)
        return ((points - centre[:, None]).abs() < half[:, None]).all(-1)

    other = torch.zeros(tokens.x.shape[:2], dtype=torch.bool, device=target.device)  # tokens of the next face (B, T)
    other[:, layout.patches] = inside(patch_centres(layout.grid).to(target.device).expand(batch, -1, -1))
    if layout.num_regions:
        regions = inside((boxes[..., :2] + boxes[..., 2:]) / 2 / patch_size)
        other[:, layout.regions] = regions.repeat_interleave(layout.tokens_per_region, dim=1)
    x = torch.where(other[..., None], tokens.x.roll(1, 0), tokens.x)
    valid = None if tokens.valid is None else torch.where(other, tokens.valid.roll(1, 0), tokens.valid)
    centres = torch.where(other[..., None], tokens.centres.roll(1, 0), tokens.centres)
    mixed = Tokens(x, valid, centres)
    there = located_tokens(mixed, layout.num_prefix)
    taken = (other & there).sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
    return mixed, torch.lerp(target, target.roll(1, 0), taken)


def drop_regions(tokens: Tokens, layout: TokenLayout, rate: float) -> Tokens:
    """Hides regions, each with all its tokens, as if they were missing.

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
