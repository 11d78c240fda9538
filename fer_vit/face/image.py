"""The image reader: decodes files to RGB uint8, or raises an error with the reason.

The size is read from the header first, since a few bytes can claim more pixels than memory holds. OpenCV's own limit
(`OPENCV_IO_MAX_IMAGE_PIXELS`) is fixed when a process first imports cv2, applies to the user's images too, and counts
the pixels of a JPEG after its reduction (4.12, 5.0). Pillow takes 30 microseconds for a size, nearly as long as
decoding a small PNG; `image_size` takes one or two. Formats that are not listed here reach no decoder, so that a
hostile file cannot select a rarely used one.
"""

import io
import math
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import unpack_from

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL.AvifImagePlugin import AvifImageFile
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile

from fer_vit.errors import FerVitError
from fer_vit.geometry import Image

Size = tuple[int, int]  # width and height in pixels, before EXIF turns the image

JPEG = b"\xff\xd8\xff"
MARKER = re.compile(
    rb"\xff([\x01-\xfe])"
)  # of a segment; in compressed pixels 0x00 follows every 0xff
START_OF_SCAN, END, NO_PAYLOAD = 0xDA, 0xD9, frozenset((0x01, *range(0xD0, 0xD8)))
FRAMES = frozenset(range(0xC0, 0xD0)) - {
    0xC4,
    0xC8,
    0xCC,
}  # segments with the size, one per kind of compression
PLAIN_FRAMES = frozenset((0xC0, 0xC1, 0xC9))  # markers of frames that are not progressive

WIDTH, HEIGHT = 256, 257  # the tags of a TIFF's size
INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the types in which a TIFF may give its size
MAX_BRANDS = 1024  # most bytes of a file's list of formats; twenty to forty are usual
MAX_ENTRIES = 4096  # libtiff rejects directories with more


def image_size(data: bytes) -> Size | None:
    """Reads the size in the header of an encoded image; None for an unknown format or a truncated header.

    (0, 0): the format or its decoder limits the size to 16,384 x 16,384 pixels.
    """
    try:
        return next(
            (
                read(data)
                for signature, read in READERS.items()
                if re.match(signature, data, re.DOTALL)
            ),
            None,
        )
    except (struct.error, KeyError):
        return None


def brands(data: bytes) -> set[bytes]:
    """Returns the brands of a file in boxes (ISO 14496-12: AVIF, HEIC, MP4), which name its formats; else none."""
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
    """Returns the number of scans of a JPEG, each of which can refine all pixels by a few bytes; else 0."""
    scans, components = 0, b""
    for marker, at in _markers(data) if data.startswith(JPEG) else ():
        if marker in PLAIN_FRAMES:
            components = data[at + 7 : at + 8]
        if marker == START_OF_SCAN:
            scans += 1
            if data[at + 2 : at + 3] == components:  # one scan contains all of them
                break
    return scans


def _jpeg(data: bytes) -> Size | None:
    for marker, at in _markers(data):
        if marker in FRAMES:
            height, width = unpack_from(">HH", data, at + 3)
            return width, height
    return None


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the markers of a JPEG as libjpeg finds them, each with the offset of its payload."""
    at = len(JPEG) - 1
    while (found := MARKER.search(data, at)) and (marker := found[1][0]) != END:
        at = found.end()
        yield marker, at
        if marker not in NO_PAYLOAD:
            at += int.from_bytes(data[at : at + 2], "big")


def _bmp(data: bytes) -> Size:
    (header,) = unpack_from("<I", data, 14)
    width, height = unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(width), abs(height)  # the height is negative where rows go from top to bottom


def _webp(data: bytes) -> Size:
    if data[12:16] != b"VP8X":
        return 0, 0
    width, wider, height, higher = unpack_from("<HBHB", data, 24)
    return width + (wider << 16) + 1, height + (higher << 16) + 1


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


READERS: dict[
    bytes, Callable[[bytes], Size | None]
] = {  # of each format's size, by a regular expression
    JPEG: _jpeg,
    rb"\x89PNG\r\n\x1a\n": lambda data: unpack_from(">II", data, 16),
    rb"RIFF....WEBP": _webp,
    rb"GIF8[79]a": lambda data: unpack_from("<HH", data, 6),
    rb"BM": _bmp,
    rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]": _tiff,
    rb"....ftyp": lambda _: (0, 0),  # AVIF: libavif itself refuses larger ones
}

REDUCED = {
    1: 0,
    2: 16,
    4: 32,
    8: 64,
}  # OpenCV's flags for a fraction of the size; its constants are for grey or BGR
ORIENTATION = Base.Orientation
MAX_PIXELS = (
    2**28
)  # 16,384 x 16,384: the limit of AVIF's decoder; a file of 68 bytes can claim 4,295 megapixels
"""The largest photos of phones have 201 megapixels. Decoding takes up to 1.8 GB, seven bytes a pixel (AVIF: 4.2 GB)."""
MAX_SCANS = 100  # of a JPEG: each takes time for all pixels, but only 300 bytes; ten are usual
AVIF = frozenset((b"avif", b"avis"))
HEIC = frozenset(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
)  # an AVIF may have these too
UNREADABLE = "not an image that can be decoded"


class ImageError(FerVitError):
    """An image that cannot be read; the message is only the reason, without the path."""


def decode_image(data: bytes, reduction: int = 1) -> Image:
    """Decodes an encoded image to RGB uint8 (H, W, 3), upright by its EXIF or by the boxes of an AVIF.

    Other modes become 8-bit RGB; an animation gives its first frame. `reduction` (1, 2, 4 or 8) divides width and
    height; a reduced JPEG is decoded in a third of the time or less. Raises ImageError as for `check_cost`.
    """
    if not data:
        raise ImageError("the file is empty")
    check_cost(data)
    flags, orientation = cv2.IMREAD_COLOR_RGB | REDUCED[reduction], 1
    if brands(data) & AVIF:  # OpenCV applies EXIF, which AVIF ignores
        flags, orientation = flags | cv2.IMREAD_IGNORE_ORIENTATION, _avif_orientation(data)
    level = cv2.utils.logging.setLogLevel(
        cv2.utils.logging.LOG_LEVEL_SILENT
    )  # errors are reported by us
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    finally:
        cv2.utils.logging.setLogLevel(level)
    if image is None:
        raise ImageError(UNREADABLE)
    return rotate_upright(np.asarray(image, np.uint8), orientation)


def _avif_orientation(data: bytes) -> int:
    """Returns the orientation in an AVIF's boxes as an EXIF number; 1 (upright) for a broken header."""
    try:
        return int(
            AvifImageFile(io.BytesIO(data)).getexif().get(ORIENTATION, 1)
        )  # reads the header only
    except Exception:  # Pillow raises many types for broken headers
        return 1


def rotate_upright(image: Image, orientation: int) -> Image:
    """Applies an EXIF orientation (1 to 8): those from 5 on are transposed; each four have the same reflections."""
    if orientation > 4:
        image = image.transpose(1, 0, 2)
    rows, columns = ((1, 1), (1, -1), (-1, -1), (-1, 1))[(orientation - 1) % 4]
    return np.ascontiguousarray(image[::rows, ::columns])


def check_cost(data: bytes) -> None:
    """Raises ImageError for an encoded image of unknown format, or one that takes too much memory or time.

    The full size counts even for reduced decoding: progressive JPEGs are always decoded in full.
    """
    if (names := brands(data)) & HEIC and not names & AVIF:
        raise ImageError("HEIC, which is not read: save it as JPEG")
    if is_clip(data):
        raise ImageError("a video, not an image: give it the suffix of one, such as .mp4")
    if (size := image_size(data)) is None:
        raise ImageError(UNREADABLE)
    check_size(size)
    if (scans := count_scans(data)) > MAX_SCANS:
        raise ImageError(f"too many scans of a JPEG: {scans:,}, the limit is {MAX_SCANS}")


def check_size(size: Size, most: int = MAX_PIXELS) -> None:
    """Raises ImageError for a width and height of more than `most` pixels."""
    if math.prod(size) > most:
        raise ImageError(
            f"too large: {size[0]:,} x {size[1]:,} pixels, the limit is {most // 10**6} megapixels"
        )


def reduction_to(data: bytes, min_side: int) -> int:
    """Returns the strongest reduction that leaves the longer side of an encoded JPEG at least `min_side` pixels.

    1 for other formats. If EXIF rotates the JPEG, the reduction divides its sides: padding would shift the image.
    """
    try:
        image = JpegImageFile(
            io.BytesIO(data)
        )  # only the header; `Image.open` refuses large photos
        turned = image.getexif().get(ORIENTATION, 1) != 1
    except Exception:  # Pillow raises many types for broken headers
        return 1
    fits = (
        factor for factor in REDUCED if not (turned and any(side % factor for side in image.size))
    )
    return max(factor for factor in fits if factor == 1 or max(image.size) >= min_side * factor)


def read_image(path: Path) -> Image:
    """Reads an image file: RGB uint8 (H, W, 3). Raises ImageError when the file cannot be read or decoded."""
    return decode_image(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Reads a file. Raises ImageError when it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise ImageError("not a regular file")  # reading a pipe could block forever
        return path.read_bytes()
    except OSError as error:
        raise ImageError(error.strerror or type(error).__name__) from error
    except ValueError as error:  # a NUL byte in the path
        raise ImageError("not a valid file name") from error


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
