"""Shared by the sources: held-out splits, text tables, landmarks, and notes about classes."""

import csv
import math
import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import SPLITS, Reading, Row, Split
from fer_vit.errors import FerVitError, short
from fer_vit.face.crop import CUT, cut_out
from fer_vit.face.detectors import Detector
from fer_vit.face.image import CRASHED, ImageError, decode_image, encode_jpeg, read_image
from fer_vit.geometry import apply
from fer_vit.labels import EXPRESSIONS
from fer_vit.listing import system_entry
from fer_vit.processes import cores, work_in_processes
from fer_vit.sources.duplicates import close_up, thumbnail
from fer_vit.wording import list_names

PERSON = "person"  # the column with the identity, in data sets that have it


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of the training images of every class into each of `splits`.

    Where persons are known, a tenth of the persons moves instead. The CRC-32 of the name of the
    image or person decides, so the choice is the same on every machine. A small class gives one
    image as long as train keeps one. Rows keep their order; a note reports the change.
    """
    # the names of what moves as a whole: persons, or the images of a class
    units: dict[str | None, set[str]] = defaultdict(set)
    for row in reading.rows:
        if row.split == "train":
            group = None if PERSON in row.extra else row.label
            units[group].add(_unit(row))
    if not units:
        return reading

    moved: dict[str, Split] = {}
    for group_names in units.values():
        names = sorted(group_names, key=lambda name: (zlib.crc32(os.fsencode(name)), name))
        tenth = max(1, round(len(names) / 10))
        tenth = min(tenth, (len(names) - 1) // len(splits))
        for number, split in enumerate(splits):
            for name in names[number * tenth : (number + 1) * tenth]:
                moved[name] = split

    rows = []
    for row in reading.rows:
        if row.split == "train":
            row = replace(row, split=moved.get(_unit(row), "train"))
        rows.append(row)
    what = "the persons" if PERSON in reading.extra else "every class"
    note = (
        f"A fixed tenth of {what} of train is held out as {', another as '.join(splits)}: choose "
        "the model by val, read test once."
    )
    return replace(reading, rows=rows, notes=[*reading.notes, note])


def _unit(row: Row) -> str:
    """Returns the name of the person, else of the image."""
    return row.extra.get(PERSON, row.name)


def read_text_table(
    path: Path, columns: tuple[str, ...], header: bool = True, separator: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number (from 1) and the cells by column of each line that is not blank.

    Names of columns become lower case. Yields nothing without a file. Without a header, the table
    has the given columns. Raises FerVitError when a column is missing, or a line has another number
    of cells.
    """
    if not path.is_file():
        return
    required = {name.lower() for name in columns}
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
        lines = filter(None, reader)  # without blank lines
        try:
            first_line = next(lines, ()) if header else columns
            names = [name.strip().lower() for name in first_line]
            if not required <= set(names):
                raise bad_line(path, 1, f"the columns {', '.join(columns)}", ",".join(names))
            for line in lines:
                number = reader.line_num
                if len(line) != len(names):
                    actual = separator.join(line)
                    raise bad_line(path, number, f"{len(names)} columns", actual)
                cells = [cell.strip() for cell in line]
                yield number, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise bad_line(path, reader.line_num, "comma-separated values", str(error)) from error


def bad_line(path: Path, line: int, expected: str, actual: str) -> FerVitError:
    """Returns the error for an invalid line of a table."""
    return FerVitError(
        f"{path}, line {line}: expected {expected}, but got `{short(actual)}`. Restore the file as "
        "distributed."
    )


def not_found(root: Path, expected: str) -> FerVitError:
    """Returns the error for a root without the data set, with the content of the root."""
    names = []
    for path in root.glob("*"):
        if not system_entry(path.name):
            names.append(path.name)
    if names:
        actual = short(", ".join(sorted(names)))
    elif root.is_dir():
        actual = "an empty folder"
    elif root.is_file():
        actual = "a file"
    else:
        actual = "no such folder"
    return FerVitError(
        f"Expected {expected} in {root}, but got {actual}. See data/README.md for the layout."
    )


def missing_splits(rows: list[Row], root: Path) -> list[str]:
    """Returns a note for each split without rows."""
    missing = set(SPLITS) - {row.split for row in rows}
    return [f"No {split} split in {root}." for split in SPLITS if split in missing]


IMAGES_PER_WORKER = 100  # images for which a further worker process is worth its start


def add_landmarks(
    reading: Reading, detector: Detector | None, workers: int | None = None, cut: bool = False
) -> Reading:
    """Returns a copy with landmarks and thumbnails, without unreadable images, in the same order.

    Without a detector, landmarks stay None. With `cut`, rows without a face are dropped, and images
    of more than CUT pixels become crops of their face. Worker processes read the images (None: one
    per core, 0: this process); one that kills its process is dropped, too, and a note names it.
    """
    detect = partial(_detect_in_worker, detector, cut)
    count = len(reading.rows)
    most = cores() if workers is None else workers
    processes = min(most, math.ceil(count / IMAGES_PER_WORKER))
    results = work_in_processes(detect, reading.rows, processes)
    rows: list[Row] = []
    dropped = Counter[str]()
    crashed: list[str] = []
    for row, result in tqdm(results, "reading images", count, unit="images", disable=None):
        if isinstance(result, Row):
            rows.append(result)
        elif result is None:
            dropped[CRASHED] += 1
            crashed.append(row.name)
        else:
            dropped[result] += 1

    notes = list(reading.notes)
    if crashed:
        notes.append(f"The decoder crashed or ran out of memory: {list_names(crashed, most=8)}.")
    return replace(reading, rows=rows, dropped=reading.dropped + dropped, notes=notes)


def _detect_in_worker(detector: Detector | None, cut: bool, row: Row) -> Iterator[Row | str]:
    yield _detect(detector, cut, row)


def _detect(detector: Detector | None, cut: bool, row: Row) -> Row | str:
    """Returns a row with its landmarks and thumbnail, or why the image cannot be read."""
    try:
        image = decode_image(row.image) if isinstance(row.image, bytes) else read_image(row.image)
        row = replace(row, thumbnail=thumbnail(image))
        if detector is None or row.landmarks is not None:
            return row

        face = detector.find_in_crop(image)
        if face is None:
            return row
        if cut and face.not_found:
            return "no face found"
        row.close_up = close_up(image, face.box)
        row.landmarks = face.landmarks
        row.score = None if np.isnan(face.score) else face.score
        if cut and max(image.shape[:2]) > CUT:
            face_only, to_cut = cut_out(image, face.box)
            row.landmarks = apply(to_cut, face.landmarks)
            row.image = encode_jpeg(face_only)
        return row
    except ImageError as error:
        return str(error).partition(":")[0]  # without details: equal reasons are counted together
    except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
        return "the image cannot be processed"


SIMILARITY = 0.84  # similarity of names that differ by a letter or two: suprise, surprise
OPPOSITE = re.compile(r"(?:un|in|im|dis|non|a)[\W_]*")


def class_notes(reading: Reading) -> list[str]:
    """Returns notes about classes with few training images, and about similar names."""
    train = [row.label for row in reading.rows if row.split == "train"]
    counts = Counter(label for label in train if label is not None)
    notes = []
    # FairFace has no label in any split
    if train and reading.has_labels:
        missing = [name for name in reading.names if counts[name] == 0]
        single = [name for name in reading.names if counts[name] == 1]
        if missing:
            notes.append(f"No training image of {list_names(missing, most=8)}.")
        if single:
            notes.append(f"Only one training image of {list_names(single, most=8)}.")

    for first, second in similar_names(reading.names):
        if second in reading.names:
            note = (
                f"The classes {first} and {second} have similar names: if they are one, give both "
                "folders one name."
            )
        else:
            note = (
                f"The class {first} has a name similar to {second}: if it is that, rename its "
                "folder."
            )
        notes.append(note)
    return notes


def similar_names(names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns pairs of names that may be misspelled: two classes, or a class and an expression."""
    pairs = []
    for number, first in enumerate(names):
        candidates = list(names[number + 1 :])
        if first not in EXPRESSIONS:
            candidates += [name for name in EXPRESSIONS if name not in names]
        for second in candidates:
            if _are_similar(first, second):
                pairs.append((first, second))
    return pairs


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def _are_similar(first_name: str, second_name: str) -> bool:
    """Returns whether two names differ by few letters.

    Names that differ only by a number, or by a prefix that makes the opposite, are not similar.
    """
    first = _letters(first_name)
    second = _letters(second_name)
    if re.sub(r"\d", "", first) == re.sub(r"\d", "", second):
        return first == second
    shorter, longer = sorted((first, second), key=len)
    if longer.endswith(shorter) and OPPOSITE.fullmatch(longer.removesuffix(shorter)):
        return False
    return SequenceMatcher(None, first, second).ratio() >= SIMILARITY
