import numpy as np
import pytest
import torch
from scipy.special import roots_legendre
from scipy.stats import norm
from torch import Tensor

from fer_vit.explain.attribution import (
    PASSES,
    blur,
    explain,
    inside,
    integration_points,
    region_sums,
    spread,
)
from fer_vit.explain.trace import region_units, token_membership
from fer_vit.geometry import Array
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout
from tests.helpers.marks import slow
from tests.helpers.models import noise_faces, small_model

BOXES = torch.tensor([[2.0, 2.0, 14.0, 14.0], [-3.5, 18.25, 26.0, 36.0], [0.0, 0.0, 0.0, 0.0]])


def build(**change: object) -> RegionViT:
    return small_model(
        classifier=("weight", "bias"), regions=("right_eye", "mouth", "nose"), **change
    )


def faces(number: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return noise_faces(BOXES, torch.tensor([[True, True, False]] * number))


@pytest.mark.parametrize(
    "change",
    [
        *slow({"pool": "query"}),
        {"tokens": "region", "stem": "conv", "region_source": "stem", "in_chans": 1},
    ],
)
def test_against_a_loop_in_float64(change: dict[str, object]) -> None:
    """The same sum point by point and, by many midpoints, the difference between the two scores."""
    net = build(**change)
    image, boxes, valid = faces(1)
    direction = torch.tensor([[1.0, 0.0, -1.0, 0.0]])
    explanation = explain(net, image, boxes, valid, "pixels", direction)
    exact = image.double()
    start = blur(image.double())

    def integral(fractions: Array, weights: Array) -> Tensor:
        total = torch.zeros_like(exact)
        for fraction, weight in zip(fractions, weights, strict=True):
            x = (start + fraction * (exact - start)).float().requires_grad_()
            (net.logits(x, boxes, valid) * direction).sum().backward()
            total += weight * x.grad
        return ((exact - start) * total).sum(1)

    midpoints = integral((np.arange(80) + 0.5) / 80, np.full(80, 1 / 80))
    roots, weights = roots_legendre(PASSES)
    roots = (roots + 1) / 2
    expected = integral(roots**2, weights / 2 * 2 * roots)
    assert torch.allclose(explanation.heat.double(), expected / expected.abs().sum(), atol=1e-6)
    score, nothing = (
        (net.logits(x.float(), boxes, valid) * direction).sum().item() for x in (exact, start)
    )
    assert midpoints.sum().item() == pytest.approx(score - nothing, rel=1e-3, abs=1e-5)
    assert expected.sum().item() == pytest.approx(score - nothing, rel=0.1, abs=1e-5)


def test_integration_is_exact_for_polynomials() -> None:
    fractions, weights = np.transpose(integration_points(8))
    for power in range(8):
        assert (weights * fractions**power).sum() == pytest.approx(1 / (power + 1), abs=1e-12)


def depths_one_by_one(pixels: Array, boxes: list[list[float]]) -> list[float]:
    """Sums pixels (S, S) by box; each counts for the box in which it lies deepest,
    in halves of the box; ties share.
    """
    sums = [0.0] * len(boxes)
    for y, x in np.ndindex(*pixels.shape):
        depth = []
        for left, top, right, bottom in boxes:
            across = (right - left) / 2
            down = (bottom - top) / 2
            edges = [x + 0.5 - left, right - x - 0.5], [y + 0.5 - top, bottom - y - 0.5]
            if across and down:
                depth.append(min(min(edges[0]) / across, min(edges[1]) / down))
            else:
                depth.append(-1.0)
        deepest = [
            number
            for number, pixel_depth in enumerate(depth)
            if pixel_depth >= 0 and pixel_depth > max(depth) - 1e-5
        ]
        for number in deepest:
            sums[number] += pixels[y, x] / len(deepest)
    return sums


def test_shares_and_token_scores_are_sums_of_pixels() -> None:
    net = build(region_grid=2)
    image, boxes, valid = faces()
    boxes[:, 1] = torch.tensor([8.0, 10.0, 24.0, 30.0])  # overlaps the first
    explanation = explain(net, image, boxes, valid, "pixels")
    heat = explanation.heat.double().numpy()
    for face in range(2):
        shares = [*depths_one_by_one(heat[face], [[2, 2, 14, 14], [8, 10, 24, 30]]), 0.0]
        assert np.allclose(
            explanation.shares[face], np.array(shares) / np.abs(shares).sum(), atol=1e-5
        )
        scores = [0.0]
        scores += [
            heat[face, y : y + 8, x : x + 8].sum() for y in range(0, 32, 8) for x in range(0, 32, 8)
        ]
        scores += [heat[face, y : y + 6, x : x + 6].sum() for y in (2, 8) for x in (2, 8)]
        scores += [heat[face, y : y + 10, x : x + 8].sum() for y in (10, 20) for x in (8, 16)]
        scores += [0.0] * 4
        assert np.allclose(
            explanation.scores[face], np.array(scores) / np.abs(scores).sum(), atol=1e-5
        )


def test_boxes_against_pixels_one_by_one() -> None:
    """Boxes with fractions, beyond the image, empty,
    and a little smaller and larger than a pixel.
    """
    boxes = torch.cat([BOXES, torch.tensor([[20.0, 3.0, 20.8, 4.0], [25.0, 3.0, 26.5, 4.0]])])
    scores = torch.tensor([[3.0, -2.0, 5.0, 4.0, 6.0]])
    drawn = np.zeros((32, 32))
    expected = np.zeros((32, 32), bool)
    for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
        part = np.zeros((32, 32))
        for y, x in np.ndindex(32, 32):
            width = max(min(right, x + 1) - max(left, x), 0)
            part[y, x] = width * max(min(bottom, y + 1) - max(top, y), 0)
            expected[y, x] |= left <= x + 0.5 <= right and top <= y + 0.5 <= bottom
        drawn += scores[0, number].item() * part / max(part.sum(), 1)
    assert np.allclose(spread(scores[None], boxes[None], 32)[0, 0], drawn, atol=1e-6)
    assert np.array_equal(inside(boxes[None], 32)[0].any(0), expected)
    half = torch.tensor([[0.0, 0.0, 2.5, 2.5]])
    assert inside(half[None], 32).sum() == 9


def test_a_pixel_belongs_to_the_region_that_it_lies_deepest_in() -> None:
    """Boxes with fractions, beyond the image, empty, inside another one, and twice the same."""
    boxes = torch.cat(
        [BOXES, torch.tensor([[4.0, 3.0, 9.5, 30.0], [20.0, 20.0, 30, 30], [20.0, 20.0, 30, 30]])]
    )
    pixels = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(2))
    sums = region_sums(pixels, boxes[None])[:, 0].double()
    expected = [
        depths_one_by_one(channels[0].double().numpy(), boxes.tolist()) for channels in pixels
    ]
    assert np.allclose(sums, expected, atol=1e-4)
    whole = (pixels[:, 0] * inside(boxes[None], 32)[0].any(0)).sum((1, 2)).double()
    assert np.allclose(sums.sum(1), whole, atol=1e-4)  # no pixel counts twice


def test_a_mirrored_map_has_mirrored_sums() -> None:
    boxes = torch.tensor(
        [[[3.3, 4.1, 19.7, 17.0], [12.3, 4.1, 28.7, 17.0], [0.0, 15.0, 32.0, 32.0]]]
    )
    assert torch.equal(boxes[:, 0, 0] + boxes[:, 1, 2], torch.tensor([32.0]))
    pixels = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(2))
    right, left, below = region_sums(pixels, boxes)[0, 0].tolist()
    assert region_sums(pixels.flip(-1), boxes)[0, 0].tolist() == pytest.approx(
        [left, right, below], abs=1e-4
    )


def test_a_blur_is_a_gaussian_of_an_eighth_of_the_side() -> None:
    image = torch.zeros(1, 3, 32, 32)
    image[0, 1, 20, 5] = 1.0
    weights = norm.pdf(np.subtract.outer(np.arange(32), np.arange(32)), scale=4)
    weights /= weights.sum(1, keepdims=True)  # the image ends at its border
    assert np.allclose(blur(image)[0, 1], np.outer(weights[:, 20], weights[:, 5]), atol=1e-7)


def test_membership_is_the_covered_fraction_of_patches_and_the_regions_tokens() -> None:
    layout = TokenLayout(1, (4, 4), 2, 2)
    boxes = torch.tensor([[[3.0, 5.0, 17.0, 19.0], [-6.0, 20.0, 10.0, 40.0]]])
    covered = token_membership(layout, 8, boxes, torch.tensor([[True, True]]))
    for region, box in enumerate(boxes[0].int().tolist()):
        picture = np.zeros((32, 32))
        picture[max(box[1], 0) : box[3], max(box[0], 0) : box[2]] = 1
        parts = picture.reshape(4, 8, 4, 8).mean((1, 3)).ravel()
        tokens = np.repeat([region == 0, region == 1], 4)
        assert np.allclose(covered[0, region], [0.0, *parts, *tokens])
    boxes[0, 1] = 0.0
    assert not token_membership(layout, 8, boxes, torch.tensor([[True, False]]))[0, 1].any()
    half = region_units(layout, covered)[0, 0, layout.patches].view(4, 4)
    assert half.nonzero().tolist() == [[1, 0], [1, 1]]


def test_a_region_smaller_than_a_patch_has_the_patch_around_it() -> None:
    layout = TokenLayout(1, (2, 2), 0, 1)
    boxes = torch.tensor([[[2.0, 2.0, 8.0, 8.0], [40.0, 0.0, 50.0, 9.0]]])
    shares = token_membership(layout, 16, boxes, torch.ones(1, 2, dtype=torch.bool))
    members = region_units(layout, shares)
    assert members[0].tolist() == [[False, True, False, False, False], [False] * 5]
