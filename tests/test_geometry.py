"""Matrices against least squares and against pixels that are drawn where they should be."""

import numpy as np
import pytest
from skimage.transform import estimate_transform

from fer_vit.geometry import (
    LANDMARKS,
    TEMPLATE,
    Array,
    apply,
    compose,
    crop_matrix,
    fit_matrix,
    invert,
    move,
)

FACE = np.array([[60.0, 80.0], [120.0, 70.0], [95.0, 110.0], [75.0, 140.0], [125.0, 130.0]])


def turned(angle: float, scale: float, shift: tuple[float, float]) -> Array:
    """The matrix (2, 3) that turns by so many radians, scales and shifts."""
    cos = scale * np.cos(angle)
    sin = scale * np.sin(angle)
    return np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])


@pytest.mark.parametrize("unit", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("points", [2, 3, 5])
def test_crop_matrix_is_scikit_images_similarity(
    rng: np.random.Generator, unit: float, points: int
) -> None:
    for _ in range(10):
        source = unit * (rng.normal(size=(points, 2)) + 3)
        target = rng.normal(size=(points, 2)) * 30 - 7
        expected = estimate_transform("similarity", source, target).params
        matrix = crop_matrix(source, 10, target / 10)
        np.testing.assert_allclose(matrix, expected[:2], rtol=1e-7, atol=1e-7 / unit)


@pytest.mark.parametrize("degrees", [0, 30, 180])
def test_a_crop_without_rotation_keeps_a_tilted_face_upright_and_its_size(degrees: float) -> None:
    target = np.array([[10.0, 10], [30, 10], [20, 20], [12, 30], [28, 30]])
    source = apply(turned(np.radians(degrees), 2.5, (-7.0, 11.0)), target)
    matrix = crop_matrix(source, 10, target / 10, align="crop")
    np.testing.assert_allclose(matrix[:, :2], np.eye(2) / 2.5, atol=1e-9)
    np.testing.assert_allclose(apply(matrix, source).mean(0), target.mean(0), atol=1e-9)


def test_a_crop_matrix_never_reflects_and_is_defined_for_equal_points() -> None:
    assert np.linalg.det(crop_matrix(FACE, 10, FACE * (-0.1, 0.1))[:, :2]) >= 0
    for align in ("crop", "landmarks"):
        matrix = crop_matrix(np.full((5, 2), 10.0), 1, align=align)
        np.testing.assert_allclose(
            matrix[:, 2] + matrix[:, :2] @ [10, 10], np.mean(TEMPLATE, 0), atol=1e-9
        )


def test_compose_invert_apply_agree_with_homogeneous_matrices(rng: np.random.Generator) -> None:
    first = rng.normal(size=(2, 3))
    second = rng.normal(size=(2, 3))
    points = rng.normal(size=(4, 5, 2))
    full_first, full_second = (np.vstack([m, [0, 0, 1]]) for m in (first, second))
    np.testing.assert_allclose(compose(second, first), (full_second @ full_first)[:2])
    np.testing.assert_allclose(invert(first), np.linalg.inv(full_first)[:2])
    expected = np.einsum(
        "ij,...j->...i", full_first, np.concatenate([points, np.ones((4, 5, 1))], -1)
    )[..., :2]
    np.testing.assert_allclose(apply(first, points), expected)
    np.testing.assert_allclose(apply(invert(first), apply(first, points)), points)


@pytest.mark.parametrize(("height", "width"), [(30, 60), (60, 30), (7, 7)])
def test_fit_matrix_centres_the_whole_image(height: int, width: int) -> None:
    matrix = fit_matrix(np.zeros((height, width, 3), np.uint8), 100)
    corners = apply(matrix, [[0, 0], [width, height]])
    np.testing.assert_allclose(corners.mean(0), [50, 50])
    assert (corners[1] - corners[0]).max() == pytest.approx(100)
    assert matrix[0, 0] == matrix[1, 1]


def test_crop_matrix_puts_landmarks_on_the_template() -> None:
    face = apply(turned(0.6, 1.7, (30.0, -10.0)), np.asarray(TEMPLATE) * 50)
    np.testing.assert_allclose(
        apply(crop_matrix(face, 112), face), np.asarray(TEMPLATE) * 112, atol=1e-9
    )
    upright = crop_matrix(face, 112, align="crop")
    assert upright[0, 1] == upright[1, 0] == 0
    np.testing.assert_allclose(apply(upright, face).mean(0), np.mean(TEMPLATE, 0) * 112)
    # as manifests hold them
    assert LANDMARKS == (
        "right_eye",
        "left_eye",
        "nose",
        "right_mouth",
        "left_mouth",
    )


def test_a_square_is_turned_scaled_and_shifted_about_its_middle() -> None:
    # clockwise, since y points down
    assert apply(move(96, 90, 1, 0, 0), (96, 48)) == pytest.approx((48, 96))
    assert apply(move(96, 0, 1.5, 0, 0), (96, 48)) == pytest.approx((120, 48))
    assert apply(move(96, 0, 1, 0.25, -0.125), (10, 20)) == pytest.approx((34, 8))
