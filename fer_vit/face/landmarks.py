"""Facial landmarks by a small network, and the pose of the head by its landmarks.

benchmarks/landmarks.py trained it on rotated, covered, blurred and small faces with YuNet's landmarks of clear ones.
"""

from pathlib import Path
from threading import local
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike

from fer_vit.face.crop import mirror, warp
from fer_vit.geometry import Array, Float32Array, Image, apply, crop_matrix, invert

NETWORK = Path(__file__).with_name("landmarks.onnx")
SIDE = 64  # side of the network's input in pixels
_own = local()  # a network of OpenCV is for one thread


def find_landmarks(image: Image, to_cut: Array) -> Array:
    """Finds the landmarks (5, 2) of a face in an image (H, W, 3), given the matrix (2, 3) to a square that it fills.

    The square has SIDE pixels. A second pass refines the landmarks in the upright face. Both average the image and its
    mirror image, so a mirrored face has mirrored landmarks.
    """
    return refine_points(image, apply(invert(to_cut), _predict_both(warp(image, to_cut, SIDE))))


def refine_points(image: Image, landmarks: Array) -> Array:
    """Refines approximate landmarks (5, 2) in the upright face at its usual size and place."""
    upright = crop_matrix(landmarks, SIDE)
    return apply(invert(upright), _predict_both(warp(image, upright, SIDE)))


def network_input(cut: Image) -> Float32Array:
    """Returns the network's input (1, SIDE, SIDE) from a face (SIDE, SIDE, 3): grey, mean 0, deviation 1."""
    grey = np.asarray(cv2.cvtColor(cut, cv2.COLOR_RGB2GRAY), np.float32)
    return np.asarray((grey - grey.mean()) / (grey.std() + 2))[None]


def _predict_both(cut: Image) -> Array:
    """Averages the landmarks in an image and in its mirror image."""
    mirrored, points = mirror(cut, _predict_points(cut))
    return mirror(mirrored, (points + _predict_points(mirrored)) / 2)[1]


def _predict_points(cut: Image) -> Array:
    if not hasattr(_own, "network"):
        _own.network = cv2.dnn.readNetFromONNX(np.frombuffer(NETWORK.read_bytes(), np.uint8))
    _own.network.setInput(network_input(cut)[None])
    return np.array(_own.network.forward().reshape(5, 2) * SIDE, float)


EYE, NOSE, MOUTH = np.array([(3.177, -2.629, -3.826), (0.0, 1.127, -7.476), (2.456, 4.343, -4.284)])
HEAD = np.array([EYE * (-1, 1, 1), EYE, NOSE, MOUTH * (-1, 1, 1), MOUTH])
"""The mean head's landmarks (5, 3) in cm: x to the right of the picture, y down, z away from the camera.

Source: the canonical face model of MediaPipe (`canonical_face_model.obj`, Google, Apache-2.0): the means of the lids'
vertices 145 and 159, and of 374 and 386; nose 1; mouth 61 and 291.
"""
DISTANCE = 60.0  # of the camera in cm, which photos do not contain; 30 or 600 changes a yaw of 30 degrees by 1.4


class Pose(NamedTuple):
    """Angles in degrees, relative to the line from the camera to the face; 0 for a frontal, upright face."""

    yaw: float  # [-90, 90], positive if the face turns to the right of the picture (the person's left)
    pitch: float  # [-180, 180], positive if the face looks up
    roll: float  # [-180, 180], positive if the face is turned clockwise in the picture


def head_pose(landmarks: ArrayLike) -> Pose:
    """Returns the pose of a mean head whose projection fits landmarks (5, 2) in pixels best, the y axis down."""
    points, head = np.asarray(landmarks, float), HEAD - HEAD.mean(0)
    points = points - points.mean(0)
    points *= np.linalg.norm(head[:, :2]) / (DISTANCE * max(float(np.linalg.norm(points)), 1e-9))
    turn = cv2.Rodrigues(cv2.solvePnP(head, points, np.eye(3), None, flags=cv2.SOLVEPNP_SQPNP)[1])[0]
    # The turn is roll after yaw after pitch, so that a turned picture changes only the roll.
    angles = np.arcsin(turn[2, 0]), -np.arctan2(turn[2, 1], turn[2, 2]), np.arctan2(turn[1, 0], turn[0, 0])
    return Pose(*np.degrees(angles).tolist())
