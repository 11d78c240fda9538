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
from fer_vit.listing import name_text, system_entry
from fer_vit.processes import cores, work_in_processes
from fer_vit.sources.duplicates import close_up, thumbnail

PERSON = "person"  # the column with the identity, in data sets that have it


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of every class of the training images into each of `splits`; of known persons,
    a tenth of them.

    The CRC-32 of the name of the image or person decides, so the choice is the same on every
    machine. A small class gives one image as long as train keeps one. Rows keep their order; a note
    reports the change.
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
    """Yields line number (from 1) and cells by column, in lower case, of a table's lines that are
    not blank.

    Yields nothing without a file. Without a header, the table has the given columns. Raises
    FerVitError when a column is missing, or a line has another number of cells.
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
    names = sorted(path.name for path in root.glob("*") if not system_entry(path.name))
    nothing = (
        "an empty folder" if root.is_dir() else "a file" if root.is_file() else "no such folder"
    )
    came = short(", ".join(names)) or nothing
    return FerVitError(
        f"Expected {expected} in {root}, but got {came}. See data/README.md for the layout."
    )


def missing_splits(rows: list[Row], root: Path) -> list[str]:
    """Returns a note for each split without rows."""
    found = {row.split for row in rows}
    return [f"No {split} split in {root}." for split in SPLITS if split not in found]


CHUNK = 100  # images for which a further worker process is worth its start


def add_landmarks(
    reading: Reading, detector: Detector | None, workers: int | None = None, cut: bool = False
) -> Reading:
    """Returns a copy with landmarks and thumbnails, without unreadable images; rows keep their
    order.

    Without a detector, landmarks stay None. With `cut`, rows without a face are dropped, and images
    of more than CUT pixels become crops of their face. Worker processes read the images; one that
    kills its process is dropped, too, and a note names it.
    """
    detect = partial(_detect_in_worker, detector, cut)
    count = len(reading.rows)
    processes = min(workers or cores(), math.ceil(count / CHUNK))
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
        notes.append(f"The decoder crashed or ran out of memory: {name_text(crashed, most=8)}.")
    return replace(reading, rows=rows, dropped=reading.dropped + dropped, notes=notes)


def _detect_in_worker(detector: Detector | None, cut: bool, row: Row) -> Iterator[Row | str]:
    yield _detect(detector, cut, row)


def _detect(detector: Detector | None, cut: bool, row: Row) -> Row | str:
    """Returns a row with its landmarks and thumbnail,
    or the reason why the image cannot be read.
    """
    try:
        image = decode_image(row.image) if isinstance(row.image, bytes) else read_image(row.image)
        row = replace(row, thumbnail=thumbnail(image))
        if detector and row.landmarks is None:
            face = detector.find_in_crop(image)
            if face is None:
                return row
            row = replace(row, close_up=close_up(image, face.box))
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


SIMILARITY = 0.84  # similarity of names that differ by a letter or two: suprise, surprise
OPPOSITE = re.compile(r"(?:un|in|im|dis|non|a)[\W_]*")


def class_notes(reading: Reading) -> list[str]:
    """Returns notes about classes with no training image or only one,
    and classes with similar names.
    """
    counts = Counter(str(row.label) for row in reading.rows if row.split == "train")
    notes = []
    if counts:
        if missing := [name for name in reading.names if not counts[name]]:
            notes.append(f"No training image of {name_text(missing, most=8)}.")
        if single := [name for name in reading.names if counts[name] == 1]:
            notes.append(f"Only one training image of {name_text(single, most=8)}.")
    notes += [
        f"The classes {first} and {second} have similar names: if they are one, give both folders "
        "one name."
        if second in reading.names
        else f"The class {first} has a name similar to {second}: if it is that, rename its folder."
        for first, second in similar_names(reading.names)
    ]
    return notes


def similar_names(names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns pairs of names that may be misspelled: of two classes,
    or of a class and an expression.
    """
    known = [*names, *(name for name in EXPRESSIONS if name not in names)]
    pairs = []
    for i, first in enumerate(names):
        for second in known[i + 1 :]:
            letters = [re.sub(r"[\W_]+", "", name).casefold() for name in (first, second)]
            if (first not in EXPRESSIONS or second in names) and _are_similar(*letters):
                pairs.append((first, second))
    return pairs


def _are_similar(first: str, second: str) -> bool:
    """Returns whether two names differ by few letters,
    but neither by a number alone nor by a prefix of opposites.
    """
    if re.sub(r"\d", "", first) == re.sub(r"\d", "", second):
        return first == second
    shorter, longer = sorted((first, second), key=len)
    if longer.endswith(shorter) and OPPOSITE.fullmatch(longer.removesuffix(shorter)):
        return False
    return SequenceMatcher(None, first, second).ratio() >= SIMILARITY
