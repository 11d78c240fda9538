"""The landmarks of a face whose place is known, by a small network that comes with fer-vit.

It learned from YuNet (benchmarks/landmarks.py) to find in turned, covered, blurred and small faces what YuNet finds in
the same faces as they are.
"""

from pathlib import Path
from threading import local
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fer_vit.face.crop import mirror, warp
from fer_vit.geometry import Array, Image, apply, crop_matrix, invert

NETWORK = Path(__file__).with_name("landmarks.onnx")
SIDE = 64
"""Side of the cut that the network gets, in pixels."""
_own = local()  # a network of OpenCV is for one thread


def find_landmarks(image: Image, to_cut: Array) -> Array:
    """Finds the landmarks (5, 2) of a face in an image (H, W, 3).

    Args:
        image: The image.
        to_cut: Where the face is: the matrix (2, 3) to a cut of SIDE pixels that it fills.

    The second look is at the face turned upright, in its usual size and place. Both looks see the mirror image as well,
    so that a mirrored face has mirrored landmarks.
    """
    upright = crop_matrix(apply(invert(to_cut), _look(warp(image, to_cut, SIDE))), SIDE)
    return apply(invert(upright), _look(warp(image, upright, SIDE)))


def network_input(cut: Image) -> NDArray[np.float32]:
    """Returns a cut (SIDE, SIDE, 3) in grey, of mean 0 and deviation 1, as the network takes it (1, SIDE, SIDE)."""
    grey = np.asarray(cv2.cvtColor(cut, cv2.COLOR_RGB2GRAY), np.float32)
    return np.asarray((grey - grey.mean()) / (grey.std() + 2))[None]


def _look(cut: Image) -> Array:
    """The landmarks in a cut: the mean of what the network finds in it and in its mirror image."""
    mirrored, points = mirror(cut, _points(cut))
    return mirror(mirrored, (points + _points(mirrored)) / 2)[1]


def _points(cut: Image) -> Array:
    net = _network()
    net.setInput(network_input(cut)[None])
    return np.array(net.forward().reshape(5, 2) * SIDE, float)


def _network() -> Any:
    if not hasattr(_own, "network"):
        _own.network = cv2.dnn.readNetFromONNX(np.frombuffer(NETWORK.read_bytes(), np.uint8))
    return _own.network
