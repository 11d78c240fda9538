"""Schema, checks and writing of a manifest, one Parquet table.

A manifest may have columns of floats with the targets of further heads, such as `move_jawOpen`,
`yaw` or `valence`. The metadata names these columns (`outputs`), and null is an unknown target.
More columns may follow, with a text, number or boolean in each row, or null: for example age,
gender and race in FairFace.

`image` has the layout of an Image in Hugging Face `datasets`, and the metadata `huggingface` says
so. The metadata `fer_vit` names the labels in order, the landmark scheme and the version of
fer-vit.

A manifest may be untrusted, so an absolute path, or a path with `..`, is an error. Links are
followed: the owner of the folder made them.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError, short
from fer_vit.face.image import ImageError, read_bytes
from fer_vit.fields import MANIFEST_FIELDS
from fer_vit.files import atomic_write
from fer_vit.geometry import LANDMARKS, Array
from fer_vit.heads import NO_OUTPUTS, HeadOutputs
from fer_vit.labels import check_labels
from fer_vit.texts import as_text, json_text
from fer_vit.version import __version__

# a column of some data sets: how many annotators voted for the label, as text
VOTES_COLUMN = "label_votes"
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

PREPARE_AGAIN = "Run `fer-vit prepare` again."

# a path that is absolute or contains `..`, on any operating system
OUTSIDE_PATH = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"
Embed = Literal["auto", "always"]
# by default, images smaller than this many bytes are stored inside the manifest
EMBED_BELOW = 32 * 1024
ROW_GROUP = 2000  # how many rows are written at once
MAX_COORDINATE = 1_000_000  # in pixels: larger than any photo, as landmarks may lie outside
ARROW_TYPES = {  # the types of a manifest's columns in Arrow
    "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    "string": pa.string(),
    "numbers": pa.list_(pa.float32()),
    "points": pa.list_(pa.list_(pa.float32())),
    "number": pa.float32(),
    "integer": pa.int32(),
    "boolean": pa.bool_(),
}
SCHEMA = pa.schema([(field.name, ARROW_TYPES[field.type]) for field in MANIFEST_FIELDS])
# what Hugging Face `datasets` cannot know from the types of the columns
HUGGING_FACE = {"info": {"features": {"image": {"_type": "Image"}}}}


class CloseUp(NamedTuple):
    """The face in a photo, for the search for near-duplicates (see `sources.duplicates`)."""

    pixels: bytes
    square: tuple[float, float, float, float]  # xyxy, as fractions of the photo's sides


@dataclass
class Row:
    """One face image of a data set."""

    image: Path | bytes  # encoded bytes if the data set has no image files
    name: str  # for messages and tables, for example the path inside the data set
    split: Split
    label: str | None = None
    # the weight of each label, in the order of the reading's labels; not negative
    votes: tuple[float, ...] | None = None
    landmarks: Array | None = None  # (5, 2) in image pixels
    score: float | None = None  # the detector's score; 0: the whole image is the face
    thumbnail: bytes = b""  # see `sources.duplicates.thumbnail`
    close_up: CloseUp | None = None  # None: the face fills the image
    # whether an image of val or test had a near-duplicate in train
    near_duplicate: bool | None = None
    targets: dict[str, float] = field(default_factory=dict)  # targets of further heads, by column
    extra: dict[str, str] = field(default_factory=dict)  # values of the reading's extra columns


@dataclass
class Reading:
    """A data set as `read` in a module of `fer_vit.sources` returns it; `write_manifest` writes it.

    Attributes:
        labels: The names of the classes, in the order of votes.
        rows: The images, in an order that does not depend on the file system.
        dropped: How many images are left out, by reason.
        notes: Sentences for the user, for example about a missing split.
        outputs: The outputs with targets, of further heads.
        extra: The names of columns that only this data set has.
        warnings: Sentences for the user about what may be wrong.
    """

    labels: tuple[str, ...]
    rows: list[Row]
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    outputs: HeadOutputs = NO_OUTPUTS
    extra: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)

    @property
    def has_labels(self) -> bool:
        """Whether any row has a label. If not, `labels` are the classes that labels would name."""
        return any(row.label is not None for row in self.rows)


def check_table(location: str, table: pa.Table) -> tuple[tuple[str, ...], HeadOutputs]:
    """Checks the schema, metadata and rows of a manifest.

    Returns the labels in order, and the outputs with targets. The FerVitError names the file, the
    row (from 0) and the column.
    """
    labels, outputs = read_metadata(location, table)
    targets = [pa.field(name, pa.float32()) for name in outputs.columns]
    for expected in [*SCHEMA, *targets]:
        column = f"{location}, column `{expected.name}`"
        index = table.schema.get_field_index(expected.name)
        if index < 0:
            raise FerVitError(f"{column}: the column is missing or duplicated. {PREPARE_AGAIN}")
        dtype = table.schema.field(index).type
        if dtype != expected.type:
            raise FerVitError(
                f"{column}: expected type {expected.type}, but got {dtype}. {PREPARE_AGAIN}"
            )

    for column in table.schema:
        if column.name not in SCHEMA.names and not _has_plain_cells(column.type):
            raise FerVitError(
                f"{location}, column `{short(column.name)}`: expected a text, number or boolean in "
                f"each row, but got {short(column.type)}. Remove the column."
            )

    for name, content, wrong in _find_wrong(table, labels, outputs):
        rows = np.flatnonzero(np.asarray(pc.fill_null(wrong, False)))
        if rows.size:
            row = int(rows[0])
            value = table[name][row].as_py()
            if isinstance(value, str):
                value = f"`{value}`"
            raise FerVitError(
                f"{location}, row {row} (from 0), column `{name}`: expected {content}, but got "
                f"{short(value)}."
            )
    return labels, outputs


def _has_plain_cells(kind: pa.DataType) -> bool:
    """Returns whether a column may describe faces: a text, number or boolean in each row."""
    if pa.types.is_dictionary(kind):
        return _has_plain_cells(kind.value_type)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(is_text or is_number or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def read_metadata(path: str, table: pa.Table) -> tuple[tuple[str, ...], HeadOutputs]:
    """Returns the labels in order, and the outputs with targets.

    Raises FerVitError for wrong metadata.
    """
    try:
        meta = json.loads((table.schema.metadata or {})[b"fer_vit"])
        labels = meta["labels"]
        names = meta.get("outputs", {})  # by head
        scheme = tuple(meta["landmarks"])
        if not isinstance(labels, list):
            raise TypeError
    except (KeyError, TypeError, ValueError, RecursionError):
        raise FerVitError(
            f"{path}: the metadata `fer_vit` is missing or invalid. {PREPARE_AGAIN}"
        ) from None
    if scheme != LANDMARKS:
        raise FerVitError(
            f"{path}: expected the landmarks {', '.join(LANDMARKS)}, but got {short(scheme)}. "
            f"{PREPARE_AGAIN}"
        )
    check_labels(labels, path)
    return tuple(labels), HeadOutputs.of_names(names, path)


def read_lists(column: pa.Array, *shape: int) -> Array:
    """Returns nested lists of one shape as an array (M, *shape); NaN where a row has no list."""
    flat = column
    while pa.types.is_list(flat.type):
        flat = pc.list_flatten(flat)
    values = flat.to_numpy(zero_copy_only=False)
    present = column.is_valid().to_numpy(zero_copy_only=False)  # (M,)

    numbers: Array = np.full((len(column), *shape), np.nan)
    numbers[present] = values.reshape(-1, *shape)
    return numbers


def _find_wrong(
    table: pa.Table, labels: Sequence[str], outputs: HeadOutputs
) -> Iterator[tuple[str, str, Any]]:
    """Yields for each rule a column, the expected content and a mask (M,) of wrong rows.

    Each rule assumes that all earlier rules hold.
    """
    image = table["image"]  # not combined: one Arrow array may be too small for all bytes
    no_bytes = pc.is_null(pc.struct_field(image, "bytes"))
    path = pc.struct_field(image, "path")
    yield "image", "image bytes or a path", pc.and_(no_bytes, pc.is_null(path))
    outside = pc.match_substring_regex(path, OUTSIDE_PATH)
    yield "image", "a path below the manifest's folder", pc.and_(no_bytes, outside)

    no_split = pc.invert(pc.is_in(table["split"], pa.array(SPLITS)))
    yield "split", f"one of {', '.join(SPLITS)}", no_split

    no_label = pc.invert(pc.is_in(table["label"], pa.array([*labels, None])))
    yield "label", f"one of {', '.join(labels)}", no_label

    yield "face", "a face index", pc.is_null(table["face"])

    votes = table["votes"].combine_chunks()
    yield "votes", f"{len(labels)} votes", pc.not_equal(pc.list_value_length(votes), len(labels))
    numbers = read_lists(votes, len(labels))  # (M, C)
    valid = np.isfinite(numbers) & (numbers >= 0)
    no_votes = ~valid.all(1) | (numbers.sum(1) <= 0)
    wrong_votes = pc.and_(votes.is_valid(), pa.array(no_votes))
    yield "votes", "votes that are not negative and not all 0", wrong_votes

    landmarks = table["landmarks"].combine_chunks()
    count = len(LANDMARKS)
    expected = f"{count} points (x, y)"
    yield "landmarks", expected, pc.not_equal(pc.list_value_length(landmarks), count)
    points = pc.list_flatten(landmarks)
    no_pair = pc.not_equal(pc.list_value_length(points), 2).fill_null(True)
    rows = pc.list_parent_indices(landmarks).filter(no_pair)
    yield "landmarks", expected, pa.array(np.isin(np.arange(len(table)), rows))
    coordinates = read_lists(landmarks, count, 2)  # (M, 5, 2)
    too_far = ~(np.abs(coordinates) <= MAX_COORDINATE).all((1, 2))  # also true for NaN
    within = f"{expected} in pixels, at most {MAX_COORDINATE:,} from 0"
    yield "landmarks", within, pc.and_(landmarks.is_valid(), pa.array(too_far))
    same = (coordinates == coordinates[:, :1]).all((1, 2))
    yield "landmarks", f"{expected} at different places", pa.array(same)

    yield "score", "a finite score", pc.is_inf(table["score"])

    for output in outputs:
        values = pc.fill_null(table[output.column], output.kind.low).to_numpy()  # (M,)
        wrong = np.isnan(values) | output.out_of_range(values)
        expected = f"{output.range_in_words()}, or null for an unknown target"
        yield output.column, expected, pa.array(wrong)


def write_manifest(
    path: Path,
    reading: Reading,
    source: str,
    embed: Embed = "auto",
    more: Sequence[pa.Table] = (),
) -> None:
    """Writes a manifest atomically; replaces an existing file.

    Args:
        path: The new manifest.
        reading: The rows.
        source: The name of the data set.
        embed: Whether all images are stored inside ("always"), or only small images. Other images
            must lie below the manifest's folder.
        more: Tables of manifests whose rows are added.

    Raises:
        FerVitError: An image cannot be read, or is neither small nor below the folder, or a row has
            a column that the reading does not declare.
    """
    check_declared(reading)
    meta: dict[str, Any] = {
        "labels": reading.labels,
        "landmarks": LANDMARKS,
        "version": __version__,
    }

    # the columns of the reading, then the further columns of the tables in `more`
    fields = list(SCHEMA)
    fields += [pa.field(name, pa.float32()) for name in reading.outputs.columns]
    fields += [pa.field(name, pa.string()) for name in reading.extra]
    schemas = [pa.schema(fields)]
    schemas += [table.schema.remove_metadata() for table in more]
    schema = pa.unify_schemas(schemas)

    outputs = HeadOutputs.among(field.name for field in schema if field.type == pa.float32())
    if outputs:
        meta["outputs"] = HeadOutputs.of_names(outputs.plain, path).plain  # checked
    schema = schema.with_metadata(
        {"fer_vit": json_text(meta), "huggingface": json_text(HUGGING_FACE)}
    )

    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start in range(0, len(reading.rows), ROW_GROUP):
            rows = reading.rows[start : start + ROW_GROUP]
            records = [_record(row, path.parent, source, embed) for row in rows]
            writer.write_table(pa.Table.from_pylist(records, schema))
        for table in more:
            tables = [schema.empty_table(), table]  # the empty table adds the missing columns
            writer.write_table(pa.concat_tables(tables, promote_options="default"), ROW_GROUP)


def check_manifest_name(out: Path) -> None:
    """Raises FerVitError when `out` is a folder, or has a name that does not end in .parquet."""
    if out.suffix != ".parquet":
        raise FerVitError(f"Expected a file name that ends in .parquet, but got {out}.")
    if out.is_dir():
        raise FerVitError(
            f"Expected a name for the manifest, but {out} is a folder. Name a file in it."
        )


def check_declared(reading: Reading) -> None:
    """Raises FerVitError when a row has a column that the reading does not declare."""
    declared = {*reading.outputs.columns, *reading.extra}
    for row in reading.rows:
        undeclared = sorted({*row.targets, *row.extra} - declared)
        if undeclared:
            raise FerVitError(
                f"{row.name}: the row has the column {undeclared[0]}, but the reading does not. "
                "Name it in `Reading.extra`, or the output in `Reading.outputs`."
            )


def check_images(reading: Reading, folder: Path, embed: Embed) -> None:
    """Raises FerVitError when the path of an image that is not embedded cannot be stored.

    Such an image lies outside of the manifest's folder, or has a name that is not Unicode.
    """
    for row in reading.rows:
        if isinstance(row.image, Path) and row.image.is_file():
            _stored_path(row.image, folder, embed)  # raises the error


def _record(row: Row, folder: Path, source: str, embed: Embed) -> dict[str, Any]:
    """Returns a row of the table."""
    record: dict[str, Any] = {
        "image": _image_record(row, folder, embed),
        "split": row.split,
        "label": row.label,
        "votes": row.votes,
        "score": row.score,
        "near_duplicate": row.near_duplicate,
        "landmarks": None,
        "face": 0,
        "source": source,
    }
    if row.landmarks is not None:
        record["landmarks"] = np.asarray(row.landmarks, float).tolist()
    return record | row.targets | row.extra


def _image_record(row: Row, folder: Path, embed: Embed) -> dict[str, Any]:
    """Returns the cell `image`: the bytes and name of an embedded image, or the path of a file."""
    if isinstance(row.image, bytes):
        return {"bytes": row.image, "path": as_text(row.name)}
    path = _stored_path(row.image, folder, embed)
    if path is not None:
        return {"bytes": None, "path": path}
    try:
        return {"bytes": read_bytes(row.image), "path": as_text(row.name)}
    except ImageError as error:
        raise FerVitError(
            f"{row.name}: {error}. Run again when nothing writes to the images."
        ) from error


def _stored_path(image: Path, folder: Path, embed: Embed) -> str | None:
    """Returns the path from the manifest's folder to an image; None for an image to embed.

    Links in the path are not resolved. Raises FerVitError for an image outside of the folder, or
    with a name that is not Unicode.
    """
    if embed == "always" or image.stat().st_size < EMBED_BELOW:
        return None
    path = Path(os.path.relpath(image, folder)).as_posix()
    if re.search(OUTSIDE_PATH, path):
        remedy = "Write the manifest beside or above them, or store them inside: `--embed always`."
        raise FerVitError(
            f"Expected images below the manifest's folder {folder.absolute()}, but got {image}. "
            f"{remedy}"
        )
    if path.encode("utf-8", "replace").decode() != path:
        raise FerVitError(
            f"The name {path!a} is not Unicode. Rename that image, or store it inside: `--embed "
            "always`."
        )
    return path
