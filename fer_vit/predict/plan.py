"""The plan of a large prediction: its images in parts, each of which becomes a table beside it.

The processes talk to nobody, so that none waits for one that died: which parts are theirs follows from their rank, and
what is done from the files that are there, since a table that is there is whole.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from textwrap import shorten
from typing import Any, overload

import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError
from fer_vit.files import as_text, atomic_write, remove_stale

NAME = "_plan.parquet"
"""A row group for each part. Readers of Parquet folders leave out names that begin with an underscore."""
MAX_PART_SIZE = 10_000_000
"""Images of a part, at most: their names are in memory."""
PATIENCE = 600
"""Seconds that a process waits without a sign of the first one."""


class Plan(Sequence[Path]):
    """Images of a plan, read part by part as they are asked for.

    Args:
        folder: Where the plan is.
        parts: The parts whose images these are, in order; None: all.

    Attributes:
        settings: What the prediction was begun with.
        sizes: Images of every part of the plan.

    Raises:
        FerVitError: There is something else in the plan's place, or the plan is broken.
    """

    def __init__(self, folder: Path, parts: Sequence[int] | None = None) -> None:
        self.folder = folder
        with self._opened() as file:
            groups = range(file.metadata.num_row_groups)
            self.sizes: list[int] = [file.metadata.row_group(part).num_rows for part in groups]
            self.settings: dict[str, Any] = json.loads(file.schema_arrow.metadata[b"fer_vit"])
            if any(size != self.sizes[0] for size in self.sizes[:-1]):
                raise ValueError("parts of different sizes")
        self.parts = groups if parts is None else parts
        self._length = sum(self.sizes[part] for part in self.parts)
        self._part: tuple[int, list[Path]] = (-1, [])

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        """Returns an image; every part but the last one of a plan has as many."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        part, rest = divmod(index, self.sizes[0])
        if self._part[0] != part:
            self._part = part, self.images(self.parts[part])
        return self._part[1][rest]

    def images(self, part: int) -> list[Path]:
        """Returns the images of a part."""
        with self._opened() as file:
            images = [Path(os.fsdecode(name)) for name in file.read_row_group(part)["path"].to_pylist()]
            if len(images) != self.sizes[part]:
                raise ValueError("images are missing")
            return images

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Yields the plan's file; whatever is wrong with it is one error."""
        try:
            with pq.ParquetFile(self.folder / NAME) as file:
                yield file
        except (pa.ArrowException, OSError, TypeError, KeyError, ValueError) as error:
            place = self.folder / NAME
            raise FerVitError(f"{place} is no plan of `predict`, or is broken. Choose another folder.") from error

    def table(self, part: int) -> Path:
        """Returns the place of a part's table."""
        return self.folder / f"part-{part:05d}.parquet"

    def missing(self) -> list[int]:
        """Returns the parts that are still to be done."""
        there = {entry.name for entry in os.scandir(self.folder)}
        return [part for part in self.parts if self.table(part).name not in there]

    def check(self, part: int) -> tuple[Counter[str], int]:
        """Returns a part's images by status and its number of faces.

        Raises:
            FerVitError: Its table cannot be read, or an image does not have its rows there once and in order.
        """
        file, names = self.table(part), [as_text(str(image)) for image in self.images(part)]
        try:
            table = pq.read_table(file, columns=["path", "face", "status"], partitioning=None)
        except (pa.ArrowException, OSError) as error:
            raise FerVitError(f"{file} cannot be read. Remove it and run the same command again.") from error
        rows = zip(*table.to_pydict().values(), strict=True)
        photos = [list(found) for _, found in groupby(rows, itemgetter(0))]
        faces = [[face for _, face, _ in found] for found in photos]
        if [found[0][0] for found in photos] != names or any(row not in ([None], [*range(len(row))]) for row in faces):
            raise FerVitError(
                f"Expected the rows of {len(names):,} images in {file}, each once and in the plan's order, but got "
                f"{table.num_rows:,} rows of {len(photos):,} images. Remove that file and run the same command again."
            )
        return Counter(found[0][2] for found in photos), sum(face is not None for row in faces for face in row)


def open_or_create(folder: Path, images: Iterable[Path], part_size: int, settings: dict[str, Any], rank: int) -> Plan:
    """Opens the plan in a folder; the first process makes it where there is none, the others wait for it.

    `images` are read only if there is no plan yet; `settings` are what the tables depend on, as JSON has it.

    Raises:
        FerVitError: The folder was begun with other settings, holds something else, or cannot be written.
    """
    path = folder / NAME
    if not path.exists() and rank == 0:
        _write(path, images, part_size, settings)
    elif not path.exists():
        _wait(path, rank)
    plan = Plan(folder)
    for name, value in settings.items():
        if (theirs := plan.settings.get(name)) != value:
            begun, now = (shorten(str(words), 100) for words in (theirs, value))
            raise FerVitError(
                f"{folder} was begun with {name} {begun}, but now it is {now}. Go on with the same, or choose another "
                "folder."
            )
    return plan


def _wait(path: Path, rank: int) -> None:
    """Waits for the plan while the first process shows signs of life: the file that it fills."""
    print(f"Process {rank} waits for process 0 to list the images in {path}.", flush=True)
    sign, since = None, time.monotonic()
    while not path.exists():
        with suppress(OSError):  # there is no folder yet, or a file is renamed just now
            if (newest := [entry.stat().st_size for entry in path.parent.rglob("*")]) != sign:
                sign, since = newest, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            raise FerVitError(
                f"Process 0 did not list the images in {path} and shows no sign of life. Start it (RANK=0) with the "
                "same command, and then this one again."
            )
        time.sleep(1)


def _write(path: Path, images: Iterable[Path], part_size: int, settings: dict[str, Any]) -> None:
    """Writes a plan, which is there when it is whole."""
    folder, listed = path.parent, iter(images)
    # Names need not be Unicode
    schema = pa.schema([("path", pa.binary())]).with_metadata({"fer_vit": json.dumps(settings)})
    if folder.is_dir() and any(not other.name.startswith(".") for other in folder.iterdir()):
        raise FerVitError(f"Expected a new folder or one that `predict` began, but {folder} holds other things.")
    remove_stale(path)
    with atomic_write(path) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
        while names := [os.fsencode(image) for image in islice(listed, part_size)]:
            writer.write_table(pa.table([names], schema=schema), row_group_size=part_size)
