"""The image reader: decodes files to RGB uint8, or raises an error with the reason.

The size is read from the header first, since a few bytes can claim more pixels than memory holds;
`IMAGE_FORMATS` has the limit of each format. OpenCV's own limit (`OPENCV_IO_MAX_IMAGE_PIXELS`) is
fixed when a process first imports cv2, applies to the user's images too, and counts the pixels of a
JPEG after its reduction (4.12, 5.0). Pillow takes 30 microseconds for a size, nearly as long as
decoding a small PNG; `image_size` takes one or two. Formats that are not listed here reach no
decoder, so that a hostile file cannot select a rarely used one.
"""

import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from struct import unpack_from
from threading import Lock
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL.AvifImagePlugin import AvifImageFile
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile

from fer_vit.errors import FerVitError, ImageError as ImageError
from fer_vit.geometry import Image

Size = tuple[int, int]  # width and height in pixels, before EXIF turns the image

JPEG = b"\xff\xd8\xff"
MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
"""A marker with a payload; in compressed pixels 0x00
or a restart (0xd0 to 0xd7) follows every 0xff.
"""
START_OF_SCAN, END = 0xDA, 0xD9
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segment with the size, one for each kind of compression."""
PLAIN_FRAMES = frozenset((0xC0, 0xC1, 0xC9))  # of which a scan can have all of the pixels

WIDTH, HEIGHT = 256, 257  # the tags of a TIFF's size
INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the types in which a TIFF may give its size
MAX_BRANDS = 1024  # most bytes of a file's list of formats; twenty to forty are usual
MAX_ENTRIES = 4096  # libtiff rejects directories with more
SIZE_BOX = re.compile(b"ispe|tkhd")  # the boxes with the size of a picture and of a track
MAX_BOXES = 1000  # at the top of a file in boxes, and sizes in one of them; ten are usual


def image_size(data: bytes) -> Size | None:
    """Reads the size in the header of an encoded image.

    None for an unknown format or a truncated header. Raises ImageError for a JPEG with too many
    segments.
    """
    known = _format(data)
    if known is None:
        return None
    try:
        return known.size(data)
    except (struct.error, KeyError):
        return None


def image_suffix(data: bytes) -> str | None:
    """Returns a suffix for an encoded image by its content; None for other content."""
    known = _format(data)
    if known is None or is_clip(data):
        return None
    return known.suffix


def brands(data: bytes) -> set[bytes]:
    """Returns the brands of a file in boxes, which name its formats; else none.

    ISO 14496-12: AVIF, HEIC, MP4.
    """
    if data[4:8] != b"ftyp":
        return set()
    end = int.from_bytes(data[:4], "big")
    return {data[at : at + 4] for at in range(8, min(end, len(data), MAX_BRANDS), 4)}


def is_clip(data: bytes) -> bool:
    """Returns whether a file is a video: MP4 or MOV, Matroska or WebM, or AVI."""
    boxed = data[4:8] == b"ftyp" and not brands(data) & AVIF
    return (
        boxed
        or data.startswith(b"\x1a\x45\xdf\xa3")
        or (data[:4] == b"RIFF" and data[8:12] == b"AVI ")
    )


def is_animated(data: bytes) -> bool:
    """Returns whether an encoded PNG, WebP or AVIF has more than one frame."""
    if data.startswith(b"\x89PNG"):
        return b"acTL" in data[: data.find(b"IDAT")]
    return bool(data[20] & 2) if data[8:16] == b"WEBPVP8X" else data[8:12] == b"avis"


def count_scans(data: bytes) -> int:
    """Returns the number of scans of a JPEG; 0 for other formats.

    Each of them can refine all pixels by a few bytes.
    """
    if not data.startswith(JPEG):
        return 0
    count = 0
    for is_whole in _scans(data):
        count += 1
        if is_whole:
            break
    return count


def _has_several_scans(data: bytes) -> bool:
    """Returns whether the coefficients of all pixels of a JPEG are in memory before its decoding.

    So it is unless its first scan is the whole image.
    """
    first_is_whole = next(_scans(data), False)
    return not first_is_whole


def _scans(data: bytes) -> Iterator[bool]:
    """Yields for each scan of a JPEG whether it is the whole image: all components at once."""
    components = b""
    for marker, at in _markers(data):
        if marker in PLAIN_FRAMES:
            components = data[at + 7 : at + 8]
        if marker == START_OF_SCAN:
            yield data[at + 2 : at + 3] == components


def _jpeg(data: bytes) -> Size | None:
    for marker, at in _markers(data):
        if marker in FRAMES:
            height, width = unpack_from(">HH", data, at + 3)
            return width, height
    return None


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the markers of a JPEG as libjpeg finds them, each with the offset of its payload."""
    at = len(JPEG) - 1
    segments = 0
    while match := MARKER.search(data, at):
        marker = match[1][0]
        if marker == END:
            return
        segments += 1
        if segments > MAX_SEGMENTS:
            raise ImageError(f"too many segments of a JPEG: the limit is {MAX_SEGMENTS:,}")
        at = match.end()
        yield marker, at
        at += int.from_bytes(data[at : at + 2], "big")


def _bmp(data: bytes) -> Size:
    (header,) = unpack_from("<I", data, 14)
    width, height = unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(width), abs(height)  # the height is negative where rows go from top to bottom


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, wider, height, higher = unpack_from("<HBHB", data, 24)
        return width + (wider << 16) + 1, height + (higher << 16) + 1
    if kind == b"VP8L":
        (bits,) = unpack_from("<I", data, 21)  # 14 for each side
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _avif(data: bytes) -> Size | None:
    """Returns the largest size that the boxes of an AVIF name, for a picture or a track.

    None if there is none.
    """
    sizes: list[Size] = []
    for start, end in _boxes(data, (b"meta", b"moov")):
        names = [*islice(SIZE_BOX.finditer(data, start, end), MAX_BOXES + 1)]
        if len(names) > MAX_BOXES:
            return None
        for name in names:
            at = name.start()
            if name[0] == b"ispe":
                sizes.append(unpack_from(">II", data, at + 8))
                continue
            # Sides of a track are in 65,536ths; version 1 has longer times before them.
            width, height = unpack_from(">II", data, at + (92 if data[at + 4] == 1 else 80))
            sizes.append((width >> 16, height >> 16))
    return max(sizes, key=math.prod, default=None)


def _boxes(data: bytes, names: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Yields start and end of the boxes with these names at the top of a file (ISO 14496-12)."""
    start = 0
    for _ in range(MAX_BOXES):
        if start + 8 > len(data):
            return
        size, name = unpack_from(">I4s", data, start)
        if size == 1:
            (size,) = unpack_from(">Q", data, start + 8)
        end = start + size if size else len(data)
        if name in names:
            yield start, min(end, len(data))
        start = max(end, start + 8)


def _has_alpha(data: bytes) -> bool:
    """Returns whether an AVIF has transparency, which its decoder stores twice."""
    urn = re.compile(b"urn:mpeg:(mpegB:cicp:systems:auxiliary:alpha|hevc:2015:auxid:1)")
    boxes = _boxes(data, (b"meta", b"moov"))
    return any(urn.search(data, start, end) for start, end in boxes)


def _tiff(data: bytes) -> Size:
    order = "<" if data.startswith(b"II") else ">"
    large = 43 in data[2:4]
    (start,) = unpack_from(order + ("Q" if large else "I"), data, 8 if large else 4)
    (entries,) = unpack_from(order + ("Q" if large else "H"), data, start)
    first, step, value = (start + 8, 20, 12) if large else (start + 2, 12, 8)
    sides = {WIDTH: 0, HEIGHT: 0}
    for at in range(first, first + step * min(entries, MAX_ENTRIES), step):
        tag, kind = unpack_from(order + "HH", data, at)
        if tag in sides:  # the largest of several: decoders differ in which one they take
            sides[tag] = max(sides[tag], unpack_from(order + INTEGERS[kind], data, at + value)[0])
    return sides[WIDTH], sides[HEIGHT]


class ImageFormat(NamedTuple):
    """A format of images: how its files begin, its size, and the most pixels that are decoded."""

    signature: re.Pattern[bytes]
    suffix: str
    size: Callable[[bytes], Size | None]
    most: int  # pixels; times the bytes for each (measured at the peak) at most 1.2 GB
    is_heavy: Callable[[bytes], bool]  # whether it takes more bytes for each pixel
    most_heavy: int  # pixels then


def _never(_: bytes) -> bool:
    return False


def _format_of(
    signature: bytes,
    suffix: str,
    size: Callable[[bytes], Size | None],
    most: int,
    is_heavy: Callable[[bytes], bool] = _never,
    most_heavy: int = 0,
) -> ImageFormat:
    return ImageFormat(re.compile(signature, re.DOTALL), suffix, size, most, is_heavy, most_heavy)


MEGA = 1_000_000
MAX_PIXELS = 16_384 * 12_288
"""The largest photos of phones have 201 megapixels; a file of 68 bytes can claim 4,295."""
IMAGE_FORMATS = (
    # One scan: 6.1 bytes a pixel; several: up to 11.1 (four components without subsampling).
    _format_of(JPEG, ".jpeg", _jpeg, MAX_PIXELS, _has_several_scans, 108 * MEGA),
    # 6.1 bytes a pixel; 12.2 for an animation.
    _format_of(
        rb"\x89PNG\r\n\x1a\n",
        ".png",
        lambda data: unpack_from(">II", data, 16),
        MAX_PIXELS,
        is_animated,
        100 * MEGA,
    ),
    # 8.1 bytes a pixel without a loss; 11.2 for an animation.
    _format_of(rb"RIFF....WEBP", ".webp", _webp, 150 * MEGA, is_animated, 108 * MEGA),
    # 8.5 bytes a pixel.
    _format_of(rb"GIF8[79]a", ".gif", lambda data: unpack_from("<HH", data, 6), 140 * MEGA),
    # 6.2 bytes a pixel.
    _format_of(rb"BM", ".bmp", _bmp, MAX_PIXELS),
    # Up to 12.4 bytes a pixel: CMYK, or 16 bits and transparency in one strip.
    _format_of(rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]", ".tiff", _tiff, 97 * MEGA),
    # AVIF: up to 24 bytes a pixel; with transparency up to 46.
    _format_of(rb"....ftyp", ".avif", _avif, 50 * MEGA, _has_alpha, 26 * MEGA),
)


def _format(data: bytes) -> ImageFormat | None:
    for known in IMAGE_FORMATS:
        if known.signature.match(data):
            return known
    return None


# OpenCV's flags for a fraction of the size; its constants are for grey or BGR
REDUCED = {
    1: 0,
    2: 16,
    4: 32,
    8: 64,
}
ORIENTATION = Base.Orientation
MAX_FILE = 256 * MEGA  # bytes of an encoded image
MAX_SCANS = 100  # of a JPEG: each takes time for all pixels, but only 300 bytes; ten are usual
MAX_SEGMENTS = 10_000  # of a JPEG: each takes time, but only four bytes; a hundred are many
MAX_TEXTS = 100  # of a PNG, compressed: each takes up to 46 ms
DEEP_SIGNATURES = (b"\x89PNG", b"II", b"MM")  # how files of formats with 16 bits begin
# pixels that are decoded with 16 bits, at 15 bytes each; larger ones stay dark
MAX_DEEP = 80 * MEGA
DARK_LEVEL = 64  # of 256 levels: 16 bits of which at most 14 are used stay below
AVIF = frozenset((b"avif", b"avis"))
# an AVIF may have these too
HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
UNREADABLE = "not an image that can be decoded"
UNREAD = {
    "JPEG 2000": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a",
    "DIB without the header of a file": rb"\x28\0\0\0.{8}\x01\0",
    "PNM": rb"P[1-7]\s",
    "Sun raster": rb"\x59\xa6\x6a\x95",
    "PSD": rb"8BPS",
    "OpenEXR": rb"\x76\x2f\x31\x01",
    "Radiance HDR": rb"#\?(RADIANCE|RGBE)",
    "TGA": rb"[\0-\xff]\x00[\x02\x03\x0a\x0b]\x00{9}"
    rb"|[\0-\xff][\0\x01][\x01-\x0b].*TRUEVISION-XFILE\.\0\Z",
}
"""Formats that are recognized by how their files begin, but reach no decoder; of TGA,
photos have no colour map.
"""
CRASHED = "cannot be decoded: the decoder crashed or ran out of memory"
"""The status of a file that kills the process that reads it."""


class QuietOpenCV:
    """OpenCV prints nothing in blocks with this object, whose errors we report.

    The level is one for the whole process. Blocks of several threads may overlap: the first one
    stores the user's level, the last one restores it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks = 0
        self._level = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                silent = cv2.utils.logging.LOG_LEVEL_SILENT
                self._level = cv2.utils.logging.setLogLevel(silent)
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                cv2.utils.logging.setLogLevel(self._level)


QUIET_OPENCV = QuietOpenCV()


def decode_image(data: bytes, reduction: int = 1) -> Image:
    """Decodes an encoded image to RGB uint8 (H, W, 3), upright by its EXIF or AVIF boxes.

    Other modes become 8-bit RGB; an animation gives its first frame. `reduction` (1, 2, 4 or 8)
    divides width and height; a reduced JPEG is decoded in a third of the time or less. Raises
    ImageError as for `check_cost`.
    """
    check_cost(data)
    flags = cv2.IMREAD_COLOR_RGB | REDUCED[reduction]
    orientation = 1
    if brands(data) & AVIF:  # OpenCV applies EXIF, which AVIF ignores
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
        orientation = _avif_orientation(data)
    image = _decode(data, flags)
    pixels = image.shape[0] * image.shape[1]
    if data.startswith(DEEP_SIGNATURES) and pixels <= MAX_DEEP and image.max() < DARK_LEVEL:
        del image  # memory is for one of both
        image = _decode(data, flags | cv2.IMREAD_ANYDEPTH)
        if image.dtype == np.uint16:
            image = reduce_depth(image)
    return rotate_upright(np.asarray(image, np.uint8), orientation)


def _decode(data: bytes, flags: int) -> NDArray[Any]:
    """Decodes an encoded image with OpenCV's flags. Raises ImageError when it cannot be decoded."""
    image = None
    with QUIET_OPENCV, suppress(cv2.error):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise ImageError(UNREADABLE)
    return image


def reduce_depth(image: NDArray[np.uint16], bits: int | None = None) -> NDArray[np.uint8]:
    """Reduces 16 bits to 8: the highest ones of the lowest `bits`.

    None: of those that the image uses. Infrared and depth cameras use 10 to 14 bits; their images
    would be black.
    """
    used = used_bits(image) if bits is None else bits
    return np.asarray(image >> (used - 8), np.uint8)


def used_bits(image: NDArray[np.uint16]) -> int:
    """Returns how many of its 16 bits an image uses: 8, 10, 12, 14 or 16."""
    used = max(8, int(image.max()).bit_length())
    return used + used % 2


def _avif_orientation(data: bytes) -> int:
    """Returns the orientation in an AVIF's boxes as an EXIF number.

    1 (upright) for a broken header.
    """
    try:
        # reads the header only
        return int(AvifImageFile(io.BytesIO(data)).getexif().get(ORIENTATION, 1))
    except Exception:  # Pillow raises many types for broken headers
        return 1


def rotate_upright(image: Image, orientation: int) -> Image:
    """Applies an EXIF orientation (1 to 8): those from 5 on are transposed.

    Each four have the same reflections.
    """
    if orientation > 4:
        image = image.transpose(1, 0, 2)
    rows, columns = ((1, 1), (1, -1), (-1, -1), (-1, 1))[(orientation - 1) % 4]
    return np.ascontiguousarray(image[::rows, ::columns])


def check_cost(data: bytes) -> None:
    """Raises ImageError for an image of unknown format, or of too much memory or time.

    The full size counts even for reduced decoding: progressive JPEGs are always decoded in full.
    """
    if not data:
        raise ImageError("the file is empty")
    if (names := brands(data)) & HEIC and not names & AVIF:
        raise ImageError("HEIC, which is not read: save it as JPEG")
    if is_clip(data):
        raise ImageError("a video, not an image: give it the suffix of one, such as .mp4")
    known = _format(data)
    size = image_size(data)
    if known is None:
        raise ImageError(_reason_unread(data))
    if size is None:
        raise ImageError(UNREADABLE)
    check_size(size, known.most_heavy if known.is_heavy(data) else known.most)
    if (scans := count_scans(data)) > MAX_SCANS:
        raise ImageError(f"too many scans of a JPEG: {scans:,}, the limit is {MAX_SCANS}")
    texts = data.count(b"zTXt") + data.count(b"iTXt") if data.startswith(b"\x89PNG") else 0
    if texts > MAX_TEXTS:
        raise ImageError(f"too many texts in a PNG: {texts:,}, the limit is {MAX_TEXTS}")


def _reason_unread(data: bytes) -> str:
    """Returns why an image of no known format is not read, with a remedy for other formats."""
    for name, signature in UNREAD.items():
        if re.match(signature, data, re.DOTALL):
            return f"{name}, which is not read: save it as JPEG"
    return UNREADABLE


def check_size(size: Size, most: int = MAX_PIXELS) -> None:
    """Raises ImageError for a width and height of more than `most` pixels."""
    if math.prod(size) > most:
        raise ImageError(
            f"too large: {size[0]:,} x {size[1]:,} pixels, the limit is {most // MEGA} megapixels"
        )


def check_file_size(size: int) -> None:
    """Raises ImageError for the size of an encoded image in bytes.

    Call it before the file is read or unpacked.
    """
    if size > MAX_FILE:
        raise ImageError(
            f"too large: {size / MEGA:,.0f} MB, the limit of an image is {MAX_FILE // MEGA} MB"
        )


def reduction_to(data: bytes, min_side: int) -> int:
    """Returns the strongest reduction of a JPEG with a longer side of at least `min_side`.

    1 for other formats. If EXIF rotates the JPEG, the reduction divides its sides: padding would
    shift the image.
    """
    try:
        # only the header; `Image.open` refuses large photos
        image = JpegImageFile(io.BytesIO(data))
        turned = image.getexif().get(ORIENTATION, 1) != 1
    except Exception:  # Pillow raises many types for broken headers
        return 1
    width, height = image.size
    strongest = 1
    for factor in REDUCED:
        is_large = max(width, height) >= min_side * factor
        divides = width % factor == 0 and height % factor == 0
        if is_large and (divides or not turned):
            strongest = max(strongest, factor)
    return strongest


def read_image(path: Path) -> Image:
    """Reads an image file: RGB uint8 (H, W, 3).

    Raises ImageError when the file cannot be read or decoded.
    """
    return decode_image(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Reads the file of an image.

    Raises ImageError when it cannot be read, or is larger than any image.
    """
    try:
        if path.exists() and not path.is_file():
            raise ImageError("not a regular file")  # reading a pipe could block forever
        with path.open("rb") as file:
            check_file_size(os.fstat(file.fileno()).st_size)
            data = file.read(MAX_FILE + 1)  # the file may grow, or have no size, as those in /proc
    except OSError as error:
        raise ImageError(error.strerror or type(error).__name__) from error
    except ValueError as error:  # a NUL byte in the path
        raise ImageError("not a valid file name") from error
    check_file_size(len(data))
    return data


def to_rgb(array: NDArray[np.generic]) -> Image:
    """Converts a uint8 image in memory to RGB (H, W, 3): grey is repeated, alpha dropped."""
    if (
        array.dtype != np.uint8
        or array.ndim < 2
        or not array.size
        or array.shape[2:] not in ((), (1,), (3,), (4,))
    ):
        came = f"{array.dtype} {array.shape}"
        raise FerVitError(
            f"Expected an image as uint8 of shape (H, W), (H, W, 3) or (H, W, 4), but got {came}."
        )
    image = array.reshape(*array.shape[:2], -1)[..., :3]
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)), np.uint8)


def encode_jpeg(image: Image) -> bytes:
    """Encodes an image (H, W, 3) RGB as JPEG bytes of high quality."""
    return bytes(cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 95))[1])


def encode_png(image: Image) -> bytes:
    """Encodes an image (H, W, 3) RGB or (H, W) grey as PNG bytes."""
    return bytes(cv2.imencode(".png", image if image.ndim == 2 else image[..., ::-1])[1])
