"""Writing manifests and shards."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from fer_vit.data.schema import OUTSIDE, SCHEMA, SPLITS, Reading, Row
from fer_vit.data.shards import shard_name
from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, read_bytes
from fer_vit.files import as_text, atomic_write
from fer_vit.geometry import LANDMARKS
from fer_vit.version import __version__

EMBED_BELOW = 32 * 1024
"""Images smaller than this many bytes are stored inside the manifest by default."""
ROW_GROUP = 2000
"""Rows that are written at once."""
Embed = Literal["auto", "always"]


def write_manifest(
    path: Path,
    reading: Reading,
    source: str,
    embed: Embed = "auto",
    together: str | None = None,
    more: Sequence[pa.Table] = (),
) -> None:
    """Writes a manifest of the data set `source` atomically; an existing one is replaced.

    `embed` decides whether all images are stored inside, or only small ones. `together` is a key that all shards of a
    data set have. `more` are tables of other manifests with the same labels, whose rows are added. Raises FerVitError
    when the folder cannot be written, or an image cannot be read or does not lie below the folder.
    """
    meta: dict[str, object] = {"labels": reading.names, "landmarks": LANDMARKS, "version": __version__}
    if together:
        meta["together"] = together
    fields = [*SCHEMA, *(pa.field(name, pa.string()) for name in reading.extra)]
    schemas = [pa.schema(fields), *(table.schema.remove_metadata() for table in more)]
    schema = pa.unify_schemas(schemas).with_metadata({"fer_vit": json.dumps(meta)})
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start in range(0, len(reading.rows), ROW_GROUP):
            rows = [_record(row, path.parent, source, embed) for row in reading.rows[start : start + ROW_GROUP]]
            writer.write_table(pa.Table.from_pylist(rows, schema))
        for table in more:
            writer.write_table(pa.concat_tables([schema.empty_table(), table], promote_options="default"), ROW_GROUP)


def check_shards(reading: Reading, shards: int) -> None:
    """Raises FerVitError when there are more shards than training images."""
    if shards > (images := sum(row.split == "train" for row in reading.rows)):
        raise FerVitError(f"Expected at most as many shards as training images, {images:,}, but got {shards:,}.")


def write_shards(folder: Path, reading: Reading, source: str, shards: int) -> None:
    """Writes a folder of shards with their images atomically; an existing one is replaced.

    Every shard is a random, reproducible sample of the training rows; the other splits have one file each. Raises
    FerVitError when the folder cannot be written, or an image cannot be read.
    """
    check_shards(reading, shards)  # again: images may have been dropped
    order = np.random.default_rng(0).permutation(len(reading.rows))
    rows = {split: [reading.rows[row] for row in order if reading.rows[row].split == split] for split in SPLITS}
    counts = {split: shards if split == "train" else 1 for split in SPLITS if rows[split]}
    names = [(split, k, shard_name(split, k, count)) for split, count in counts.items() for k in range(count)]
    together = hashlib.sha256("\n".join(row.name for row in reading.rows).encode("utf-8", "backslashreplace"))
    with atomic_write(folder) as new:
        for split, number, name in tqdm(names, desc="writing shards", unit="shards", disable=None):
            some = replace(reading, rows=rows[split][number :: counts[split]])
            write_manifest(new / name, some, source, "always", together.hexdigest())


def check_images(reading: Reading, folder: Path, embed: Embed) -> None:
    """Raises FerVitError when an image would be neither inside a manifest in a folder nor below that folder."""
    for row in reading.rows:
        if isinstance(row.image, Path) and row.image.is_file():
            _stored_path(row.image, folder, embed)


def _record(row: Row, folder: Path, source: str, embed: Embed) -> dict[str, Any]:
    """Returns a row of the table, with the image's bytes and name, or the path of its file."""
    try:
        path = _stored_path(row.image, folder, embed) if isinstance(row.image, Path) else None
        image: dict[str, Any] = {"bytes": None, "path": path}
        if path is None:
            data = row.image if isinstance(row.image, bytes) else read_bytes(row.image)
            image = {"bytes": data, "path": as_text(row.name)}
    except (ImageError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FerVitError(
            f"{row.name} changed while it was read ({reason}). Run again when nothing writes to the images."
        ) from error
    return {
        "image": image,
        "split": row.split,
        "label": row.label,
        "votes": row.votes,
        "landmarks": None if row.landmarks is None else np.asarray(row.landmarks, float).tolist(),
        "score": row.score,
        "face": 0,
        "source": source,
        "near_duplicate": row.near_duplicate,
        **row.extra,
    }


def _stored_path(image: Path, folder: Path, embed: Embed) -> str | None:
    """Returns the path from a folder to an image below it; None for one that is stored inside. Links stay."""
    if embed == "always" or image.stat().st_size < EMBED_BELOW:
        return None
    path = Path(os.path.relpath(image, folder)).as_posix()
    if re.search(OUTSIDE, path):
        raise FerVitError(
            f"Expected images below {folder.absolute()}, the manifest's folder, but got {image}. Write the manifest "
            "beside or above its images, or store them inside: `--embed always`."
        )
    if path.encode("utf-8", "replace").decode() != path:
        raise FerVitError(f"The name {path!a} is not Unicode. Rename that image, or store it inside: `--embed always`.")
    return path
