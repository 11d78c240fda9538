"""The schema of a manifest: one Parquet table that holds a data set.

| column | type | meaning |
| --- | --- | --- |
| image | struct(bytes, path) | the encoded image, or its path below the manifest's folder |
| split | string | train, val or test |
| label | string or null | the name of an expression |
| votes | list of float or null | the weight of every label, in the metadata's order |
| landmarks | list of (x, y) or null | five points in image pixels, see `geometry.LANDMARKS` |
| score | float or null | detection score of the face; 0: none was found, and the image taken whole |
| face | int | index of the face in its photo |
| source | string | the data set |
| twin | bool or null | whether an image of val or test had a twin in train (see `sources.twins`); null in train |

A data set may have columns of its own after these, strings or null: age, gender and race of FairFace, for example.
Earlier versions wrote no column `twin`.

`image` is laid out as Hugging Face `datasets` reads an Image. The metadata names the labels in order, the landmark
scheme and the version that wrote the table.

A data set larger than a disk is a folder of shards, each such a table with its images inside (see `data.shards`).

A manifest may come from a stranger, so it may name no file outside its folder: an absolute path, or one with `..`, is
an error. Links are followed, since they were put there by the folder's owner.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from fer_vit.geometry import Array

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
SCHEMA = pa.schema(
    [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("split", pa.string()),
        ("label", pa.string()),
        ("votes", pa.list_(pa.float32())),
        ("landmarks", pa.list_(pa.list_(pa.float32()))),
        ("score", pa.float32()),
        ("face", pa.int32()),
        ("source", pa.string()),
        ("twin", pa.bool_()),
    ]
)


@dataclass
class Row:
    """One face image of a data set."""

    image: Path | bytes  # encoded bytes if the data set has no image files
    name: str  # for messages and tables, for example the path inside the data set
    split: Split
    label: str | None = None
    votes: tuple[float, ...] | None = None  # weight of every label in the reading's order, not negative
    landmarks: Array | None = None  # (5, 2) in image pixels
    score: float | None = None  # of the face's detection; 0 for an image taken whole
    thumbnail: bytes = b""  # of the decoded image, see `sources.twins`
    twin: bool | None = None  # whether an image of val or test had a twin in train
    extra: dict[str, str] = field(default_factory=dict)  # values of the reading's extra columns


@dataclass
class Reading:
    """What a source read."""

    names: tuple[str, ...]  # the labels in order
    rows: list[Row]  # in a fixed order
    dropped: Counter[str] = field(default_factory=Counter)  # number of images left out, by reason
    notes: list[str] = field(default_factory=list)  # what else the user should know, for example a missing split
    extra: tuple[str, ...] = ()  # the names of columns that only this data set has
