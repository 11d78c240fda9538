"""What can be wrong with a manifest: its schema, metadata and rows."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fer_vit.data.schema import SCHEMA, SPLITS
from fer_vit.data.shards import Shard
from fer_vit.errors import FerVitError, short
from fer_vit.geometry import LANDMARKS, Array
from fer_vit.labels import check_labels

OUTSIDE = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"
"""A path that is absolute or leads upwards, on any system."""


def _check(shard: Shard, table: pa.Table) -> tuple[str, ...]:
    """Checks a manifest's schema, metadata and rows; returns the labels in order."""
    path = shard.place

    def fail(what: str, row: int | None = None, column: str | None = None) -> None:
        place = f"{path}" + (f", row {row}" if row is not None else "") + (f", column `{column}`" if column else "")
        raise FerVitError(f"{place}: {what}")

    for entry in SCHEMA:
        if table.schema.get_field_index(entry.name) < 0:
            fail("the column is missing or there twice. Run `fer-vit prepare` again.", column=entry.name)
        if table.schema.field(entry.name).type != entry.type:
            came = table.schema.field(entry.name).type
            fail(f"expected type {entry.type}, but got {came}. Run `fer-vit prepare` again.", column=entry.name)
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        fail(f"{' '.join(str(error).split())}. Run `fer-vit prepare` again.")
    names = _metadata(path, table)

    def first_row(bad: Any, what: str, column: str) -> None:
        rows = np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False))
        if rows.size:
            row = int(rows[0])
            value = table[column][row].as_py()
            fail(f"expected {what}, but got {short(f'`{value}`' if isinstance(value, str) else value)}.", row, column)

    def not_in(column: str, allowed: Iterable[str]) -> Any:
        known = pc.is_in(table[column], pa.array(list(allowed), pa.string()))
        return pc.invert(known)

    image = table["image"]  # in its chunks: together their bytes can exceed what one array holds
    no_bytes, paths = pc.is_null(pc.struct_field(image, "bytes")), pc.struct_field(image, "path")
    no_image, what = (pc.is_null(paths), "image bytes or a path") if shard.split is None else (True, "image bytes")
    first_row(pc.and_(no_bytes, no_image), what, "image")
    outside = pc.and_(no_bytes, pc.match_substring_regex(paths, OUTSIDE))
    first_row(outside, "a path below the manifest's folder", "image")
    first_row(not_in("split", SPLITS), f"one of {', '.join(SPLITS)}", "split")
    first_row(pc.and_(pc.is_valid(table["label"]), not_in("label", names)), f"one of {', '.join(names)}", "label")
    first_row(pc.is_null(table["face"]), "a face index", "face")
    first_row(pc.not_equal(pc.list_value_length(table["votes"]), len(names)), f"{len(names)} votes", "votes")
    votes = _votes(table, names)
    wrong = np.flatnonzero(~np.isfinite(votes).all(1) | (votes < 0).any(1) | (votes.sum(1) <= 0))
    if wrong.size:
        row = int(np.flatnonzero(table["votes"].is_valid().to_numpy())[wrong[0]])
        came = short(table["votes"][row].as_py())
        fail(f"expected votes that are not negative and not all 0, but got {came}.", row, "votes")
    shape = f"{len(LANDMARKS)} points (x, y)"
    first_row(pc.not_equal(pc.list_value_length(table["landmarks"]), len(LANDMARKS)), shape, "landmarks")
    points = pc.list_flatten(table["landmarks"].combine_chunks())
    coordinates = pc.list_flatten(points).to_numpy(zero_copy_only=False)
    pairs = pc.list_value_length(points).to_numpy(zero_copy_only=False)
    valid_rows = np.flatnonzero(table["landmarks"].combine_chunks().is_valid().to_numpy(zero_copy_only=False))
    bad = np.flatnonzero(pairs != 2)
    if not bad.size and not np.isfinite(coordinates).all():
        bad = np.flatnonzero(~np.isfinite(coordinates)) // 2
    if bad.size:
        row = int(valid_rows[bad[0] // len(LANDMARKS)])
        fail(f"expected {shape}, but got {short(table['landmarks'][row].as_py())}.", row, "landmarks")
    return names


def _metadata(path: str, table: pa.Table) -> tuple[str, ...]:
    try:
        meta = json.loads((table.schema.metadata or {})[b"fer_vit"])
        names, scheme = tuple(meta["labels"]), tuple(meta["landmarks"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise FerVitError(
            f"{path}: the metadata `fer_vit` is missing or broken. Run `fer-vit prepare` again."
        ) from None
    check_labels(names, path)
    if scheme != LANDMARKS:
        raise FerVitError(
            f"{path}: expected the landmarks {', '.join(LANDMARKS)}, but got {', '.join(map(str, scheme))}."
        )
    return names


def _votes(table: pa.Table, names: Sequence[str]) -> Array:
    """Returns the votes (M, C) of the M rows that have them."""
    values = table["votes"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, len(names)).astype(float)  # type: ignore[no-any-return]
