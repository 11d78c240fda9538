"""Masked pretraining: which pixels of a face are hidden, and what is predicted in their place.

Whole patches of the image are hidden before anything reads it (Xie et al., "SimMIM", CVPR 2022), so that nothing comes
through a stem's field of view or a region that overlaps. The target is the pixels of each patch, normalised (He et
al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022).

B images, S crop size, P patch size, C channels, R regions of k x k tokens, M patch and region tokens, D width.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fer_vit.model.region_embed import crop_image
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import Cover, TokenLayout


class Hidden(NamedTuple):
    """Faces of which a part is hidden, and what was there.

    Attributes:
        seen: The faces without what is hidden (B, 3, S, S).
        pixels: True where a pixel is hidden (B, 1, S, S).
        tokens: True for tokens of which more than half is hidden (B, M).
        target: The pixels of each token, normalised (B, M, C P^2).
        weights: 1 for the pixels of the target that are hidden, else 0 (B, M, C P^2).
        mean: Mean of each token's pixels, and `deviation` (B, M, 1): they turn predictions into pixels.
    """

    seen: Tensor
    pixels: Tensor
    tokens: Tensor
    target: Tensor
    weights: Tensor
    mean: Tensor
    deviation: Tensor


def hide(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, noise: Tensor, ratio: float) -> Hidden:
    """Hides the patches of each face with the least noise.

    Args:
        net: The model, whose tokens they are.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are present (B, R); nothing is predicted of the others.
        noise: A number per patch (B, ceil(S / P)^2), row by row; the last ones may be cut off by the edges.
        ratio: Share of the patches that are hidden.
    """
    size, side = net.config.img_size, math.isqrt(noise.shape[1])
    first = noise.argsort(1)[:, : round(ratio * side**2)]
    patches = torch.zeros_like(noise, dtype=torch.bool).scatter(1, first, True).view(-1, 1, side, side)
    pixels = patches.repeat_interleave(net.patch_size, 2).repeat_interleave(net.patch_size, 3)[..., :size, :size]
    shares = cut_tokens(pixels.float(), boxes, net.layout, net.patch_size)  # (B, M, P^2)
    there = valid[:, : net.layout.num_regions].repeat_interleave(net.layout.tokens_per_region, 1)
    there = F.pad(there, (net.layout.num_patches, 0), value=True)  # (B, M)
    grey = image if net.config.in_chans == 3 else image.mean(1, keepdim=True)
    target = cut_tokens(grey, boxes, net.layout, net.patch_size)
    mean, deviation = target.mean(-1, keepdim=True), (target.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    # A pixel of a region is a mean over several of the image; it counts if all of them are hidden.
    weights = ((shares > 0.999) & there[..., None]).float().repeat(1, 1, net.config.in_chans)
    tokens = shares.mean(-1) > 0.5
    return Hidden(cover_pixels(image, pixels), pixels, tokens, (target - mean) / deviation, weights, mean, deviation)


def cover_pixels(image: Tensor, pixels: Tensor) -> Tensor:
    """Gives the hidden pixels (B, 1, S, S) of faces (B, 3, S, S) the mean of each face's others, by channel."""
    others = (~pixels).sum((2, 3), keepdim=True).clamp(min=1)
    return torch.where(pixels, image.masked_fill(pixels, 0).sum((2, 3), keepdim=True) / others, image)


def encode_hidden(net: RegionViT, boxes: Tensor, valid: Tensor, hidden: Hidden, token: Tensor) -> Tensor:
    """Encodes what can be seen; `token` (D,) stands in for hidden tokens. -> (B, M, D)."""
    tokens = net.tokenize(hidden.seen, boxes, valid, Cover(hidden.tokens, token))
    return net.forward_features(tokens).x[:, net.layout.num_prefix :]


def cut_tokens(image: Tensor, boxes: Tensor, layout: TokenLayout, patch_size: int) -> Tensor:
    """Cuts an image (B, C, S, S) into what each patch and region token shows: (B, M, C P^2).

    Regions, with boxes (B, R, 4), are resampled to k P x k P pixels.
    """

    def unfold(x: Tensor) -> Tensor:
        return F.unfold(x, patch_size, stride=patch_size).transpose(1, 2)

    parts = [unfold(image)] if layout.num_patches else []
    if layout.num_regions:
        regions = unfold(crop_image(image, boxes, layout.region_grid * patch_size))
        parts.append(regions.reshape(len(image), layout.num_regions * layout.tokens_per_region, -1))
    return torch.cat(parts, 1)


def pixel_loss(preds: Tensor, hidden: Hidden) -> Tensor:
    """Mean squared error of predictions (B, M, C P^2) over the pixels that are hidden; 0 without any."""
    errors = (preds.float() - hidden.target).square() * hidden.weights
    return errors.sum() / hidden.weights.sum().clamp(min=1)


def reconstruct(net: RegionViT, boxes: Tensor, hidden: Hidden, preds: Tensor) -> Tensor:
    """Fills the hidden pixels of faces (B, 3, S, S) with predictions (B, M, C P^2).

    Without patch tokens they come from the regions, later ones over earlier ones; the rest stays hidden.
    """
    pixels = preds.float() * hidden.deviation + hidden.mean
    layout, size, patch = net.layout, net.config.img_size, net.patch_size
    if layout.num_patches:
        whole = F.fold(pixels[:, : layout.num_patches].transpose(1, 2), size, patch, stride=patch)
    else:
        whole = paste_regions(pixels, boxes, layout, size, patch)
    return torch.where(hidden.pixels & ~whole.isnan(), whole.clamp(0, 1), hidden.seen)


def paste_regions(pixels: Tensor, boxes: Tensor, layout: TokenLayout, size: int, patch_size: int) -> Tensor:
    """Puts pixels of region tokens (B, R k^2, C P^2) where their boxes (B, R, 4) are: (B, C, S, S), NaN elsewhere."""
    batch, side = len(pixels), layout.region_grid * patch_size
    columns = pixels.reshape(batch * layout.num_regions, layout.tokens_per_region, -1).transpose(1, 2)
    crops = F.fold(columns, side, patch_size, stride=patch_size).view(batch, layout.num_regions, -1, side, side)
    centres = torch.arange(size, device=pixels.device) + 0.5
    where = torch.cartesian_prod(centres, centres).flip(1).view(1, size, size, 2)  # (x, y)
    whole = crops.new_full((batch, crops.shape[2], size, size), torch.nan)
    for crop, box in zip(crops.unbind(1), boxes.unbind(1), strict=True):
        corner, sides = box[:, None, None, :2], (box[:, None, None, 2:] - box[:, None, None, :2]).clamp(min=1e-6)
        grid = (where - corner) / sides * 2 - 1  # -1 and 1 are the edges of the box
        values = F.grid_sample(crop, grid, padding_mode="border", align_corners=False)
        whole = torch.where((grid.abs() <= 1).all(-1)[:, None], values, whole)
    return whole
