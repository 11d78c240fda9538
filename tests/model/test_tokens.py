import pytest
import torch
from torch import nn

from fer_vit.model.positions import token_centres
from fer_vit.model.tokens import ConvStem, RegionEmbed, TokenLayout, Tokens, keep_patches


def test_layout_knows_which_token_is_which() -> None:
    layout = TokenLayout(num_prefix=2, grid=(2, 3), num_regions=2, region_grid=2)
    tokens = torch.arange(float(layout.num_tokens))[None]
    assert layout.num_tokens == 2 + 6 + 8
    assert layout.patch_map(tokens).tolist() == [[[2, 3, 4], [5, 6, 7]]]
    assert layout.region_scores(tokens).tolist() == [[8 + 9 + 10 + 11, 12 + 13 + 14 + 15]]


@pytest.mark.parametrize(("grid", "regions"), [((0, 0), 3), ((2, 2), 0)])
def test_layout_without_patches_or_regions(grid: tuple[int, int], regions: int) -> None:
    layout = TokenLayout(1, grid, regions, 1)
    scores = torch.rand(4, layout.num_tokens)
    assert layout.patch_map(scores).shape == (4, *grid)
    assert layout.region_scores(scores).shape == (4, regions)


def test_conv_stem_sees_only_neighbours() -> None:
    stem = ConvStem(96, 8, 1, 16).eval()
    image = torch.rand(1, 1, 96, 96)
    changed = image.clone()
    changed[..., 48:, 48:] += 1
    difference = (stem(image) - stem(changed)).abs().sum(-1).view(12, 12)
    assert stem(image).shape == (1, 144, 16)
    assert difference[11, 11] > 0
    # Three convolutions each at strides 2, 4 and 8 (the first of them a step finer) reach 35 pixels.
    assert difference[3, 3] > 0
    assert (difference[:2] == 0).all()
    assert (difference[:, :2] == 0).all()


class Mean(nn.Module):
    """Embeds each of the k x k cells of a crop as its mean colour."""

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        cells = nn.functional.adaptive_avg_pool2d(crops, 2)
        return cells.flatten(2).transpose(1, 2).repeat(1, 1, 8)


@pytest.mark.parametrize("stride", [1.0, 4.0])
def test_region_tokens_come_from_their_boxes(stride: float) -> None:
    # On a slope interpolation is exact: a cell's mean is the value at its centre.
    axis = torch.arange(32 / stride) * stride + 0.5  # of strided convolutions with a padding of 1
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    image = torch.stack([x + 3 * y, 5 * x - y])[:, None]
    embed = RegionEmbed(Mean(), ("mouth", "nose"), 4, stride, region_grid=2, embed_dim=8, position=None)
    for parameter in embed.name_embed.values():
        nn.init.zeros_(parameter)
    boxes = torch.tensor([[4.0, 8.0, 12.0, 16.0], [16.0, 0.0, 32.0, 16.0]]).expand(2, 2, 4)
    centres = token_centres(boxes, 2).flatten(1, 2)
    tokens = embed(image, boxes, centres).view(2, 2, 2, 2, 8)
    assert tokens[0, 0, 0, 1, 0].item() == pytest.approx(10 + 3 * 10, abs=1e-3)
    assert tokens[1, 0, 1, 1, 0].item() == pytest.approx(5 * 10 - 14, abs=1e-3)
    assert tokens[0, 1, 1, 0, 0].item() == pytest.approx(20 + 3 * 12, abs=1e-3)


def test_hard_attention_keeps_the_best_patches_in_order_and_every_region() -> None:
    layout = TokenLayout(num_prefix=1, grid=(2, 3), num_regions=2, region_grid=1)
    x = torch.arange(9.0)[None, :, None].expand(2, -1, 4)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, 8] = False
    tokens = Tokens(x, valid, x[..., :2])
    scores = torch.tensor([[9, 0.1, 0.5, 0.2, 0.4, 0, 0.3, 0, 0], [0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 9, 9]])
    kept = keep_patches(tokens, scores, layout, 3)
    assert kept.x[..., 0].tolist() == [[0, 2, 4, 6, 7, 8], [0, 1, 2, 3, 7, 8]]
    assert torch.equal(kept.centres, kept.x[..., :2])
    assert kept.valid.tolist() == [[True] * 5 + [False], [True] * 6]
    fewer = keep_patches(kept, torch.tensor([[0.0, 1, 3, 2, 0, 0]] * 2), layout, 1)
    assert fewer.x[..., 0].tolist() == [[0, 4, 7, 8], [0, 2, 7, 8]]
    # The same by a mask, from which the second choice does not bring back what the first left out.
    masked = keep_patches(tokens, scores, layout, 3, by_mask=True)
    assert torch.equal(masked.x, x)
    assert masked.valid.nonzero().tolist() == [[0, i] for i in (0, 2, 4, 6, 7)] + [[1, i] for i in (0, 1, 2, 3, 7, 8)]
    later = keep_patches(masked, torch.tensor([[0, 9, 1, 9, 3, 9, 2, 0, 0.0]] * 2), layout, 2, by_mask=True)
    assert later.valid[0].nonzero().flatten().tolist() == [0, 4, 6, 7]


def test_hard_attention_without_regions() -> None:
    layout = TokenLayout(1, (2, 2), 0, 1)
    x = torch.arange(5.0)[None, :, None]
    tokens = Tokens(x, None, x.expand(-1, -1, 2))
    scores = torch.tensor([[0.0, 0.3, 0.1, 0.2, 0.4]])
    assert keep_patches(tokens, scores, layout, 2).x.flatten().tolist() == [0, 1, 4]
    assert keep_patches(tokens, scores, layout, 2).valid is None
    assert keep_patches(tokens, scores, layout, 0).x.flatten().tolist() == [0]
    assert keep_patches(tokens, scores, layout, 2, by_mask=True).valid.tolist() == [[True, True, False, False, True]]
