"""Finds landmarks and makes thumbnails of the images of a data set, in worker processes."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import Reading, Row
from fer_vit.face.crop import MAX_CUT_SIDE, cut_out
from fer_vit.face.detectors import Detector
from fer_vit.face.image import CRASHED, ImageError, decode_image, encode_jpeg, read_image
from fer_vit.geometry import apply
from fer_vit.processes import cores, work_in_processes
from fer_vit.sources.duplicates import close_up, thumbnail
from fer_vit.wording import list_names

IMAGES_PER_WORKER = 100  # with fewer images for each, starting a worker process takes longer


def add_landmarks(
    reading: Reading, detector: Detector | None, workers: int | None = None, cut: bool = False
) -> Reading:
    """Adds landmarks and thumbnails to a reading; leaves out unreadable images and keeps the order.

    An image that kills its worker process is dropped, and a note names the image.

    Args:
        reading: The images.
        detector: The detector. None: no landmarks are added.
        workers: Number of worker processes that read images. None: one per core; 0: this process.
        cut: Whether images without a face are dropped, and images with a side of more than
            MAX_CUT_SIDE pixels are replaced by a crop of the face.
    """
    detect = partial(_detect_in_worker, detector, cut)
    count = len(reading.rows)
    max_workers = cores() if workers is None else workers
    processes = min(max_workers, math.ceil(count / IMAGES_PER_WORKER))
    results = work_in_processes(detect, reading.rows, processes)
    rows: list[Row] = []
    dropped = Counter[str]()
    crashed: list[str] = []
    for row, result in tqdm(results, "reading images", count, unit="images", disable=None):
        if isinstance(result, Row):
            rows.append(result)
        elif result is None:  # the worker process was killed
            dropped[CRASHED] += 1
            crashed.append(row.name)
        else:
            dropped[result] += 1

    notes = list(reading.notes)
    if crashed:
        notes.append(f"The decoder crashed or ran out of memory: {list_names(crashed, limit=8)}.")
    return replace(reading, rows=rows, dropped=reading.dropped + dropped, notes=notes)


def _detect_in_worker(detector: Detector | None, cut: bool, row: Row) -> Iterator[Row | str]:
    """Yields the result for a row, as `work_in_processes` expects a generator."""
    yield _detect(detector, cut, row)


def _detect(detector: Detector | None, cut: bool, row: Row) -> Row | str:
    """Returns a row with landmarks and a thumbnail, or why the row is left out."""
    try:
        image = decode_image(row.image) if isinstance(row.image, bytes) else read_image(row.image)
        row = replace(row, thumbnail=thumbnail(image))  # a copy, which is changed below
        if detector is None or row.landmarks is not None:
            return row

        face = detector.find_in_crop(image)
        if face is None:  # the detector `none` searches no image
            return row
        if cut and face.not_found:
            return "no face found"
        row.close_up = close_up(image, face.box)
        row.landmarks = face.landmarks
        row.score = None if np.isnan(face.score) else face.score
        if cut and max(image.shape[:2]) > MAX_CUT_SIDE:
            face_only, to_cut = cut_out(image, face.box)
            row.landmarks = apply(to_cut, face.landmarks)
            row.image = encode_jpeg(face_only)
        return row
    except ImageError as error:
        return str(error).partition(":")[0]  # without details, so that equal reasons are counted
    except (cv2.error, MemoryError):  # for an image of an unusual shape, or a huge image
        return "the image cannot be processed"
