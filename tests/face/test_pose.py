"""The pose of heads whose true pose is known, and of landmarks that have none."""

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from fer_vit.face.landmarks import full_image_face
from fer_vit.face.pose import CAMERA_DISTANCE, MEAN_HEAD, head_pose
from fer_vit.geometry import Array, Image
from fer_vit.sources.cartoon import draw_face

CM = 6.354 / 0.35
"""Width in cm of a picture in which the eyes are as far apart as in `geometry.TEMPLATE`."""


def turn_head(image: Image, yaw: float, pitch: float = 0.0) -> Image:
    """Turns the head in a square picture, its nose in the middle, by degrees:
    pitch first, then yaw.
    """
    axis = (np.arange(len(image)) + 0.5) / len(image) * CM
    x, y = np.meshgrid(axis - 0.5 * CM, axis - 0.55 * CM)
    round_head = 9.5 * np.sqrt((1 - (x / 8.5) ** 2 - (y / 11.5) ** 2).clip(0))
    nose = 2.5 * np.exp(-((x**2 + (y - 0.037 * CM) ** 2) / (2 * 1.3**2)))
    # towards the camera, from axes below the eyes, so that the face stays in place
    depth = round_head + nose - 8.0
    pitched, depth = _turn_rows(np.dstack([image, depth]).swapaxes(0, 1), y.T, -pitch)
    turned, _ = _turn_rows(np.dstack([pitched, depth]).swapaxes(0, 1), x, yaw)
    return turned.round().clip(0, 255).astype(np.uint8)


def _turn_rows(layers: Array, along: Array, degrees: float) -> tuple[Array, Array]:
    """Turns colours and depth (H, W, 4), the last layer, about an axis across the rows;
    what lies behind is hidden.
    """
    cos = np.cos(np.deg2rad(degrees))
    sin = np.sin(np.deg2rad(degrees))
    depth = layers[..., 3]
    target = along * cos + depth * sin
    # Looked at from the side towards which the head turns, the nearer parts cover those behind
    # them.
    visible = (
        np.maximum.accumulate(target, 1)
        if sin < 0
        else np.minimum.accumulate(target[:, ::-1], 1)[:, ::-1]
    )
    back = np.array(
        [
            np.interp(row, seen, np.arange(len(row)))
            for row, seen in zip(along, visible, strict=True)
        ]
    )
    rows = np.broadcast_to(np.arange(len(along))[:, None], along.shape)
    moved = cv2.remap(
        np.dstack([layers, along]).astype(np.float32),
        back.astype(np.float32),
        rows.astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return moved[..., :3], moved[..., 3] * cos - moved[..., 4] * sin


def project(head: Array, yaw: float, pitch: float, roll: float) -> Array:
    """The landmarks (5, 2) of a head (5, 3) that is turned by degrees, in pixels of a camera."""
    turn = Rotation.from_euler("ZYX", [roll, -yaw, -pitch], degrees=True).as_rotvec()
    camera = np.array([[900.0, 0, 320], [0, 900, 240], [0, 0, 1]])
    return np.asarray(
        cv2.projectPoints(
            head - head.mean(0), turn, np.array([0, 0, CAMERA_DISTANCE]), camera, None
        )[0]
    )[:, 0]


@pytest.mark.parametrize(
    "pose", [(0, 0, 0), (40, 0, 0), (-60, 10, 5), (20, -30, 60), (-10, 25, -170)]
)
def test_pose_of_the_mean_head(pose: tuple[float, float, float]) -> None:
    # seen from slightly other points
    assert head_pose(project(MEAN_HEAD, *pose)) == pytest.approx(pose, abs=1)


def test_sign_and_order_of_the_yaw_of_drawn_heads(rng: np.random.Generator) -> None:
    poses = rng.uniform((-40, -15), (40, 15), (60, 2))
    heads = (
        turn_head(draw_face("neutral", seed, 112)[0], *pose) for seed, pose in enumerate(poses)
    )
    estimated = np.array([head_pose(full_image_face(head).landmarks).yaw for head in heads])
    true = poses[:, 0]
    large = np.abs(true) >= 10
    assert (np.sign(estimated) == np.sign(true))[large].mean() >= 0.95
    difference = np.subtract.outer(estimated, estimated)
    expected = np.subtract.outer(true, true)
    apart = np.abs(expected) >= 10
    assert (np.sign(difference) == np.sign(expected))[apart].mean() >= 0.95


@pytest.mark.parametrize(
    "points",
    [np.zeros((5, 2)), np.full((5, 2), 7e9), np.full((5, 2), np.nan), np.full((5, 2), np.inf)],
    ids=["zero", "one far point", "nan", "inf"],
)
def test_a_single_point_has_no_pose(points: Array) -> None:
    assert head_pose(points) is None


@pytest.mark.parametrize("scale", [1e-100, 1e-31, 1.0, 1e31, 1e100])
def test_a_pose_does_not_depend_on_the_scale(scale: float) -> None:
    points = project(MEAN_HEAD, 20, -10, 5)
    assert head_pose(points * scale) == pytest.approx(head_pose(points), abs=1e-6)


def test_landmarks_on_a_line_do_not_end_the_program() -> None:
    line = np.column_stack([np.arange(5.0), np.arange(5.0)])
    pose = head_pose(line)
    assert pose is None or np.isfinite(pose).all()
