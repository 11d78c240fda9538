"""Head pose from five landmarks: the turn of a mean head whose projection fits them best (cv2.solvePnP).

Angles are in degrees, relative to the line from the camera to the face, and 0 for a frontal, upright face. Yaw is
positive if the face turns to the right of the picture (the person's left), pitch if it looks up, roll if it is turned
clockwise in the picture.
"""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike

HEAD = np.array(
    [
        (-3.177, -2.629, -3.826),
        (3.177, -2.629, -3.826),
        (0.0, 1.127, -7.476),
        (-2.456, 4.343, -4.284),
        (2.456, 4.343, -4.284),
    ]
)
"""The mean head's landmarks (5, 3) in cm: x to the right of the picture, y down, z away from the camera.

Source: the canonical face model of MediaPipe (`canonical_face_model.obj`, Google, Apache-2.0): the means of the lids'
vertices 145 and 159, and of 374 and 386; nose 1; mouth 61 and 291.
"""
DISTANCE = 60.0
"""Distance of the camera in cm, which photos do not contain; 30 or 600 changes a yaw of 30 degrees by 1.4."""


class Pose(NamedTuple):
    """Angles in degrees: yaw in [-90, 90], pitch and roll in [-180, 180]."""

    yaw: float
    pitch: float
    roll: float


def head_pose(landmarks: ArrayLike) -> Pose:
    """Returns the pose of a head with landmarks (5, 2) in pixels, the y axis down."""
    points, head = np.asarray(landmarks, float), HEAD - HEAD.mean(0)
    points = points - points.mean(0)
    points *= np.linalg.norm(head[:, :2]) / (DISTANCE * max(float(np.linalg.norm(points)), 1e-9))
    turn = cv2.Rodrigues(cv2.solvePnP(head, points, np.eye(3), None, flags=cv2.SOLVEPNP_SQPNP)[1])[0]
    # The turn is roll after yaw after pitch, so that a turned picture changes only the roll.
    angles = np.arcsin(turn[2, 0]), -np.arctan2(turn[2, 1], turn[2, 2]), np.arctan2(turn[1, 0], turn[0, 0])
    return Pose(*np.degrees(angles).tolist())
