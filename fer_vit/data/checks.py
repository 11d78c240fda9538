"""Checks of a manifest: its schema, metadata and rows."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fer_vit.data.schema import SCHEMA, SPLITS
from fer_vit.data.shards import Shard
from fer_vit.errors import FerVitError, short
from fer_vit.geometry import LANDMARKS, Array
from fer_vit.labels import check_labels

OUTSIDE = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"
"""A path that is absolute or leads upwards, on any system."""


def check_table(shard: Shard, table: pa.Table) -> tuple[str, ...]:
    """Checks the schema, metadata and rows of a manifest or shard; returns its labels in order.

    Raises:
        FerVitError: The message names the file, the row (counted from 0) and the column.
    """
    for field in SCHEMA:
        column = f"{shard.location}, column `{field.name}`"
        if table.schema.get_field_index(field.name) < 0:
            raise FerVitError(f"{column}: the column is missing or duplicated. Run `fer-vit prepare` again.")
        if (came := table.schema.field(field.name).type) != field.type:
            raise FerVitError(f"{column}: expected type {field.type}, but got {came}. Run `fer-vit prepare` again.")
    labels = read_labels(shard.location, table)
    for column, expected, wrong in _find_wrong(table, labels, allow_paths=shard.split is None):
        rows = np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))
        if rows.size:
            value = table[column][row := int(rows[0])].as_py()
            came = short(f"`{value}`" if isinstance(value, str) else value)
            raise FerVitError(f"{shard.location}, row {row}, column `{column}`: expected {expected}, but got {came}.")
    return labels


def read_labels(path: str, table: pa.Table) -> tuple[str, ...]:
    """Returns the labels that a manifest's metadata names, in order; raises FerVitError when the metadata is wrong."""
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
    """Returns the votes (M, C) of the M rows that have them."""
    values = table["votes"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, len(labels)).astype(float)  # type: ignore[no-any-return]


def _find_wrong(table: pa.Table, labels: Sequence[str], allow_paths: bool) -> Iterator[tuple[str, str, Any]]:
    """Yields a column, what is expected of it, and which rows are wrong, for one rule after another.

    A rule relies on those before it: the caller stops at the first wrong row. `allow_paths` says whether a row may
    name a file; a shard holds its images.
    """
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


def _to_all_rows(wrong: NDArray[np.bool_], column: pa.ChunkedArray) -> pa.Array:
    """Expands a mask of the rows that are not null to all rows of a column."""
    rows = np.zeros(len(column), bool)
    rows[column.is_valid().to_numpy()] = wrong
    return pa.array(rows)
