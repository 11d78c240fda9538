"""Poses of heads whose turn is known: projected points, a turned photo, and drawn heads."""

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from skimage.data import astronaut

from fer_vit.face.detect import FaceDetector, full_image_face, refine_landmarks
from fer_vit.face.landmarks import DISTANCE, HEAD, head_pose
from fer_vit.geometry import MIRRORED, TEMPLATE, Array
from fer_vit.sources.drawn import draw_face
from tests.helpers.heads import turn_head


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


def test_pose_of_other_heads_with_noise(rng: np.random.Generator) -> None:
    """Coordinates of a head vary by 8 % around its middle, and their projection by 3 % of the face."""
    poses = rng.uniform((-60, -30, -40), (60, 30, 40), (500, 3))
    head = HEAD - HEAD.mean(0)
    points = np.array([project(head * rng.normal(1, 0.08, head.shape), *pose) for pose in poses])
    noisy = points + rng.normal(0, 0.03, points.shape) * np.ptp(points, axis=1).max(1)[:, None, None]
    errors = np.abs([head_pose(one) for one in noisy] - poses).mean(0)
    assert (errors < (4, 5, 4)).all()


def test_roll_of_a_turned_photo() -> None:
    photo, detector, found = astronaut()[:260, 90:350], FaceDetector(), []
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
