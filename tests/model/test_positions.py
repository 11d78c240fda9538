import math

import pytest
import torch
from timm.layers import build_sincos2d_pos_embed

from fer_vit.model.positions import patch_centres, sincos_1d, sincos_2d, sincos_reading, token_centres


def paper(position: float, dim: int, temperature: float = 10000.0) -> list[float]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same): Vaswani et al. 2017, section 3.5."""
    angles = [position / temperature ** (2 * i / dim) for i in range(dim // 2)]
    return [wave(angle) for angle in angles for wave in (math.sin, math.cos)]


@pytest.mark.parametrize("temperature", [10000.0, 100.0])
def test_sincos_1d_is_the_formula_of_the_paper(temperature: float) -> None:
    positions = torch.tensor([[0.0, 1.0, 7.25], [41.0, 100.0, -3.0]])
    code = sincos_1d(positions, 16) if temperature == 10000.0 else sincos_1d(positions, 16, temperature)
    assert code.shape == (2, 3, 16)
    expected = torch.tensor([[paper(p, 16, temperature) for p in row] for row in positions.tolist()])
    assert torch.allclose(code, expected, atol=1e-5)


def test_sincos_2d_is_timms_in_another_order() -> None:
    rows, columns, dim = 5, 7, 24
    corners = (patch_centres((rows, columns)) - 0.5) * 14  # timm counts patches from 0
    reference = build_sincos2d_pos_embed([rows, columns], dim).view(-1, 2, 2, dim // 4)  # sine or cosine, then y or x
    assert torch.allclose(sincos_2d(corners, dim, 14), reference.transpose(1, 2).flip(1).flatten(1), atol=1e-5)


def test_reading_order_counts_patches_row_by_row() -> None:
    centres = patch_centres((3, 4)) * 8
    code = sincos_reading(centres, 16, patch_size=8, columns=4)
    assert torch.allclose(code, torch.tensor([paper(rank, 16) for rank in range(12)]), atol=1e-5)
    # A region between two patches of a row has a rank between both.
    between = sincos_reading(torch.tensor([[16.0, 10.0]]), 16, patch_size=8, columns=4)[0]
    assert torch.allclose(between, torch.tensor(paper(5.5, 16)), atol=1e-6)


def test_patch_centres_are_listed_row_by_row() -> None:
    assert patch_centres((2, 3)).tolist() == [[x + 0.5, y + 0.5] for y in range(2) for x in range(3)]
    assert patch_centres((1, 1)).tolist() == [[0.5, 0.5]]
    assert patch_centres((0, 0)).shape == (0, 2)


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
    assert torch.allclose(centres.view(-1, 2), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13)
