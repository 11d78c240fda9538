"""Embeddings of patches and regions: normalised crops become tokens.

B images, S crop size, P patch size, N patches, R regions of k x k tokens, D width.
"""

import copy
import math
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchvision.ops import roi_align

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.tokens import Cover, Position, sincos_2d, sincos_reading

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


def downsample(before: int, after: int, convs: int) -> nn.Sequential:
    """Creates 3x3 convolutions, each with batch norm and GELU: (B, before, H, W) -> (B, after, H/2, W/2)."""
    layers: list[nn.Module] = []
    for channels, stride in ((before, 2), *[(after, 1)] * (convs - 1)):
        layers += [nn.Conv2d(channels, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.GELU()]
    return nn.Sequential(*layers)


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


def choose_position(config: RegionViTConfig, dim: int, patch_size: int) -> Position | None:
    """Chooses the sinusoidal code of centres in crop pixels; None when there are no positions."""
    if config.pos_embed == "none":
        return None
    if config.pos_embed == "sincos_1d":
        return partial(sincos_reading, dim=dim, patch_size=patch_size, columns=math.ceil(config.img_size / patch_size))
    return partial(sincos_2d, dim=dim, patch_size=patch_size)


def fix_positions(vit: VisionTransformer, code: Tensor) -> None:
    """Replaces the learned patch positions by fixed codes (N, D); prefix tokens get none."""
    full = torch.zeros_like(vit.pos_embed)  # (1, prefix + N or N, D)
    full[0, -len(code) :] = code
    vit.pos_embed = nn.Parameter(full, requires_grad=False)


class RegionEmbed(nn.Module):
    """Region tokens: crops every region's box from the image, or from features of it, and embeds it as k x k patches.

    Each token gets the sinusoidal code of its centre in the image and an embedding of its region's name, so that the
    order of regions does not matter.

    Args:
        patch_embed: Embeds (B R, C, k p, k p) as (B R, k^2, D).
        names: The regions.
        patch_size: p.
        stride: Crop pixels per cell of what is cropped from; 1 for the image itself.
        region_grid: k.
        embed_dim: D.
        position: Code (..., D) of centres (..., 2) in crop pixels, or None: tokens have no positions.
    """

    def __init__(
        self,
        patch_embed: nn.Module,
        names: tuple[str, ...],
        patch_size: int,
        stride: float,
        region_grid: int,
        embed_dim: int,
        position: Position | None,
    ) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        self.normed = any(isinstance(module, nn.BatchNorm2d) for module in patch_embed.modules())
        self.names = names
        self.side = region_grid * patch_size
        self.stride = stride
        self.region_grid = region_grid
        self.position = position
        self.name_embed = nn.ParameterDict({name: torch.zeros(region_grid**2, embed_dim) for name in names})
        for parameter in self.name_embed.values():  # sorted by name
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(
        self, source: Tensor, boxes: Tensor, centres: Tensor, valid: Tensor | None = None, cover: Cover | None = None
    ) -> Tensor:
        """Embeds finite boxes (B, R, 4), whose tokens have the centres (B, R k^2, 2): tokens (B, R k^2, D).

        The source is the normalised image, or features of it (B, C, S / stride, S / stride), rounded up. The tokens of
        missing regions (`valid` (B, R) is False) are arbitrary. None: all are present.
        """
        batch, regions = boxes.shape[:2]
        # Strided convolutions are centred on a cell's first pixel: cell i lies at pixel i stride.
        cells = ((boxes + (self.stride - 1) / 2) / self.stride).float()
        with torch.autocast(source.device.type, enabled=False):
            # Backwards, a small map's product is five times faster than torchvision's scattered additions on a CPU.
            cut = crop_features if self.stride > 1 else crop_image
            crops = cut(source.float(), cells, self.side)
        x = self.embed(crops, valid).view(batch, regions, self.region_grid**2, -1).flatten(1, 2)
        x = x if cover is None else cover.over(x, cover.hidden.shape[1] - x.shape[1])
        x = x + torch.cat([self.name_embed[name] for name in self.names])
        return x if self.position is None else x + self.position(centres)

    def embed(self, crops: Tensor, valid: Tensor | None) -> Tensor:
        """Embeds crops (B R, C, k p, k p) as (B R, k^2, D); without missing ones in a batch norm's statistics."""
        if not (self.training and self.normed) or valid is None or valid.sum() < 2:  # one has no statistics
            return self.patch_embed(crops)  # type: ignore[no-any-return]
        x = self.patch_embed(crops[valid.flatten()])
        return x.new_zeros(len(crops), *x.shape[1:]).index_put((valid.flatten(),), x)  # type: ignore[no-any-return]


def create_region_embed(vit: VisionTransformer, config: RegionViTConfig, position: Position | None) -> RegionEmbed:
    """Creates the embedding of regions: its own weights, initialised from the patch embedding (maybe pretrained).

    For regions cut from the stem's features, where a cell is half a patch, 3 x 3 cells become a token.
    """
    stem: Any = vit.patch_embed
    grid, side, stride = config.region_grid, stem.patch_size[0], 1.0
    if config.region_source == "stem":
        side, stride = 3, side / 2
        patch_embed: Any = PatchEmbed(grid * side, side, stem.early_width, vit.embed_dim)
    else:
        patch_embed = copy.deepcopy(stem)
        if config.stem == "patch":
            patch_embed.set_input_size(img_size=(grid * side,) * 2)
    return RegionEmbed(patch_embed, config.regions, side, stride, grid, vit.embed_dim, position)


def crop_image(image: Tensor, boxes: Tensor, side: int) -> Tensor:
    """RoIAlign: crops boxes (B, R, 4) from a map (B, C, H, W), each cell the mean of 2 x 2 points.

    He et al., "Mask R-CNN" (ICCV 2017); points more than a pixel outside of the map are 0. -> (B R, C, side, side)
    """
    batch, regions = boxes.shape[:2]  # `len` would export a fixed number of faces
    index = torch.arange(batch, device=boxes.device, dtype=boxes.dtype).repeat_interleave(regions)
    rois = torch.cat([index[:, None], boxes.flatten(0, 1)], dim=1)  # (B R, 5)
    return roi_align(image, rois, (side, side), sampling_ratio=2, aligned=True)  # type: ignore[no-any-return]


def crop_features(features: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Computes the same as `crop_image` by one matrix product: for maps of few cells."""
    height, width = features.shape[2:]
    down = cell_weights(boxes[..., 1], boxes[..., 3], side, height)  # (B, R, side, H)
    across = cell_weights(boxes[..., 0], boxes[..., 2], side, width)  # (B, R, side, W)
    weights = down[:, :, :, None, :, None] * across[:, :, None, :, None, :]  # (B, R, side, side, H, W)
    # Not with the features transposed: torch 2.15's batch norm takes their gradient wrong for one face on a CPU.
    crops = features.flatten(2) @ weights.flatten(4).flatten(1, 3).mT  # (B, C, R side^2)
    return crops.view(*features.shape[:2], boxes.shape[1], side, side).transpose(1, 2).flatten(0, 1)


def cell_weights(start: Tensor, stop: Tensor, side: int, cells: int) -> Tensor:
    """Returns the weights of a map's `cells` in each of a box's `side` cells along an axis: (B, R, side, cells).

    The box reaches from `start` to `stop` (B, R); a cell's value is the mean of two interpolated points.
    """
    steps = (torch.arange(2 * side, device=start.device, dtype=start.dtype) + 0.5) / (2 * side)
    points = start[..., None] + (stop - start)[..., None] * steps - 0.5  # (B, R, 2 side)
    inside = (points >= -1) & (points <= cells)
    distance = points.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)
    weights = (1 - distance.abs()).clamp(min=0) * inside[..., None]
    return (weights[..., ::2, :] + weights[..., 1::2, :]) / 2
