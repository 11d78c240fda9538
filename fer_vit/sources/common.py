"""Shared by the sources: held-out splits, text tables, zips, and errors that name file and line."""

import csv
import os
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EINVAL
from pathlib import Path

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError, short
from fer_vit.files import scratch_folder

PERSON = "person"
"""The column with the identity, in data sets that have it."""


def hold_out(reading: Reading, splits: tuple[Split, ...] = ("val",)) -> Reading:
    """Moves a tenth of every class of the training images into each of `splits`; of known persons, a tenth of them.

    The CRC-32 of the name of the image or person decides, so the choice is the same on every machine. A small class
    gives one image as long as train keeps one. Rows keep their order; a note reports the change.
    """
    classes: dict[str | None, set[str]] = defaultdict(set)
    for row in reading.rows:
        if row.split == "train":
            classes[None if PERSON in row.extra else row.label].add(_unit(row))
    moved: dict[str, Split] = {}
    for units in classes.values():
        names = sorted(units, key=lambda name: (zlib.crc32(os.fsencode(name)), name))
        tenth = min(max(1, round(len(names) / 10)), (len(names) - 1) // len(splits))
        for i, split in enumerate(splits):
            moved |= dict.fromkeys(names[i * tenth : (i + 1) * tenth], split)
    if not classes:
        return reading
    rows = [replace(row, split=moved.get(_unit(row), "train")) if row.split == "train" else row for row in reading.rows]
    what = "the persons" if PERSON in reading.extra else "every class"
    held_out = f"A fixed tenth of {what} of train is held out as {', another as '.join(splits)}"
    return replace(reading, rows=rows, notes=[*reading.notes, f"{held_out}: choose the model by val, read test once."])


def _unit(row: Row) -> str:
    """Returns what is held out as a whole: the person if known, else the image."""
    return row.extra.get(PERSON, row.name)


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields line number (from 1) and cells of every line of a comma-separated file that is not blank.

    Raises FerVitError when the file is malformed, for example because a quote is never closed.
    """
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.reader(file)
        try:
            for cells in table:
                if cells:
                    yield table.line_num, cells
        except csv.Error as error:
            raise bad_line(path, table.line_num, "comma-separated values", str(error)) from error


def read_table(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line number and cells by lower-case column of a comma-separated file with a header.

    Raises FerVitError when a column is missing, a line has another number of cells than the header, or as for
    `read_csv`.
    """
    lines = read_csv(path)
    line, header = next(lines, (1, []))
    names = [cell.strip().lower() for cell in header]
    if not {column.lower() for column in columns} <= set(names):
        raise bad_line(path, line, f"the columns {', '.join(columns)}", ",".join(header))
    for line, cells in lines:
        if len(cells) != len(names):
            raise bad_line(path, line, f"{len(names)} columns", ",".join(cells))
        yield line, dict(zip(names, map(str.strip, cells), strict=True))


def bad_line(path: Path, line: int, expected: str, came: str) -> FerVitError:
    """Returns the error for an invalid line of a table."""
    came = f"`{short(came)}`"
    return FerVitError(f"{path}, line {line}: expected {expected}, but got {came}. Restore the file as distributed.")


def not_found(root: Path, expected: str) -> FerVitError:
    """Returns the error for a root without the data set, with the content of the root."""
    came = "no such folder"
    if root.is_file():
        came = "a file"
    elif root.is_dir():
        names = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
        came = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "an empty folder"
    return FerVitError(f"Expected {expected} in {root}, but got {came}. See data/README.md for the layout.")


def is_zip(path: Path) -> bool:
    """Returns whether a path names a zip."""
    return path.suffix.lower() == ".zip"


@contextmanager
def unpacked(archive: Path, out: Path) -> Iterator[Path]:
    """Unpacks a zip into a hidden folder beside `out` that is removed afterwards; yields a folder unchanged.

    Messages name the zip instead of the hidden folder. zipfile strips roots, drives and `..` from names, writes links
    as files, and reads no more of an entry than its header declares. Raises FerVitError when the zip is damaged,
    compressed in an unusual way, or does not fit on the disk.
    """
    if not is_zip(archive):
        yield archive
        return
    with scratch_folder(out) as scratch:
        folder = scratch / "zip"  # `fer_vit.files` uses other names in there
        folder.mkdir()
        _extract(archive, folder, out)
        # A zip of a folder usually contains the folder rather than its contents; macOS adds __MACOSX.
        inner = [
            path for path in folder.glob("[!.]*") if path.name != "__MACOSX" and (path.is_dir() or path.name[0] != "_")
        ]
        try:
            yield inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
        except FerVitError as error:
            raise FerVitError(str(error).replace(str(folder), str(archive))) from error


def _open_zip(archive: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(archive, metadata_encoding="utf-8")  # macOS writes UTF-8 without zip's flag for it
    except UnicodeDecodeError:
        return zipfile.ZipFile(archive)


def _extract(archive: Path, folder: Path, out: Path) -> None:
    try:
        with _open_zip(archive) as file:
            entries = file.infolist()
            # A few bytes of bzip2 can fill all memory at once
            if {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise FerVitError(f"Expected a zip that uses deflate, but {archive} does not. Unpack it first.")
            size, free = sum(entry.file_size for entry in entries), shutil.disk_usage(folder).free
            if size > free:
                raise FerVitError(
                    f"Expected room for the {size:,} bytes in {archive}, but there are {free:,} beside {out}. "
                    "Choose another folder."
                )
            file.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != EINVAL:  # from a damaged zip: a seek before its start
            raise
        raise FerVitError(f"Expected a complete zip at {archive}, but got: {error}. Fetch it again.") from error
