"""The shards of a data set: Parquet files in a folder or under an object store's URL.

Each is a manifest, named as Hugging Face `datasets` expects a split: `train-00002-of-00008.parquet`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError

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
