"""The plan of a large prediction: images in chunks, one table per chunk; a video is a chunk.

Processes do not communicate, so none waits for a dead one. Chunks are assigned by rank. Tables appear when they are
complete, so a missing table is work to do.
"""

import json
import os
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from textwrap import shorten
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError
from fer_vit.files import as_text, atomic_write, remove_stale
from fer_vit.predict.photos import is_video

NAME = "_plan.parquet"
"""Has one row group per chunk. Readers of Parquet folders skip names with a leading underscore."""
MAX_PART_SIZE = 10_000_000
"""Most images per chunk: their names are held in memory."""
PATIENCE = 600
"""Seconds that a process waits while process 0 writes nothing."""


class Plan(Sequence[Path]):
    """The images of a plan, read chunk by chunk when needed.

    Args:
        folder: Folder of the plan.
        chunks: The selected chunks, in order. None: all.

    Attributes:
        settings: The options of the prediction.
        sizes: Number of images in each chunk of the plan.

    Raises:
        FerVitError: The file is not a plan, or is damaged.
    """

    def __init__(self, folder: Path, chunks: Sequence[int] | None = None) -> None:
        self.folder = folder
        with self._opened() as file:
            groups = range(file.metadata.num_row_groups)
            self.sizes: list[int] = [file.metadata.row_group(chunk).num_rows for chunk in groups]
            self.settings: dict[str, Any] = json.loads(file.schema_arrow.metadata[b"fer_vit"])
        self.chunks = groups if chunks is None else chunks
        self._ends = list(accumulate(self.sizes[chunk] for chunk in self.chunks))
        self._chunk: tuple[int, list[Path]] = (-1, [])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Path:  # type: ignore[override]  # slices are not needed
        """Returns an image."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        chunk = bisect(self._ends, index)
        if self._chunk[0] != chunk:
            self._chunk = chunk, self.images(self.chunks[chunk])
        return self._chunk[1][index - self._ends[chunk]]  # counted from the chunk's end

    def images(self, chunk: int) -> list[Path]:
        """Returns the images of a chunk."""
        with self._opened() as file:
            images = [Path(os.fsdecode(name)) for name in file.read_row_group(chunk)["path"].to_pylist()]
            if len(images) != self.sizes[chunk]:
                raise ValueError("images are missing")
            return images

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Yields the plan's file; turns its errors into a FerVitError."""
        try:
            with pq.ParquetFile(self.folder / NAME) as file:
                yield file
        except (pa.ArrowException, OSError, TypeError, KeyError, ValueError) as error:
            path = self.folder / NAME
            raise FerVitError(f"{path} is not a plan of `predict`, or is damaged. Choose another folder.") from error

    def table(self, chunk: int) -> Path:
        """Returns the path of a chunk's table."""
        return self.folder / f"part-{chunk:05d}.parquet"

    def missing(self) -> list[int]:
        """Returns the chunks without a table."""
        existing = {entry.name for entry in os.scandir(self.folder)}
        return [chunk for chunk in self.chunks if self.table(chunk).name not in existing]

    def frames(self, chunk: int) -> Iterator[list[dict[str, Any]]]:
        """Yields the rows of each image or frame in a chunk's table."""
        with pq.ParquetFile(self.table(chunk)) as file:
            rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(1000))
            yield from (list(group) for _, group in groupby(rows, itemgetter("path", "frame")))

    def check(self, chunk: int) -> tuple[Counter[str], int]:
        """Returns a chunk's images by status and its number of faces.

        Raises:
            FerVitError: Its table cannot be read, or does not contain the rows of each image once and in order.
        """
        file, names = self.table(chunk), [as_text(str(image)) for image in self.images(chunk)]
        try:
            has = pq.read_schema(file).names
            columns = ["path", "frame", "face", "status"] if "frame" in has else ["path", "face", "status"]
            table = pq.read_table(file, columns=columns, partitioning=None).to_pydict()
        except (pa.ArrowException, OSError) as error:
            raise FerVitError(f"{file} cannot be read. Remove it and run the same command again.") from error
        table.setdefault("frame", [None] * len(table["path"]))
        rows = zip(*(table[name] for name in ("path", "frame", "face", "status")), strict=True)
        photos = [list(group) for _, group in groupby(rows, itemgetter(0, 1))]
        faces = [[face for _, _, face, _ in photo] for photo in photos]
        paths = [path for path, _ in groupby(photo[0][0] for photo in photos)]
        if paths != names or any(row not in ([None], [*range(len(row))]) for row in faces):
            raise FerVitError(
                f"Expected the rows of {len(names):,} images in {file}, each once and in the plan's order, but got "
                f"{len(table['path']):,} rows of {len(photos):,} images. Remove that file and run the same command "
                "again."
            )
        return Counter(photo[0][3] for photo in photos), sum(face is not None for row in faces for face in row)


def open_or_create(folder: Path, images: Iterable[Path], part_size: int, settings: dict[str, Any], rank: int) -> Plan:
    """Opens the plan in a folder. If there is none, process 0 writes it and the others wait.

    Only a new plan reads `images`. `settings` are the options that affect the tables, as JSON values.

    Raises:
        FerVitError: The folder was started with other settings, contains other files, or cannot be written.
    """
    path = folder / NAME
    if not path.exists() and rank == 0:
        _write(path, images, part_size, settings)
    elif not path.exists():
        _wait(path, rank)
    plan = Plan(folder)
    directory = plan.settings.get("directory")
    settings = settings | {"directory": directory}
    for name in {**plan.settings, **settings}:
        if (old := plan.settings.get(name)) != (new := settings.get(name)):
            before, now = (shorten(str(value), 100) for value in (old, new))
            raise FerVitError(
                f"{folder} was started with {name} {before}, but now it is {now}. Use the same, or choose another "
                "folder."
            )
    if directory not in (None, os.getcwd()):
        raise FerVitError(f"{folder} was started in {directory}, and names images from there. Run the command there.")
    return plan


def _wait(path: Path, rank: int) -> None:
    """Waits for the plan as long as the file that process 0 writes grows."""
    print(f"Process {rank} waits for process 0 to list the images in {path}.", flush=True)
    sizes, since = None, time.monotonic()
    while not path.exists():
        with suppress(OSError):  # the folder does not exist yet, or a file is being renamed
            if (newest := [entry.stat().st_size for entry in path.parent.rglob("*")]) != sizes:
                sizes, since = newest, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            raise FerVitError(
                f"Process 0 did not list the images in {path} and writes nothing. Start it (RANK=0) with the same "
                "command, and then this process again."
            )
        time.sleep(1)


def _write(path: Path, images: Iterable[Path], part_size: int, settings: dict[str, Any]) -> None:
    """Writes a plan atomically."""
    folder = path.parent
    # File names need not be Unicode
    schema = pa.schema([("path", pa.binary())]).with_metadata({"fer_vit": json.dumps(settings)})
    if folder.is_dir() and any(not other.name.startswith(".") for other in folder.iterdir()):
        raise FerVitError(f"Expected a new folder or one that `predict` started, but {folder} contains other files.")
    remove_stale(path)
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for video, run in groupby(images, is_video):
            while names := [os.fsencode(image) for image in islice(run, 1 if video else part_size)]:
                writer.write_table(pa.table([names], schema=schema), row_group_size=part_size)
