"""AffectNet, the manually labelled part: 290,000 faces, 224 x 224.

Mollahosseini et al. 2017, arXiv:1708.03985.

As distributed:

    train_set/images/0.jpg
    train_set/annotations/0_exp.npy    the code of the expression, as a string or a number
    train_set/annotations/0_val.npy    valence from -1 to 1, or -2 if unknown; may be absent
    train_set/annotations/0_aro.npy    arousal, as valence
    val_set                            the same
"""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError
from fer_vit.files import open_input
from fer_vit.heads import HeadOutputs, Output
from fer_vit.listing import PHOTO_SUFFIXES, system_entry
from fer_vit.options import takes
from fer_vit.sources.source import SourceOptions, not_found
from fer_vit.sources.splits import hold_out

# the expressions with the codes 0 to 7
LABELS = ("neutral", "happiness", "sadness", "surprise", "fear", "disgust", "anger", "contempt")
FOLDERS: dict[str, Split] = {"train_set": "train", "val_set": "test"}
SUFFIX = "_exp.npy"

# The endings of the files with the targets of the head `affect`.
AFFECT = {Output("affect", "valence"): "_val.npy", Output("affect", "arousal"): "_aro.npy"}

UNKNOWN = -2.0  # the value of a valence or an arousal that was not annotated


@dataclass(frozen=True, kw_only=True)
class AffectnetOptions(SourceOptions):
    """Options of the data set `affectnet`."""

    classes: Literal[7, 8] = 8
    """8, or 7 without contempt."""


@takes(AffectnetOptions)
def read(options: AffectnetOptions) -> Reading:
    """Reads AffectNet from the folder of train_set and val_set, sorted by file name.

    AffectNet's test split was never published; papers report results on val_set. So val_set is
    `test` here, and a fixed tenth of train is held out as val. Valence and arousal, if there are
    files, are targets of the head `affect`.
    """
    root = options.root
    labels = LABELS[: options.classes]
    rows: list[Row] = []
    dropped = Counter[str]()
    notes = []
    for folder, split in FOLDERS.items():
        base = root / folder
        if (base / "images").is_dir() and (base / "annotations").is_dir():
            split_rows, split_dropped = _read_split_folder(root, folder, split, labels)
            rows += split_rows
            dropped += split_dropped
        else:
            notes.append(
                f"No {split} split: {base} does not hold the folders images and annotations."
            )
    if not rows:
        raise not_found(
            root, "train_set and val_set, each with the folders images and annotations,"
        )
    notes.append("AffectNet's val_set is the test split here.")

    affect = [output for output in AFFECT if any(output.column in row.targets for row in rows)]
    outputs = HeadOutputs(tuple(affect))
    return hold_out(Reading(labels, rows, dropped, notes, outputs))


def _read_split_folder(
    root: Path, folder: str, split: Split, labels: Sequence[str]
) -> tuple[list[Row], Counter[str]]:
    """Returns the rows of a split, and how many images are left out, by reason."""
    # Both folders are listed once: a check of each file would take minutes.
    images = {}  # file names by stem
    for name in os.listdir(root / folder / "images"):
        path = Path(name)
        if path.suffix.lower() in PHOTO_SUFFIXES and not system_entry(name):
            images[path.stem] = name
    annotations = root / folder / "annotations"
    files = set(os.listdir(annotations))
    annotated = {name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX)}
    no_image = len(annotated - images.keys())
    no_annotation = len(images.keys() - annotated)
    dropped = Counter({"image missing": no_image, "annotation missing": no_annotation})

    rows = []
    stems = sorted(annotated & images.keys())
    for stem in tqdm(stems, f"AffectNet {folder}", unit="face", disable=None):
        label = _read_label(annotations / f"{stem}{SUFFIX}")
        name = f"{folder}/images/{images[stem]}"
        if label not in labels:
            dropped[f"{label}, not among the {len(labels)} classes"] += 1
            continue
        row = Row(root / name, name, split, label)
        for output, ending in AFFECT.items():
            file = f"{stem}{ending}"
            if file in files:
                value = _read_affect(annotations / file, output)
                if value is not None:
                    row.targets[output.column] = value
        rows.append(row)
    return rows, dropped


def _read_label(path: Path) -> str:
    expected = "one number from 0 to 7"
    number = _read_number(path, expected)
    if number not in range(len(LABELS)):
        raise _wrong(path, expected, number)
    return LABELS[int(number)]


def _read_affect(path: Path, output: Output) -> float | None:
    """Returns a valence or an arousal; None for an unknown one."""
    expected = output.range_in_words()
    value = _read_number(path, expected)
    if value == UNKNOWN:
        return None
    if math.isnan(value) or output.out_of_range(np.asarray(value)):
        raise _wrong(path, expected, value)
    return value


def _read_number(path: Path, expected: str) -> float:
    try:
        open_input(path).close()  # NumPy opens the path again, and could wait for a pipe
        # mapped, so that a shape beyond the end of the file takes no memory
        return float(np.lib.format.open_memmap(path, mode="r").item())
    except ValueError as error:
        raise _wrong(path, expected, error) from error


def _wrong(path: Path, expected: str, actual: object) -> FerVitError:
    """Returns the error for an annotation that is not the expected number."""
    return FerVitError(
        f"{path}: expected an array that holds {expected}, but got `{actual}`. "
        "Restore the file as distributed."
    )
