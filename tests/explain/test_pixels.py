import numpy as np
import pytest
import torch
from scipy.special import roots_legendre
from torch import Tensor

from fer_vit.explain.attribution import explain
from fer_vit.explain.trace import trace
from fer_vit.geometry import Array
from fer_vit.model.region_vit import RegionViT
from tests.helpers.marks import slow
from tests.helpers.models import blurred, noise_faces, small_model

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
    start = blurred(image.double())

    def integral(fractions: Array, weights: Array) -> Tensor:
        total = torch.zeros_like(exact)
        for fraction, weight in zip(fractions, weights, strict=True):
            x = (start + fraction * (exact - start)).float().requires_grad_()
            (net.logits(x, boxes, valid) * direction).sum().backward()
            total += weight * x.grad
        return ((exact - start) * total).sum(1)

    midpoints = integral((np.arange(80) + 0.5) / 80, np.full(80, 1 / 80))
    roots, weights = roots_legendre(8)
    roots = (roots + 1) / 2
    expected = integral(roots**2, weights / 2 * 2 * roots)
    assert torch.allclose(explanation.heat.double(), expected / expected.abs().sum(), atol=1e-6)
    score, nothing = (
        (net.logits(x.float(), boxes, valid) * direction).sum().item() for x in (exact, start)
    )
    assert midpoints.sum().item() == pytest.approx(score - nothing, rel=1e-3, abs=1e-5)
    assert expected.sum().item() == pytest.approx(score - nothing, rel=0.1, abs=1e-5)


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


def test_the_heat_of_regions_is_their_share_spread_over_their_boxes() -> None:
    """Boxes with fractions, beyond the image, and smaller than a pixel."""
    net = build()
    image, boxes, valid = faces(1)
    valid[:] = True
    boxes[0, 2] = torch.tensor([20.0, 3.0, 20.8, 4.0])
    explanation = explain(net, image, boxes, valid, "regions")
    drawn = np.zeros((32, 32))
    for share, (left, top, right, bottom) in zip(
        explanation.shares[0].tolist(), boxes[0].tolist(), strict=True
    ):
        part = np.zeros((32, 32))
        for y, x in np.ndindex(32, 32):
            width = max(min(right, x + 1) - max(left, x), 0)
            part[y, x] = width * max(min(bottom, y + 1) - max(top, y), 0)
        drawn += share * part / max(part.sum(), 1)
    assert np.allclose(explanation.heat[0], drawn / np.abs(drawn).sum(), atol=1e-6)


def test_a_pixel_belongs_to_the_region_that_it_lies_deepest_in() -> None:
    """Boxes with fractions, beyond the image, empty, inside another one, and twice the same."""
    more = torch.tensor([[4.0, 3.0, 9.5, 30.0], [20.0, 20.0, 30, 30], [20.0, 20.0, 30, 30]])
    boxes = torch.cat([BOXES, more])
    names = ("right_eye", "left_eye", "nose", "mouth", "right_cheek", "left_cheek")
    net = small_model(classifier=("weight", "bias"), regions=names)
    image, boxes, valid = noise_faces(boxes, torch.tensor([[True, True, False, True, True, True]]))
    explanation = explain(net, image, boxes, valid, "pixels")
    sums = np.array(depths_one_by_one(explanation.heat[0].double().numpy(), boxes[0].tolist()))
    assert np.allclose(explanation.shares[0], sums / np.abs(sums).sum(), atol=1e-5)


def test_membership_is_the_covered_fraction_of_patches_and_the_regions_tokens() -> None:
    image, boxes, valid = faces(1)
    boxes[0, 0] = torch.tensor([3.0, 5.0, 17.0, 19.0])
    boxes[0, 1] = torch.tensor([-6.0, 20.0, 10.0, 40.0])
    covered = trace(build(region_grid=2), image, boxes, valid).membership[0]
    for region, box in enumerate(boxes[0, :2].int().tolist()):
        picture = np.zeros((32, 32))
        picture[max(box[1], 0) : box[3], max(box[0], 0) : box[2]] = 1
        parts = picture.reshape(4, 8, 4, 8).mean((1, 3)).ravel()
        tokens = np.repeat([region == 0, region == 1, False], 4)
        assert np.allclose(covered[region], [0.0, *parts, *tokens])
    assert not covered[2].any()
