"""Landmarks and thumbnails for the images of a data set, in worker processes."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import Reading, Row
from fer_vit.face.crop import CUT, cut_out
from fer_vit.face.detect import Detector, detect_in_crop
from fer_vit.face.image import ImageError, decode_image, encode_jpeg, read_image
from fer_vit.geometry import apply
from fer_vit.processes import cores, worker_pool
from fer_vit.sources.twins import thumbnail

CHUNK = 100
"""Images that a worker gets at once."""


def add_landmarks(
    reading: Reading, detector: Detector | None, workers: int | None = None, cut: bool = False
) -> Reading:
    """Reads every image once: the unreadable ones are dropped, and landmarks are found where a row has none.

    Without a detector, landmarks stay None. With `cut` a row without a face is dropped, and of an image of more than
    CUT pixels only the face is kept. Every row gets its thumbnail, for `drop_twins`. Rows keep their order; `reading`
    is not changed.
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
    """Returns each row with its landmarks and thumbnail, or the reason why its image cannot be read."""
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
            results.append(str(error).partition(":")[0])  # without details, so that equal reasons are counted together
            continue
        except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
            results.append("the image cannot be processed")
            continue
        results.append(replace(row, **added))
    return results
