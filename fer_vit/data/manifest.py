"""The manifest: one Parquet table that holds a data set, checked when it is read.

| column | type | meaning |
| --- | --- | --- |
| image | struct(bytes, path) | the encoded image, or its path relative to the manifest |
| split | string | train, val or test |
| label | string or null | an expression's name |
| votes | list of float or null | the weight of every label, in the metadata's order |
| landmarks | list of (x, y) or null | five points in image pixels, see `face.geometry.LANDMARKS` |
| score | float or null | detection score of the landmarks |
| face | int | index of the face in its photo |
| source | string | the data set |

`image` is laid out as Hugging Face `datasets` reads an Image. The metadata names the labels in order, the landmark
scheme and the version that wrote the table.

A data set that is larger than a disk is a folder of shards, each of them such a table with its images inside, see
`data.shards`.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

import fer_vit
from fer_vit.data.shards import INDEX, find_shards, shard_name
from fer_vit.errors import FerVitError
from fer_vit.face.geometry import LANDMARKS, Array
from fer_vit.face.image import ImageError, read_bytes

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
EMBED_BELOW = 32 * 1024
"""Images smaller than this many bytes are kept inside the manifest unless the user says otherwise."""
PART = 2000
"""Rows that are written at once."""

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
    ]
)


@dataclass
class Row:
    """One face image of a data set.

    Attributes:
        image: The image file, or its encoded bytes where the data set has no image files.
        name: What to call the image in messages and tables, for example its path inside the data set.
        split: Its split.
        label: Name of its expression, None when unknown.
        votes: Weight of every label in the reading's order, not negative, or None.
        landmarks: Points (5, 2) in image pixels, or None.
        score: Detection score of the landmarks, or None.
    """

    image: Path | bytes
    name: str
    split: Split
    label: str | None = None
    votes: tuple[float, ...] | None = None
    landmarks: Array | None = None
    score: float | None = None


@dataclass
class Reading:
    """What a source found.

    Attributes:
        names: The labels in order.
        rows: The images, in a fixed order.
        dropped: How many images were left out, by reason.
        notes: What else the user should know, for example a split that is missing.
    """

    names: tuple[str, ...]
    rows: list[Row]
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def write_manifest(
    path: Path, reading: Reading, source: str, embed: Literal["auto", "always", "never"] = "auto"
) -> None:
    """Writes a manifest beside its final place and renames it when whole.

    Args:
        path: The Parquet file; an existing one is replaced.
        reading: The rows.
        source: Name of the data set.
        embed: Whether images are kept inside: small ones, all, or none.

    Raises:
        FerVitError: The folder cannot be written, an image cannot be read, or `embed` is "never" and a row has no file.
    """
    meta = {"labels": reading.names, "landmarks": LANDMARKS, "version": fer_vit.__version__}
    schema = SCHEMA.with_metadata({"fer_vit": json.dumps(meta)})
    with _writer(path, schema) as writer:
        for start in range(0, len(reading.rows), PART):
            rows = [_record(row, path.parent, source, embed) for row in reading.rows[start : start + PART]]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def check_shards(reading: Reading, shards: int) -> None:
    """Raises FerVitError when there are more shards than training images to put into them."""
    trained = sum(row.split == "train" for row in reading.rows)
    if shards > trained:
        raise FerVitError(f"Expected at most as many shards as training images, {trained:,}, but got {shards:,}.")


def write_shards(folder: Path, reading: Reading, source: str, shards: int) -> None:
    """Writes a folder of shards beside its final place and renames it when whole.

    Training rows are dealt out in a random order, the same for the same rows, so that every shard is a fair sample of
    them; the other splits have one file each. Images are kept inside.

    Args:
        folder: The folder; an existing one is replaced.
        reading: The rows.
        source: Name of the data set.
        shards: Number of training shards.

    Raises:
        FerVitError: The folder cannot be written, or an image cannot be read.
    """
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    check_shards(reading, shards)  # again, since unreadable images were left out
    order = np.random.default_rng(0).permutation(len(reading.rows))
    rows = {split: [reading.rows[row] for row in order if reading.rows[row].split == split] for split in SPLITS}
    counts = {split: shards if split == "train" else 1 for split in SPLITS if rows[split]}
    names = [(split, k, shard_name(split, k, count)) for split, count in counts.items() for k in range(count)]
    try:
        index = []
        for split, number, name in tqdm(names, desc="writing shards", unit="shards", disable=None):
            dealt = rows[split][number :: counts[split]]
            write_manifest(part / name, replace(reading, rows=dealt), source, "always")
            if split == "train":
                size = (part / name).stat().st_size
                index.append({"filename": name, "chunk_bytes": size, "chunk_size": len(dealt), "dim": None})
        # litdata's own layout; what it calls chunks are our shards, and its serialisers have nothing to do here.
        nothing = dict.fromkeys(("chunk_bytes", "chunk_size", "compression", "data_spec", "encryption"))
        config: dict[str, Any] = {**nothing, "data_format": []}
        (part / INDEX).write_text(json.dumps({"chunks": index, "config": config, "updated_at": str(time.time())}))
        if folder.exists():
            shutil.rmtree(folder)
        part.replace(folder)
    except OSError as error:
        raise FerVitError(f"Cannot write {folder}: {error.strerror}. Choose a folder you may write.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Yields what writes a manifest beside its final place, and renames it when it is whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with pq.ParquetWriter(part, schema, compression="zstd") as writer:
                yield writer
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FerVitError(
            f"Cannot write the manifest {path}: {error.strerror}. Choose a folder you may write."
        ) from error


def _record(row: Row, folder: Path, source: str, embed: str) -> dict[str, Any]:
    data, path = None, row.name
    if isinstance(row.image, bytes):
        data = row.image
    elif embed == "always" or (embed == "auto" and _size(row.image) < EMBED_BELOW):
        try:
            data = read_bytes(row.image)
        except ImageError as error:
            raise _changed(row.image, str(error)) from error
    else:
        path = os.path.relpath(row.image.resolve(), folder.resolve())
    if isinstance(row.image, bytes) and embed == "never":
        raise FerVitError(f"The images of `{source}` have no files to point to: leave out `--embed never`.")
    return {
        # A name need not be valid Unicode, but a Parquet string is.
        "image": {"bytes": data, "path": path.encode("utf-8", "backslashreplace" if data else "strict").decode()},
        "split": row.split,
        "label": row.label,
        "votes": row.votes,
        "landmarks": None if row.landmarks is None else np.asarray(row.landmarks, float).tolist(),
        "score": row.score,
        "face": 0,
        "source": source,
    }


def _size(image: Path) -> int:
    try:
        return image.stat().st_size
    except OSError as error:
        raise _changed(image, error.strerror) from error


def _changed(image: Path, reason: str | None) -> FerVitError:
    return FerVitError(f"{image} changed while it was read ({reason}). Run again when the images are at rest.")


class Manifest:
    """A checked manifest, opened for reading.

    Attributes:
        path: The Parquet file, or the folder or URL of shards.
        table: Its rows, see the module's text.
        names: The labels in order.
    """

    def __init__(self, path: str | Path, table: pa.Table, names: tuple[str, ...]) -> None:
        self.path = path
        self.table = table
        self.names = names

    @classmethod
    def read(cls, path: str | Path, splits: Iterable[Split] = SPLITS) -> "Manifest":
        """Reads a manifest and checks everything that can be wrong with it.

        Args:
            path: The Parquet file; or a folder or URL of shards, see `data.shards`.
            splits: Of shards, the splits to read.

        Raises:
            FerVitError: The message names the file and, where there is one, the row (counted from 0) and the column.
        """
        found = find_shards(path)
        names = _metadata(found[0].place, found[0].read([]))
        tables = [SCHEMA.empty_table()]
        for shard in found:
            if shard.split in (None, *splits):
                tables.append(shard.read())
                if (theirs := _check(shard.place, tables[-1])) != names:
                    raise FerVitError(
                        f"{shard.place}: expected the labels {', '.join(names)}, as in {found[0].place}, "
                        f"but got {', '.join(theirs)}. Run `fer-vit prepare` again."
                    )
        return cls(path, tables[-1] if len(found) == 1 else pa.concat_tables(tables), names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def split(self, name: Split) -> "Manifest":
        """Returns the rows of one split."""
        return Manifest(self.path, self.table.filter(pc.equal(self.table["split"], name)), self.names)

    def name(self, row: int) -> str:
        """Returns what to call the image of a row: its path as the manifest has it."""
        return str(self.table["image"][row]["path"].as_py() or f"row {row}")

    def image_bytes(self, row: int) -> bytes:
        """Returns the encoded image of a row. Raises ImageError when its file cannot be read."""
        image = self.table["image"][row].as_py()
        if image["bytes"] is not None:
            return bytes(image["bytes"])
        return read_bytes(Path(self.path).parent / image["path"])

    def landmarks(self) -> Array:
        """Returns the landmarks of all rows (M, 5, 2) in image pixels; NaN where there are none."""
        column = self.table["landmarks"].combine_chunks()
        points = np.full((len(self), len(LANDMARKS), 2), np.nan)
        flat = column.flatten().flatten().to_numpy(zero_copy_only=False)  # the values of the rows that are not null
        points[column.is_valid().to_numpy(zero_copy_only=False)] = flat.reshape(-1, len(LANDMARKS), 2)
        return points

    def targets(self) -> Array | None:
        """Returns the share of every label (M, C), rows summing to 1, or None when any row has no label.

        Votes where a row has them, its label alone where not.
        """
        if self.table["label"].null_count:
            return None
        positions = pc.index_in(self.table["label"], pa.array(self.names)).to_numpy()
        targets: Array = np.eye(len(self.names))[positions]
        column = self.table["votes"].combine_chunks()
        votes = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(self.names)).astype(float)
        targets[column.is_valid().to_numpy(zero_copy_only=False)] = votes / votes.sum(1, keepdims=True)
        return targets

    def with_votes(self, split: Split, votes: Array) -> "Manifest":
        """Returns the manifest with other votes (M, C) for the M rows of a split."""
        column = self.table["votes"].to_pylist()
        rows = np.flatnonzero(pc.equal(self.table["split"], split).to_numpy(zero_copy_only=False))
        for row, values in zip(rows, votes.tolist(), strict=True):
            column[row] = values
        place = self.table.schema.get_field_index("votes")
        changed = self.table.set_column(place, SCHEMA.field("votes"), pa.array(column, SCHEMA.field("votes").type))
        return Manifest(self.path, changed, self.names)

    def check_place(self, path: Path) -> None:
        """Raises FerVitError when this manifest cannot be written there: in its own place, or away from its images."""
        mine = Path(self.path)
        if path.resolve() == mine.resolve():
            raise FerVitError(f"{path} would replace the manifest that is read. Choose another name.")
        files = pc.any(pc.is_null(pc.struct_field(self.table["image"], "bytes"))).as_py()
        if files and path.parent.resolve() != mine.parent.resolve():
            raise FerVitError(f"{self.path} names image files relative to its folder. Choose a place in it.")

    def write(self, path: Path) -> None:
        """Writes the manifest to another place, see `check_place`.

        Raises:
            FerVitError: The folder cannot be written, or the place does not fit.
        """
        self.check_place(path)
        with _writer(path, self.table.schema) as writer:
            writer.write_table(self.table, row_group_size=PART)


def class_counts(path: str | Path, names: tuple[str, ...]) -> Array:
    """Returns the training images of every class (C,), votes counted by their share; images are not read.

    Args:
        path: A folder or URL of shards.
        names: Its labels.

    Raises:
        FerVitError: A row has no label.
    """
    counts = np.zeros(len(names))
    for shard in find_shards(path):
        if shard.split == "train":
            targets = Manifest(shard.place, shard.read(["label", "votes"]), names).targets()
            if targets is None:
                raise no_label(shard.place, "train")
            counts += targets.sum(0)
    return counts


def no_label(place: str | Path, split: Split) -> FerVitError:
    """Returns the error of a split that has rows without a label."""
    return FerVitError(f"{place} has {split} rows without a label. Give every row one, or predict instead.")


def _check(path: str, table: pa.Table) -> tuple[str, ...]:
    """Checks a manifest's schema, metadata and rows; returns the labels in order."""

    def fail(what: str, row: int | None = None, column: str | None = None) -> None:
        place = f"{path}" + (f", row {row}" if row is not None else "") + (f", column `{column}`" if column else "")
        raise FerVitError(f"{place}: {what}")

    for entry in SCHEMA:
        if table.schema.get_field_index(entry.name) < 0:
            fail("the column is missing or there twice. Run `fer-vit prepare` again.", column=entry.name)
        if table.schema.field(entry.name).type != entry.type:
            came = table.schema.field(entry.name).type
            fail(f"expected type {entry.type}, but got {came}. Run `fer-vit prepare` again.", column=entry.name)
    names = _metadata(path, table)

    def first_row(bad: Any, what: str, column: str) -> None:
        rows = np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False))
        if rows.size:
            row = int(rows[0])
            value = table[column][row].as_py()
            fail(f"expected {what}, but got {_short(value)}.", row, column)

    def not_in(column: str, allowed: Iterable[str]) -> Any:
        known = pc.is_in(table[column], pa.array(list(allowed), pa.string()))
        return pc.invert(known)

    image = table["image"]  # in its chunks: together their bytes can exceed what one array holds
    no_image = pc.and_(pc.is_null(pc.struct_field(image, "bytes")), pc.is_null(pc.struct_field(image, "path")))
    first_row(no_image, "image bytes or a path", "image")
    first_row(not_in("split", SPLITS), f"one of {', '.join(SPLITS)}", "split")
    first_row(pc.and_(pc.is_valid(table["label"]), not_in("label", names)), f"one of {', '.join(names)}", "label")
    first_row(pc.is_null(table["face"]), "a face index", "face")
    first_row(pc.not_equal(pc.list_value_length(table["votes"]), len(names)), f"{len(names)} votes", "votes")
    for row, votes in _lists(table["votes"]):
        if not np.isfinite(votes).all() or votes.min() < 0 or votes.sum() <= 0:
            fail(f"expected votes that are not negative and not all 0, but got {_short(votes.tolist())}.", row, "votes")
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
        fail(f"expected {shape}, but got {_short(table['landmarks'][row].as_py())}.", row, "landmarks")
    return names


def _metadata(path: str, table: pa.Table) -> tuple[str, ...]:
    try:
        meta = json.loads((table.schema.metadata or {})[b"fer_vit"])
        names, scheme = tuple(str(name) for name in meta["labels"]), tuple(meta["landmarks"])
    except (KeyError, TypeError, ValueError):
        raise FerVitError(
            f"{path}: the metadata `fer_vit` is missing or broken. Run `fer-vit prepare` again."
        ) from None
    if not names or len(set(names)) < len(names):
        raise FerVitError(
            f"{path}: expected different label names in the metadata, but got {', '.join(names) or 'none'}."
        )
    if scheme != LANDMARKS:
        raise FerVitError(
            f"{path}: expected the landmarks {', '.join(LANDMARKS)}, but got {', '.join(map(str, scheme))}."
        )
    return names


def _lists(column: pa.ChunkedArray) -> Iterable[tuple[int, Array]]:
    """Yields row number and values of the lists that are not null."""
    for row, value in enumerate(column):
        if value.is_valid:
            yield row, np.asarray(value.as_py(), float)


def _short(value: Any) -> str:
    text = f"`{value}`" if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
