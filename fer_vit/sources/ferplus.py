"""FERPlus: FER2013's faces with the votes of ten people each.

Barsoum et al. 2016, arXiv:1608.01041.

As the official script writes the data set:

    FER2013Train/label.csv       file name, box, ten vote counts; no header
    FER2013Train/*.png           48 x 48, grey
    FER2013Valid, FER2013Test    the same

The folder may also have fer2013new.csv. This file contains the votes of the test images, and is
never read.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fer_vit.data.schema import VOTES_COLUMN, Reading, Row, Split
from fer_vit.geometry import Array
from fer_vit.labels import EXPRESSIONS, have_ties
from fer_vit.options import takes
from fer_vit.sources.source import SourceOptions, bad_line, not_found
from fer_vit.sources.text_tables import read_text_table
from fer_vit.wording import counted

# the columns of vote counts
LABELS = EXPRESSIONS
NO_EXPRESSION = ("unknown", "nf")  # NF: not a face

# The reason for a dropped image that most annotators labelled with one of `NO_EXPRESSION`.
NOT_EXPRESSIVE = "unknown or not a face"

FOLDERS: dict[str, Split] = {"FER2013Train": "train", "FER2013Valid": "val", "FER2013Test": "test"}


@dataclass(frozen=True, kw_only=True)
class FerplusOptions(SourceOptions):
    """Options of the data set `ferplus`."""

    labels: Literal["majority", "soft"] = "majority"
    """Training labels: the majority, or the share of votes for each expression (`soft`)."""


@takes(FerplusOptions)
def read(options: FerplusOptions) -> Reading:
    """Reads FERPlus, in the tables' order.

    The column `label_votes` has the number of votes for an image's label.
    """
    root = options.root
    base = root / "ferplus" if (root / "ferplus").is_dir() else root
    rows: list[Row] = []
    dropped = Counter[str]()
    notes = []
    for folder, split in FOLDERS.items():
        table = base / folder / "label.csv"
        if table.is_file():
            is_soft = options.labels == "soft" and split == "train"
            split_rows, split_dropped = _read_split_table(table, split, is_soft)
            rows += split_rows
            dropped += split_dropped
        else:
            notes.append(f"No {split} split: there is no {table}.")
    votes = [row.votes for row in rows if row.votes is not None]
    tied = int(have_ties(np.array(votes)).sum()) if votes else 0
    if tied:
        notes.append(
            f"No single expression has the most votes in {counted(tied, 'training image')}: the "
            f"first in the order {', '.join(LABELS)} is the label; all votes stay."
        )
    if not rows:
        raise not_found(root, f"{', '.join(FOLDERS)}, each with its label.csv and its images,")
    return Reading(LABELS, rows, dropped, notes, extra=(VOTES_COLUMN,))


def _read_split_table(table: Path, split: Split, is_soft: bool) -> tuple[list[Row], Counter[str]]:
    """Returns the rows of a table, and how many images are left out, by reason.

    If `is_soft`, the votes of a row are the shares of the expressions.
    """
    rows = []
    dropped = Counter[str]()
    folder = table.parent
    existing = set(os.listdir(folder))  # listed once: faster than a check of each file
    for line, cells in read_text_table(
        table, ("name", "box", *LABELS, *NO_EXPRESSION), header=False
    ):
        name, _, *texts = cells.values()
        if not all(text.isdecimal() and len(text) < 10 for text in texts):
            actual = ",".join(cells.values())
            raise bad_line(table, line, "file name, box and ten vote counts", actual)
        counts = [int(text) for text in texts]  # votes for eight expressions, unknown and NF
        shares = soft(counts) if is_soft else majority(counts)

        if name not in existing:
            dropped["image missing"] += 1
        elif shares is not None:
            label = int(shares.argmax())
            row = Row(folder / name, f"{folder.name}/{name}", split, LABELS[label])
            if is_soft:
                row.votes = tuple(shares.tolist())
            row.extra = {VOTES_COLUMN: str(counts[label])}
            rows.append(row)
        elif max(counts[len(LABELS) :]) > max(counts[: len(LABELS)]):
            dropped[NOT_EXPRESSIVE] += 1
        else:
            dropped["no soft label" if is_soft else "no majority"] += 1
    return rows, dropped


def majority(counts: Sequence[int]) -> Array | None:
    """Returns 1 for the expression with more than half of the votes, 0 for each other one (8,).

    None if there is no such expression, or if unknown or NF has the most votes. Single votes do not
    count.
    """
    votes = np.where(np.asarray(counts) > 1, counts, 0)
    winner = votes.argmax()
    has_majority = 2 * votes[winner] > votes.sum()
    if winner >= len(LABELS) or not has_majority:
        return None
    return np.asarray(np.eye(len(LABELS))[winner])


def soft(counts: Sequence[int]) -> Array | None:
    """Returns the shares (8,) of the expressions, with sum 1: FERPlus' "cross-entropy" labels.

    Single votes do not count. Counts are collected from the largest down, equal counts together.
    Collecting stops with 75% of the votes, with three expressions, or at the count of unknown or
    NF. None if at most half of the votes were collected, or more than three expressions (by equal
    counts).
    """
    votes = np.where(np.asarray(counts) > 1, counts, 0)
    total = votes.sum()
    expressions = votes[: len(LABELS)]
    no_expression = votes[len(LABELS) :]

    gathered = np.zeros(len(LABELS))
    for count in sorted(set(votes.tolist()), reverse=True):
        gathered = np.where(expressions >= count, expressions, 0.0)
        enough = gathered.sum() >= 0.75 * total or np.count_nonzero(gathered) >= 3
        if enough or count in no_expression:
            break
    if gathered.sum() <= 0.5 * total or np.count_nonzero(gathered) > 3:
        return None
    return np.asarray(gathered / gathered.sum())
