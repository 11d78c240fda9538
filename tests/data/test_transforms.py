import numpy as np
import pytest

from fer_vit.data.transforms import AugmentConfig, build_augment, mirror
from fer_vit.face.geometry import MIRRORED, TEMPLATE

SIZE = 96
NOTHING = {"mirror": 0.0, "degrees": 0.0, "scale": 0.0, "shift": 0.0, "brightness": 0.0, "contrast": 0.0, "erase": 0.0}
POINTS = np.array(TEMPLATE) * SIZE
GREYS = (60, 100, 140, 180, 220)


def dots(points: np.ndarray) -> np.ndarray:
    """Draws a soft dot of its own grey at every landmark."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    image = np.zeros((SIZE, SIZE))
    for (px, py), grey in zip(points, GREYS, strict=True):
        image = np.maximum(image, grey * np.exp(-((x - px) ** 2 + (y - py) ** 2) / 18))
    return np.repeat(image.round().astype(np.uint8)[..., None], 3, 2)


def centroid(image: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Returns where the dot near a point really is, in pixels."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    weight = image[..., 0] * ((x - near[0]) ** 2 + (y - near[1]) ** 2 < 64.0)
    return np.array([(x * weight).sum(), (y * weight).sum()]) / weight.sum()


@pytest.mark.parametrize("change", [{"mirror": 1.0}, {"degrees": 20.0}, {"scale": 0.2}, {"shift": 0.1}, {}])
def test_landmarks_move_with_the_picture(change: dict[str, float]) -> None:
    everything = {"mirror": 0.5, "degrees": 15.0, "scale": 0.15, "shift": 0.08}
    augment = build_augment(AugmentConfig(**{**NOTHING, **(change or everything)}))
    moved = []
    for seed in range(20):
        image, points = augment(dots(POINTS), POINTS, seed)
        moved.append(points)
        row = image[int(points[0, 1]), int(points[0, 0]), 0]
        # In a mirrored picture the person's right eye is what was drawn as the left one.
        greys = GREYS if abs(int(row) - GREYS[0]) < 15 else [GREYS[i] for i in MIRRORED]
        for point, grey in zip(points, greys, strict=True):
            assert np.abs(centroid(image, point) - point).max() < 0.25
            value = image[int(point[1]), int(point[0]), 0]
            assert abs(int(value) - grey) < 15  # the dot of this very row
    assert np.ptp(moved, axis=0).max() > 1 or change == {"mirror": 1.0}


def test_mirroring_swaps_what_is_left_and_right() -> None:
    image = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
    points = np.array([[1.0, 2], [6, 2], [3, 4], [2, 6], [5, 6]])
    flipped, moved = mirror(image, points)
    assert (flipped == image[:, ::-1]).all()
    assert moved.tolist() == [[2, 2], [7, 2], [5, 4], [3, 6], [6, 6]]
    again, back = mirror(flipped, moved)
    assert (again == image).all()
    assert (back == points).all()


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    augment = build_augment(AugmentConfig(erase=1.0, blur=0.5))
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    first, second = augment(image, POINTS, 5), augment(image, POINTS, 5)
    other = build_augment(AugmentConfig(erase=1.0, blur=0.5))(image, POINTS, 5)
    assert (first[0] == second[0]).all()
    assert (first[0] == other[0]).all()
    assert (first[1] == other[1]).all()
    assert not (augment(image, POINTS, 6)[0] == first[0]).all()


def test_off_is_off_and_faces_without_landmarks_stay_so() -> None:
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    same, points = build_augment(AugmentConfig(**NOTHING))(image, POINTS, 1)
    assert (same == image).all()
    assert np.allclose(points, POINTS)
    changed, nothing = build_augment(AugmentConfig())(image, None, 1)
    assert changed.shape == image.shape
    assert nothing is None


def test_light_and_erasing_change_pixels_only() -> None:
    image = np.full((48, 48, 3), 120, np.uint8)
    bright = build_augment(AugmentConfig(**{**NOTHING, "brightness": 0.4}))
    erased = build_augment(AugmentConfig(**{**NOTHING, "erase": 1.0}))
    means = {int(bright(image, POINTS, seed)[0].mean()) for seed in range(10)}
    assert len(means) > 3
    changed = (erased(image, POINTS, 0)[0] != 120).any(-1)
    assert 0.005 < changed.mean() < 0.15
    assert np.allclose(erased(image, POINTS, 0)[1], POINTS)
