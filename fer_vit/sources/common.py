"""Shared by the sources: held-out splits, text tables, landmarks and near-duplicates.

Data sets from the web repeat pictures across their splits: encoded again, mirrored, with a watermark or slightly
shifted. A model's score on a picture that it has learned does not measure new faces.
"""

import csv
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import SPLITS, Reading, Row, Split
from fer_vit.errors import FerVitError, short
from fer_vit.face.crop import CUT, cut_out
from fer_vit.face.detectors import Detector, detect_in_crop
from fer_vit.face.image import ImageError, decode_image, encode_jpeg, read_image
from fer_vit.geometry import Float32Array, Image, Mask, apply
from fer_vit.processes import cores, worker_pool

PERSON = "person"  # the column with the identity, in data sets that have it


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of every class of the training images into each of `splits`; of known persons, a tenth of them.

    The CRC-32 of the name of the image or person decides, so the choice is the same on every machine. A small class
    gives one image as long as train keeps one. Rows keep their order; a note reports the change.
    """
    classes: dict[str | None, set[str]] = defaultdict(set)
    for row in reading.rows:
        if row.split == "train":
            classes[None if PERSON in row.extra else row.label].add(row.extra.get(PERSON, row.name))
    moved: dict[str, Split] = {}
    for units in classes.values():
        names = sorted(units, key=lambda name: (zlib.crc32(os.fsencode(name)), name))
        tenth = min(max(1, round(len(names) / 10)), (len(names) - 1) // len(splits))
        for i, split in enumerate(splits):
            moved |= dict.fromkeys(names[i * tenth : (i + 1) * tenth], split)
    if not classes:
        return reading
    rows = [
        replace(row, split=moved.get(row.extra.get(PERSON, row.name), "train"))
        if row.split == "train"
        else row
        for row in reading.rows
    ]
    what = "the persons" if PERSON in reading.extra else "every class"
    held_out = f"A fixed tenth of {what} of train is held out as {', another as '.join(splits)}"
    return replace(
        reading,
        rows=rows,
        notes=[*reading.notes, f"{held_out}: choose the model by val, read test once."],
    )


def read_table(
    path: Path, columns: tuple[str, ...], header: bool = True, separator: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line number (from 1) and cells by column, in lower case, of a table's lines that are not blank.

    Yields nothing without a file. Without a header, the table has the given columns. Raises FerVitError when a column
    is missing, or a line has another number of cells.
    """
    if not path.is_file():
        return
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = filter(None, reader := csv.reader(file, delimiter=separator, skipinitialspace=True))
        try:
            names = [name.strip().lower() for name in (next(lines, ()) if header else columns)]
            if not set(map(str.lower, columns)) <= set(names):
                raise bad_line(path, 1, f"the columns {', '.join(columns)}", ",".join(names))
            for cells in lines:
                if len(cells) != len(names):
                    raise bad_line(
                        path, reader.line_num, f"{len(names)} columns", separator.join(cells)
                    )
                yield reader.line_num, dict(zip(names, map(str.strip, cells), strict=True))
        except csv.Error as error:
            raise bad_line(path, reader.line_num, "comma-separated values", str(error)) from error


def bad_line(path: Path, line: int, expected: str, came: str) -> FerVitError:
    """Returns the error for an invalid line of a table."""
    remedy = "Restore the file as distributed."
    return FerVitError(
        f"{path}, line {line}: expected {expected}, but got `{short(came)}`. {remedy}"
    )


def not_found(root: Path, expected: str) -> FerVitError:
    """Returns the error for a root without the data set, with the content of the root."""
    names = sorted(path.name for path in root.glob("[!.]*"))
    came = short(", ".join(names)) or ("an empty folder" if root.is_dir() else "no such folder")
    return FerVitError(
        f"Expected {expected} in {root}, but got {came}. See data/README.md for the layout."
    )


def missing_splits(rows: list[Row], root: Path) -> list[str]:
    """Returns a note for each split without rows."""
    found = {row.split for row in rows}
    return [f"No {split} split in {root}." for split in SPLITS if split not in found]


CHUNK = 100  # images that a worker gets at once
SIDE = 24  # side of a thumbnail in pixels
CORRELATION = 0.97
"""Two pictures are the same from this correlation of their thumbnails.

Checked by eye: the same picture in 24 of 24 pairs of FERPlus from 0.97 to 0.98, and in 11 of 12 pairs of FairFace
(4,000 faces against the others), where nearly all pairs below 0.97 are different people. With a side of 16: 13 of 21.
"""
BLOCK = 256  # training images that are compared at once


def add_landmarks(
    reading: Reading, detector: Detector | None, workers: int | None = None, cut: bool = False
) -> Reading:
    """Returns a copy with landmarks and thumbnails, without unreadable images; rows keep their order.

    Without a detector, landmarks stay None. With `cut`, rows without a face are dropped, and images of more than CUT
    pixels become crops of their face.
    """
    detect, count = partial(_detect, detector, cut), len(reading.rows)
    with worker_pool(min(workers or cores(), -(-count // CHUNK)), CHUNK) as mapped:
        results = list(
            tqdm(mapped(detect, reading.rows), "reading images", count, unit="images", disable=None)
        )
    rows = [row for row in results if isinstance(row, Row)]
    dropped = Counter(reason for reason in results if isinstance(reason, str))
    return replace(reading, rows=rows, dropped=reading.dropped + dropped)


def _detect(detector: Detector | None, cut: bool, row: Row) -> Row | str:
    """Returns a row with its landmarks and thumbnail, or the reason why the image cannot be read."""
    try:
        image = decode_image(row.image) if isinstance(row.image, bytes) else read_image(row.image)
        row = replace(row, thumbnail=thumbnail(image))
        if detector and row.landmarks is None:
            face = detect_in_crop(detector, image)
            if cut and not face.score:
                return "no face found"
            row = replace(
                row, landmarks=face.landmarks, score=None if np.isnan(face.score) else face.score
            )
            if cut and max(image.shape[:2]) > CUT:
                face_only, to_cut = cut_out(image, face.box)
                row = replace(
                    row, landmarks=apply(to_cut, face.landmarks), image=encode_jpeg(face_only)
                )
        return row
    except ImageError as error:
        return str(error).partition(":")[0]  # without details: equal reasons are counted together
    except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
        return "the image cannot be processed"


def thumbnail(image: Image) -> bytes:
    """Returns a grey copy of an image (H, W, 3) with SIDE x SIDE pixels."""
    small = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return bytes(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).data)


def drop_near_duplicates(reading: Reading) -> Reading:
    """Returns a copy without training rows that have a near-duplicate in val or test, which are marked there."""
    pixels = np.frombuffer(b"".join(row.thumbnail for row in reading.rows), np.uint8).reshape(
        -1, SIDE, SIDE
    )
    trained = np.array([row.split == "train" for row in reading.rows])
    marks = find_near_duplicates(pixels, trained)
    rows = [
        row if row.split == "train" else replace(row, near_duplicate=mark)
        for row, mark in zip(reading.rows, marks.tolist(), strict=True)
        if not (mark and row.split == "train")
    ]
    dropped = reading.dropped + Counter(
        {"near-duplicate of a val or test image": int(marks[trained].sum())}
    )
    return replace(reading, rows=rows, dropped=dropped)


def find_near_duplicates(pixels: Image, trained: Mask) -> Mask:
    """Marks thumbnails (N, SIDE, SIDE) that have a near-duplicate on the other side of the mask `trained` (N,)."""
    marks = np.zeros(len(pixels), bool)
    train, others = np.flatnonzero(trained), np.flatnonzero(~trained)
    plain, mirrored = (
        _standardise(pixels[others]),
        _standardise(pixels[others, :, ::-1]),
    )  # (M, SIDE * SIDE)
    for start in tqdm(
        range(0, len(train), BLOCK), "comparing images", unit="blocks", disable=None, delay=1
    ):
        block = train[start : start + BLOCK]
        some = _standardise(pixels[block])
        same = np.maximum(some @ plain.T, some @ mirrored.T) >= CORRELATION  # (BLOCK, M)
        marks[block] = same.any(1)
        marks[others] |= same.any(0)
    return marks


def _standardise(pixels: Image) -> Float32Array:
    """Returns thumbnails as vectors (N, SIDE * SIDE) of mean 0 and length 1, whose products are correlations."""
    flat = pixels.reshape(-1, SIDE * SIDE).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(
        np.linalg.norm(flat, axis=1, keepdims=True), 1e-6
    )  # a uniform image correlates with none
    return flat
