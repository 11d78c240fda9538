"""Crops against pixels that are drawn where they should be, and against hand-made boxes and matrices."""

import cv2
import numpy as np
import pytest

from fer_vit.face.crop import CUT, CropSpec, crop_face, cut_out, mirror, place_regions, region_boxes, warp
from fer_vit.geometry import TEMPLATE, Array, Image, apply, crop_matrix, fit_matrix, invert, similarity
from fer_vit.sources.drawn import draw_face
from tests.helpers.landmarks import FACE, turned


def dot(height: int, width: int, x: float, y: float, radius: float) -> Image:
    """A soft white dot on black around (x, y), whose pixel centres lie at +0.5."""
    rows, columns = np.mgrid[0:height, 0:width] + 0.5
    bright = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * radius**2))
    return np.repeat(np.round(255 * bright)[..., None], 3, 2).astype(np.uint8)


def centre(image: Image) -> Array:
    """Centre of brightness (x, y); pixel centres lie at +0.5."""
    weight = image[..., 0].astype(float)
    rows, columns = np.mgrid[0 : image.shape[0], 0 : image.shape[1]] + 0.5
    return np.array([(columns * weight).sum() / weight.sum(), (rows * weight).sum() / weight.sum()])


def test_warp_by_the_identity_changes_nothing(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (32, 32, 3), np.uint8)
    np.testing.assert_array_equal(warp(image, np.eye(2, 3), 32), image)


@pytest.mark.parametrize("scale", [3.0, 1.3, 0.7, 0.5, 0.45, 0.21, 0.1, 0.063])
@pytest.mark.parametrize("angle", [0.0, 0.4])
def test_a_drawn_dot_lands_where_its_point_does(scale: float, angle: float) -> None:
    """Sub-pixel, on both sides of the border between one step and two."""
    x, y = 311.3, 222.8
    image = dot(401, 603, x, y, radius=3 + 1.5 / scale)
    matrix = turned(angle, scale, (0.0, 0.0))
    matrix[:, 2] = np.array([49.6, 50.7]) - matrix[:, :2] @ (x, y)
    np.testing.assert_allclose(centre(warp(image, matrix, 100)), [49.6, 50.7], atol=0.05)


@pytest.mark.parametrize("reduction", [1.4, 1.8, 2.2, 3.7, 7.3, 16])
def test_a_reduction_averages_what_becomes_one_pixel(reduction: float, rng: np.random.Generator) -> None:
    """Noise against exact averages in float64; a bare warp is three times as far from them."""
    noise = rng.integers(0, 256, (400, 400), np.uint8)
    image, size, shift = np.repeat(noise[..., None], 3, 2), 24, 1.3
    start = (np.arange(size) - shift)[:, None] * reduction  # where a crop's pixel begins in the image
    part = np.clip(np.minimum(start + reduction, np.arange(400) + 1) - np.maximum(start, np.arange(400)), 0, 1)
    exact = part @ noise.astype(float) @ part.T / reduction**2
    matrix = turned(0.0, 1 / reduction, (shift, shift))
    half = turned(0.0, 1 / reduction, (shift + 0.5 / reduction - 0.5,) * 2)  # OpenCV's centres are at integers
    bare = cv2.warpAffine(image, half, (size, size), flags=cv2.INTER_CUBIC)

    def error(crop: Image) -> float:
        return float((crop[3:, 3:, 0] - exact[3:, 3:]).std())

    assert error(warp(image, matrix, size)) < error(bare) / 3


def test_the_border_is_repeated_outside_the_image() -> None:
    image = dot(20, 20, 10.0, 3.0, radius=5)
    crop = warp(image, turned(0.0, 1.0, (20.0, 20.0)), 60)
    np.testing.assert_array_equal(crop, np.pad(image, ((20, 20), (20, 20), (0, 0)), "edge"))


@pytest.mark.parametrize(
    "centre", [(0, 0), (500, 380), (999, 799), (-400, 300)], ids=["corner", "inside", "end", "outside"]
)
def test_a_strong_reduction_reads_the_right_place(centre: tuple[float, float]) -> None:
    """Colours encode positions; outside the image the border is repeated."""
    x, y = np.meshgrid(np.arange(1000) + 0.5, np.arange(800) + 0.5)
    image = np.stack([x / 4, y / 4, (x + y) / 8], axis=2).round().astype(np.uint8)
    back = similarity([(0, 0), (20, 20)], np.array([(-90, -40), (50, 100)]) + centre)
    crop = warp(image, invert(back), 20)
    there = apply(back, np.stack(np.meshgrid(np.arange(20) + 0.5, np.arange(20) + 0.5), axis=-1))
    x, y = there[..., 0].clip(0, 1000), there[..., 1].clip(0, 800)
    # Within the two pixels at the border that a reduced pixel covers.
    assert np.abs(crop - np.stack([x / 4, y / 4, (x + y) / 8], axis=2)).max() <= 2.5


@pytest.mark.parametrize("align", ["landmarks", "crop"])
@pytest.mark.parametrize("framed", [True, False])
def test_faces_are_cropped_by_landmarks_except_framed_crops(align: str, framed: bool) -> None:
    image = dot(200, 160, 95.0, 110.0, radius=4)
    spec = CropSpec(40, ("mouth",), align)  # type: ignore[arg-type]
    crop, points, to_crop = crop_face(image, FACE, spec, framed)
    expected = fit_matrix(image, 40) if framed and align == "crop" else crop_matrix(FACE, 40, TEMPLATE, spec.align)
    np.testing.assert_array_equal(to_crop, expected)
    np.testing.assert_array_equal(crop, warp(image, expected, 40))
    np.testing.assert_allclose(points, apply(expected, FACE))


@pytest.mark.parametrize("framed", [True, False])
def test_a_face_without_landmarks_is_the_full_image(framed: bool) -> None:
    image = dot(200, 160, 95.0, 110.0, radius=4)
    template = tuple((x + 0.01, y) for x, y in TEMPLATE)
    crop, points, to_crop = crop_face(image, None, CropSpec(40, ("mouth",), "landmarks", template), framed)
    np.testing.assert_array_equal(to_crop, fit_matrix(image, 40))
    np.testing.assert_array_equal(crop, warp(image, to_crop, 40))
    np.testing.assert_allclose(points, 40 * np.array(template))


def test_regions_outside_of_the_crop_have_empty_boxes() -> None:
    points = np.array(TEMPLATE) * 40
    points[:, 1] -= 30  # the eyes leave the crop at its top
    spec = CropSpec(40, ("right_eye", "mouth", "chin"))
    boxes, valid = place_regions(points, spec)
    assert valid.tolist() == [False, True, True]
    assert boxes[0].tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(boxes[1:], region_boxes(points, spec.regions)[1:])


def test_a_mirror_swaps_left_and_right_landmarks() -> None:
    image = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
    points = np.array([[1.0, 2], [6, 2], [3, 4], [2, 5], [5, 6]])
    flipped, moved = mirror(image, points)
    assert (flipped == image[:, ::-1]).all()
    assert moved.tolist() == [[2, 2], [7, 2], [5, 4], [3, 6], [6, 5]]
    again, back = mirror(flipped, moved)
    assert (again == image).all()
    assert (back == points).all()


@pytest.mark.parametrize("side", [120, 900])
def test_cut_out_keeps_the_crop(side: int) -> None:
    face, points = draw_face("happiness", 3, side, colour=True)
    photo = np.full((1400, 1500, 3), 128, np.uint8)
    photo[300 : 300 + side, 400 : 400 + side] = face
    points += (400, 300)
    cut, to_cut = cut_out(photo, np.array([400.0, 300.0, 400.0 + side, 300.0 + side]))
    assert cut.shape == (min(2 * side, CUT),) * 2 + (3,)
    spec = CropSpec(48)
    crop, expected, _ = crop_face(photo, points, spec, framed=True)
    other, found, _ = crop_face(cut, apply(to_cut, points), spec, framed=True)
    assert found == pytest.approx(expected, abs=1e-6)
    assert np.abs(crop.astype(float) - other).mean() < 2
