"""Embeddings of patches and regions: normalised crops become tokens.

B images, S crop size, P patch size, N patches, R regions of k x k tokens, D width.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchvision.ops import roi_align

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.tokens import sincos_1d, sincos_2d


class Normalize(nn.Module):
    """Normalises crops by mean and standard deviation: the backbone's, or each crop's.

    The latter is `standardize`. A network with one input channel gets grey crops.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], in_chans: int, standardize: bool = False
    ) -> None:
        super().__init__()
        self.in_chans = in_chans
        self.standardize = standardize
        for name, values in (("mean", mean), ("std", std)):
            channels = torch.tensor(values).view(-1, 1, 1)  # (3, 1, 1)
            if in_chans == 1:
                channels = channels.mean(0)  # (1, 1)
            self.register_buffer(name, channels, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Normalises crops: (B, 3, S, S) in [0, 1] -> (B, in_chans, S, S)."""
        if self.in_chans == 1:
            image = to_grey(image)
        if self.standardize:
            deviation, mean = torch.std_mean(image, (1, 2, 3), keepdim=True)
            # + 0.01: the noise of a crop that is almost uniform stays small
            return (image - mean) / (deviation + 0.01)
        return (image - self.mean) / self.std


def to_grey(image: Tensor) -> Tensor:
    """Returns the luma (ITU-R BT.601) of RGB images: (B, 3, S, S) -> (B, 1, S, S)."""
    weights = image.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    return (image * weights).sum(1, keepdim=True)


class ConvStem(nn.Module):
    """Patch embedding by 3x3 convolutions, as an `embed_layer` of timm.

    Each halving of the resolution has `convs` convolutions. The last halving, which only patches
    use, has `last_convs`. After Xiao et al., "Early Convolutions Help Transformers See Better"
    (NeurIPS 2021), who use one convolution per halving.
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
        # The width doubles with each halving, up to D. `early` has all halvings except the last.
        halvings = int(math.log2(patch_size))
        self.early = nn.Sequential()
        self.early_width = in_chans
        for remaining in range(halvings - 1, 0, -1):
            width = embed_dim // 2**remaining
            self.early.append(downsample(self.early_width, width, convs))
            self.early_width = width
        late = downsample(self.early_width, embed_dim, last_convs or convs)
        self.late = nn.Sequential(late, nn.Conv2d(embed_dim, embed_dim, 1, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        """Embeds the patches of crops: (B, C, S, S) -> (B, N, D)."""
        features = self.early(x)  # (B, C', 2 S/P, 2 S/P), rounded up
        return self.finish(features)

    def finish(self, features: Tensor) -> Tensor:
        """Embeds the features (B, C', 2 S/P, 2 S/P) of `early` as patches (B, N, D), row by row."""
        return self.late(features).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


def downsample(in_channels: int, out_channels: int, convs: int) -> nn.Sequential:
    """Creates 3x3 convolutions with batch norm and GELU: (B, C, H, W) -> (B, C', H/2, W/2)."""
    layers = nn.Sequential()
    channels = in_channels
    stride = 2  # only the first convolution halves the map
    for _ in range(convs):
        layers.append(nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False))
        layers.append(nn.BatchNorm2d(out_channels))
        layers.append(nn.GELU())
        channels = out_channels
        stride = 1
    return layers


def position_code(config: RegionViTConfig, centres: Tensor, dim: int, patch_size: int) -> Tensor:
    """Returns the position encoding (..., D) of centres (..., 2), (x, y) in crop pixels."""
    if config.pos_embed == "none":
        return centres.new_zeros(*centres.shape[:-1], dim)
    if config.pos_embed == "sincos_1d":  # the index in reading order, row by row from 0
        columns = math.ceil(config.img_size / patch_size)
        x, y = (centres / patch_size).unbind(-1)
        return sincos_1d(y.floor() * columns + x - 0.5, dim)
    if config.pos_embed == "mirror":
        mirrored = torch.stack([config.img_size - centres[..., 0], centres[..., 1]], -1)
        code = sincos_2d(centres, dim // 2, patch_size)
        mirrored_code = sincos_2d(mirrored, dim // 2, patch_size)
        return torch.cat([code, mirrored_code], -1)
    return sincos_2d(centres, dim, patch_size)


class RegionEmbed(nn.Module):
    """Embeds regions, cut from the image or from the stem's features, as k x k tokens each.

    Each token gets an embedding of the region's name, so that the order of regions does not matter.
    The embedding of crops from the image has separate weights. The initial weights are copied from
    the backbone's patch embedding. A cell of the stem's features is half a patch wide; 3 x 3 cells
    become a token.
    """

    def __init__(self, config: RegionViTConfig, vit: VisionTransformer) -> None:
        super().__init__()
        stem: Any = vit.patch_embed
        self.names = config.regions
        self.grid = config.region_grid
        if config.region_source == "stem":
            self.stride = stem.patch_size[0] / 2  # crop pixels per cell
            self.side = 3 * self.grid  # the side of a region's crop in cells
            self.patch_embed: Any = PatchEmbed(self.side, 3, stem.early_width, vit.embed_dim)
        else:
            self.stride = 1.0
            self.side = self.grid * stem.patch_size[0]
            self.patch_embed = copy.deepcopy(stem)
            if config.stem == "patch":
                self.patch_embed.set_input_size(img_size=(self.side, self.side))
        modules = self.patch_embed.modules()
        self.has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in modules)

        codes = {name: torch.zeros(self.grid**2, vit.embed_dim) for name in self.names}
        self.name_embed = nn.ParameterDict(codes)
        for parameter in self.name_embed.values():  # sorted by name
            nn.init.trunc_normal_(parameter, std=0.02)

    def name_codes(self) -> Tensor:
        """Returns the embedding (R k^2, D) of the region's name for each region token."""
        return torch.cat([self.name_embed[name] for name in self.names])

    def forward(self, source: Tensor, boxes: Tensor, valid: Tensor | None = None) -> Tensor:
        """Embeds the contents of regions as (B, R k^2, D), without names and positions.

        Args:
            source: The normalised image (B, C, S, S), or the stem's features (B, C, S / stride,
                S / stride), rounded up.
            boxes: Finite boxes (B, R, 4), xyxy in crop pixels.
            valid: Which regions are present (B, R). None: all regions. The tokens of missing
                regions are arbitrary.
        """
        # Strided convolutions are centred on the first pixel: cell i lies at pixel i * stride.
        cells = ((boxes + (self.stride - 1) / 2) / self.stride).float()
        with torch.autocast(source.device.type, enabled=False):
            # For a small map, the backward pass of a matrix product is five times faster on a CPU
            # than the scattered additions of torchvision's RoIAlign.
            cut = crop_features if self.stride > 1 else crop_image
            crops = cut(source.float(), cells, self.side)  # (B R, C, side, side)
        tokens = self.embed(crops, valid)  # (B R, k^2, D)
        return tokens.reshape(source.shape[0], len(self.names) * self.grid**2, -1)

    def embed(self, crops: Tensor, valid: Tensor | None) -> Tensor:
        """Embeds crops of regions: (B R, C, side, side) -> (B R, k^2, D).

        The statistics of a batch norm leave out missing regions.
        """
        # a batch norm needs more than one crop for statistics
        if not (self.training and self.has_batch_norm) or valid is None or valid.sum() < 2:
            return self.patch_embed(crops)  # type: ignore[no-any-return]
        present = valid.flatten()  # (B R,)
        x: Tensor = self.patch_embed(crops[present])
        tokens = x.new_zeros(len(crops), *x.shape[1:])
        return tokens.index_put((present,), x)


def crop_image(image: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Crops boxes by RoIAlign (He et al., "Mask R-CNN", ICCV 2017).

    Each pixel of a crop is the mean of 2 x 2 points. Points more than a pixel outside of the image
    are 0.

    Args:
        image: Images, or maps of features (B, C, H, W).
        boxes: Boxes (B, R, 4), xyxy in pixels of the image. 0 is the edge of the first pixel.
        side: The side of a crop in pixels.

    Returns:
        The crops (B R, C, side, side).
    """
    batch, regions = boxes.shape[:2]  # `len` would export a fixed number of faces
    index = torch.arange(batch, device=boxes.device, dtype=boxes.dtype).repeat_interleave(regions)
    rois = torch.cat([index[:, None], boxes.flatten(0, 1)], dim=1)  # (B R, 5)
    return roi_align(image, rois, (side, side), sampling_ratio=2, aligned=True)  # type: ignore[no-any-return]


def crop_features(features: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Returns the result of `crop_image`, by one matrix product: fast for maps of few cells.

    Features are (B, C, H, W), and boxes (B, R, 4), xyxy in cells. Returns (B R, C, side, side).
    """
    height, width = features.shape[2:]
    down = cell_weights(boxes[..., 1], boxes[..., 3], side, height)  # (B, R, side, H)
    across = cell_weights(boxes[..., 0], boxes[..., 2], side, width)  # (B, R, side, W)
    # (B, R, side, side, H, W)
    weights = down[:, :, :, None, :, None] * across[:, :, None, :, None, :]
    weights = weights.flatten(4).flatten(1, 3)  # (B, R side^2, H W)
    # The features are the first factor: after a product with transposed features, the batch norm of
    # torch 2.15 computes a wrong gradient for one face on a CPU.
    crops = features.flatten(2) @ weights.mT  # (B, C, R side^2)
    crops = crops.view(*features.shape[:2], boxes.shape[1], side, side)
    return crops.transpose(1, 2).flatten(0, 1)


def cell_weights(start: Tensor, stop: Tensor, side: int, cells: int) -> Tensor:
    """Returns the weight (B, R, side, cells) of each cell of a map in each cell of a crop.

    The weights are for one axis: boxes extend from `start` to `stop` (B, R), in cells of the map.
    """
    steps = (torch.arange(2 * side, device=start.device, dtype=start.dtype) + 0.5) / (2 * side)
    points = start[..., None] + (stop - start)[..., None] * steps - 0.5  # (B, R, 2 side)
    inside = (points >= -1) & (points <= cells)
    distance = points.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)
    weights = (1 - distance.abs()).clamp(min=0) * inside[..., None]  # (B, R, 2 side, cells)
    return (weights[..., ::2, :] + weights[..., 1::2, :]) / 2
