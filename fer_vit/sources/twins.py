"""Twins: training images that show the same picture as an image of val or test.

Data sets from the web repeat pictures across their splits: byte by byte, encoded again, mirrored, with a watermark or
slightly shifted. A model's score on a picture that it has learned says nothing about new faces.
"""

from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fer_vit.data.schema import Reading
from fer_vit.geometry import Image

SIDE = 24
"""Side of a thumbnail in pixels."""
CORRELATION = 0.97
"""Two pictures are the same from this correlation of their thumbnails.

Judged by eye: the same picture in 24 of 24 pairs of FERPlus from 0.97 to 0.98, and in 11 of all 12 pairs between 4,000
faces of FairFace and the others, where below 0.97 nearly all are different people. With 16 pixels only 13 of 21 are.
"""
BLOCK = 256
"""Training images that are compared at once."""


def thumbnail(image: Image) -> bytes:
    """Returns a grey copy of an image (H, W, 3) with SIDE x SIDE pixels."""
    small = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return bytes(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).data)


def drop_twins(reading: Reading) -> Reading:
    """Drops training rows that have a twin in val or test, and marks the twins there; `reading` is not changed."""
    pixels = np.frombuffer(b"".join(row.thumbnail for row in reading.rows), np.uint8).reshape(-1, SIDE, SIDE)
    trained = np.array([row.split == "train" for row in reading.rows])
    twins = find_twins(pixels, trained)
    rows = [
        row if row.split == "train" else replace(row, twin=twin)
        for row, twin in zip(reading.rows, twins.tolist(), strict=True)
        if not (twin and row.split == "train")
    ]
    dropped = reading.dropped + Counter({"twin of a val or test image": int(twins[trained].sum())})
    return replace(reading, rows=rows, dropped=dropped)


def find_twins(pixels: NDArray[np.uint8], trained: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tells which images have a twin: training images (`trained`) one among the others, the others one among them.

    Args:
        pixels: Thumbnails (N, SIDE, SIDE).
        trained: Which of them are training images (N,).
    """
    twins = np.zeros(len(pixels), bool)
    train, others = np.flatnonzero(trained), np.flatnonzero(~trained)
    plain, mirrored = _standardise(pixels[others]), _standardise(pixels[others, :, ::-1])  # (M, SIDE * SIDE)
    for start in tqdm(range(0, len(train), BLOCK), "looking for twins", unit="blocks", disable=None, delay=1):
        block = train[start : start + BLOCK]
        some = _standardise(pixels[block])
        same = np.maximum(some @ plain.T, some @ mirrored.T) >= CORRELATION  # (BLOCK, M)
        twins[block] = same.any(1)
        twins[others] |= same.any(0)
    return twins


def _standardise(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns thumbnails as vectors (N, SIDE * SIDE) of mean 0 and length 1, whose products are correlations."""
    flat = pixels.reshape(-1, SIDE * SIDE).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)  # of one grey: like no other
    return flat
