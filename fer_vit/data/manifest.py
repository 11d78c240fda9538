"""The manifest: one Parquet table that holds a data set, checked when it is read.

| column | type | meaning |
| --- | --- | --- |
| image | struct(bytes, path) | the encoded image, or its path below the manifest's folder |
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

A manifest may come from a stranger, and names no file outside of its folder: an absolute path, or one with `..` in it,
is an error. Links are followed, since whoever owns the folder put them there.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

import fer_vit
from fer_vit.data.shards import INDEX, Shard, find_shards, shard_name
from fer_vit.errors import FerVitError, short
from fer_vit.face.geometry import LANDMARKS, Array
from fer_vit.face.image import ImageError, read_bytes
from fer_vit.files import whole
from fer_vit.labels import check_labels

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
EMBED_BELOW = 32 * 1024
"""Images smaller than this many bytes are kept inside the manifest unless the user says otherwise."""
PART = 2000
"""Rows that are written at once."""
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
    """Writes a manifest, which is there when it is whole.

    Args:
        path: The Parquet file; an existing one is replaced.
        reading: The rows.
        source: Name of the data set.
        embed: Whether images are kept inside: small ones, all, or none.

    Raises:
        FerVitError: The folder cannot be written, an image cannot be read or does not lie below the folder, or `embed`
            is "never" and a row has no file.
    """
    meta = {"labels": reading.names, "landmarks": LANDMARKS, "version": fer_vit.__version__}
    schema = SCHEMA.with_metadata({"fer_vit": json.dumps(meta)})
    with whole(path) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
        for start in range(0, len(reading.rows), PART):
            rows = [_record(row, path.parent, source, embed) for row in reading.rows[start : start + PART]]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def check_shards(reading: Reading, shards: int) -> None:
    """Raises FerVitError when there are more shards than training images to put into them."""
    trained = sum(row.split == "train" for row in reading.rows)
    if shards > trained:
        raise FerVitError(f"Expected at most as many shards as training images, {trained:,}, but got {shards:,}.")


def write_shards(folder: Path, reading: Reading, source: str, shards: int) -> None:
    """Writes a folder of shards, which is there when it is whole.

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
    check_shards(reading, shards)  # again, since unreadable images were left out
    order = np.random.default_rng(0).permutation(len(reading.rows))
    rows = {split: [reading.rows[row] for row in order if reading.rows[row].split == split] for split in SPLITS}
    counts = {split: shards if split == "train" else 1 for split in SPLITS if rows[split]}
    names = [(split, k, shard_name(split, k, count)) for split, count in counts.items() for k in range(count)]
    index = []
    with whole(folder) as part:
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


def check_images(reading: Reading, folder: Path, embed: str) -> None:
    """Raises FerVitError when an image would be neither inside a manifest in a folder nor below that folder."""
    for row in reading.rows:
        if isinstance(row.image, Path) and row.image.is_file() and not _embedded(row, embed):
            _path_below(row.image, folder)


def _embedded(row: Row, embed: str) -> bool:
    if isinstance(row.image, bytes):
        return True
    return embed == "always" or (embed == "auto" and row.image.stat().st_size < EMBED_BELOW)


def _inside(row: Row, embed: str) -> bytes | None:
    """Returns the image that a manifest keeps inside; None where it points to a file."""
    try:
        if not _embedded(row, embed):
            return None
        return row.image if isinstance(row.image, bytes) else read_bytes(row.image)
    except (ImageError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FerVitError(
            f"{row.name} changed while it was read ({reason}). Run again when the images are at rest."
        ) from error


def _path_below(image: Path, folder: Path) -> str:
    """Returns the path from a folder to an image below it. No link is resolved: a data set may be a link itself."""
    path = Path(os.path.relpath(image, folder)).as_posix()
    if re.search(OUTSIDE, path):
        raise FerVitError(
            f"Expected images below {folder.absolute()}, the manifest's folder, but got {image}. Write the manifest "
            "beside or above its images, or keep them inside: `--embed always`."
        )
    if path.encode("utf-8", "replace").decode() != path:
        raise FerVitError(f"The name {path!a} is not Unicode. Rename that image, or keep it inside: `--embed always`.")
    return path


def _record(row: Row, folder: Path, source: str, embed: str) -> dict[str, Any]:
    if isinstance(row.image, bytes) and embed == "never":
        raise FerVitError(f"The images of `{source}` have no files to point to: leave out `--embed never`.")
    if (data := _inside(row, embed)) is not None:
        path = row.name.encode("utf-8", "backslashreplace").decode()  # a name need not be Unicode, but this string is
    else:
        assert isinstance(row.image, Path)
        path = _path_below(row.image, folder)
    return {
        "image": {"bytes": data, "path": path},
        "split": row.split,
        "label": row.label,
        "votes": row.votes,
        "landmarks": None if row.landmarks is None else np.asarray(row.landmarks, float).tolist(),
        "score": row.score,
        "face": 0,
        "source": source,
    }


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
                if (theirs := _check(shard, tables[-1])) != names:
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
        votes = _votes(self.table, self.names)
        targets[self.table["votes"].is_valid().to_numpy()] = votes / votes.sum(1, keepdims=True)
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
        with whole(path) as part:
            pq.write_table(self.table, part, compression="zstd", row_group_size=PART)


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
