"""Landmarks on a photo, on drawn faces and against ONNX Runtime; poses of heads whose turn is known."""

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from fer_vit.face.crop import warp
from fer_vit.face.detect import FaceDetector, full_image_face, refine_landmarks
from fer_vit.face.landmarks import DISTANCE, HEAD, NETWORK, SIDE, find_landmarks, head_pose, network_input
from fer_vit.geometry import MIRRORED, TEMPLATE, Array, Image, apply, compose, crop_matrix, fit_matrix, invert
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawn import draw_face
from tests.face.conftest import ASTRONAUT
from tests.helpers.heads import turn_head

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


def project(head: Array, yaw: float, pitch: float, roll: float) -> Array:
    """The landmarks (5, 2) of a head (5, 3) that is turned by degrees, in pixels of a camera."""
    turn = Rotation.from_euler("ZYX", [roll, -yaw, -pitch], degrees=True).as_rotvec()
    camera = np.array([[900.0, 0, 320], [0, 900, 240], [0, 0, 1]])
    return np.asarray(cv2.projectPoints(head - head.mean(0), turn, np.array([0, 0, DISTANCE]), camera, None)[0])[:, 0]


@pytest.mark.parametrize("pose", [(0, 0, 0), (40, 0, 0), (-60, 10, 5), (20, -30, 60), (-10, 25, -170)])
def test_pose_of_the_mean_head(pose: tuple[float, float, float]) -> None:
    assert head_pose(project(HEAD, *pose)) == pytest.approx(pose, abs=1)  # it is seen from slightly different points


def test_the_mean_face_is_frontal_and_a_mirrored_one_turns_the_other_way() -> None:
    assert np.abs(head_pose(TEMPLATE)).max() < 3
    points = project(HEAD, 25, 10, 15)
    yaw, pitch, roll = head_pose(points)
    assert head_pose((points * [-1, 1])[list(MIRRORED)]) == pytest.approx((-yaw, pitch, -roll), abs=1e-3)


def test_roll_of_a_turned_photo(astronaut: Image) -> None:
    photo, detector, found = astronaut[:260, 90:350], FaceDetector(), []
    for angle in (0, -45, -30, -15, 15, 30, 45):
        turn = cv2.getRotationMatrix2D((129.5, 129.5), -angle, 1)  # OpenCV counts counter-clockwise
        image = np.asarray(cv2.warpAffine(photo, turn, (260, 260), borderMode=cv2.BORDER_REPLICATE), np.uint8)
        found.append(head_pose(refine_landmarks(image, detector(image)[:1])[0].landmarks).roll - angle)
    assert np.abs(np.subtract(found, found[0])).max() < 2


def test_sign_and_order_of_the_yaw_of_drawn_heads(rng: np.random.Generator) -> None:
    poses = rng.uniform((-40, -15), (40, 15), (120, 2))
    heads = (turn_head(draw_face("neutral", seed, 112)[0], *pose) for seed, pose in enumerate(poses))
    found, true = np.array([head_pose(full_image_face(head).landmarks).yaw for head in heads]), poses[:, 0]
    large = np.abs(true) >= 10
    assert (np.sign(found) == np.sign(true))[large].mean() >= 0.95
    difference, expected = np.subtract.outer(found, found), np.subtract.outer(true, true)
    apart = np.abs(expected) >= 10
    assert (np.sign(difference) == np.sign(expected))[apart].mean() >= 0.95
