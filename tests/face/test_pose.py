"""The pose of heads whose true pose is known, and of landmarks that have none."""

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from fer_vit.face.crop import CropSpec
from fer_vit.face.detectors import DETECTORS
from fer_vit.face.finder import FaceFinder
from fer_vit.face.pose import head_pose
from fer_vit.geometry import Array, Image
from fer_vit.sources.cartoon import draw_face

CM = 6.354 / 0.35
"""Width in cm of a picture in which the eyes are as far apart as in `geometry.TEMPLATE`."""
HEAD = np.array(
    [
        (-3.177, -2.629, -3.826),
        (3.177, -2.629, -3.826),
        (0.0, 1.127, -7.476),
        (-2.456, 4.343, -4.284),
        (2.456, 4.343, -4.284),
    ]
)
"""Eyes, nose and mouth of a mean head in cm (MediaPipe's canonical face model)."""


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


def project(yaw: float, pitch: float, roll: float) -> Array:
    """The landmarks (5, 2) of a mean head that is turned by degrees, 60 cm before a camera."""
    turn = Rotation.from_euler("ZYX", [roll, -yaw, -pitch], degrees=True).as_rotvec()
    camera = np.array([[900.0, 0, 320], [0, 900, 240], [0, 0, 1]])
    place = np.array([0.0, 0, 60])
    points, _ = cv2.projectPoints(HEAD - HEAD.mean(0), turn, place, camera, None)
    return np.asarray(points)[:, 0]


@pytest.mark.parametrize(
    "pose", [(0, 0, 0), (40, 0, 0), (-60, 10, 5), (20, -30, 60), (-10, 25, -170)]
)
def test_pose_of_the_mean_head(pose: tuple[float, float, float]) -> None:
    # seen from slightly other points
    assert head_pose(project(*pose)) == pytest.approx(pose, abs=1)


def test_sign_and_order_of_the_yaw_of_drawn_heads(rng: np.random.Generator) -> None:
    poses = rng.uniform((-40, -15), (40, 15), (40, 2))
    finder = FaceFinder(CropSpec(48), "crop", DETECTORS["landmarks"])
    estimated = np.empty(len(poses))
    for seed, pose in enumerate(poses):
        head = turn_head(draw_face("neutral", seed, 112)[0], *pose)
        estimated[seed] = head_pose(finder.find(head).landmarks[0]).yaw
    true = poses[:, 0]
    large = np.abs(true) >= 10
    assert (np.sign(estimated) == np.sign(true))[large].mean() >= 0.95
    difference = np.subtract.outer(estimated, estimated)
    expected = np.subtract.outer(true, true)
    apart = np.abs(expected) >= 10
    assert (np.sign(difference) == np.sign(expected))[apart].mean() >= 0.95


@pytest.mark.parametrize(
    "points",
    [np.full((5, 2), 7e9), np.full((5, 2), np.nan), np.full((5, 2), np.inf)],
    ids=["one far point", "nan", "inf"],
)
def test_a_single_point_has_no_pose(points: Array) -> None:
    assert head_pose(points) is None


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_a_pose_does_not_depend_on_the_scale(scale: float) -> None:
    points = project(20, -10, 5)
    assert head_pose(points * scale) == pytest.approx(head_pose(points), abs=1e-6)


def test_landmarks_on_a_line_do_not_end_the_program() -> None:
    line = np.column_stack([np.arange(5.0), np.arange(5.0)])
    pose = head_pose(line)
    assert pose is None or np.isfinite(pose).all()
