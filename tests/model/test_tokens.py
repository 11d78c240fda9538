import math

import pytest
import torch
from timm.layers import build_sincos2d_pos_embed

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.embedding import position_code
from fer_vit.model.tokens import (
    TokenLayout,
    Tokens,
    drop_regions,
    keep_patches,
    patch_centres,
    sincos_2d,
    token_centres,
)


def test_hard_attention_keeps_the_best_patches_in_order_and_every_region() -> None:
    layout = TokenLayout(num_prefix=1, grid=(2, 3), num_regions=2, region_grid=1)
    x = torch.arange(9.0)[None, :, None].expand(2, -1, 4)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, 8] = False
    tokens = Tokens(x, valid, x[..., :2])
    scores = torch.tensor(
        [[9, 0.1, 0.5, 0.2, 0.4, 0, 0.3, 0, 0], [0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 9, 9]]
    )
    kept = keep_patches(tokens, scores, layout, 3)
    assert kept.x[..., 0].tolist() == [[0, 2, 4, 6, 7, 8], [0, 1, 2, 3, 7, 8]]
    assert torch.equal(kept.centres, kept.x[..., :2])
    assert kept.valid.tolist() == [[True] * 5 + [False], [True] * 6]
    fewer = keep_patches(kept, torch.tensor([[0.0, 1, 3, 2, 0, 0]] * 2), layout, 1)
    assert fewer.x[..., 0].tolist() == [[0, 4, 7, 8], [0, 2, 7, 8]]
    # The same by a mask, from which the second choice does not bring back what the first left out.
    masked = keep_patches(tokens, scores, layout, 3, by_mask=True)
    assert torch.equal(masked.x, x)
    assert masked.valid.nonzero().tolist() == [[0, i] for i in (0, 2, 4, 6, 7)] + [
        [1, i] for i in (0, 1, 2, 3, 7, 8)
    ]
    later = keep_patches(
        masked, torch.tensor([[0, 9, 1, 9, 3, 9, 2, 0, 0.0]] * 2), layout, 2, by_mask=True
    )
    assert later.valid[0].nonzero().flatten().tolist() == [0, 4, 6, 7]


def test_region_dropout_hides_whole_regions_and_nothing_else() -> None:
    layout = TokenLayout(num_prefix=1, grid=(4, 4), num_regions=2, region_grid=2)
    x = torch.rand(3000, layout.num_tokens, 3)
    tokens = Tokens(x, torch.ones(x.shape[:2], dtype=torch.bool), x[..., :2])
    dropped = drop_regions(tokens, layout, 0.6)
    assert torch.equal(dropped.x, tokens.x)
    assert dropped.valid[:, : layout.regions.start].all()
    regions = dropped.valid[:, layout.regions].view(3000, 2, 4)
    assert (regions.all(-1) | ~regions.any(-1)).all()
    # Given the share u of a chosen face: one region goes with u, both with u^2; evenly drawn, 1/2
    # and 1/3 on average.
    assert abs((~regions[..., 0]).float().mean().item() - 0.6 / 2) < 0.03
    assert abs((~regions[..., 0]).all(1).float().mean().item() - 0.6 / 3) < 0.03
    assert tokens.valid.all()  # the batch itself is unchanged
    assert drop_regions(tokens, layout, 0.0).valid.all()


def vaswani_code(position: float, dim: int) -> list[float]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same):
    Vaswani et al. 2017, section 3.5.
    """
    code = []
    for i in range(dim // 2):
        angle = position / 10000.0 ** (2 * i / dim)
        code += [math.sin(angle), math.cos(angle)]
    return code


def test_sincos_2d_is_timms_in_another_order() -> None:
    rows, columns, dim = 5, 7, 24
    corners = (patch_centres((rows, columns)) - 0.5) * 14  # timm counts patches from 0
    # sine or cosine, then y or x
    reference = build_sincos2d_pos_embed([rows, columns], dim).view(-1, 2, 2, dim // 4)
    assert torch.allclose(
        sincos_2d(corners, dim, 14), reference.transpose(1, 2).flip(1).flatten(1), atol=1e-5
    )


def test_reading_order_counts_patches_row_by_row() -> None:
    centres = patch_centres((3, 4)) * 8
    config = RegionViTConfig(img_size=32, pos_embed="sincos_1d")
    code = position_code(config, centres, 16, patch_size=8)
    assert torch.allclose(
        code, torch.tensor([vaswani_code(rank, 16) for rank in range(12)]), atol=1e-5
    )
    # A region between two patches of a row has a rank between both.
    between = position_code(config, torch.tensor([[[16.0, 10.0]]]), 16, patch_size=8)[0, 0]
    assert torch.allclose(between, torch.tensor(vaswani_code(5.5, 16)), atol=1e-6)


@pytest.mark.parametrize("grid", [1, 2, 3])
def test_token_centres_of_any_box(grid: int) -> None:
    boxes = torch.tensor([[[3.0, -2.0, 10.0, 1.0], [5.0, 40.0, 6.0, 50.0]]], dtype=torch.float64)
    expected = [
        [x0 + (x1 - x0) * (column + 0.5) / grid, y0 + (y1 - y0) * (row + 0.5) / grid]
        for x0, y0, x1, y1 in boxes[0].tolist()
        for row in range(grid)
        for column in range(grid)
    ]
    centres = token_centres(boxes, grid)
    assert centres.shape == (1, 2, grid * grid, 2)
    assert torch.allclose(
        centres.view(-1, 2), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13
    )
