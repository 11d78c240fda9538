import colorsys

import cv2
import numpy as np
import pytest

from fer_vit.data.transforms import Augment, AugmentConfig
from fer_vit.face.crop import CropSpec, crop_face
from fer_vit.geometry import MIRRORED, TEMPLATE, Align, apply

SIZE = 96
NOTHING = {
    "mirror": 0.0,
    "degrees": 0.0,
    "scale": 0.0,
    "shift": 0.0,
    "brightness": 0.0,
    "contrast": 0.0,
    "erase": 0.0,
}
POINTS = np.array(TEMPLATE) * SIZE
GREYS = (60, 100, 140, 180, 220)


SPEC = CropSpec(SIZE)


def dots(points: np.ndarray) -> np.ndarray:
    """Draws a soft dot of another grey at every landmark."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    image = np.zeros((SIZE, SIZE))
    for (px, py), grey in zip(points, GREYS, strict=True):
        image = np.maximum(image, grey * np.exp(-((x - px) ** 2 + (y - py) ** 2) / 18))
    return np.repeat(image.round().astype(np.uint8)[..., None], 3, 2)


def centroid(image: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Returns the position of the dot near a point, in pixels."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    weight = image[..., 0] * ((x - near[0]) ** 2 + (y - near[1]) ** 2 < 64.0)
    return np.array([(x * weight).sum(), (y * weight).sum()]) / weight.sum()


def only(**changes: float) -> Augment:
    return Augment(AugmentConfig(**{**NOTHING, **changes}))


@pytest.mark.parametrize(
    "change", [{"mirror": 1.0}, {"degrees": 20.0}, {"scale": 0.2}, {"shift": 0.1}, {}]
)
def test_landmarks_move_with_the_picture(change: dict[str, float]) -> None:
    everything = {"mirror": 0.5, "degrees": 15.0, "scale": 0.15, "shift": 0.08}
    augment = only(**(change or everything))
    picture = dots(POINTS)
    moved = []
    for seed in range(20):
        image, points, to_crop, flipped = augment(picture, POINTS, SPEC, seed)
        moved.append(points)
        row = image[int(points[0, 1]), int(points[0, 0]), 0]
        # In a mirrored picture the person's right eye is what was drawn as the left one.
        mirrored = abs(int(row) - GREYS[0]) >= 15
        assert flipped == mirrored
        greys = [GREYS[i] for i in MIRRORED] if mirrored else GREYS
        for point, grey in zip(points, greys, strict=True):
            assert np.abs(centroid(image, point) - point).max() < 0.25
            value = image[int(point[1]), int(point[0]), 0]
            assert abs(int(value) - grey) < 15  # the dot of this very row
        before = apply(to_crop, POINTS)
        expected = before
        if mirrored:
            expected = (before * [-1, 1] + [SIZE, 0])[[*MIRRORED]]
        assert np.allclose(points, expected)
    assert np.ptp(moved, axis=0).max() > 1 or change == {"mirror": 1.0}


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    augment = Augment(AugmentConfig(erase=1.0))
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    first = augment(image, POINTS, SPEC, 5)
    second = augment(image, POINTS, SPEC, 5)
    of_second_seed = Augment(AugmentConfig(erase=1.0))(image, POINTS, SPEC, 5)
    for augmented, again, another in zip(first, second, of_second_seed, strict=True):
        assert np.array_equal(augmented, again)
        assert np.array_equal(augmented, another)
    assert not (augment(image, POINTS, SPEC, 6)[0] == first[0]).all()


@pytest.mark.parametrize("align", ["landmarks", "crop"])
def test_no_change_leaves_the_plain_crop(align: Align) -> None:
    image = np.random.default_rng(0).integers(0, 255, (80, 60, 3), np.uint8)
    spec = CropSpec(48, align=align)
    near = POINTS / 2 + [3, 8]
    blind = only(blind=1.0)  # landmarks count as unknown
    for augment, points, same in (
        (only(), near, near),
        (only(), None, None),
        (blind, POINTS, None),
    ):
        cropped = augment(image, points, spec, 1)
        assert not cropped.mirrored
        for mine, plain in zip(cropped, crop_face(image, same, spec, True), strict=True):
            assert np.allclose(mine, plain)


def test_the_crop_is_cut_from_the_picture_once() -> None:
    # What lies beside the crop comes into view when it is shifted, rather than its border.
    image = np.zeros((3 * SIZE, 3 * SIZE, 3), np.uint8)
    image[:, : SIZE - 4] = 200
    seen = [
        only(shift=0.2)(image, POINTS + SIZE, SPEC, seed)[0][SIZE // 2, 0, 0] for seed in range(20)
    ]
    assert {0, 200} <= set(seen)


QUALITY = {
    "gamma": 0.5,
    "blur": 0.1,
    "shrink": 0.8,
    "jpeg": 0.9,
    "brightness": 0.4,
    "contrast": 0.5,
    "colour": 0.5,
}


@pytest.mark.parametrize("name", [*QUALITY, "erase", "cover"])
def test_light_quality_and_covers_change_pixels_only(name: str) -> None:
    image = np.random.default_rng(0).integers(60, 190, (SIZE, SIZE, 3), np.uint8)
    image = cv2.GaussianBlur(image, (0, 0), 2)
    results = [
        only(**{name: QUALITY.get(name, 1.0)})(image, POINTS, SPEC, seed) for seed in range(60)
    ]
    assert all(np.allclose(points, POINTS) for _, points, *_ in results)
    changed = np.array([(crop != image).any(-1).mean() for crop, *_ in results])
    assert 0.2 * len(results) * (name in QUALITY) <= (changed > 0).sum()
    if name in ("erase", "cover"):
        assert (changed > 0.004).all()
        assert (changed < 0.5).all()
    else:
        assert changed.max() > 0.5


def test_covers_hide_what_they_say() -> None:
    image = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    hidden: set[tuple[bool, ...]] = set()
    for seed in range(60):
        crop, points, *_ = only(cover=1.0)(image, POINTS, SPEC, seed)
        changed = (crop != image).any(-1)
        hidden.add(tuple(bool(changed[int(y), int(x)]) for x, y in points))
        ys, xs = np.nonzero(changed)
        covered = crop[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
        assert (covered == covered[0, 0]).all()
    # right eye, left eye, nose, right and left corner of the mouth
    assert hidden >= {(True, True, False, False, False), (False, False, False, True, True)}
    assert (False, False, True, True, True) in hidden


def test_jitter_moves_crop_and_regions_as_a_detector_s_errors_do() -> None:
    # the noise is in pixels of the crop
    big = 4
    picture = cv2.resize(dots(POINTS), None, fx=4, fy=4)
    errors = []
    seen = []
    for seed in range(200):
        crop, points, to_crop, _ = only(jitter=0.03)(picture, big * POINTS, SPEC, seed)
        true = apply(to_crop, big * POINTS)  # where the landmarks are in the crop
        errors.append(
            (points - true)
            * (np.linalg.norm(POINTS[1] - POINTS[0]) / np.linalg.norm(true[1] - true[0]))
        )
        if seed < 20:
            seen.append(max(np.abs(centroid(crop, point) - point).max() for point in true))
        # the crop follows the wrong landmarks
        assert np.allclose(points.mean(0), POINTS.mean(0), atol=1e-6)
    error = np.array(errors)
    assert max(seen) < 0.35
    assert np.allclose(error.std(0), 0.03 * SIZE, rtol=0.25)
    assert np.abs(error.mean(0)).max() < 0.6


def changed_pixels(before: tuple[int, int, int], **change: float) -> np.ndarray:
    """Returns the colour (100, 3) of an even crop after a change, by seed."""
    image = np.full((SIZE, SIZE, 3), before, np.uint8)
    crops = [only(**change)(image, None, SPEC, seed).image for seed in range(100)]
    return np.array([crop[SIZE // 2, SIZE // 2] for crop in crops]).astype(float)


def test_brightness_is_added_and_contrast_multiplies() -> None:
    for grey in (80, 160):
        added = changed_pixels((grey, grey, grey), brightness=0.2) - grey
        assert 0.95 * 51 < np.abs(added).max() <= 51
        factor = changed_pixels((grey, grey, grey), contrast=0.2) / grey
        assert 0.78 < factor.min() < 0.82
        assert 1.18 < factor.max() < 1.22


def test_gamma_is_a_power_of_the_pixel() -> None:
    powers = np.log(changed_pixels((128, 128, 128), gamma=0.5) / 255) / np.log(128 / 255)
    assert 1 / 1.5 - 0.02 < powers.min() < 0.75
    assert 1.4 < powers.max() < 1.5 + 0.02


def test_colour_changes_saturation_and_turns_hues() -> None:
    pixels = changed_pixels((200, 120, 100), colour=0.3)
    before = colorsys.rgb_to_hls(200 / 255, 120 / 255, 100 / 255)
    turns = []
    chroma = []
    for pixel in pixels:
        hue, _, _ = colorsys.rgb_to_hls(*(pixel / 255))
        turns.append(360 * ((hue - before[0] + 0.5) % 1 - 0.5))
        chroma.append((pixel.max() - pixel.min()) / 100)
    assert 9 < np.abs(turns).max() < 0.3 * 36 + 2  # hues are stored in steps of two degrees
    assert 0.68 < min(chroma) < 0.75
    assert 1.25 < max(chroma) < 1.32


@pytest.mark.parametrize(("name", "amount"), [("blur", 0.05), ("shrink", 0.8)])
def test_blur_and_resolution_are_parts_of_the_crop(name: str, amount: float) -> None:
    random = np.random.default_rng(0)
    small, large = (random.integers(0, 256, (size, size, 3), np.uint8) for size in (SIZE, 3 * SIZE))
    if name == "blur":  # the same picture, three times as large
        large = cv2.resize(small, None, fx=3, fy=3, interpolation=cv2.INTER_NEAREST)
    augment = only(**{name: amount})
    left = [
        min(detail(augment(image, landmarks, spec, seed)[0]) for seed in range(60)) / detail(image)
        for image, landmarks, spec in (
            (small, POINTS, SPEC),
            (large, 3 * POINTS, CropSpec(3 * SIZE)),
        )
    ]
    # were it pixels, the larger crop would keep more
    assert left[1] == pytest.approx(left[0], rel=0.25)
    assert left[0] < 0.2


def detail(image: np.ndarray) -> float:
    return float(np.abs(np.diff(image.astype(float), axis=1)).mean())
