"""FERPlus: FER2013's faces with the votes of ten people each (Barsoum et al. 2016,
arXiv:1608.01041).

As the official script writes it:

    FER2013Train/label.csv       file name, box, ten vote counts; no header
    FER2013Train/*.png           48 x 48, grey
    FER2013Valid, FER2013Test    the same

fer2013new.csv, perhaps in the same folder, also contains the votes of the test images and is never
read.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fer_vit.data.schema import VOTES, Reading, Row, Split
from fer_vit.geometry import Array
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.common import bad_line, not_found, read_table

NAMES, OTHERS = EXPRESSIONS, ("unknown", "nf")  # the vote columns; NF is not a face
FOLDERS: dict[str, Split] = {"FER2013Train": "train", "FER2013Valid": "val", "FER2013Test": "test"}


def read(root: Path, labels: Literal["majority", "soft"] = "majority") -> Reading:
    """Reads FERPlus, in the tables' order. The column `label_votes` has the number of votes for an
    image's label.

    Args:
        root: The folder with FER2013Train, FER2013Valid and FER2013Test, or its parent if it is
            named `ferplus`.
        labels: For ferplus: training labels by majority, or with the share of every expression
            (soft). Validation and test always use the majority.
    """
    base = root / "ferplus" if (root / "ferplus").is_dir() else root
    reading = Reading(NAMES, [], extra=(VOTES,))
    for folder, split in FOLDERS.items():
        table = base / folder / "label.csv"
        if table.is_file():
            _read_split(table, split, labels if split == "train" else "majority", reading)
        else:
            reading.notes.append(f"No {split} split: {table} is not there.")
    if not reading.rows:
        raise not_found(root, f"{', '.join(FOLDERS)}, each with its label.csv and its images,")
    return reading


def _read_split(table: Path, split: Split, labels: str, reading: Reading) -> None:
    """Adds a table's images to a reading. The folder is listed once,
    which is faster than a check of every file.
    """
    existing = set(os.listdir(table.parent))
    for line, cells in read_table(table, ("name", "box", *NAMES, *OTHERS), header=False):
        name, _, *texts = cells.values()
        if not all(text.isdecimal() and len(text) < 10 for text in texts):
            raise bad_line(
                table, line, "file name, box and ten vote counts", ",".join(cells.values())
            )
        counts = [*map(int, texts)]
        votes = soft(counts) if labels == "soft" else majority(counts)
        if name not in existing:
            reading.dropped["image missing"] += 1
        elif votes is not None:
            label, shares = int(votes.argmax()), tuple(votes.tolist()) if labels == "soft" else None
            path, extra = table.parent / name, {VOTES: str(counts[label])}
            reading.rows.append(
                Row(path, f"{table.parent.name}/{name}", split, NAMES[label], shares, extra=extra)
            )
        elif max(counts[len(NAMES) :]) > max(counts[: len(NAMES)]):
            reading.dropped["unknown or not a face"] += 1
        else:
            reading.dropped["no soft label" if labels == "soft" else "no majority"] += 1


def majority(counts: Sequence[int]) -> Array | None:
    """Returns 1 for the expression with more than half of the votes, 0 for the others (8,).

    None if there is no such expression, or unknown or NF wins. Single votes do not count.
    """
    votes = np.where(np.asarray(counts) > 1, counts, 0)
    winner = votes.argmax()
    return (
        np.eye(len(NAMES))[winner]
        if 2 * votes[winner] > votes.sum() and winner < len(NAMES)
        else None
    )


def soft(counts: Sequence[int]) -> Array | None:
    """Returns the share of every expression (8,), summing to 1: FERPlus' "cross-entropy" labels.

    The largest counts are collected, ties together, until they are 75 % of the votes or three
    counts, or until unknown or NF, which does not count. None if at most half of the votes were
    collected, or more than three counts by ties. Single votes do not count.
    """
    votes = np.where(np.asarray(counts) > 1, counts, 0)
    expressions, others = votes[: len(NAMES)], votes[len(NAMES) :]
    gathered = np.zeros(len(NAMES))
    for least in sorted(set(votes.tolist()), reverse=True):
        gathered = np.where(expressions >= least, expressions, 0.0)
        if (
            least in others
            or gathered.sum() >= 0.75 * votes.sum()
            or np.count_nonzero(gathered) >= 3
        ):
            break
    if gathered.sum() <= 0.5 * votes.sum() or np.count_nonzero(gathered) > 3:
        return None
    return np.asarray(gathered / gathered.sum())
