"""The plan of a large prediction: its images in parts that processes take on, each part a table of its own.

    faces/
      _plan.parquet         the images, a row group for each part
      part-00000.parquet    their rows; a part that is there is whole
      part-00001.parquet

Readers of Parquet folders leave out names that begin with an underscore. The processes talk to nobody, so that none
waits for one that died: which parts are theirs follows from their rank, and what is done from the files that are there.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, overload

import pyarrow as pa
import pyarrow.parquet as pq

from fer_vit.errors import FerVitError
from fer_vit.report.table import as_text

NAME = "_plan.parquet"


class Place(NamedTuple):
    """Where a process stands among those of one command.

    Attributes:
        rank: Its number, from 0.
        processes: How many there are.
        local_rank: Its number among those of its machine.
        local_processes: How many there are on its machine.
    """

    rank: int = 0
    processes: int = 1
    local_rank: int = 0
    local_processes: int = 1


VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),  # srun
)


def place() -> Place:
    """Returns where this process stands, as torchrun or SLURM's srun say; alone without them.

    Raises:
        FerVitError: What they say is not a rank below the number of processes.
    """
    for names in VARIABLES:
        words = [os.environ.get(name, "") for name in names]
        if words[0] and words[1]:
            numbers = [word.partition("(")[0] for word in words]  # SLURM writes 4(x2) for two machines of four
            if not all(word.isdecimal() for word in numbers if word) or int(numbers[0]) >= int(numbers[1]):
                raise FerVitError(
                    f"Expected a rank below the number of processes, but got {names[0]}={words[0]} and "
                    f"{names[1]}={words[1]}."
                )
            return Place(int(numbers[0]), int(numbers[1]), int(numbers[2] or 0), int(numbers[3] or 1))
    return Place()


class Plan(Sequence[Path]):
    """Images of a plan, read part by part as they are asked for.

    Args:
        folder: Where the plan is.
        parts: The parts whose images these are, in order; None: all.

    Attributes:
        folder: Where it is.
        settings: What the prediction was begun with.
        parts: Numbers of the parts.
    """

    def __init__(self, folder: Path, parts: Sequence[int] | None = None) -> None:
        self.folder = folder
        with pq.ParquetFile(folder / NAME) as file:
            meta = file.metadata
            self.settings: dict[str, Any] = json.loads(file.schema_arrow.metadata[b"fer_vit"])
            self.parts = range(meta.num_row_groups) if parts is None else parts
            self.part_size: int = meta.row_group(0).num_rows
            self._length: int = sum(meta.row_group(part).num_rows for part in self.parts)
        self._read: tuple[int, list[Path]] = (-1, [])

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
        part, rest = divmod(index, self.part_size)
        if self._read[0] != part:
            self._read = part, self.images(self.parts[part])
        return self._read[1][rest]

    def images(self, part: int) -> list[Path]:
        """Returns the images of a part."""
        with pq.ParquetFile(self.folder / NAME) as file:
            return [Path(os.fsdecode(name)) for name in file.read_row_group(part)["path"].to_pylist()]

    def table(self, part: int) -> Path:
        """Returns the place of a part's table."""
        return self.folder / f"part-{part:05d}.parquet"

    def missing(self) -> list[int]:
        """Returns the parts that are still to be done."""
        there = {entry.name for entry in os.scandir(self.folder)}
        return [part for part in self.parts if self.table(part).name not in there]

    def check(self, part: int) -> tuple[int, int]:
        """Counts a part's images and faces, after a look whether each image has its rows once and in order.

        Raises:
            FerVitError: It has not.
        """
        file, images = self.table(part), self.images(part)
        try:
            rows = pq.read_table(file, columns=["path", "face"], partitioning=None)
        except (pa.ArrowException, OSError) as error:
            raise FerVitError(f"{file} cannot be read. Remove it and run the same command again.") from error
        pairs = zip(rows["path"].to_pylist(), rows["face"].to_pylist(), strict=True)
        seen = [(path, [face for _, face in found]) for path, found in groupby(pairs, itemgetter(0))]
        names = [as_text(str(image)) for image in images]
        numbered = all(faces in ([None], list(range(len(faces)))) for _, faces in seen)
        if [path for path, _ in seen] != names or not numbered:
            raise FerVitError(
                f"Expected the rows of {len(images):,} images in {file}, each once and in the plan's order, but got "
                f"{len(rows):,} rows of {len(seen):,} images. Remove that file and run the same command again."
            )
        return len(images), len(rows) - rows["face"].null_count


def begin(folder: Path, images: Iterable[Path], part_size: int, settings: dict[str, Any], rank: int) -> Plan:
    """Opens the plan in a folder; the first process makes it where there is none, the others wait for it.

    Args:
        folder: Where the plan and the tables are kept.
        images: What to cut up, read only if there is no plan yet.
        part_size: Images of a part.
        settings: What the prediction depends on, as JSON has it.
        rank: Of this process.

    Raises:
        FerVitError: The folder was begun with other settings, holds something else, or cannot be written.
    """
    path = folder / NAME
    if not path.exists():
        if rank == 0:
            _write(path, images, part_size, settings)
        else:
            print(f"Process {rank} waits for process 0 to list the images in {path}.", flush=True)
            while not path.exists():
                time.sleep(1)
    plan = Plan(folder)
    for name, value in settings.items():
        if plan.settings.get(name) != value:
            raise FerVitError(
                f"{folder} was begun with {name} {plan.settings.get(name)}, but now it is {value}. "
                "Go on with the same, or choose another folder."
            )
    return plan


def _write(path: Path, images: Iterable[Path], part_size: int, settings: dict[str, Any]) -> None:
    """Writes a plan beside its place and renames it when it is whole."""
    schema = pa.schema([("path", pa.binary())]).with_metadata(
        {"fer_vit": json.dumps(settings)}
    )  # names may be no Unicode
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    listed = iter(images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if any(not other.name.startswith(".") for other in path.parent.iterdir()):
            raise FerVitError(
                f"Expected a new folder or one that `predict` began, but {path.parent} holds other things."
            )
        with pq.ParquetWriter(half, schema, compression="zstd") as writer:
            while part := [os.fsencode(image) for image in islice(listed, part_size)]:
                writer.write_table(pa.table([part], schema=schema), row_group_size=part_size)
        half.replace(path)
    except OSError as error:
        raise FerVitError(f"Cannot write {path}: {error.strerror}. Choose a folder you may write.") from error
    finally:
        half.unlink(missing_ok=True)
