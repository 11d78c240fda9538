import pickle

import numpy as np
import pytest

from fer_vit.data.transforms import Augment, AugmentConfig
from fer_vit.geometry import MIRRORED, TEMPLATE

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
    augment = Augment(AugmentConfig(**{**NOTHING, **(change or everything)}))
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


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    augment = Augment(AugmentConfig(erase=1.0))
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    first, second = augment(image, POINTS, 5), augment(image, POINTS, 5)
    other = Augment(AugmentConfig(erase=1.0))(image, POINTS, 5)
    assert (first[0] == second[0]).all()
    assert (first[0] == other[0]).all()
    assert (first[1] == other[1]).all()
    assert not (augment(image, POINTS, 6)[0] == first[0]).all()


def test_off_is_off() -> None:
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    same, points = Augment(AugmentConfig(**NOTHING))(image, POINTS, 1)
    assert (same == image).all()
    assert np.allclose(points, POINTS)


def test_light_and_erasing_change_pixels_only() -> None:
    image = np.full((48, 48, 3), 120, np.uint8)
    bright = Augment(AugmentConfig(**{**NOTHING, "brightness": 0.4}))
    erased = Augment(AugmentConfig(**{**NOTHING, "erase": 1.0}))
    means = {int(bright(image, POINTS, seed)[0].mean()) for seed in range(10)}
    assert len(means) > 3
    changed = (erased(image, POINTS, 0)[0] != 120).any(-1)
    assert 0.005 < changed.mean() < 0.15
    assert np.allclose(erased(image, POINTS, 0)[1], POINTS)


def test_jitter_moves_landmarks_alone_and_each_by_its_own_error() -> None:
    image = dots(POINTS)
    augment = Augment(AugmentConfig(**{**NOTHING, "jitter": 0.03}))
    results = [augment(image, POINTS, seed) for seed in range(400)]
    assert all((changed == image).all() for changed, _ in results)
    errors = np.array([points - POINTS for _, points in results]).reshape(400, 10)
    assert np.allclose(errors.std(0), 0.03 * SIZE, rtol=0.15)
    assert np.abs(errors.mean(0)).max() < 0.5
    assert np.abs(np.corrcoef(errors.T) - np.eye(10)).max() < 0.2


def test_steps_draw_independently() -> None:
    image = np.full((SIZE, SIZE, 3), 100, np.uint8)
    image[:, SIZE // 2 :] = 160
    facts = []
    for seed in range(1500):
        changed, points = Augment(AugmentConfig(degrees=0.0, scale=0.0, shift=0.1, erase=0.5))(image, POINTS, seed)
        shift = (points.sum(0) - POINTS.sum(0)) / 5
        mirrored = changed[0, 0, 0] > changed[0, -1, 0]
        middle = [np.median(changed[:, :20, 0]), np.median(changed[:, -20:, 0])]
        erased = len(np.unique(changed)) > 3
        facts.append([*shift, mirrored, sum(middle), abs(middle[1] - middle[0]), erased])
    assert np.ptp(facts, axis=0).min() > 0.9
    # Brightness and contrast are seen together in the greys and are left out as a pair.
    correlation = np.corrcoef(np.array(facts).T) - np.eye(6)
    correlation[3, 4] = correlation[4, 3] = 0
    assert np.abs(correlation).max() < 0.1


def test_it_travels_to_another_process() -> None:
    augment = Augment(AugmentConfig(erase=1.0))
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    there = pickle.loads(pickle.dumps(augment))
    assert (there(image, POINTS, 3)[0] == augment(image, POINTS, 3)[0]).all()
