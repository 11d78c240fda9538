"""Estimates the pose of a head from five landmarks."""

import cv2
import numpy as np
from numpy.typing import ArrayLike

from fer_vit.faces import Pose

# Landmarks of the mean head in cm: x to the right of the picture, y down, z away from the camera.
# Source: the canonical face model of MediaPipe (`canonical_face_model.obj`, Google, Apache-2.0):
# the means of the lids' vertices 145 and 159, and of 374 and 386; nose 1; mouth 61 and 291.
EYE = np.array((3.177, -2.629, -3.826))
NOSE = np.array((0.0, 1.127, -7.476))
MOUTH = np.array((2.456, 4.343, -4.284))
MEAN_HEAD = np.array([EYE * (-1, 1, 1), EYE, NOSE, MOUTH * (-1, 1, 1), MOUTH])  # (5, 3)

# The distance of the camera in cm, which photos do not contain. With 30 or 600, a yaw of 30 degrees
# changes by 1.4.
CAMERA_DISTANCE = 60.0


def head_pose(landmarks: ArrayLike) -> Pose | None:
    """Returns the pose in which the projection of the mean head fits landmarks (5, 2) best.

    Landmarks are in pixels, with the y axis down. None if no pose fits: all landmarks are the same
    point, or not finite.
    """
    head = MEAN_HEAD - MEAN_HEAD.mean(0)
    points = np.asarray(landmarks, float)
    if not np.isfinite(points).all():
        return None
    points = points - points.mean(0)
    spread = float(np.linalg.norm(points))
    if not 0 < spread < np.inf:
        return None
    points *= np.linalg.norm(head[:, :2]) / (CAMERA_DISTANCE * spread)
    solved, rotation, _ = cv2.solvePnP(head, points, np.eye(3), None, flags=cv2.SOLVEPNP_SQPNP)
    if not solved:
        return None
    turn = cv2.Rodrigues(rotation)[0]  # (3, 3)
    # The turn is roll after yaw after pitch, so that a turned picture changes only the roll.
    yaw = np.arcsin(np.clip(turn[2, 0], -1, 1))
    pitch = -np.arctan2(turn[2, 1], turn[2, 2])
    roll = np.arctan2(turn[1, 0], turn[0, 0])
    yaw_degrees, pitch_degrees, roll_degrees = np.degrees((yaw, pitch, roll)).tolist()
    return Pose(yaw=yaw_degrees, pitch=pitch_degrees, roll=roll_degrees)
