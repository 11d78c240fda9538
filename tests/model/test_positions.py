import math

import torch

from fer_vit.model.positions import patch_centres, sincos_1d, sincos_2d, sincos_reading, token_centres


def paper(position: float, dim: int) -> list[float]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same): Vaswani et al. 2017, section 3.5."""
    angles = [position / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return [wave(angle) for angle in angles for wave in (math.sin, math.cos)]


def test_sincos_1d_is_the_formula_of_the_paper() -> None:
    positions = torch.tensor([[0.0, 1.0, 7.25], [41.0, 100.0, -3.0]])
    code = sincos_1d(positions, 16)
    assert code.shape == (2, 3, 16)
    expected = torch.tensor([[paper(p, 16) for p in row] for row in positions.tolist()])
    assert torch.allclose(code, expected, atol=1e-5)


def test_sincos_2d_is_the_formula_once_for_x_and_once_for_y() -> None:
    code = sincos_2d(torch.tensor([[12.0, 58.0]]), dim=16, patch_size=8)[0]
    x, y = paper(1.5, 8), paper(7.25, 8)
    assert torch.allclose(code, torch.tensor(x[::2] + x[1::2] + y[::2] + y[1::2]), atol=1e-6)


def test_reading_order_counts_patches_row_by_row() -> None:
    centres = patch_centres((3, 4)) * 8
    code = sincos_reading(centres, 16, patch_size=8, columns=4)
    assert torch.allclose(code, torch.tensor([paper(rank, 16) for rank in range(12)]), atol=1e-5)
    # A region between two patches of a row has a rank between theirs.
    between = sincos_reading(torch.tensor([[16.0, 10.0]]), 16, patch_size=8, columns=4)[0]
    assert torch.allclose(between, torch.tensor(paper(5.5, 16)), atol=1e-6)


def test_token_centres_of_a_box_that_is_a_patch_grid() -> None:
    centres = token_centres(torch.tensor([[0.0, 0.0, 24.0, 24.0]]), 3)[0]
    assert torch.allclose(centres / 8, patch_centres((3, 3)))
