"""Reading the images of a data set in worker processes: landmarks, thumbnails and near-duplicates.

Data sets from the web repeat pictures across their splits: byte by byte, encoded again, mirrored, with a watermark or
slightly shifted. A model's score on a picture that it has learned does not measure new faces.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fer_vit.data.schema import Reading, Row
from fer_vit.face.crop import CUT, cut_out
from fer_vit.face.detect import Detector, detect_in_crop
from fer_vit.face.image import ImageError, decode_image, encode_jpeg, read_image
from fer_vit.geometry import Image, apply
from fer_vit.processes import cores, worker_pool

CHUNK = 100
"""Images that a worker gets at once."""
SIDE = 24
"""Side of a thumbnail in pixels."""
CORRELATION = 0.97
"""Two pictures are the same from this correlation of their thumbnails.

Checked by eye: the same picture in 24 of 24 pairs of FERPlus from 0.97 to 0.98, and in 11 of 12 pairs of FairFace
(4,000 faces against the others), where nearly all pairs below 0.97 are different people. With a side of 16: 13 of 21.
"""
BLOCK = 256
"""Training images that are compared at once."""


def add_landmarks(
    reading: Reading, detector: Detector | None, workers: int | None = None, cut: bool = False
) -> Reading:
    """Returns a copy with landmarks and thumbnails, without unreadable images; rows keep their order.

    Without a detector, landmarks stay None. With `cut`, rows without a face are dropped, and images of more than CUT
    pixels become crops of their face.
    """
    chunks = [reading.rows[start : start + CHUNK] for start in range(0, len(reading.rows), CHUNK)]
    processes = min(workers or cores(), len(chunks))
    rows: list[Row] = []
    dropped = Counter(reading.dropped)
    with (
        worker_pool(processes) as mapped,
        tqdm(total=len(reading.rows), desc="reading images", unit="images", disable=None) as bar,
    ):
        for results in mapped(partial(_detect, detector, cut), chunks):
            rows += [row for row in results if isinstance(row, Row)]
            dropped.update(reason for reason in results if isinstance(reason, str))
            bar.update(len(results))
    return replace(reading, rows=rows, dropped=dropped)


def _detect(detector: Detector | None, cut: bool, rows: list[Row]) -> list[Row | str]:
    """Returns each row with its landmarks and thumbnail, or the reason why the image cannot be read."""
    results: list[Row | str] = []
    for row in rows:
        try:
            image = decode_image(row.image) if isinstance(row.image, bytes) else read_image(row.image)
            added: dict[str, Any] = {"thumbnail": thumbnail(image)}
            if row.landmarks is None:
                face = detect_in_crop(detector, image) if detector else None
                if cut and not (face and face.score):
                    raise ImageError("no face found")
                if face:
                    added |= {"landmarks": face.landmarks, "score": None if np.isnan(face.score) else face.score}
                if face and cut and max(image.shape[:2]) > CUT:
                    face_only, to_cut = cut_out(image, face.box)
                    added |= {"landmarks": apply(to_cut, face.landmarks), "image": encode_jpeg(face_only)}
        except ImageError as error:
            results.append(str(error).partition(":")[0])  # without details: equal reasons are counted together
            continue
        except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
            results.append("the image cannot be processed")
            continue
        results.append(replace(row, **added))
    return results


def thumbnail(image: Image) -> bytes:
    """Returns a grey copy of an image (H, W, 3) with SIDE x SIDE pixels."""
    small = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return bytes(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).data)


def drop_near_duplicates(reading: Reading) -> Reading:
    """Returns a copy without training rows that have a near-duplicate in val or test, which are marked there."""
    pixels = np.frombuffer(b"".join(row.thumbnail for row in reading.rows), np.uint8).reshape(-1, SIDE, SIDE)
    trained = np.array([row.split == "train" for row in reading.rows])
    marks = find_near_duplicates(pixels, trained)
    rows = [
        row if row.split == "train" else replace(row, near_duplicate=mark)
        for row, mark in zip(reading.rows, marks.tolist(), strict=True)
        if not (mark and row.split == "train")
    ]
    dropped = reading.dropped + Counter({"near-duplicate of a val or test image": int(marks[trained].sum())})
    return replace(reading, rows=rows, dropped=dropped)


def find_near_duplicates(pixels: NDArray[np.uint8], trained: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Marks training images with a near-duplicate among the others, and the others with one in train: (N,).

    Pixels are thumbnails (N, SIDE, SIDE); `trained` (N,) is which of them are training images.
    """
    marks = np.zeros(len(pixels), bool)
    train, others = np.flatnonzero(trained), np.flatnonzero(~trained)
    plain, mirrored = _standardise(pixels[others]), _standardise(pixels[others, :, ::-1])  # (M, SIDE * SIDE)
    for start in tqdm(range(0, len(train), BLOCK), "comparing images", unit="blocks", disable=None, delay=1):
        block = train[start : start + BLOCK]
        some = _standardise(pixels[block])
        same = np.maximum(some @ plain.T, some @ mirrored.T) >= CORRELATION  # (BLOCK, M)
        marks[block] = same.any(1)
        marks[others] |= same.any(0)
    return marks


def _standardise(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns thumbnails as vectors (N, SIDE * SIDE) of mean 0 and length 1, whose products are correlations."""
    flat = pixels.reshape(-1, SIDE * SIDE).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)  # a uniform image correlates with none
    return flat
