"""Region boxes: in place on the standard face, and moving with the face."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fer_vit.errors import FerVitError
from fer_vit.face.crop import DEFAULT_REGIONS, REGIONS, check_regions, cover_regions, region_boxes, visible
from fer_vit.geometry import TEMPLATE, apply

SIZE = 100
NAMES = tuple(REGIONS)
FACE = np.asarray(TEMPLATE) * SIZE


def centres(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    return (boxes[:, :2] + boxes[:, 2:]) / np.float32(2)


def sides(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    return boxes[:, 2:] - boxes[:, :2]


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


def by_hand(names: Sequence[str], unit: float = 1.0) -> NDArray[np.float64]:
    x, y, side = np.array([BY_HAND[name] for name in names], float).T
    return np.stack([x - side / 2, y - side / 2, x + side / 2, y + side / 2], 1) * unit


@pytest.mark.parametrize("unit", [1.0, 0.001])
def test_every_region_by_hand(unit: float) -> None:
    boxes = region_boxes(HAND * unit, list(BY_HAND))
    assert boxes.dtype == np.float32
    np.testing.assert_allclose(boxes, by_hand(list(BY_HAND), unit), rtol=1e-5)
    assert REGIONS.keys() == BY_HAND.keys()
    assert region_boxes(HAND, []).shape == (0, 4)
    assert list(DEFAULT_REGIONS) == list(BY_HAND)[:8]


@pytest.mark.parametrize("squeeze", [(0.5, 1.0), (1.0, 0.5)], ids=["turned", "nodding"])
def test_the_larger_distance_is_the_unit(squeeze: tuple[float, float]) -> None:
    """Half as wide, or half as high: sides and offsets equal the frontal face's."""
    boxes = region_boxes(HAND * squeeze, list(BY_HAND))
    np.testing.assert_allclose(sides(boxes)[:, 0], [side for _, _, side in BY_HAND.values()], rtol=1e-5)
    brow = boxes[list(BY_HAND).index("right_brow")]
    np.testing.assert_allclose((brow[:2] + brow[2:]) / 2, HAND[0] * squeeze - (0, 36), rtol=1e-5)


@pytest.mark.parametrize("degrees", [-120, -30, 10, 90, 180])
def test_centres_turn_scale_and_shift_with_the_face(degrees: float) -> None:
    angle, scale = np.radians(degrees), 1.7
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    matrix = np.array([[cos, -sin, 13.0], [sin, cos, -5.0]])
    boxes, moved = region_boxes(FACE, NAMES), region_boxes(apply(matrix, FACE), NAMES)
    np.testing.assert_allclose(centres(moved), apply(matrix, centres(boxes)), atol=1e-3)
    np.testing.assert_allclose(sides(moved), scale * sides(boxes), rtol=1e-4)


@pytest.mark.parametrize("face", [np.full((5, 2), 30.0), FACE * (0, 1) + (50, 0), FACE * (1, 0) + (0, 50)])
def test_degenerate_landmarks_give_finite_boxes(face: NDArray[np.float64]) -> None:
    assert np.isfinite(region_boxes(face, NAMES)).all()
    assert not visible(region_boxes(face * np.nan, NAMES), SIZE).any()


@pytest.mark.parametrize(
    ("shift", "box"), [((0, 0), (61, 42, 138, 90)), ((-100, -60), (0, 0, 38, 90)), ((-400, -300), (0, 0, 0, 0))]
)
def test_a_cover_fills_the_smallest_rectangle_around_regions(
    shift: tuple[int, int], box: tuple[int, ...], rng: np.random.Generator
) -> None:
    image = rng.integers(0, 256, (90, 140, 3), np.uint8)
    left, top, right, bottom = box
    for grey, colour in ((7, 7), (None, image.reshape(-1, 3).mean(0).round())):
        expected = image.copy()
        expected[top:bottom, left:right] = colour
        covered = cover_regions(image, 0.6 * HAND + shift, ["left_eye", "mouth"], grey)
        np.testing.assert_array_equal(covered, expected)


def test_visible_needs_two_pixels_and_the_centre_inside() -> None:
    boxes = {
        (10, 10, 12, 12): True,
        (10, 10, 11.9, 11.9): False,
        (-9, 10, 11, 30): True,
        (-11, 10, 9, 30): False,
        (10, 90, 30, 109): True,
        (10, 90, 30, 110): False,
        (0, 0, np.inf, 10): False,
        (0, -np.inf, 10, 10): False,
        (np.nan, 0, 10, 10): False,
        (0, 0, 10, np.nan): False,
        (10, -5, 20, 5): True,
        (10, -6, 20, 5): False,
        (95, 10, 105, 20): False,
        (94, 10, 105, 20): True,
        (50, 0, 52, 1): True,
    }
    assert visible(np.array(list(boxes), np.float32), SIZE).tolist() == list(boxes.values())


def test_unknown_and_repeated_names_are_refused() -> None:
    with pytest.raises(FerVitError, match=f"^Expected regions from {', '.join(REGIONS)}, but got `ear`\\.$"):
        region_boxes(FACE, ["nose", "ear", "hand"])
    with pytest.raises(FerVitError, match=r"^Expected every region once, but got nose, nose\.$"):
        check_regions(["nose", "nose"])
    check_regions(list(REGIONS))
    check_regions([])
