"""Landmarks without a detector: on a photo, on drawn faces whose landmarks are known, and against ONNX Runtime."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import cv2
import numpy as np
import pytest

from fer_vit.face.crop import warp
from fer_vit.face.landmarks import NETWORK, SIDE, find_landmarks, network_input
from fer_vit.geometry import MIRRORED, TEMPLATE, Array, Image, apply, compose, crop_matrix, fit_matrix, invert
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawn import draw_face
from tests.face.conftest import ASTRONAUT

EYES = np.linalg.norm(ASTRONAUT[1] - ASTRONAUT[0])
FRAME = crop_matrix(ASTRONAUT, SIDE)


def error(found: Array, true: Array) -> float:
    """The mean distance, in distances of the eyes."""
    return float(np.linalg.norm(found - true, axis=1).mean() / np.linalg.norm(true[1] - true[0]))


def about_the_nose(degrees: float, scale: float = 1.0, right: float = 0.0) -> Array:
    """Turns and scales the photo about the nose, and shifts it by so many distances of the eyes."""
    x, y = ASTRONAUT[2]
    matrix = np.asarray(cv2.getRotationMatrix2D((x, y), degrees, scale), float)
    matrix[0, 2] += right * EYES
    return matrix


@pytest.mark.parametrize("degrees", [-40, -20, 0, 20, 40])
@pytest.mark.parametrize(("scale", "right"), [(1.0, 0.0), (0.7, 0.2), (1.3, -0.2)])
def test_a_face_is_found_turned_and_moved(astronaut: Image, degrees: float, scale: float, right: float) -> None:
    change = about_the_nose(degrees, scale, right)
    image = warp(astronaut, change, 512)
    assert error(find_landmarks(image, FRAME), apply(change, ASTRONAUT)) < 0.17


def test_covered_and_blurred_faces_keep_their_landmarks(astronaut: Image) -> None:
    clear = find_landmarks(astronaut, FRAME)
    shades = astronaut.copy()
    shades[88:115, 190:260] = 30
    for changed in (shades, cv2.GaussianBlur(astronaut, (0, 0), 3), (astronaut * 0.4).astype(np.uint8)):
        assert error(find_landmarks(changed, FRAME), clear) < 0.12


def test_masked_faces_keep_their_landmarks(astronaut: Image) -> None:
    """On average; single masks differ in shade and edge as well."""
    clear, errors = find_landmarks(astronaut, FRAME), []
    for top, grey in product((115, 118, 120, 122, 125, 130), (60, 200, 255)):
        mask = astronaut.copy()
        mask[top : top + 40, 190:260] = grey
        errors.append(error(find_landmarks(mask, FRAME), clear))
    assert np.mean(errors) < 0.15
    assert max(errors) < 0.25


def test_a_mirrored_face_has_mirrored_landmarks(astronaut: Image) -> None:
    flip = np.array([[-1.0, 0, 512], [0, 1, 0]])
    frame = crop_matrix(apply(flip, ASTRONAUT)[list(MIRRORED)], SIDE)
    expected = apply(flip, find_landmarks(astronaut, FRAME))[list(MIRRORED)]
    assert error(find_landmarks(np.ascontiguousarray(astronaut[:, ::-1]), frame), expected) < 0.003


def test_landmarks_of_drawn_faces_beat_the_template() -> None:
    """Drawn faces, which were not in its training data."""
    found, usual = [], []
    for seed in range(40):
        image, landmarks = draw_face(EXPRESSIONS[seed % 8], seed, 96)[:2]
        to_cut = fit_matrix(image, SIDE)
        found.append(error(find_landmarks(image, to_cut), landmarks))
        usual.append(error(np.array(TEMPLATE) * 96, landmarks))
    assert np.median(found) < 0.8 * np.median(usual)


def test_onnx_runtime_agrees(astronaut: Image) -> None:
    """Both passes, each with the mirror image, by another program."""
    session = pytest.importorskip("onnxruntime").InferenceSession(NETWORK)

    def predict(image: Image, to_cut: Array) -> Array:
        cut = network_input(warp(image, to_cut, SIDE))[None]
        (points,) = session.run(None, {session.get_inputs()[0].name: cut})
        return apply(invert(to_cut), points.reshape(5, 2) * SIDE)

    def both(to_cut: Array) -> Array:
        mirrored = predict(warp(astronaut, to_cut, SIDE)[:, ::-1], np.eye(2, 3)) * [-1, 1] + [SIDE, 0]
        return (predict(astronaut, to_cut) + apply(invert(to_cut), mirrored[list(MIRRORED)])) / 2

    first = compose(about_the_nose(0), FRAME)
    expected = both(crop_matrix(both(first), SIDE))
    np.testing.assert_allclose(find_landmarks(astronaut, first), expected, atol=1e-2)


def test_input_is_normalised() -> None:
    cut = np.random.default_rng(0).integers(60, 120, (SIDE, SIDE, 3), np.uint8)
    brighter = (cut.astype(float) * 2).astype(np.uint8)
    values = network_input(cut)
    assert values.shape == (1, SIDE, SIDE)
    assert values.mean() == pytest.approx(0, abs=1e-4)
    assert np.abs(network_input(brighter) - values).mean() < 0.2
    assert np.abs(network_input(np.zeros_like(cut))).max() == 0


def test_threads_do_not_disturb_each_other(astronaut: Image) -> None:
    alone = find_landmarks(astronaut, FRAME)
    turned = warp(astronaut, about_the_nose(30), 512)
    with ThreadPoolExecutor(4) as pool:
        both = list(pool.map(lambda image: find_landmarks(image, FRAME), [astronaut, turned] * 40))
    assert all((found == alone).all() for found in both[::2])
    assert all((found == both[1]).all() for found in both[1::2])


def test_the_file_contains_no_paths() -> None:
    assert b".py" not in NETWORK.read_bytes()
