"""Numbers that pages quote from the code: a page that disagrees with it fails here."""

from pathlib import Path

import pytest

from fer_vit import faces, listing
from fer_vit.app import guard, jobs, server, tasks, uploads
from fer_vit.commands import predict
from fer_vit.comparison import statistics
from fer_vit.data import schema
from fer_vit.evaluation import join
from fer_vit.exporting import calibration
from fer_vit.face import detectors, headers, image, landmarks
from fer_vit.predict import frames, video
from fer_vit.predict.photos import PhotoOptions
from fer_vit.report import table
from fer_vit.sources import archive, duplicates
from fer_vit.tables import layout, read
from fer_vit.visualization import writer

ROOT = Path(__file__).parent.parent
MEGA = 1_000_000


def megapixels(suffix: str) -> int:
    """Returns the most pixels of a format of images, in millions."""
    (image_format,) = [entry for entry in headers.IMAGE_FORMATS if entry.suffix == suffix]
    return image_format.max_pixels // MEGA


QUOTES = {
    "docs/how-to/app.md": [
        f"| files in a request | {uploads.MAX_FILES} |",
        f"| size of a request | {guard.MAX_REQUEST_BYTES // MEGA} MB |",
        f"| pixels of a photo | {tasks.MAX_PHOTO // MEGA} million |",
        f"| pixels of a frame | {frames.MAX_FRAME_PIXELS // MEGA} million (8K) |",
        f"| pixels of all frames together | {tasks.MAX_TASK_PIXELS // 1000 // MEGA} billion",
        f"| time of a job, once it is its turn | {jobs.MAX_SECONDS:.0f} s |",
        f"(Linux) | {jobs.MAX_TASK_MEMORY // 1000 // MEGA} GB |",
        f"get 429 | {jobs.MAX_JOBS} |",
        f"get 503 | {server.MAX_CONNECTIONS} |",
        {3600.0: "| time of an upload | 1 hour |"}[uploads.MAX_UPLOAD_SECONDS],
        f"disk space that is left | {guard.SPARE_BYTES // MEGA} MB |",
        f"of photos and of clips | {tasks.MAX_FACES} each |",
        {3600.0: "after one hour"}[jobs.KEPT_SECONDS],
    ],
    "fer_vit/app/upload.html": [
        f"at most {uploads.MAX_FILES} files, {guard.MAX_REQUEST_BYTES // MEGA} MB",
        {3600.0: "after one hour at the latest"}[jobs.KEPT_SECONDS],
    ],
    "docs/how-to/reverse_proxy.md": [
        f"client_max_body_size {guard.MAX_REQUEST_BYTES // MEGA}m;",
    ],
    "docs/explanation/reliability.md": [
        f"A file of more than {image.MAX_FILE_BYTES // MEGA} MB is not read",
        f"{megapixels('.jpeg')} megapixels (16,384 x 12,288) for JPEG, PNG and BMP",
        f"{megapixels('.webp')} for WebP, {megapixels('.gif')} for GIF",
        f"{megapixels('.tiff')} for TIFF, {megapixels('.avif')} for AVIF",
        f"more than {image.MAX_SCANS} scans (10 are usual) or {headers.MAX_SEGMENTS:,} segments",
        f"more than {image.MAX_TEXTS} compressed texts",
        f"decoding takes at most {image.MAX_MEMORY // MEGA // 1000} GB",
        f"at most {archive.MAX_LIST // MEGA} MB, about half a million photos",
        f"files of more than {uploads.UploadParser.spool_max_size // 1024} kB are on",
    ],
    "docs/reference/video_files.md": [
        f"frames above {frames.MAX_FRAME_PIXELS // MEGA} megapixels",
        f"or {frames.MAX_FRAME_BYTES // MEGA} MB",
        ", ".join(sorted(suffix.removeprefix(".") for suffix in listing.VIDEO_SUFFIXES)),
    ],
    "docs/reference/tables.md": [
        f"{layout.MAX_COLUMNS:,} columns and {layout.MAX_CELLS // MEGA} million cells",
        f"{join.MAX_NAME_LENGTH} characters",
        f"may take {read.BASE_MEMORY // MEGA} MB of memory",
        {8: "eight times the size of the file"}[read.MEMORY_PER_BYTE],
        f"a second for each {read.BYTES_PER_SECOND // 1000} kB",
    ],
    "docs/how-to/predict.md": [
        f"a sheet ends after {table.MAX_SHEET_ROWS:,} rows",
        {1000: "one table per thousand images"}[predict.PART_SIZE],
    ],
    "docs/how-to/scaling.md": [f"(`--part_size`, {predict.PART_SIZE:,} by default"],
    "docs/how-to/video.md": [
        {5: "Every fifth frame (`--detect_every`)"}[PhotoOptions().detect_every],
        f"re-detected at {detectors.MIN_SIDE} pixels",
        f"(at most {video.MAX_WAITING - 2}, fewer above 4K)",
        f"{video.MIN_FILLED_HEIGHT:.0%} of the frame's height",
        f"missing for over {video.MAX_GAP:.0f} s",
        f"Labels of faces below {faces.SMALL_SIZE} pixels",
    ],
    "docs/explanation/finding_faces.md": [
        f"below `--min_score` ({detectors.PHOTO_SCORE})",
        f"From there to {detectors.SURE_SCORE} the column `warning`",
        f"searched down to {detectors.CROP_SCORE}",
        f"less than {landmarks.MIN_FACE_LOGIT} is left out",
    ],
    "docs/how-to/explaining.md": [f"fewer than {writer.MIN_FACES} faces have no average"],
    "docs/tutorials/two_conditions.md": [
        {6: "With fewer than six persons there is no test"}[statistics.MIN_PERSONS],
    ],
    "docs/tutorials/own_photos.md": [
        {100: "at least a hundred validation photos"}[calibration.MIN_CALIBRATION_FACES],
    ],
    "data/README.md": [
        f"images below {schema.EMBED_BELOW // 1024} kB",
        f"at least {duplicates.SAME_CORRELATION} over "
        f"{duplicates.THUMBNAIL_SIDE} x {duplicates.THUMBNAIL_SIDE}",
    ],
}
"""Texts of a page with numbers of the code; a number in words has a line for its value."""


@pytest.mark.parametrize(
    ("page", "quote"), [(page, quote) for page, quotes in QUOTES.items() for quote in quotes]
)
def test_pages_have_the_numbers_of_the_code(page: str, quote: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert quote in text
