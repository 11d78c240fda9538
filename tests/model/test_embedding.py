from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.embedding import (
    ConvStem,
    Normalize,
    RegionEmbed,
    crop_features,
    crop_image,
    position_code,
)
from fer_vit.model.tokens import sincos_2d


def test_normalisation_is_by_channel_and_grey_is_luma() -> None:
    mean = (0.1, 0.2, 0.6)
    std = (0.5, 0.25, 0.125)
    image = torch.rand(2, 3, 4, 4)
    colour = Normalize(mean, std, 3)
    grey = Normalize(mean, std, 1)
    for channel in range(3):
        expected = (image[:, channel].double() - mean[channel]) / std[channel]
        assert torch.allclose(colour(image)[:, channel].double(), expected, atol=1e-6)
    luma = (
        0.299 * image[:, 0].double() + 0.587 * image[:, 1].double() + 0.114 * image[:, 2].double()
    )
    assert grey(image).shape == (2, 1, 4, 4)
    assert torch.allclose(grey(image)[:, 0].double(), (luma - 0.3) / (0.875 / 3), atol=1e-6)
    assert not colour.state_dict()  # the backbone's name implies them
    # which go where the model goes
    assert {name for name, _ in colour.named_buffers()} == {
        "mean",
        "std",
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_standardised_crops_have_the_same_light_and_contrast(channels: int) -> None:
    image = torch.rand(2, 3, 8, 8)
    standard = Normalize((0.5,) * 3, (0.5,) * 3, channels, standardize=True)
    crop = standard(image).double()
    grey = image if channels == 3 else Normalize((0.0,) * 3, (1.0,) * 3, 1)(image)
    for face, values in zip(crop, grey.double(), strict=True):
        # One mean and deviation for all channels, so that colours stay what they are.
        assert torch.allclose(face, (values - values.mean()) / (values.std() + 0.01), atol=1e-5)
    assert standard(torch.full((1, 3, 8, 8), 0.4)).abs().max() < 1e-4


@pytest.mark.parametrize("size", [24, 25, 49])
def test_a_stem_has_a_token_for_every_cell_that_its_convolutions_make(size: int) -> None:
    stem = ConvStem(size, 8, 1, 32, convs=2, last_convs=1)
    tokens = stem(torch.rand(1, 1, size, size))
    assert tokens.shape == (1, stem.num_patches, 32)
    assert sum(isinstance(layer, nn.Conv2d) for layer in stem.late.modules()) == 2


def test_mirrored_positions_are_the_positions_with_swapped_halves() -> None:
    config = RegionViTConfig(img_size=49, pos_embed="mirror")
    points = torch.rand(6, 2) * 49
    mirrored = points * torch.tensor([-1.0, 1.0]) + torch.tensor([49.0, 0.0])
    code = position_code(config, points, 16, 8)
    assert torch.allclose(position_code(config, mirrored, 16, 8), code.roll(8, 1), atol=1e-5)
    assert torch.equal(code[:, :8], sincos_2d(points, 8, 8))


def reference_stem(widths: list[int], bias: bool, convs: int) -> nn.Sequential:
    """Returns some convolutions for each halving and a projection, written out."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        for channels, stride in [(before, 2), (after, 1), (after, 1)][:convs]:
            layers.append(
                nn.Conv2d(channels, after, kernel_size=3, stride=stride, padding=1, bias=False)
            )
            layers.append(nn.BatchNorm2d(after))
            layers.append(nn.GELU())
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], widths[-1], kernel_size=1, bias=bias))


@pytest.mark.parametrize(
    ("stem", "widths", "convs"),
    [
        (ConvStem(32, 8, 1, 16), [1, 4, 8, 16], 3),
        (ConvStem(32, 8, 3, 192), [3, 48, 96, 192], 3),
        (ConvStem(32, 2, 3, 16, bias=False), [3, 16], 3),
        (ConvStem(32, 8, 1, 16, convs=1), [1, 4, 8, 16], 1),
    ],
)
def test_conv_stem_is_the_layers_written_out(stem: ConvStem, widths: list[int], convs: int) -> None:
    side = 2 ** (len(widths) - 1)
    reference = reference_stem(widths, bias=side > 2, convs=convs)
    names = zip(reference.state_dict(), stem.state_dict().values(), strict=True)
    reference.load_state_dict(dict(names))
    image = torch.rand(2, widths[0], 32, 32)
    for module in (stem, reference):
        module.eval()
    expected = reference(image)
    assert torch.equal(stem(image), expected.flatten(2).transpose(1, 2))
    assert stem.patch_size == (side, side)
    assert stem.grid_size == expected.shape[2:] == (32 // side, 32 // side)
    assert stem.num_patches == stem(image).shape[1]
    features = stem.early(image)  # a cell is half a patch
    assert features.shape == (2, stem.early_width, 64 // side, 64 // side)
    assert torch.equal(stem.finish(features), stem(image))


class Crops(nn.Module):
    """Returns the first values of each of the k x k cells of a crop as its tokens,
    and keeps the crops.
    """

    def __init__(self, grid: int, side: int) -> None:
        super().__init__()
        self.grid = grid
        self.patch_size = (side, side)

    def forward(self, crops: Tensor) -> Tensor:
        self.seen = crops
        # (B R, C, k, p, k, p)
        cells = crops.unflatten(2, (self.grid, -1)).unflatten(4, (self.grid, -1))
        return cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)[..., :8]


def build(grid: int, side: int, *names: str) -> RegionEmbed:
    config = RegionViTConfig(stem="conv", regions=names, region_grid=grid)
    return RegionEmbed(config, SimpleNamespace(patch_embed=Crops(grid, side), embed_dim=8))


@pytest.mark.parametrize("stride", [1.0, 2.0])
def test_regions_are_cropped_by_roi_align(stride: float) -> None:
    generator = torch.Generator().manual_seed(2)
    source = torch.rand(2, 3, 30, 30, generator=generator)
    boxes = torch.tensor(
        [[[1.3, 2.0, 7.9, 8.6], [0.0, 0, 30, 30]], [[4.0, 5.5, 5.0, 6.5], [10.2, 3.1, 29.2, 22.1]]]
    )
    grid, side = 3, 2
    embed = build(grid, side, "mouth", "nose")
    embed.stride = stride
    tokens = embed(source, boxes * stride - (stride - 1) / 2)
    assert embed.patch_embed.seen.shape == (4, 3, grid * side, grid * side)
    for face, region in product(range(2), range(2)):
        expected = roi_align(
            source[[face]].double(), [boxes[face, [region]].double()], grid * side, 1.0, 2, True
        )
        assert torch.allclose(
            embed.patch_embed.seen[2 * face + region], expected[0].float(), atol=1e-5
        )
    assert torch.equal(tokens, embed.patch_embed(embed.patch_embed.seen).view(2, 18, 8))


def test_crops_of_features_and_their_gradients_are_torchvisions() -> None:
    torch.manual_seed(0)
    boxes = torch.rand(3, 11, 2) * 14 - 4  # some reach over the map, some lie beside it
    boxes = torch.cat([boxes, boxes + 6 * torch.rand(3, 11, 2)], dim=-1)
    expected, mine = (
        torch.rand(3, 5, 12, 10, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    crops = [
        crop_image(expected.requires_grad_(), boxes, 3),
        crop_features(mine.requires_grad_(), boxes, 3),
    ]
    weights = torch.rand_like(crops[0])
    for crop in crops:
        (weights * crop).sum().backward()
    assert torch.allclose(*crops, atol=1e-6)
    assert torch.allclose(expected.grad, mine.grad, atol=1e-5)
    assert (crops[0] == 0).flatten(1).all(1).any()


@pytest.mark.parametrize("rounded", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_regions_are_cropped_in_full_precision(rounded: torch.dtype, autocast: bool) -> None:
    source = torch.rand(2, 3, 12, 12).to(rounded)
    dtype = torch.float32 if autocast else rounded
    boxes = torch.tensor([[[1.3, 2.1, 7.9, 8.7]]] * 2, dtype=dtype)
    embed = build(2, 3, "nose")
    with torch.autocast("cpu", rounded, enabled=autocast):
        embed(source, boxes)
    assert embed.patch_embed.seen.dtype == torch.float32
    expected = roi_align(source.double(), [*boxes.double()], 6, 1.0, 2, True).float()
    assert torch.allclose(embed.patch_embed.seen, expected, atol=1e-5)


def test_positions_of_each_choice() -> None:
    centres = torch.rand(2, 3, 2) * 40
    plane = sincos_2d(centres, 8, 16)
    for name, code in {"learn": plane, "sincos_2d": plane, "none": 0 * plane}.items():
        assert torch.equal(
            position_code(RegionViTConfig(img_size=40, pos_embed=name), centres, 8, 16), code
        )
