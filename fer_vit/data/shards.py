"""Where the shards of a data set lie: Parquet files in a folder or under an object store's URL.

Each is a manifest in itself, named as Hugging Face `datasets` recognises a split: `train-00002-of-00008.parquet`.
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
    place: str  # what to call it: its path or URL
    path: str  # in `files`
    files: fs.FileSystem

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Reads the table, or some of its columns; raises FerVitError when it is not a whole Parquet file."""
        with self._whole():
            table = pq.read_table(self.path, columns=columns, filesystem=self.files, partitioning=None)
            table.validate(full=True)  # text may be no Unicode, lists may reach beyond their values
            return table

    def footer(self) -> pq.FileMetaData:
        """Reads the number of rows and the metadata."""
        with self._whole():
            return pq.read_metadata(self.path, filesystem=self.files)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            if "://" in self.place and isinstance(error, OSError):
                raise FerVitError(f"Cannot read {self.place} ({reason}). Check its name and your access.") from error
            raise FerVitError(
                f"{self.place} is not a whole Parquet table ({reason}). Run `fer-vit prepare` again."
            ) from error


def place_name(place: str | Path) -> str:
    """Returns a path or URL as text; a `Path` has made one slash of a URL's two."""
    return re.sub(r"^(\w+):/+", r"\1://", str(place)).rstrip("/")


def is_sharded(place: str | Path) -> bool:
    """Tells a folder or URL of shards from a manifest in one file."""
    return "://" in place_name(place) or Path(place).is_dir()


def shard_name(split: str, number: int, count: int) -> str:
    """Returns a shard's file name; numbers start at 0."""
    return f"{split}-{number:05}-of-{count:05}.parquet"


def find_shards(place: str | Path) -> list[Shard]:
    """Lists the shards in a folder or under a URL in the order of their names; a single file is the only one.

    An object store is asked as its own tools would: by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on.

    Raises:
        FerVitError: There is nothing, it cannot be listed, or some shards are missing.
    """
    place, local = place_name(place), fs.LocalFileSystem(use_mmap=True)
    if not is_sharded(place):
        if not Path(place).is_file():
            raise FerVitError(f"No manifest at {place}. Make one with `fer-vit prepare SOURCE ROOT {place}`.")
        return [Shard(None, place, place, local)]
    if "://" in place and not place.startswith("s3://"):
        raise FerVitError(f"Expected a file, a folder or s3://bucket/prefix, but got {place}.")
    try:
        files, folder = fs.FileSystem.from_uri(place) if "://" in place else (local, place)
        paths = {info.base_name: info.path for info in files.get_file_info(fs.FileSelector(folder))}
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(f"Cannot list {place} ({reason}). Check its name and your access.") from error
    found = {name: match for name in sorted(paths) if (match := NAME.fullmatch(name))}
    _check_names(place, found)
    return [Shard(match[1], f"{place}/{name}", paths[name], files) for name, match in found.items()]


def _check_names(place: str, found: dict[str, re.Match[str]]) -> None:
    """Raises FerVitError unless these are the names of all shards of one data set."""
    if not found:
        raise FerVitError(
            f"Expected shards such as {shard_name('train', 0, 8)} in {place}, but found none. "
            "Make them with `fer-vit prepare SOURCE ROOT FOLDER --shards 8`."
        )
    counts = {(match[1], int(match[3])) for match in found.values()}
    if len(counts) > len({split for split, _ in counts}):
        raise FerVitError(f"{place} holds shards of more than one data set. Give each a folder of its own.")
    expected = (shard_name(split, number, count) for split, count in counts for number in range(count))
    if missing := next((name for name in expected if name not in found), None):
        raise FerVitError(f"{missing} is missing in {place}. Copy it there, or run `fer-vit prepare` again.")
