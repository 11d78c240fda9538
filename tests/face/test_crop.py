"""Crops against pixels that are drawn where they should be,
and against hand-made boxes and matrices.
"""

from collections.abc import Sequence

import cv2
import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face.crop import (
    MAX_CUT_SIDE,
    REGIONS,
    CropSpec,
    cover_regions,
    crop_face,
    crop_for,
    cut_out,
    mirror,
    place_regions,
    region_boxes,
    warp,
)
from fer_vit.geometry import TEMPLATE, Align, Array, Image, apply, crop_matrix, fit_matrix
from fer_vit.sources.cartoon import draw_face
from tests.test_geometry import FACE, turned


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


@pytest.mark.parametrize("scale", [3.0, 0.7, 0.5, 0.45, 0.063])
@pytest.mark.parametrize("angle", [0.0, 0.4])
def test_a_drawn_dot_lands_where_its_point_does(scale: float, angle: float) -> None:
    """Sub-pixel, on both sides of the border between one step and two."""
    x, y = 311.3, 222.8
    image = dot(401, 603, x, y, radius=3 + 1.5 / scale)
    matrix = turned(angle, scale, (0.0, 0.0))
    matrix[:, 2] = np.array([49.6, 50.7]) - matrix[:, :2] @ (x, y)
    np.testing.assert_allclose(centre(warp(image, matrix, 100)), [49.6, 50.7], atol=0.05)


@pytest.mark.parametrize("reduction", [1.4, 2.2, 16])
def test_a_reduction_averages_what_becomes_one_pixel(
    reduction: float, rng: np.random.Generator
) -> None:
    """Noise against exact averages in float64; a bare warp is three times as far from them."""
    noise = rng.integers(0, 256, (400, 400), np.uint8)
    image = np.repeat(noise[..., None], 3, 2)
    size = 24
    shift = 1.3
    start = (np.arange(size) - shift)[
        :, None
    ] * reduction  # where a crop's pixel begins in the image
    part = np.clip(
        np.minimum(start + reduction, np.arange(400) + 1) - np.maximum(start, np.arange(400)), 0, 1
    )
    exact = part @ noise.astype(float) @ part.T / reduction**2
    matrix = turned(0.0, 1 / reduction, (shift, shift))
    # OpenCV's centres are at integers
    half = turned(0.0, 1 / reduction, (shift + 0.5 / reduction - 0.5,) * 2)
    bare = cv2.warpAffine(image, half, (size, size), flags=cv2.INTER_CUBIC)

    def error(crop: Image) -> float:
        return float((crop[3:, 3:, 0] - exact[3:, 3:]).std())

    assert error(warp(image, matrix, size)) < error(bare) / 3


def test_the_border_is_repeated_outside_the_image() -> None:
    image = dot(20, 20, 10.0, 3.0, radius=5)
    crop = warp(image, turned(0.0, 1.0, (20.0, 20.0)), 60)
    np.testing.assert_array_equal(crop, np.pad(image, ((20, 20), (20, 20), (0, 0)), "edge"))


def test_what_a_crop_is_not_given_has_the_default() -> None:
    assert crop_for(40, ["mouth"], None, None) == CropSpec(40, ("mouth",), "landmarks", TEMPLATE)
    points = [[0.25 * number, 0.5] for number in range(5)]
    expected = CropSpec(40, (), "crop", tuple((x, y) for x, y in points))
    assert crop_for(40, [], "crop", points) == expected


@pytest.mark.parametrize("align", ["landmarks", "crop"])
@pytest.mark.parametrize("framed", [True, False])
def test_faces_are_cropped_by_landmarks_except_framed_crops(align: Align, framed: bool) -> None:
    image = dot(200, 160, 95.0, 110.0, radius=4)
    template = tuple((x + 0.01, y) for x, y in TEMPLATE)
    spec = CropSpec(40, ("mouth",), align, template)
    full = fit_matrix(image, 40)
    aligned = full if framed and align == "crop" else crop_matrix(FACE, 40, template, align)
    for landmarks, expected, expected_points in (
        (FACE, aligned, apply(aligned, FACE)),
        (None, full, 40 * np.array(template)),
    ):
        crop, points, to_crop, _ = crop_face(image, landmarks, spec, framed)
        np.testing.assert_array_equal(to_crop, expected)
        np.testing.assert_array_equal(crop, warp(image, expected, 40))
        np.testing.assert_allclose(points, expected_points)


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
    assert cut.shape == (min(2 * side, MAX_CUT_SIDE),) * 2 + (3,)
    spec = CropSpec(48)
    crop, expected, *_ = crop_face(photo, points, spec, framed=True)
    cut_crop, cut_points, *_ = crop_face(cut, apply(to_cut, points), spec, framed=True)
    assert cut_points == pytest.approx(expected, abs=1e-6)
    assert np.abs(crop.astype(float) - cut_crop).mean() < 2


# Regions

NAMES = tuple(REGIONS)
MEAN = np.array(TEMPLATE) * 100
HAND = np.array([[100.0, 100.0], [200.0, 100.0], [150.0, 160.0], [110.0, 200.0], [190.0, 200.0]])
"""Eyes 100 pixels apart, the mouth 100 below: a unit of 100."""
BY_HAND = {
    # centre and side
    "right_eye": (100, 100, 60),
    "left_eye": (200, 100, 60),
    "right_brow": (100, 64, 65),
    "left_brow": (200, 64, 65),
    "nose": (150, 150, 75),
    "mouth": (150, 205, 95),
    "right_cheek": (105 - 18, 155, 65),
    "left_cheek": (195 + 18, 155, 65),
    "glabella": (150, 75, 55),
    "forehead": (150, 25, 80),
    "chin": (150, 250, 70),
}


def by_hand(names: Sequence[str], unit: float = 1.0) -> Array:
    x, y, side = np.array([BY_HAND[name] for name in names], float).T
    return np.stack([x - side / 2, y - side / 2, x + side / 2, y + side / 2], 1) * unit


@pytest.mark.parametrize("unit", [1.0, 0.001])
def test_every_region_by_hand(unit: float) -> None:
    boxes = region_boxes(HAND * unit, list(BY_HAND))
    assert boxes.dtype == np.float32
    np.testing.assert_allclose(boxes, by_hand(list(BY_HAND), unit), rtol=1e-5)
    assert REGIONS.keys() == BY_HAND.keys()
    assert region_boxes(HAND, []).shape == (0, 4)
    assert CropSpec(40).regions == tuple(BY_HAND)[:8]


@pytest.mark.parametrize("squeeze", [(0.5, 1.0), (1.0, 0.5)], ids=["turned", "nodding"])
def test_the_larger_distance_is_the_unit(squeeze: tuple[float, float]) -> None:
    """Half as wide, or half as high: sides and offsets equal the frontal face's."""
    boxes = region_boxes(HAND * squeeze, list(BY_HAND))
    np.testing.assert_allclose(
        boxes[:, 2] - boxes[:, 0], [side for _, _, side in BY_HAND.values()], rtol=1e-5
    )
    brow = boxes[list(BY_HAND).index("right_brow")]
    np.testing.assert_allclose((brow[:2] + brow[2:]) / 2, HAND[0] * squeeze - (0, 36), rtol=1e-5)


@pytest.mark.parametrize("degrees", [-120, 10, 90])
def test_centres_turn_scale_and_shift_with_the_face(degrees: float) -> None:
    scale = 1.7
    matrix = turned(np.radians(degrees), 1.7, (13.0, -5.0))
    boxes = region_boxes(MEAN, NAMES)
    moved = region_boxes(apply(matrix, MEAN), NAMES)
    centres = apply(matrix, (boxes[:, :2] + boxes[:, 2:]) / 2)
    sides = scale * (boxes[:, 2:] - boxes[:, :2])
    np.testing.assert_allclose(
        moved, np.hstack([centres - sides / 2, centres + sides / 2]), atol=1e-3
    )


@pytest.mark.parametrize(
    "face", [np.full((5, 2), 30.0), MEAN * (0, 1) + (50, 0), MEAN * (1, 0) + (0, 50)]
)
def test_degenerate_landmarks_give_finite_boxes(face: Array) -> None:
    assert np.isfinite(region_boxes(face, NAMES)).all()
    assert not place_regions(face * np.nan, CropSpec(100, NAMES))[1].any()


@pytest.mark.parametrize(
    ("shift", "box"),
    [((0, 0), (61, 42, 138, 90)), ((-100, -60), (0, 0, 38, 90)), ((-400, -300), (0, 0, 0, 0))],
)
def test_a_cover_fills_a_rectangle(
    shift: tuple[int, int], box: tuple[int, ...], rng: np.random.Generator
) -> None:
    image = rng.integers(0, 256, (90, 140, 3), np.uint8)
    left, top, right, bottom = box
    for grey, colour in ((7, 7), (None, image.reshape(-1, 3).mean(0).round())):
        expected = image.copy()
        expected[top:bottom, left:right] = colour
        covered = cover_regions(image, 0.6 * HAND + shift, ["left_eye", "mouth"], grey)
        np.testing.assert_array_equal(covered, expected)


def test_unknown_and_repeated_names_are_refused() -> None:
    with pytest.raises(
        FerVitError, match=f"^Expected regions from {', '.join(REGIONS)}, but got `ear`\\.$"
    ):
        region_boxes(MEAN, ["nose", "ear", "hand"])
    with pytest.raises(FerVitError, match=r"nose, nose"):
        region_boxes(FACE, ["nose", "nose"])


@pytest.mark.parametrize(
    ("x", "y", "side", "visible"),
    [
        (11, 11, 2, True),
        (11, 11, 1.9, False),
        (1, 20, 20, True),
        (-1, 20, 20, False),
        (20, 99, 20, True),
        (20, 101, 20, False),
        (99, 15, 11, True),
    ],
)
def test_visible_needs_two_pixels_and_the_centre_inside(
    x: float, y: float, side: float, visible: bool
) -> None:
    """The mouth of `HAND` has the centre (150, 205) and the side 95."""
    landmarks = (HAND - (150, 205)) * side / 95 + (x, y)
    _, valid = place_regions(landmarks, CropSpec(100, ("mouth",)))
    assert valid.tolist() == [visible]
