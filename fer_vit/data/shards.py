"""Shards: the Parquet files of a data set in a folder or an object store, and their file names."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError
from fer_vit.numbered import NumberedName, numbered_name, parse_numbered_name
from fer_vit.texts import check_permission

PREPARE_AGAIN = "Run `fer-vit prepare` again."


class Shard(NamedTuple):
    """One Parquet file of a data set."""

    split: str | None  # None: a manifest in one file
    location: str  # the path or URL, for messages
    path: str  # the path within `filesystem`
    filesystem: fs.FileSystem

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Reads the table, or some of its columns; raises FerVitError when the file is damaged."""
        with self._checked():
            table = pq.read_table(
                self.path, columns=columns, filesystem=self.filesystem, partitioning=None
            )
            # text may be invalid Unicode, and offsets of lists may lie beyond the values
            table.validate(full=True)
            return table

    def footer(self) -> pq.FileMetaData:
        """Reads the number of rows and the metadata."""
        with self._checked():
            return pq.read_metadata(self.path, filesystem=self.filesystem)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            check_permission(self.location, error)
            reason = str(error).splitlines()[0]
            if "://" in self.location and isinstance(error, OSError):
                raise FerVitError(
                    f"Cannot read {self.location} ({reason}). Check its name and your access."
                ) from error
            if self.location.lower().endswith(".parquet"):
                advice = PREPARE_AGAIN
            else:  # the file may be a table of predictions
                advice = "A manifest ends in .parquet, and a table in .csv, .parquet or .jsonl."
            raise FerVitError(
                f"{self.location} is not a complete Parquet table ({reason}). {advice}"
            ) from error


def location_text(location: str | Path) -> str:
    """Returns a path or URL as text; restores the second slash of a URL, which `Path` removes."""
    return re.sub(r"^(\w+):/+", r"\1://", str(location)).rstrip("/")


def is_sharded(location: str | Path) -> bool:
    """Returns whether a location is a folder or URL of shards, not a manifest in one file."""
    return "://" in location_text(location) or Path(location).is_dir()


def find_shards(location: str | Path) -> list[Shard]:
    """Lists the shards in a folder or under a URL, ordered by name; a single file is one shard.

    Environment variables configure an object store: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on.
    Raises FerVitError when there is no file or shard, the folder cannot be listed, or shards are
    missing.
    """
    location = location_text(location)
    if not is_sharded(location):
        return [_single_shard(location)]

    filesystem, entries = _list_files(location)
    names: dict[str, NumberedName] = {}  # by file name
    shards = []
    for entry in entries:
        name = parse_numbered_name(entry.base_name)
        if name is not None and entry.is_file:  # no pipe, from which reading could wait forever
            names[entry.base_name] = name
            url = f"{location}/{entry.base_name}"
            shards.append(Shard(name.kind, url, entry.path, filesystem))
    if not shards:
        raise FerVitError(
            f"Expected shards such as {numbered_name('train', 0, 8)} in {location}, but found "
            "none. Make them with `fer-vit prepare SOURCE ROOT FOLDER --shards 8`."
        )
    _check_all_shards(location, names)
    return shards


def _single_shard(location: str) -> Shard:
    """Returns a manifest in one file as a shard; raises FerVitError if there is no file."""
    if not Path(location).is_file():
        raise FerVitError(
            f"No manifest at {location}. Make one with `fer-vit prepare SOURCE ROOT {location}`."
        )
    filesystem = fs.LocalFileSystem(use_mmap=True)
    return Shard(split=None, location=location, path=location, filesystem=filesystem)


def _list_files(location: str) -> tuple[fs.FileSystem, list[fs.FileInfo]]:
    """Returns the filesystem of a folder or URL, and the entries ordered by name.

    Raises FerVitError if the folder or URL cannot be listed.
    """
    filesystem: fs.FileSystem = fs.LocalFileSystem(use_mmap=True)
    folder = location
    try:
        if "://" in location:
            filesystem, folder = fs.FileSystem.from_uri(location)
        entries = filesystem.get_file_info(fs.FileSelector(folder))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(
            f"Cannot list {location} ({reason}). Check its name and your access."
        ) from error
    return filesystem, sorted(entries, key=lambda entry: entry.base_name)


def _check_all_shards(location: str, names: Mapping[str, NumberedName]) -> None:
    """Raises FerVitError unless each split has as many shards as the file names state."""
    counts = Counter(name.kind for name in names.values())
    for file, name in names.items():
        if name.number >= name.total or name.total != counts[name.kind]:
            raise FerVitError(
                f"{location}: expected {name.total:,} shards as in the name {file}, but got "
                f"{counts[name.kind]:,}. Copy the whole folder of one data set again."
            )
