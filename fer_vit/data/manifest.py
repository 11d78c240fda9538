"""Reading a manifest: a table of labelled faces (see `data.schema`) that is checked when it is opened."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fer_vit.data.checks import check_table, read_labels, read_votes
from fer_vit.data.schema import SCHEMA, SPLITS, Split
from fer_vit.data.shards import Shard, find_shards
from fer_vit.data.writing import ROW_GROUP
from fer_vit.errors import FerVitError
from fer_vit.face.image import read_bytes
from fer_vit.files import atomic_write
from fer_vit.geometry import LANDMARKS, Array
from fer_vit.labels import Merge, merge_names


class Manifest:
    """A checked manifest, opened for reading."""

    def __init__(self, path: str | Path, table: pa.Table, names: tuple[str, ...]) -> None:
        self.path = path  # the Parquet file, or the folder or URL of shards
        self.table = table
        self.names = names  # the labels in order

    @classmethod
    def read(cls, path: str | Path, splits: Iterable[Split] = SPLITS) -> "Manifest":
        """Reads and checks a Parquet file, or these splits of a folder or URL of shards.

        Raises:
            FerVitError: The message names the file and, where there is one, the row (counted from 0) and the column.
        """
        found = find_shards(path)
        head = found[0].read([])
        names = read_labels(found[0].location, head)
        tables = [cls.read_shard(shard, names).table for shard in found if shard.split in (None, *splits)]
        if len(tables) == 1:
            return cls(path, tables[0], names)
        empty = SCHEMA.with_metadata(head.schema.metadata).empty_table()
        try:
            return cls(path, pa.concat_tables([empty, *tables], promote_options="default"), names)
        except pa.ArrowException as error:
            raise FerVitError(f"{path}: the shards have different columns. Run `fer-vit prepare` again.") from error

    @classmethod
    def read_shard(cls, shard: Shard, names: tuple[str, ...]) -> "Manifest":
        """Reads and checks one file; it must have these labels."""
        table = shard.read()
        if "twin" not in table.column_names:  # written by an earlier version
            table = table.append_column(SCHEMA.field("twin"), pa.nulls(len(table), pa.bool_()))
        if (theirs := check_table(shard, table)) != names:
            raise FerVitError(
                f"{shard.location}: expected the labels {', '.join(names)}, as in the first shard, "
                f"but got {', '.join(theirs)}. Run `fer-vit prepare` again."
            )
        return cls(shard.location, table, names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def split(self, name: Split) -> "Manifest":
        """Returns the rows of one split."""
        return self.select(pc.equal(self.table["split"], name))

    def select(self, rows: NDArray[np.bool_] | pa.ChunkedArray) -> "Manifest":
        """Returns the rows where a mask (M,) is true."""
        return Manifest(self.path, self.table.filter(rows), self.names)

    def name(self, row: int) -> str:
        """Returns the name of a row's image: its path in the manifest."""
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

        From its votes where a row has them, else from its label.
        """
        if self.table["label"].null_count:
            return None
        positions = pc.index_in(self.table["label"], pa.array(self.names)).to_numpy()
        targets: Array = np.eye(len(self.names))[positions]
        votes = read_votes(self.table, self.names)
        targets[self.table["votes"].is_valid().to_numpy()] = votes / votes.sum(1, keepdims=True)
        return targets

    def twins(self, split: Split) -> NDArray[np.bool_]:
        """Tells which images of a split (M,) had a twin in train; none where `prepare` did not look for twins."""
        marks = self.table["twin"].filter(pc.equal(self.table["split"], split))
        return np.asarray(pc.fill_null(marks, False))

    def column(self, name: str) -> list[Any]:
        """Returns the values of a column (M), for example of one that only this data set has: None where it is empty.

        Raises:
            FerVitError: There is no such column.
        """
        if name not in (names := self.table.column_names):
            raise FerVitError(f"{self.path} has no column `{name}`. Choose one of {', '.join(names)}.")
        return list(self.table[name].to_pylist())

    def with_votes(self, split: Split, votes: Array) -> "Manifest":
        """Returns the manifest with other votes (M, C) for the M rows of a split."""
        column = self.table["votes"].to_pylist()
        rows = np.flatnonzero(pc.equal(self.table["split"], split).to_numpy(zero_copy_only=False))
        for row, values in zip(rows, votes.tolist(), strict=True):
            column[row] = values
        return self._with_column("votes", column)

    def with_labels(self, labels: list[str] | list[str | None]) -> "Manifest":
        """Returns the manifest with other labels (M,)."""
        return self._with_column("label", labels)

    def merge_labels(self, merge: Merge) -> "Manifest":
        """Returns the manifest with merged labels, whose votes add up; without the faces whose label is left out.

        A face all of whose votes are for labels that are left out keeps its label alone.

        Raises:
            FerVitError: The merge says nothing of a label.
        """
        names, matrix = merge_names(self.names, merge)
        new = [None if label is None else merge.get(label, label) for label in self.column("label")]
        kept = np.array([label is not None for label in new], bool) | self.table["label"].is_null().to_numpy()
        votes: list[Any] = [None] * len(self)
        added = read_votes(self.table, self.names) @ matrix
        for row, values in zip(np.flatnonzero(self.table["votes"].is_valid()), added.tolist(), strict=True):
            votes[row] = values if any(values) else None
        rows = self.with_labels(new)._with_column("votes", votes)
        meta = json.loads(self.table.schema.metadata[b"fer_vit"]) | {"labels": names}
        table = rows.table.replace_schema_metadata({"fer_vit": json.dumps(meta)})
        return Manifest(self.path, table, names).select(kept)

    def _with_column(self, name: str, values: list[Any]) -> "Manifest":
        field, index = SCHEMA.field(name), self.table.schema.get_field_index(name)
        table = self.table.set_column(index, field, pa.array(values, field.type))
        return Manifest(self.path, table, self.names)

    def append(self, other: "Manifest") -> "Manifest":
        """Returns the manifest with the rows of another one of the same labels; a column of only one is null there.

        It lies where image files are named from.

        Raises:
            FerVitError: Both name image files, but lie in different folders.
        """
        files, more = self.names_files(), other.names_files()
        if files and more and Path(self.path).parent.resolve() != Path(other.path).parent.resolve():
            raise FerVitError(
                f"{self.path} and {other.path} name image files, each relative to its folder. Prepare one with "
                "`--embed always`."
            )
        table = pa.concat_tables([self.table, other.table], promote_options="default")
        return Manifest(other.path if more else self.path, table, self.names)

    def names_files(self) -> bool:
        """Tells whether an image is a file beside the manifest rather than inside it."""
        return bool(pc.any(pc.is_null(pc.struct_field(self.table["image"], "bytes"))).as_py())

    def check_copy(self, path: Path) -> None:
        """Raises FerVitError when a copy at `path` would replace this manifest, or be separated from its images."""
        mine = Path(self.path)
        if path.resolve() == mine.resolve():
            raise FerVitError(f"{path} would replace the manifest that is read. Choose another name.")
        if self.names_files() and path.parent.resolve() != mine.parent.resolve():
            raise FerVitError(f"{self.path} names image files relative to its folder. Choose a path in that folder.")

    def write(self, path: Path) -> None:
        """Writes a copy of the manifest where `check_copy` allows it."""
        self.check_copy(path)
        with atomic_write(path) as file:
            pq.write_table(self.table, file, compression="zstd", row_group_size=ROW_GROUP)


def class_counts(path: str | Path, names: tuple[str, ...]) -> Array:
    """Counts the training images of every class (C,) in shards, votes by their share; reads no images.

    Raises:
        FerVitError: A row has no label.
    """
    counts = np.zeros(len(names))
    for shard in find_shards(path):
        if shard.split == "train":
            targets = Manifest(shard.location, shard.read(["label", "votes"]), names).targets()
            if targets is None:
                raise no_label(shard.location, "train")
            counts += targets.sum(0)
    return counts


def no_label(path: str | Path, split: Split) -> FerVitError:
    """Returns the error for a split that has rows without a label."""
    return FerVitError(f"{path} has {split} rows without a label. Give every row one, or predict instead.")
