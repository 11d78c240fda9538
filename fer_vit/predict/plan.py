"""A folder of tables that several processes write: each has a chunk of the images, and a video is a chunk.

Processes do not communicate, so none waits for a dead one. Each lists the images itself and takes the chunks of its
rank. Tables appear when they are complete, so a missing table is work to do.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from fer_vit.data.schema import shard_name
from fer_vit.errors import FerVitError, short
from fer_vit.files import as_text
from fer_vit.predict.photos import is_video
from fer_vit.report.table import FACTS

NAME = re.compile(r"part-(\d{5,})-of-(\d{5,})\.parquet")
REMEDY = "Repeat the first command with the same images and options, or choose another folder."
Checked: TypeAlias = tuple[Counter[str], int]  # a table's images by status, and its number of faces
Row: TypeAlias = tuple[str, int | None, int | None, str]  # path, frame, face and status


def plan_tables(folder: Path, images: Sequence[Path], part_size: int) -> dict[Path, list[Path]]:
    """Returns the images of each table that a folder will have."""
    chunks = []
    for video, run in groupby(images, is_video):
        while chunk := list(islice(run, 1 if video else part_size)):
            chunks.append(chunk)
    return {folder / shard_name("part", index, len(chunks)): chunk for index, chunk in enumerate(chunks)}


def find_tables(folder: Path) -> tuple[list[Path], int]:
    """Returns the existing tables of a folder in order, and how many are missing: each name has the total number."""
    names = map(NAME.fullmatch, os.listdir(folder) if folder.is_dir() else [])
    tables = {(int(name[2]), int(name[1])): folder / name[0] for name in names if name}
    number = max(tables, default=(0, 0))[0]
    found = [tables[key] for key in sorted(tables) if key[0] == number > key[1]]
    return found, number - len(found)


def check_tables(plan: Mapping[Path, Sequence[Path]], facts: Mapping[str, str], checked: dict[Path, Checked]) -> None:
    """Checks the existing tables of a plan that are not in `checked`, and adds them.

    Raises FerVitError when the folder contains other files, or a table cannot be read, has other facts, or does not
    contain the rows of each of its images once and in order.
    """
    tables = [*plan]
    folder = tables[0].parent
    found = {name for name in os.listdir(folder) if not name.startswith(".")} if folder.is_dir() else set()
    if other := found - {table.name for table in plan}:
        expected = f"a new folder or one with the tables {tables[0].name} to {tables[-1].name}"
        raise FerVitError(f"Expected {expected}, but {folder} contains {min(other)}. {REMEDY}")
    new = [table for table in plan if table.name in found and table not in checked]
    for table in tqdm(new, desc="checking", unit=" tables", disable=None, leave=False):
        checked[table] = _check_rows(_read_rows(table, facts), plan[table], table)


def _check_rows(rows: Sequence[Row], images: Sequence[Path], table: Path) -> Checked:
    photos = [list(group) for _, group in groupby(rows, itemgetter(0, 1))]
    faces = [[face for _, _, face, _ in photo] for photo in photos]
    paths = [path for path, _ in groupby(photo[0][0] for photo in photos)]
    names = [as_text(str(image)) for image in images]
    if paths != names or any(row not in ([None], [*range(len(row))]) for row in faces):
        expected = f"the rows of {len(names):,} images from {short(names[0])} on, each once and in order"
        raise FerVitError(f"Expected {expected}, in {table}, but it contains others. {REMEDY}")
    return Counter(photo[0][3] for photo in photos), len(rows) - faces.count([None])


def _read_rows(table: Path, facts: Mapping[str, str]) -> list[Row]:
    """Returns the rows of a table; raises FerVitError when the table has other facts."""
    try:
        schema = pq.read_schema(table)
        before = dict(json.loads(schema.metadata[FACTS.encode()]))
        columns = [name for name in ("path", "face", "status", "frame") if name in schema.names]
        cells = pq.read_table(table, columns=columns, partitioning=None).to_pydict()
        frames = cells.get("frame", [None] * len(cells["path"]))
        rows = list(zip(cells["path"], frames, cells["face"], cells["status"], strict=True))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise FerVitError(f"{table} cannot be read. Remove it and run the same command again.") from error
    for name in {**before, **facts}:
        if (old := before.get(name)) != (new := facts.get(name)):
            raise FerVitError(f"{table} was written with {name} {short(old)}, but now it is {short(new)}. {REMEDY}")
    return rows


def read_frames(table: Path) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of each image or frame in a table."""
    with pq.ParquetFile(table) as file:
        rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(1000))
        yield from (list(group) for _, group in groupby(rows, itemgetter("path", "frame")))
