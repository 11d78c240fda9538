"""Writing manifests, and the shards of a data set: Parquet files in a folder or under an object store's URL.

Each shard is a manifest, named as Hugging Face `datasets` expects a split: `train-00002-of-00008.parquet`.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from tqdm import tqdm

from fer_vit.data.schema import OUTSIDE, SCHEMA, SPLITS, Reading, Row
from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, read_bytes
from fer_vit.files import as_text, atomic_write
from fer_vit.geometry import LANDMARKS
from fer_vit.version import __version__

NAME = re.compile(r"(\w+)-(\d{5})-of-(\d{5})\.parquet")


class Shard(NamedTuple):
    """One Parquet file."""

    split: str | None  # None for a manifest in one file
    location: str  # path or URL, for messages
    path: str  # within `files`
    files: fs.FileSystem

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Reads the table, or some of its columns; raises FerVitError when the file is damaged."""
        with self._checked():
            table = pq.read_table(self.path, columns=columns, filesystem=self.files, partitioning=None)
            table.validate(full=True)  # text may be invalid Unicode, lists may extend beyond their values
            return table

    def footer(self) -> pq.FileMetaData:
        """Reads the number of rows and the metadata."""
        with self._checked():
            return pq.read_metadata(self.path, filesystem=self.files)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            if "://" in self.location and isinstance(error, OSError):
                raise FerVitError(f"Cannot read {self.location} ({reason}). Check its name and your access.") from error
            advice = "Run `fer-vit prepare` again."
            if not self.location.lower().endswith(".parquet"):  # perhaps a table of predictions
                advice = "A manifest ends in .parquet, and a table in .csv, .parquet or .jsonl."
            raise FerVitError(f"{self.location} is not a complete Parquet table ({reason}). {advice}") from error


def location_text(location: str | Path) -> str:
    """Returns a path or URL as text, with the two slashes of a URL that `Path` made one."""
    return re.sub(r"^(\w+):/+", r"\1://", str(location)).rstrip("/")


def is_sharded(location: str | Path) -> bool:
    """Returns whether this is a folder or URL of shards rather than a manifest in one file."""
    return "://" in location_text(location) or Path(location).is_dir()


def shard_name(split: str, number: int, count: int) -> str:
    """Returns a shard's file name; numbers start at 0."""
    return f"{split}-{number:05}-of-{count:05}.parquet"


def find_shards(location: str | Path) -> list[Shard]:
    """Lists the shards in a folder or under a URL, ordered by name; a file is its own only shard.

    An object store is configured as for its own tools: by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on. Raises
    FerVitError when there is nothing, it cannot be listed, or shards are missing.
    """
    location, local = location_text(location), fs.LocalFileSystem(use_mmap=True)
    if not is_sharded(location):
        if not Path(location).is_file():
            raise FerVitError(f"No manifest at {location}. Make one with `fer-vit prepare SOURCE ROOT {location}`.")
        return [Shard(None, location, location, local)]
    if "://" in location and not location.startswith("s3://"):
        raise FerVitError(f"Expected a file, a folder or s3://bucket/prefix, but got {location}.")
    try:
        files, folder = fs.FileSystem.from_uri(location) if "://" in location else (local, location)
        paths = {info.base_name: info.path for info in files.get_file_info(fs.FileSelector(folder))}
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(f"Cannot list {location} ({reason}). Check its name and your access.") from error
    names = {name: match for name in sorted(paths) if (match := NAME.fullmatch(name))}
    _check_names(location, names)
    return [Shard(match[1], f"{location}/{name}", paths[name], files) for name, match in names.items()]


def _check_names(location: str, names: dict[str, re.Match[str]]) -> None:
    """Raises FerVitError unless these are the names of all shards of one data set."""
    if not names:
        raise FerVitError(
            f"Expected shards such as {shard_name('train', 0, 8)} in {location}, but found none. "
            "Make them with `fer-vit prepare SOURCE ROOT FOLDER --shards 8`."
        )
    counts = {(match[1], int(match[3])) for match in names.values()}
    if len(counts) > len({split for split, _ in counts}):
        raise FerVitError(f"{location} holds shards of more than one data set. Give each its own folder.")
    expected = (shard_name(split, number, count) for split, count in counts for number in range(count))
    if missing := next((name for name in expected if name not in names), None):
        raise FerVitError(f"{missing} is missing in {location}. Copy it there, or run `fer-vit prepare` again.")


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
