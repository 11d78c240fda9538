"""The schema of a manifest, one Parquet table that holds a data set, and its checks.

| column | type | meaning |
| --- | --- | --- |
| image | struct(bytes, path) | the encoded image, or its path below the manifest's folder |
| split | string | train, val or test |
| label | string or null | the name of an expression |
| votes | list of float or null | the weight of every label, in the metadata's order |
| landmarks | list of (x, y) or null | five points in image pixels, see `geometry.LANDMARKS` |
| score | float or null | detection score of the face; 0: none was found, so the whole image is the face |
| face | int | index of the face in its photo |
| source | string | the data set |
| near_duplicate | bool or null | whether an image of val or test had a near-duplicate in train; null in train |

A data set may have more columns after these, strings or null, for example age, gender and race in FairFace.

`image` has the layout of an Image in Hugging Face `datasets`. The metadata names the labels in order, the landmark
scheme and the version of fer-vit.

A data set larger than a disk is a folder of shards, each such a table with its images inside (see `data.shards`).

A manifest may be untrusted, so an absolute path, or one with `..`, is an error. Links are followed: the owner of the
folder made them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fer_vit.errors import FerVitError, short
from fer_vit.geometry import LANDMARKS, Array, Mask
from fer_vit.labels import check_labels

VOTES = "label_votes"
"""A column of some data sets: the number of annotators who voted for the label, as text."""
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
OUTSIDE = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"
"""A path that is absolute or leads upwards, on any system."""
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
        ("near_duplicate", pa.bool_()),
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
    score: float | None = None  # of the face's detection; 0 if the whole image is the face
    thumbnail: bytes = b""  # of the decoded image, see `sources.common.thumbnail`
    near_duplicate: bool | None = None  # whether an image of val or test had a near-duplicate in train
    extra: dict[str, str] = field(default_factory=dict)  # values of the reading's extra columns


@dataclass
class Reading:
    """The result of reading a data set."""

    names: tuple[str, ...]  # the labels in order
    rows: list[Row]  # in a fixed order
    dropped: Counter[str] = field(default_factory=Counter)  # number of images left out, by reason
    notes: list[str] = field(default_factory=list)  # for the user, for example about a missing split
    extra: tuple[str, ...] = ()  # the names of columns that only this data set has


def check_table(location: str, table: pa.Table, allow_paths: bool) -> tuple[str, ...]:
    """Checks the schema, metadata and rows of a manifest or shard; returns its labels in order.

    `location` is the path or URL for messages. A shard contains its images, so it must not name image files
    (`allow_paths`). Raises FerVitError, which names the file, the row (counted from 0) and the column.
    """
    for expected in SCHEMA:
        column = f"{location}, column `{expected.name}`"
        if table.schema.get_field_index(expected.name) < 0:
            raise FerVitError(f"{column}: the column is missing or duplicated. Run `fer-vit prepare` again.")
        if (kind := table.schema.field(expected.name).type) != expected.type:
            raise FerVitError(f"{column}: expected type {expected.type}, but got {kind}. Run `fer-vit prepare` again.")
    labels = read_labels(location, table)
    for name, content, wrong in _find_wrong(table, labels, allow_paths):
        rows = np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))
        if rows.size:
            value = table[name][row := int(rows[0])].as_py()
            came = short(f"`{value}`" if isinstance(value, str) else value)
            raise FerVitError(f"{location}, row {row}, column `{name}`: expected {content}, but got {came}.")
    return labels


def read_labels(path: str, table: pa.Table) -> tuple[str, ...]:
    """Returns the labels in the metadata of a manifest, in order; raises FerVitError when the metadata is wrong."""
    try:
        meta = json.loads((table.schema.metadata or {})[b"fer_vit"])
        labels, scheme = tuple(meta["labels"]), tuple(meta["landmarks"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise FerVitError(
            f"{path}: the metadata `fer_vit` is missing or invalid. Run `fer-vit prepare` again."
        ) from None
    check_labels(labels, path)
    if scheme != LANDMARKS:
        raise FerVitError(
            f"{path}: expected the landmarks {', '.join(LANDMARKS)}, but got {', '.join(map(str, scheme))}."
        )
    return labels


def read_votes(table: pa.Table, labels: Sequence[str]) -> Array:
    """Returns the votes (M, C) of the M rows with votes."""
    values = table["votes"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, len(labels)).astype(float)  # type: ignore[no-any-return]


def _find_wrong(table: pa.Table, labels: Sequence[str], allow_paths: bool) -> Iterator[tuple[str, str, Any]]:
    """Yields a column, its expected content and a mask of wrong rows for each rule; rules rely on the ones before."""
    image = table["image"]  # chunked: the bytes together can exceed what one array holds
    no_bytes, path = pc.is_null(pc.struct_field(image, "bytes")), pc.struct_field(image, "path")
    if allow_paths:
        yield "image", "image bytes or a path", pc.and_(no_bytes, pc.is_null(path))
        outside = pc.match_substring_regex(path, OUTSIDE)
        yield "image", "a path below the manifest's folder", pc.and_(no_bytes, outside)
    else:
        yield "image", "image bytes", no_bytes
    yield "split", f"one of {', '.join(SPLITS)}", _not_in(table["split"], SPLITS)
    unknown = pc.and_(pc.is_valid(table["label"]), _not_in(table["label"], labels))
    yield "label", f"one of {', '.join(labels)}", unknown
    yield "face", "a face index", pc.is_null(table["face"])
    yield "votes", f"{len(labels)} votes", pc.not_equal(pc.list_value_length(table["votes"]), len(labels))
    votes = read_votes(table, labels)
    wrong = ~np.isfinite(votes).all(1) | (votes < 0).any(1) | (votes.sum(1) <= 0)
    yield "votes", "votes that are not negative and not all 0", _to_all_rows(wrong, table["votes"])
    count, pairs = len(LANDMARKS), f"{len(LANDMARKS)} points (x, y)"
    yield "landmarks", pairs, pc.not_equal(pc.list_value_length(table["landmarks"]), count)
    points = pc.list_flatten(table["landmarks"].combine_chunks())
    lengths = pc.list_value_length(points).to_numpy(zero_copy_only=False)
    yield "landmarks", pairs, _to_all_rows((lengths != 2).reshape(-1, count).any(1), table["landmarks"])
    finite = np.isfinite(pc.list_flatten(points).to_numpy(zero_copy_only=False))
    yield "landmarks", pairs, _to_all_rows(~finite.reshape(-1, 2 * count).all(1), table["landmarks"])


def _not_in(column: pa.ChunkedArray, allowed: Iterable[str]) -> Any:
    return pc.invert(pc.is_in(column, pa.array(list(allowed), pa.string())))


def _to_all_rows(wrong: Mask, column: pa.ChunkedArray) -> pa.Array:
    """Expands a mask of the rows that are not null to all rows of a column."""
    rows = np.zeros(len(column), bool)
    rows[column.is_valid().to_numpy()] = wrong
    return pa.array(rows)
