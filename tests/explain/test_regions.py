"""Hiding one region after the other, by any engine, against loops over pixels."""

import numpy as np
import pytest
from skimage.data import astronaut

from fer_vit import load
from fer_vit.explain.regions import normalized_shares, region_falls, spread_shares
from fer_vit.geometry import Array, Image, Mask

SIZE = 12
BOXES = np.array([[1.5, 2.5, 6.5, 7.0], [4.0, 4.0, 12.0, 9.5], [0.0, 0.0, 0.0, 0.0]], np.float32)
VALID = np.array([True, True, False])


def test_a_hidden_region_has_the_mean_colour_and_no_token(rng: np.random.Generator) -> None:
    """Of a network that is linear in pixels and in tokens; one class is impossible."""
    image = rng.integers(0, 256, (2, SIZE, SIZE, 3), np.uint8)
    of_pixels = rng.normal(size=(SIZE, SIZE, 3, 4))
    of_tokens = rng.normal(size=(3, 4))
    offset = np.array([0.0, 0.0, 0.0, -np.inf])

    def network(image: Image, valid: Mask) -> Array:
        pixels = np.einsum("bijk,ijko->bo", image.astype(float), of_pixels)
        return pixels + valid.astype(float) @ of_tokens + offset

    boxes = np.stack([BOXES, BOXES])
    valid = np.stack([VALID, VALID])
    falls = region_falls(network, network(image, valid), image, boxes, valid)
    for face in range(2):
        colour = np.round(image[face].reshape(-1, 3).mean(0))
        for region, (left, top, right, bottom) in enumerate(BOXES[:2]):
            expected = of_tokens[region].copy()
            for y in range(SIZE):
                for x in range(SIZE):
                    if left <= x + 0.5 <= right and top <= y + 0.5 <= bottom:
                        expected += (image[face, y, x] - colour) @ of_pixels[y, x]
            assert falls[face, region, :3] == pytest.approx(expected[:3])
    assert np.all(falls[:, 2] == 0)  # is missing
    assert np.all(falls[..., 3] == 0)


def test_the_outputs_of_a_broken_engine_stay_visible() -> None:
    """NaN does not become a region without a share."""
    image = np.zeros((1, SIZE, SIZE, 3), np.uint8)

    def network(image: Image, valid: Mask) -> Array:
        return np.array([[np.nan, -np.inf, 1.0, -np.inf]])

    intact = np.array([[1.0, -np.inf, 1.0, 1.0]])
    (falls,) = region_falls(network, intact, image, BOXES[None], VALID[None])
    np.testing.assert_equal(falls[:2], [[np.nan, 0, 0, np.inf]] * 2)
    np.testing.assert_equal(falls[2], 0)  # is missing
    shares = normalized_shares(falls[None], np.eye(4)[:, None])
    assert not np.isfinite(shares[0]).any()


def test_shares_are_spread_over_boxes(rng: np.random.Generator) -> None:
    falls = rng.normal(size=(1, 3, 2)) * VALID[:, None]
    shares = normalized_shares(falls, np.array([[[1.0, 0.0]], [[1.0, -1.0]]]))
    contrast = falls[0, :, 0] - falls[0, :, 1]
    assert shares[1, 0] == pytest.approx(contrast / np.abs(contrast).sum())
    fine = 2  # cells for each pixel, so that all edges of boxes are edges of cells
    maps = spread_shares(shares, BOXES[None], SIZE, SIZE * fine)
    expected = np.zeros((2, SIZE * fine, SIZE * fine))
    for region, box in enumerate(BOXES[:2]):
        left, top, right, bottom = (fine * box).astype(int)
        area = (right - left) * (bottom - top)
        expected[:, top:bottom, left:right] += shares[:, 0, region, None, None] / area
    np.testing.assert_allclose(maps[:, 0], expected)
    coarse = spread_shares(shares, BOXES[None], SIZE, 4)[:, 0]
    side = SIZE * fine // 4
    sums = expected.reshape(2, 4, side, 4, side).sum((2, 4))
    np.testing.assert_allclose(coarse, sums)


def test_engines_agree_on_the_shares_of_regions() -> None:
    photo = astronaut()[:300, 100:350]
    faces = load(device="cpu").predict(photo)
    by_onnx = load(device="cpu").explain(faces, "regions")
    network = load("ferplus-fairface", "cpu").net
    by_torch = load(network, "cpu").explain(faces, "regions")
    assert type(load(device="cpu").engine) is not type(load(network, "cpu").engine)
    np.testing.assert_allclose(by_onnx.shares, by_torch.shares, atol=1e-4)
    np.testing.assert_allclose(by_onnx.heat, by_torch.heat, atol=1e-4)
    assert np.abs(by_onnx.shares).sum() == pytest.approx(1)
    assert by_onnx.regions[by_onnx.shares[0].argmax()] == "mouth"  # she smiles
