"""Embeddings of patches and regions: normalised crops become tokens.

B images, S crop size, P patch size, N patches, R regions of k x k tokens, D width.
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchvision.ops import roi_align

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.tokens import sincos_1d, sincos_2d


class Normalize(nn.Module):
    """Normalises crops by the mean and deviation of a backbone or, with `standardize`, of each
    crop.

    A network with one input channel gets grey crops.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], in_chans: int, standardize: bool = False
    ) -> None:
        super().__init__()
        self.in_chans, self.standardize = in_chans, standardize
        for name, values in (("mean", mean), ("std", std)):
            channels = torch.tensor(values).view(-1, 1, 1)  # (3, 1, 1)
            self.register_buffer(
                name, channels.mean(0) if in_chans == 1 else channels, persistent=False
            )

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in [0, 1] -> (B, in_chans, S, S)."""
        if self.in_chans == 1:
            image = to_grey(image)
        if self.standardize:
            deviation, mean = torch.std_mean(image, (1, 2, 3), keepdim=True)
            return (image - mean) / (
                deviation + 0.01
            )  # the noise of an almost even crop stays small
        return (image - self.mean) / self.std


def to_grey(image: Tensor) -> Tensor:
    """Returns the luma (ITU-R BT.601) of RGB images: (B, 3, S, S) -> (B, 1, S, S)."""
    return (image * image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)


class ConvStem(nn.Module):
    """Patch embedding by 3x3 convolutions, `convs` for every halving; an `embed_layer` of timm.

    The last halving, which only patches read, has `last_convs`. After Xiao et al., "Early
    Convolutions Help Transformers See Better" (NeurIPS 2021), who use one per halving.
    """

    def __init__(
        self,
        img_size: int,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        bias: bool = True,
        convs: int = 3,
        last_convs: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.patch_size = (patch_size, patch_size)
        cells = math.ceil(img_size / patch_size)
        self.grid_size = (cells, cells)
        self.num_patches = cells**2
        # The width doubles with every halving, up to D.
        halvings = int(math.log2(patch_size))
        widths = [in_chans] + [embed_dim // 2**step for step in reversed(range(halvings))]
        early = [downsample(before, after, convs) for before, after in pairwise(widths[:-1])]
        late = downsample(widths[-2], widths[-1], last_convs or convs)
        self.early = nn.Sequential(*early)
        self.late = nn.Sequential(late, nn.Conv2d(embed_dim, embed_dim, 1, bias=bias))
        self.early_width = widths[-2]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, S, S) -> (B, N, D); between `early`
        and `late` it is a map (B, C', 2 S/P, 2 S/P), rounded up.
        """
        return self.finish(self.early(x))

    def finish(self, features: Tensor) -> Tensor:
        """Turns the map into patches, row by row."""
        return self.late(features).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


def downsample(before: int, after: int, convs: int) -> nn.Sequential:
    """Creates 3x3 convolutions, each with batch norm and GELU:
    (B, before, H, W) -> (B, after, H/2, W/2).
    """
    layers: list[nn.Module] = []
    for channels, stride in ((before, 2), *[(after, 1)] * (convs - 1)):
        layers += [
            nn.Conv2d(channels, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.GELU(),
        ]
    return nn.Sequential(*layers)


def position_code(config: RegionViTConfig, centres: Tensor, dim: int, patch_size: int) -> Tensor:
    """Returns the sinusoidal encoding (..., D) of centres (..., 2) in crop pixels;
    0 for a model without positions.
    """
    if config.pos_embed == "none":
        return centres.new_zeros(*centres.shape[:-1], dim)
    if config.pos_embed == "sincos_1d":  # the index in reading order, row by row from 0
        x, y = (centres / patch_size).unbind(-1)
        return sincos_1d(y.floor() * math.ceil(config.img_size / patch_size) + x - 0.5, dim)
    if config.pos_embed == "mirror":
        mirrored = torch.stack([config.img_size - centres[..., 0], centres[..., 1]], -1)
        halves = [sincos_2d(points, dim // 2, patch_size) for points in (centres, mirrored)]
        return torch.cat(halves, -1)
    return sincos_2d(centres, dim, patch_size)


class RegionEmbed(nn.Module):
    """Region tokens: crops every region's box from the image, or from features of it, and embeds it
    as k x k patches.

    Each token gets an embedding of its region's name, so that the order of regions does not matter.
    The embedding of crops from the image has its own weights, initialised with a backbone's patch
    embedding. In the stem's features a cell is half a patch, and 3 x 3 cells become a token.
    """

    def __init__(self, config: RegionViTConfig, vit: VisionTransformer) -> None:
        super().__init__()
        stem: Any = vit.patch_embed
        self.names, self.grid = config.regions, config.region_grid
        if config.region_source == "stem":
            self.stride = stem.patch_size[0] / 2  # crop pixels per cell
            self.side = 3 * self.grid  # of a crop, in cells
            self.patch_embed: Any = PatchEmbed(self.side, 3, stem.early_width, vit.embed_dim)
        else:
            self.stride, self.side = 1.0, self.grid * stem.patch_size[0]
            self.patch_embed = copy.deepcopy(stem)
            if config.stem == "patch":
                self.patch_embed.set_input_size(img_size=(self.side, self.side))
        self.normed = any(
            isinstance(module, nn.BatchNorm2d) for module in self.patch_embed.modules()
        )
        self.name_embed = nn.ParameterDict(
            {name: torch.zeros(self.grid**2, vit.embed_dim) for name in self.names}
        )
        for parameter in self.name_embed.values():  # sorted by name
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, source: Tensor, boxes: Tensor, valid: Tensor | None = None) -> Tensor:
        """Embeds finite boxes (B, R, 4), xyxy in crop pixels, without the names: (B, R k^2, D).

        The source is the normalised image, or features of it (B, C, S / stride, S / stride),
        rounded up. The tokens of missing regions (`valid` (B, R) is False) are arbitrary. None: all
        are present.
        """
        # Strided convolutions are centred on a cell's first pixel: cell i lies at pixel i stride.
        cells = ((boxes + (self.stride - 1) / 2) / self.stride).float()
        with torch.autocast(source.device.type, enabled=False):
            # Backwards, a small map's product is five times faster than torchvision's scattered
            # additions on a CPU.
            cut = crop_features if self.stride > 1 else crop_image
            crops = cut(source.float(), cells, self.side)
        return self.embed(crops, valid).reshape(source.shape[0], len(self.names) * self.grid**2, -1)

    def embed(self, crops: Tensor, valid: Tensor | None) -> Tensor:
        """Embeds crops (B R, C, k p, k p) as (B R, k^2, D);
        without missing ones in a batch norm's statistics.
        """
        if (
            not (self.training and self.normed) or valid is None or valid.sum() < 2
        ):  # one has no statistics
            return self.patch_embed(crops)  # type: ignore[no-any-return]
        x = self.patch_embed(crops[valid.flatten()])
        return x.new_zeros(len(crops), *x.shape[1:]).index_put((valid.flatten(),), x)  # type: ignore[no-any-return]


def crop_image(image: Tensor, boxes: Tensor, side: int) -> Tensor:
    """RoIAlign: crops boxes (B, R, 4) from a map (B, C, H, W), each cell the mean of 2 x 2 points.

    He et al., "Mask R-CNN" (ICCV 2017); points more than a pixel outside the map are 0. -> (B R, C,
    side, side)
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
    weights = (
        down[:, :, :, None, :, None] * across[:, :, None, :, None, :]
    )  # (B, R, side, side, H, W)
    # Not with the features transposed: torch 2.15's batch norm takes their gradient wrong for one
    # face on a CPU.
    crops = features.flatten(2) @ weights.flatten(4).flatten(1, 3).mT  # (B, C, R side^2)
    return crops.view(*features.shape[:2], boxes.shape[1], side, side).transpose(1, 2).flatten(0, 1)


def cell_weights(start: Tensor, stop: Tensor, side: int, cells: int) -> Tensor:
    """Weights of the cells of a map in a box from `start` to `stop` (B, R) along an axis:
    (B, R, side, cells).
    """
    steps = (torch.arange(2 * side, device=start.device, dtype=start.dtype) + 0.5) / (2 * side)
    points = start[..., None] + (stop - start)[..., None] * steps - 0.5  # (B, R, 2 side)
    inside = (points >= -1) & (points <= cells)
    distance = points.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)
    weights = (1 - distance.abs()).clamp(min=0) * inside[..., None]
    return (weights[..., ::2, :] + weights[..., 1::2, :]) / 2
