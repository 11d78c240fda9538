"""Head angles, blur and regions in the photo, computed for faces that the network has classified.

`recognizer.py` adds them to the outputs of the network.
"""

from functools import cache

import numpy as np

from fer_vit.face.pose import head_pose
from fer_vit.faces import Faces, Pose
from fer_vit.geometry import Array, Float32Array, Mask, apply, invert
from fer_vit.heads import HeadOutputs

BLUR_SIDE = 48  # side of the crop in whose pixels blur is measured, for every model

# Errors of a Laplacian in units of the last digit of the largest grey level: the Laplacian adds up
# eight grey levels, each rounded.
LAPLACIAN_ERROR = 8


def pose_source(outputs: HeadOutputs) -> str:
    """Returns the source of a pose's angles, given the outputs of a model's further heads."""
    of_head = [name for name in Pose._fields if name in outputs.columns]
    of_landmarks = [name for name in Pose._fields if name not in outputs.columns]
    if not of_landmarks:
        return "head"
    if not of_head:
        return "landmarks"
    return f"head: {', '.join(of_head)}; landmarks: {', '.join(of_landmarks)}"


def head_angles(faces: Faces) -> Array:
    """Returns yaw, pitch and roll (N, 3) in degrees, from the head `pose` or else the landmarks.

    Angles are NaN without both.
    """
    angles = np.full((len(faces), len(Pose._fields)), np.nan)
    columns = faces.scheme.outputs.columns
    by_landmarks = [name for name in Pose._fields if name not in columns]
    if by_landmarks:
        not_found = faces.not_found  # computed anew by each access
        for row, points in enumerate(faces.landmarks):
            pose = head_pose(points)
            if pose is not None and not not_found[row]:
                angles[row] = pose
    for index, name in enumerate(Pose._fields):
        if name in columns:
            angles[:, index] = faces.outputs[:, columns.index(name)]
    return angles


def measure_blur(grey: Float32Array) -> Array:
    """Returns the blur (B,) of grey crops (B, S, S) in pixels of `BLUR_SIDE`; NaN without contrast.

    Blur is the fourth root of the variance of grey levels over the variance of their Laplacian
    (Pech-Pacheco et al. 2000), a length that does not depend on contrast. In a crop of one colour,
    the variance of the Laplacian is the rounding of floating-point numbers, and the blur is NaN. A
    gradient of 8 bits has a finite blur: its steps are edges, as weak as in a dark, blurred face.
    """
    weights = _resampling(grey.shape[1], BLUR_SIDE)  # (BLUR_SIDE, S)
    small = weights @ grey @ weights.T
    edges = (
        small[:, :-2, 1:-1] + small[:, 2:, 1:-1] + small[:, 1:-1, :-2] + small[:, 1:-1, 2:]
    ) - 4 * small[:, 1:-1, 1:-1]
    largest = abs(small).max((1, 2))  # (B,)
    rounding = LAPLACIAN_ERROR * np.finfo(small.dtype).eps * largest  # (B,)
    variance = edges.var((1, 2), ddof=1)  # (B,)
    has_edges = variance > rounding**2
    blur = np.full(len(grey), np.nan)
    blur[has_edges] = (small.var((1, 2), ddof=1)[has_edges] / variance[has_edges]) ** 0.25
    return blur


@cache
def _resampling(before: int, after: int) -> Float32Array:
    """Returns the weights (after, before) of a linear interpolation of pixels.

    A reduction averages the pixels under each new pixel with falling weights, so it does not alias.
    """
    scale = before / after
    centres = scale * (np.arange(after) + 0.5)
    distance = abs(np.arange(before) + 0.5 - centres[:, None]) / max(scale, 1)
    weights = np.clip(1 - distance, 0, None)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


def regions_in_photo(faces: Faces) -> Mask:
    """Returns whether each region (N, R) is visible and has its centre in the photo."""
    in_photo = faces.visible.copy()
    for row, to_crop in enumerate(faces.to_crop):
        boxes = faces.boxes[row]  # (R, 4)
        centres = apply(invert(to_crop), (boxes[:, :2] + boxes[:, 2:]) / 2)  # (R, 2)
        size = faces.infos[int(faces.photo[row])].size or (0, 0)
        in_photo[row] &= ((centres >= 0) & (centres < size)).all(1)
    return in_photo
