"""Reads manifests: tables of labelled faces (see `data.schema`), checked on opening.

M rows, S rows of a split, C labels, K outputs of a head.
"""

import json
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from fer_vit.data.schema import (
    PREPARE_AGAIN,
    ROW_GROUP,
    SCHEMA,
    Split,
    check_table,
    read_lists,
)
from fer_vit.errors import FerVitError, known_names, short, suggest
from fer_vit.face.image import ImageError, decode_image, read_bytes
from fer_vit.faces import Objects, as_objects
from fer_vit.files import atomic_write
from fer_vit.geometry import LANDMARKS, Array, Image, IntArray, Mask
from fer_vit.heads import HeadOutputs
from fer_vit.labels import Merge, find_label, merge_names
from fer_vit.texts import check_permission, json_text
from fer_vit.wording import counted, list_names

LOGGER = logging.getLogger("fer_vit")


@dataclass(eq=False)
class Manifest:
    """A checked manifest, opened for reading."""

    path: str | Path  # the Parquet file
    table: pa.Table
    labels: tuple[str, ...]  # in the order of the votes
    outputs: HeadOutputs  # of further heads, with targets

    @classmethod
    def read(cls, path: str | Path) -> "Manifest":
        """Reads and checks a manifest; raises FerVitError if it is missing or damaged."""
        if not Path(path).is_file():
            raise FerVitError(
                f"No manifest at {path}. Make one with `fer-vit prepare SOURCE ROOT {path}`."
            )
        try:
            table = pq.read_table(path, memory_map=True, partitioning=None)
            # text may be invalid Unicode, and offsets of lists may lie beyond the values
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            check_permission(path, error)
            advice = PREPARE_AGAIN
            if Path(path).suffix.lower() != ".parquet":  # it may be a table of predictions
                advice = "A manifest ends in .parquet, and a table in .csv, .parquet or .jsonl."
            raise FerVitError(
                f"{path} is not a complete Parquet table ({str(error).splitlines()[0]}). {advice}"
            ) from error
        manifest = cls(path, table, *check_table(str(path), table))
        manifest._warn_of_unnamed_targets()
        manifest._warn_of_repeated_rows()
        return manifest

    def _warn_of_unnamed_targets(self) -> None:
        """Warns of columns that are named like targets, but that the metadata does not name."""
        numbers = [field.name for field in self.table.schema if pa.types.is_floating(field.type)]
        targets = self.outputs.columns
        unnamed = [name for name in HeadOutputs.among(numbers).columns if name not in targets]
        if unnamed:
            LOGGER.warning(
                f"{self.path}: {list_names(unnamed, limit=6)} are not targets, because the "
                "metadata does not name them. Prepare the data set with `--targets`."
            )

    def _warn_of_repeated_rows(self) -> None:
        """Warns of faces with several rows, in one split or in several.

        Embedded images with the same name, or without a name, are compared by content.
        """
        paths = pc.struct_field(self.table["image"], "path").to_pylist()
        keys = list(zip(paths, self.column("source"), self.column("face"), strict=True))
        counts = Counter(keys)
        splits = self.column("split")
        copies: dict[Any, list[int]] = defaultdict(list)  # the indices of the rows of each face
        for row, key in enumerate(keys):
            if counts[key] > 1:
                copies[*key, self._content_hash(row)].append(row)

        repeated = [rows for rows in copies.values() if len(rows) > 1]
        if not repeated:
            return
        num_further = sum(len(rows) - 1 for rows in repeated)
        num_across = sum(len({splits[row] for row in rows}) > 1 for rows in repeated)
        names = list_names(self.name(rows[0]) for rows in repeated)
        LOGGER.warning(
            f"{self.path}: {counted(len(repeated), 'face')} with "
            f"{counted(num_further, 'further row')} ({names}), {num_across:,} of them in several "
            "splits. Each row counts: remove the rows that should not count."
        )

    def _content_hash(self, row: int) -> bytes | None:
        """Returns the hash of a row's embedded image; None for a row with an image file."""
        content = self.table["image"][row]["bytes"].as_buffer()
        return None if content is None else sha256(content).digest()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def split(self, name: Split) -> "Manifest":
        """Returns the rows of one split."""
        return self.select(pc.equal(self.table["split"], name))

    def labelled(self, name: Split) -> "Manifest":
        """Returns the rows of one split that have a label."""
        rows = self.split(name)
        return rows.select(rows.table["label"].is_valid())

    def hold_out(self, share: float) -> "Manifest":
        """Returns the manifest with a share of train moved to val, chosen by a hash of the name."""
        splits = self.column("split")
        train = [row for row, split in enumerate(splits) if split == "train"]
        train.sort(key=lambda row: crc32(self.name(row).encode("utf-8", "replace")))
        count = math.ceil(share * len(train))
        for row in train[:count]:
            splits[row] = "val"
        return self.with_column("split", splits)

    def select(self, mask: Mask | pa.ChunkedArray) -> "Manifest":
        """Returns the rows where a mask (M,) is true."""
        return replace(self, table=self.table.filter(mask))

    def name(self, row: int) -> str:
        """Returns the name of a row's image: the path in the manifest, else the row's index."""
        return str(self.table["image"][row]["path"].as_py() or f"row {row}")

    def image_names(self) -> list[str]:
        """Returns the names of all images."""
        return [self.name(row) for row in range(len(self))]

    def image(self, row: int) -> Image:
        """Returns the image (H, W, 3) of a row; raises ImageError if it is not readable."""
        return decode_image(self.image_bytes(row))

    def image_bytes(self, row: int) -> bytes:
        """Returns the encoded image of a row; raises ImageError if it is not readable."""
        image = self.table["image"][row].as_py()
        if image["bytes"] is not None:
            return bytes(image["bytes"])
        return read_bytes(Path(self.path).parent / image["path"])

    def landmarks(self) -> Array:
        """Returns the landmarks (M, 5, 2) of all rows in image pixels; NaN for rows without any."""
        return read_lists(self.table["landmarks"].combine_chunks(), len(LANDMARKS), 2)

    def targets(self, partial: bool = False) -> Array | None:
        """Returns the share of votes (M, C) for each label; without votes, 1 for the row's label.

        A row without a label gets NaN if `partial`. Otherwise one such row makes the result None.
        """
        unlabelled = self.table["label"].is_null().to_numpy()
        if unlabelled.any() and not partial:
            return None
        indices = pc.index_in(self.table["label"], pa.array(self.labels))
        positions = pc.fill_null(indices, 0).to_numpy()
        targets: Array = np.eye(len(self.labels))[positions]  # (M, C)

        votes = read_lists(self.table["votes"].combine_chunks(), len(self.labels))
        shares = votes / votes.sum(1, keepdims=True)
        voted = self.table["votes"].is_valid().to_numpy()
        targets[voted] = shares[voted]

        targets[unlabelled] = np.nan
        return targets

    @property
    def has_labels(self) -> bool:
        """Whether any row has a label."""
        return bool(self.table["label"].null_count < len(self))

    def target_values(self) -> dict[str, Array]:
        """Returns the targets (M,) of further heads by column; NaN: unknown."""
        values = {}
        for name in self.outputs.columns:
            values[name] = pc.fill_null(self.table[name], np.nan).to_numpy().astype(float)
        return values

    def head_targets(self) -> dict[str, Array]:
        """Returns the targets (M, K) by further head, in the order of `outputs`; NaN: unknown."""
        values = self.target_values()
        targets = {}
        for head, of_head in self.outputs.by_head.items():
            targets[head] = np.stack([values[name] for name in of_head.columns], axis=1)
        return targets

    def model_targets(self, labels: Sequence[str]) -> Array | None:
        """Returns the targets (M, C) in the order of a model's labels; None if no row has a label.

        A row without a label gets NaN. Raises FerVitError when the model lacks the label of a row.
        """
        targets = self.targets(partial=True)
        if targets is None or not np.isfinite(targets).any():
            return None
        ordered = np.zeros((len(self), len(labels)))
        for label, column in zip(self.labels, targets.T, strict=True):
            if np.nansum(column):
                ordered[:, find_label(label, labels, self.path)] = column
        ordered[np.isnan(targets).any(1)] = np.nan
        return ordered

    def near_duplicates(self, split: Split) -> Mask:
        """Returns a mask (S,) of the images of a split that are near-duplicates of train images."""
        marks = self.table["near_duplicate"].filter(pc.equal(self.table["split"], split))
        return np.asarray(pc.fill_null(marks, False))

    def column(self, name: str) -> list[Any]:
        """Returns the values (M,) of a column; raises FerVitError when there is no such column."""
        names = self.table.column_names
        if name not in names:
            raise FerVitError(
                f"{self.path} has no column `{name}`, only "
                f"{known_names(name, names)}.{suggest(name, names)}"
            )
        return list(self.table[name].to_pylist())

    def describing_columns(self) -> dict[str, Objects]:
        """Returns the cells (M,) of the columns by which faces can be grouped, by column."""
        hidden = ["image", "split", "votes", "landmarks", *self.outputs.columns]
        names = [name for name in self.table.column_names if name not in hidden]
        return {name: as_objects(self.column(name)) for name in names}

    def merge_labels(self, merge: Merge) -> "Manifest":
        """Merges labels and adds up their votes; leaves out faces whose label merges to None.

        If all votes of a face are for labels that merge to None, the face keeps only the label.
        Raises FerVitError as `merge_names`.
        """
        new_labels, matrix = merge_names(self.labels, merge)

        column = []
        keep = np.ones(len(self), bool)
        for row, label in enumerate(self.column("label")):
            merged = None if label is None else merge.get(label, label)
            column.append(merged)
            keep[row] = label is None or merged is not None

        summed = read_lists(self.table["votes"].combine_chunks(), len(self.labels)) @ matrix
        votes = []
        for values in summed:
            voted = values.any() and not np.isnan(values).any()
            votes.append(values.tolist() if voted else None)

        manifest = self.with_column("label", column).with_column("votes", votes)
        meta = json.loads(self.table.schema.metadata[b"fer_vit"]) | {"labels": new_labels}
        metadata = self.table.schema.metadata | {b"fer_vit": json_text(meta)}
        table = manifest.table.replace_schema_metadata(metadata)
        return replace(manifest, table=table, labels=tuple(new_labels)).select(keep)

    def with_column(self, name: str, values: Sequence[object]) -> "Manifest":
        """Returns the manifest with new values (M,) in one of the columns of `SCHEMA`."""
        field = SCHEMA.field(name)
        index = self.table.schema.get_field_index(name)
        table = self.table.set_column(index, field, pa.array(values, field.type))
        return replace(self, table=table)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raises FerVitError when the manifest has other labels, or the labels in another order."""
        if list(self.labels) != list(labels):
            raise FerVitError(
                f"Expected labels {', '.join(labels)} in {self.path}, but got "
                f"{', '.join(self.labels)}."
            )

    def check_copy(self, path: Path) -> None:
        """Raises FerVitError if a copy at `path` would replace the manifest, or lose its images."""
        if path.resolve() == Path(self.path).resolve():
            raise FerVitError(
                f"{path} would replace the manifest that is read. Choose another name."
            )
        no_bytes = pc.is_null(pc.struct_field(self.table["image"], "bytes"))
        names_files = bool(pc.any(no_bytes).as_py())
        if names_files and path.parent.resolve() != Path(self.path).parent.resolve():
            raise FerVitError(
                f"{self.path} names image files relative to its folder. Choose a path in that "
                "folder."
            )

    def write(self, path: Path) -> None:
        """Writes a copy of the manifest; raises FerVitError as `check_copy`."""
        self.check_copy(path)
        with atomic_write(path) as file:
            pq.write_table(self.table, file, compression="zstd", row_group_size=ROW_GROUP)


def no_label(path: str | Path, split: Split) -> FerVitError:
    """Returns the error for a split that has rows without a label."""
    return FerVitError(
        f"{path} has {split} rows without a label. Label them, or leave them out of the manifest."
    )


def in_fold(manifest: Manifest, fold: str) -> Mask:
    """Returns a mask (M,) of the training faces in a fold such as "0/3", the first of three.

    A model for a fold is trained without the faces of the fold. `identity_hash` decides the fold:
    the faces of a person, and equal files, are in the same fold in every manifest. A copy that was
    encoded again may be in another fold (about 3% of FERPlus' training images have such a copy).

    Raises FerVitError when there is no such fold, or an image cannot be read.
    """
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", fold)
    if not match or not int(match[1]) < int(match[2]) > 1:
        raise FerVitError(f"Expected a fold such as 0/3, 1/3 or 2/3, but got {short(fold)}.")
    index = int(match[1])
    count = int(match[2])

    mask: Mask = manifest.table["split"].to_numpy() == "train"
    train = np.flatnonzero(mask)
    mask[train] = identity_hash(manifest, train) % count == index
    return mask


def identity_hash(manifest: Manifest, rows: IntArray) -> IntArray:
    """Returns a CRC-32 (N,) for rows (N,): of the column `person`, else of the image's bytes.

    The CRC-32 is equal for all faces of a person, and for equal files. Raises FerVitError when an
    image cannot be read.
    """
    persons = [None] * len(manifest)
    if "person" in manifest.table.column_names:
        persons = manifest.column("person")

    keys = []
    progress = tqdm(rows.tolist(), "folds", unit=" images", disable=None, leave=False, delay=1)
    for row in progress:
        person = persons[row]
        if person:
            key = str(person).encode()
        else:
            with named_in_errors(manifest.path, manifest.name(row)):
                key = manifest.image_bytes(row)
        keys.append(crc32(key))
    return np.array(keys, np.int64)


@contextmanager
def named_in_errors(manifest_path: str | Path, image_name: str) -> Iterator[None]:
    """Turns an ImageError into a FerVitError that names the manifest and the image."""
    try:
        yield
    except ImageError as error:
        raise FerVitError(f"{manifest_path}, image {image_name}: {error}.") from error
