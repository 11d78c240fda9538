"""The verb `prepare`: a data set as its owners distribute it becomes a manifest."""

import importlib
import inspect
import multiprocessing
import os
import re
import shutil
import signal
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from errno import EINVAL
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Literal

import cv2
from tqdm import tqdm

from fer_vit.data.manifest import SPLITS, Reading, Row, check_images, check_shards, write_manifest, write_shards
from fer_vit.data.photos import cores
from fer_vit.data.shards import INDEX, NAME
from fer_vit.errors import FerVitError
from fer_vit.face.detect import CROP_SCORE, Detector, YuNet, detect_in_crop
from fer_vit.face.image import ImageError, decode_image, one_thread, read_image
from fer_vit.files import hidden, remove_left
from fer_vit.labels import check_labels

OPTION_OF = {
    "labels": "ferplus",
    "classes": "affectnet",
    "count": "drawn",
    "size": "drawn",
    "colour": "drawn",
    "seed": "drawn",
}
"""The source that each source's option belongs to."""

CHUNK = 100
"""Images that a worker is handed at once."""


def prepare(
    source: Literal["ferplus", "fer2013", "rafdb", "affectnet", "folder", "drawn"],
    root: Path,
    out: Path,
    *,
    detector: Literal["yunet", "none"] = "yunet",
    labels: Literal["majority", "soft"] | None = None,
    classes: Literal[7, 8] | None = None,
    count: int | None = None,
    size: int | None = None,
    colour: bool | None = None,
    seed: int | None = None,
    embed: Literal["auto", "always", "never"] = "auto",
    shards: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Makes a manifest (one Parquet table) of a data set as its owners distribute it, with landmarks for every face.

    Examples:
        fer-vit prepare ferplus data/ferplus data/ferplus.parquet --labels soft

        fer-vit prepare folder photos.zip data/photos.parquet

        fer-vit prepare drawn data/drawn data/drawn.parquet --count 2000

        fer-vit prepare affectnet data/affectnet data/affectnet_shards --shards 64

    Args:
        source: The data set.
        root: Its folder, or a zip of it. For drawn: the new folder to draw into.
        out: The manifest to write, `*.parquet`; with `--shards` a folder.
        detector: Finds the landmarks of images that come without; `none` leaves them out.
        labels: For ferplus: one winner per training image (`majority`) or shares of votes (`soft`).
        classes: For affectnet: 8, or 7 without contempt.
        count: For drawn: how many faces.
        size: For drawn: the images' side in pixels.
        colour: For drawn: in colour rather than grey.
        seed: For drawn: the same seed draws the same faces.
        embed: Whether images are kept inside the manifest: small ones (`auto`), all, or none. Those that are not must
            lie below the manifest's folder.
        shards: Write a folder of so many Parquet files of training images, to be streamed by `fit`; images are inside.
        workers: Processes that read images; all cores when left out.
        overwrite: Whether an existing manifest may be replaced.

    Raises:
        FerVitError: The data set is not there or not as expected, or the manifest cannot be written.
    """
    given = {"labels": labels, "classes": classes, "count": count, "size": size, "colour": colour, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None}
    read = importlib.import_module(f"fer_vit.sources.{source}").read
    for name in options.keys() - inspect.signature(read).parameters.keys():
        raise FerVitError(f"`--{name}` belongs to the source {OPTION_OF[name]}, not to {source}. Leave it out.")
    zipped = root.suffix.lower() == ".zip"
    if workers is not None and workers < 1:
        raise FerVitError(f"Expected one worker or more, but got {workers}.")
    if shards is not None and shards < 1:
        raise FerVitError(f"Expected one shard or more, but got {shards}.")
    if shards is not None and embed == "never":
        raise FerVitError("Shards hold their images: leave out `--embed never`.")
    one_file = zipped or (source == "fer2013" and root.suffix.lower() == ".csv")
    if source != "drawn" and not (root.is_file() if one_file else root.is_dir()):
        raise FerVitError(f"Expected the data set {source} in a folder or zip, but there is none at {root}.")
    if zipped and embed == "never":
        raise FerVitError(
            "Expected `--embed auto` or `always` for a zip, but got `never`. Unpack the zip to point to it."
        )
    embed = "always" if zipped else embed
    _check_out(out, overwrite, folder=shards is not None)
    with _unpacked(root, out) if zipped else nullcontext(root) as folder:
        reading = read(folder, **options)
        reading.notes = [note.replace(str(folder), str(root)) for note in reading.notes]
        check_labels(reading.names, root)
        if shards is not None:
            check_shards(reading, shards)
        else:
            check_images(reading, out.parent, embed)
        missing = detector == "yunet" and any(row.landmarks is None for row in reading.rows)
        reading = add_landmarks(reading, YuNet(min_score=CROP_SCORE) if missing else None, workers)
        if not reading.rows:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in reading.dropped.most_common())
            raise FerVitError(f"Expected images in {root}, but none can be used ({reasons}).")
        if shards is None:
            write_manifest(out, reading, source, embed)
        else:
            write_shards(out, reading, source, shards)
    print(summary(reading, out))


def add_landmarks(reading: Reading, detector: Detector | None, workers: int | None = None) -> Reading:
    """Reads every image once: the unreadable ones are dropped, and landmarks are found where a row has none.

    Args:
        reading: What a source found; stays as it is.
        detector: Finds the faces, or None to read the images only.
        workers: Processes; all cores when left out.

    Returns:
        The rows in their order. Where no face was found, landmarks stay None.
    """
    chunks = [reading.rows[start : start + CHUNK] for start in range(0, len(reading.rows), CHUNK)]
    processes = min(workers or cores(), len(chunks))
    rows: list[Row] = []
    dropped = Counter(reading.dropped)
    with (
        _parallel(processes) as mapped,
        tqdm(total=len(reading.rows), desc="reading images", unit="images", disable=None) as bar,
    ):
        for looked in mapped(partial(_look, detector), chunks):
            rows += [row for row in looked if isinstance(row, Row)]
            dropped.update(reason for reason in looked if isinstance(reason, str))
            bar.update(len(looked))
    return replace(reading, rows=rows, dropped=dropped)


@contextmanager
def _parallel(processes: int) -> Iterator[Callable[..., Iterator[list[Row | str]]]]:
    """Yields a `map` that keeps the order and computes in worker processes where there is more than one to do."""
    if processes <= 1:
        yield map
        return
    # A forked process may inherit locks that other threads hold, so the workers start clean.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_worker)
    try:
        yield pool.map
    except BrokenProcessPool as error:
        raise FerVitError("A worker process died, perhaps for lack of memory. Try fewer `--workers`.") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends the workers
    one_thread()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the summary counts what cannot be read
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose main process was killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _look(detector: Detector | None, rows: list[Row]) -> list[Row | str]:
    """Returns each row with its landmarks, or the reason why its image cannot be read."""
    looked: list[Row | str] = []
    for row in rows:
        try:
            image = decode_image(row.image) if isinstance(row.image, bytes) else read_image(row.image)
            face = detect_in_crop(detector, image) if detector and row.landmarks is None else None
        except ImageError as error:
            looked.append(str(error).partition(":")[0])  # by which they are counted
            continue
        except (cv2.error, MemoryError):  # by an image of an odd shape, or a huge one
            looked.append("the image cannot be processed")
            continue
        looked.append(replace(row, landmarks=face.landmarks, score=face.score) if face else row)
    return looked


def summary(reading: Reading, out: Path) -> str:
    """Returns what a manifest holds in lines of text: images by split and class, faces found, what was left out."""
    counts = Counter((row.split, row.label) for row in reading.rows)
    names = [*reading.names, *([None] if any(row.label is None for row in reading.rows) else [])]
    splits = [split for split in SPLITS if any(row.split == split for row in reading.rows)]
    table = [["", *splits, "total"]]
    for name in names:
        row = [counts[split, name] for split in splits]
        table.append([name or "(no label)", *(f"{n:,}" for n in (*row, sum(row)))])
    totals = [sum(counts[split, name] for name in names) for split in splits]
    table.append(["total", *(f"{n:,}" for n in (*totals, sum(totals)))])
    width = max(len(line[0]) for line in table)
    lines = [f"{line[0]:<{width}}" + "".join(f"{cell:>10}" for cell in line[1:]) for line in table]
    found = sum(row.landmarks is not None for row in reading.rows)
    lines.append(f"faces found: {found:,} of {len(reading.rows):,} ({found / max(len(reading.rows), 1):.2%})")
    lines += [f"left out: {number:,} ({reason})" for reason, number in reading.dropped.most_common()]
    lines += [f"note: {note}" for note in reading.notes]
    files = list(out.iterdir()) if out.is_dir() else [out]
    size = sum(file.stat().st_size for file in files)
    lines.append(f"{out}: {len(reading.rows):,} rows, {size / 1e6:.1f} MB")
    return "\n".join(lines)


def _check_out(out: Path, overwrite: bool, folder: bool = False) -> None:
    """Raises FerVitError when a manifest or folder of shards could not be written, before hours of work, not after."""
    if not folder and out.suffix != ".parquet":
        raise FerVitError(f"Expected a file name that ends in .parquet, but got {out}.")
    if not folder and out.is_dir():
        raise FerVitError(f"Expected the name of a manifest, but {out} is a folder. Name a file in it.")
    if re.match(r"\w+:/", str(out)):
        raise FerVitError(f"Expected a place on this machine, but got {out}. Copy the folder there afterwards.")
    taken = out.is_symlink() or (out.exists() and not _holds_shards(out))
    if folder and (out.suffix == ".parquet" or not out.name or taken):
        raise FerVitError(f"Expected the name of a new folder for shards, but got {out}. Choose another name.")
    if out.exists() and not overwrite:
        raise FerVitError(f"{out} exists already. Choose another name or add `--overwrite`.")
    remove_left(out)
    with hidden(out):
        return


def _holds_shards(folder: Path) -> bool:
    """Tells whether nothing but shards would be lost with a folder."""
    return folder.is_dir() and all(path.name == INDEX or NAME.fullmatch(path.name) for path in folder.iterdir())


@contextmanager
def _unpacked(archive: Path, out: Path) -> Iterator[Path]:
    """Unpacks a zip into a hidden folder beside `out` that is gone afterwards; messages name the zip in its place.

    zipfile leaves roots, drives and `..` out of names, writes links as files, and reads no more of an entry than its
    header says, so that the sizes that a zip claims are the most that it can fill.
    """
    with hidden(out) as part:
        folder = part / "zip"  # away from what `files` itself keeps there
        folder.mkdir()
        try:
            with zipfile.ZipFile(archive) as file:
                entries = file.infolist()
                # Few bytes of bzip2 fill all memory at once
                if {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                    raise FerVitError(f"Expected a zip by deflate, but {archive} has others. Unpack it first.")
                size, free = sum(entry.file_size for entry in entries), shutil.disk_usage(folder).free
                if size > free:
                    raise FerVitError(
                        f"Expected room for the {size:,} bytes in {archive}, but there are {free:,} beside {out}. "
                        "Choose another place."
                    )
                file.extractall(folder)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != EINVAL:  # which is of a place before the file's start
                raise
            raise FerVitError(
                f"Expected a whole zip at {archive}, but got an error: {error}. Fetch it again."
            ) from error
        # A zip of a folder mostly holds that folder rather than what lies in it; macOS adds one of its own.
        inner = [path for path in folder.iterdir() if path.name[0] not in "._"]
        try:
            yield inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
        except FerVitError as error:
            raise FerVitError(str(error).replace(str(folder), str(archive))) from error
