"""The page of limits: numbers of the code that other pages refer to."""

from collections.abc import Iterator
from typing import NamedTuple

from fer_vit import faces, listing, pickles
from fer_vit.app import guard, jobs, server, tasks, uploads
from fer_vit.commands import predict
from fer_vit.data import schema
from fer_vit.engine import onnx_engine
from fer_vit.face import detectors, headers, image
from fer_vit.predict import frames, video
from fer_vit.predict.photos import PhotoOptions
from fer_vit.report import table
from fer_vit.sources import archive, duplicates, text_tables
from fer_vit.tables import groups, layout, table_reader
from fer_vit.visualization import report

MEGA = 1_000_000


class Limit(NamedTuple):
    """A limit, and what it is for or what happens beyond it."""

    what: str
    value: str
    meaning: str = ""


def megabytes(size: float) -> str:
    """Returns a number of bytes as text."""
    if size >= 1000 * MEGA:
        return f"{size / 1000 / MEGA:g} GB"
    return f"{size / MEGA:g} MB"


def megapixels(pixels: int) -> str:
    """Returns a number of pixels as text."""
    return f"{pixels // MEGA:,} megapixels"


def minutes(seconds: float) -> str:
    """Returns a time as text."""
    return f"{seconds / 60:g} minutes"


def image_limits() -> Iterator[Limit]:
    """Yields the limits of photos."""
    yield Limit("size of a file", megabytes(image.MAX_FILE_BYTES), "larger files aren't read")
    most = [f"`{kind.suffix}` {kind.max_pixels // MEGA:,}" for kind in headers.IMAGE_FORMATS]
    yield Limit("megapixels by format", ", ".join(most), "of the full size")
    yield Limit(
        "memory of decoding an image", megabytes(image.MAX_MEMORY), "in worker processes, on Linux"
    )


def video_limits() -> Iterator[Limit]:
    """Yields the limits of videos and tracks."""
    yield Limit("pixels of a frame", megapixels(frames.MAX_FRAME_PIXELS), "8K has 33")
    yield Limit("size of a frame", megabytes(frames.MAX_FRAME_BYTES), "8K with 10 bits has 100 MB")
    yield Limit(
        "frames between two searches",
        f"{PhotoOptions().detect_every}",
        "the default of `--detect_every`",
    )
    yield Limit("time without a face in a track", f"{video.MAX_GAP:g} s", "then a track ends")
    count = len(listing.VIDEO_SUFFIXES)
    yield Limit("suffixes of videos in a folder", f"{count}", "`fer_vit.listing.VIDEO_SUFFIXES`")


def face_limits() -> Iterator[Limit]:
    """Yields the limits of detected faces."""
    yield Limit(
        "score of a face in a photo",
        f"{detectors.PHOTO_SCORE:g}",
        "the default of `--min_score`; a face below is left out",
    )
    yield Limit(
        "score of a certain face",
        f"{detectors.SURE_SCORE:g}",
        'below, `warning` is "uncertain face"',
    )
    yield Limit("score of a face in a crop", f"{detectors.CROP_SCORE:g}", "with `--face crop`")
    yield Limit("size of a face", f"{faces.SMALL_SIZE} pixels", 'below, `warning` is "small face"')
    yield Limit(
        "faces of an average in a report", f"{report.MIN_FACES}", "fewer faces have no average"
    )


def table_limits() -> Iterator[Limit]:
    """Yields the limits of tables, models and archives."""
    yield Limit("columns of a table that is read", f"{layout.MAX_COLUMNS:,}")
    yield Limit(
        "cells of a table that is read",
        f"{layout.MAX_CELLS // MEGA:,} million",
        "10 hours of video in 90 columns have 97 million",
    )
    yield Limit(
        "memory for a workbook, JSON Lines or Parquet",
        f"{megabytes(table_reader.BASE_MEMORY)} and {table_reader.MEMORY_PER_BYTE} times "
        "the file's size",
        "on Linux",
    )
    yield Limit(
        "time for a workbook, JSON Lines or Parquet",
        f"{minutes(table_reader.BASE_SECONDS)} and a second for each "
        f"{table_reader.BYTES_PER_SECOND // 1000} kB",
    )
    yield Limit("characters of the name of a group or person", f"{groups.MAX_NAME_LENGTH:,}")
    yield Limit("rows of an .xlsx", f"{table.MAX_SHEET_ROWS:,}", "a CSV beside it has all rows")
    yield Limit(
        "images in a table of a folder", f"{predict.PART_SIZE:,}", "the default of `--part_size`"
    )
    yield Limit(
        "memory for the settings of a checkpoint", megabytes(pickles.MAX_MEMORY), "on Linux"
    )
    yield Limit("time for the settings of a checkpoint", f"{pickles.MAX_SECONDS} s")
    yield Limit(
        "memory for reading a `model.onnx`",
        f"{megabytes(onnx_engine.MEMORY_OF_FILE)} and {onnx_engine.MEMORY_PER_BYTE} times its size",
        "on Linux",
    )
    yield Limit(
        "memory for computing with a `model.onnx`",
        f"{megabytes(onnx_engine.MEMORY_PER_THREAD)} for each thread",
        "on Linux",
    )


def data_limits() -> Iterator[Limit]:
    """Yields the limits of data sets."""
    yield Limit(
        "list of entries of an archive", megabytes(archive.MAX_LIST), "about half a million photos"
    )
    yield Limit("lines of a table of labels", f"{text_tables.MAX_LINES:,}")
    yield Limit(
        "size of an image inside the manifest",
        f"{schema.EMBED_BELOW // 1024} kB",
        "larger ones stay files, without `--embed always`",
    )
    side = duplicates.THUMBNAIL_SIDE
    yield Limit(
        "correlation of near-duplicates",
        f"{duplicates.SAME_CORRELATION:g}",
        f"over {side} x {side} grey pixels, at least",
    )
    yield Limit(
        "training images that are compared with each other",
        f"{duplicates.MAX_COMPARED:,}",
        "of more, only equal copies with different labels are found",
    )


def app_limits() -> Iterator[Limit]:
    """Yields the limits of the web server."""
    yield Limit("files in a request", f"{uploads.MAX_FILES}")
    yield Limit("size of a request", megabytes(guard.MAX_REQUEST_BYTES))
    yield Limit("pixels of a photo", megapixels(tasks.MAX_PHOTO))
    yield Limit(
        "pixels of all frames together",
        f"{tasks.MAX_TASK_PIXELS // 1000 // MEGA} billion",
        "5 minutes of full HD at 30 frames/s",
    )
    yield Limit("time of a job", minutes(jobs.MAX_SECONDS), "once it is its turn")
    yield Limit("memory of a job", megabytes(jobs.MAX_TASK_MEMORY), "on Linux")
    yield Limit("jobs that arrive, wait or run", f"{jobs.MAX_JOBS}", "further ones get 429")
    yield Limit("connections", f"{server.MAX_CONNECTIONS}", "further ones get 503")
    yield Limit("time of an upload", minutes(uploads.MAX_UPLOAD_SECONDS))
    yield Limit("time until results are removed", minutes(jobs.KEPT_SECONDS), "at the latest")
    yield Limit("free disk space that is left", megabytes(guard.SPARE_BYTES))
    yield Limit("explained faces", f"{tasks.MAX_FACES}", "of photos and of clips each")


SECTIONS = {
    "Photos": image_limits,
    "Videos": video_limits,
    "Faces": face_limits,
    "Tables and checkpoints": table_limits,
    "Data sets": data_limits,
    "The app": app_limits,
}
