"""Reads the headers of encoded images: the format, the size, and properties that need more memory.

The size is read from the header before anything is decoded, since a few bytes can claim more pixels
than memory holds; `IMAGE_FORMATS` has the limit of each format. `image_size` takes one or two
microseconds. Pillow takes 30, nearly as long as decoding a small PNG.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from struct import unpack_from
from typing import NamedTuple

from fer_vit.errors import ImageError

Size = tuple[int, int]  # width and height in pixels, before EXIF turns the image

MEGA = 1_000_000

# The largest photos of phones have 201 megapixels; a file of 68 bytes can claim 4,295 megapixels.
MAX_PIXELS = 16_384 * 12_288

JPEG = b"\xff\xd8\xff"

# A marker with a payload; in compressed pixels, 0x00 or a restart (0xd0 to 0xd7) follows 0xff.
MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")

START_OF_SCAN = 0xDA
END_OF_IMAGE = 0xD9

# Markers of the segment with the size, one for each kind of compression.
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

# Markers of the kinds of compression in which one scan can have all data of all pixels.
SEQUENTIAL_FRAMES = frozenset((0xC0, 0xC1, 0xC9))

# Most segments that a JPEG may have. Each segment takes time, but only four bytes; a hundred are
# many.
MAX_SEGMENTS = 10_000

# The tags of a TIFF for width and height.
WIDTH = 256
HEIGHT = 257
INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # `struct` formats of the types of these tags
MAX_ENTRIES = 4096  # libtiff rejects a directory with more entries

AVIF = frozenset((b"avif", b"avis"))  # the brands of an AVIF
MAX_BRAND_BYTES = 1024  # most bytes of a file's list of brands; twenty to forty are usual
SIZE_BOX = re.compile(b"ispe|tkhd")  # the boxes with the size of a picture and of a track

# Most boxes at the top of a file that are read, and most sizes in one box. Ten are usual.
MAX_BOXES = 1000


def image_size(data: bytes) -> Size | None:
    """Returns the size in the header of an encoded image.

    None for an unknown format or a truncated header. Raises ImageError for a JPEG with too many
    segments.
    """
    image_format = find_image_format(data)
    if image_format is None:
        return None
    try:
        return image_format.size(data)
    except (struct.error, KeyError):  # a truncated header, or a type not in `INTEGERS`
        return None


def image_suffix(data: bytes) -> str | None:
    """Returns the suffix of an encoded image's format, such as .png; None for other content."""
    image_format = find_image_format(data)
    if image_format is None or is_clip(data):
        return None
    return image_format.suffix


def brands(data: bytes) -> set[bytes]:
    """Returns the brands of a file, which name its formats; an empty set for a file without boxes.

    Files in boxes (ISO 14496-12) are AVIF, HEIC and MP4.
    """
    if data[4:8] != b"ftyp":
        return set()
    end = int.from_bytes(data[:4], "big")
    return {data[at : at + 4] for at in range(8, min(end, len(data), MAX_BRAND_BYTES), 4)}


def is_clip(data: bytes) -> bool:
    """Returns whether a file is a video: MP4 or MOV, Matroska or WebM, or AVI."""
    boxed = data[4:8] == b"ftyp" and not brands(data) & AVIF
    return (
        boxed
        or data.startswith(b"\x1a\x45\xdf\xa3")
        or (data[:4] == b"RIFF" and data[8:12] == b"AVI ")
    )


def is_animated(data: bytes) -> bool:
    """Returns whether a decodable PNG, WebP or AVIF has more than one frame."""
    if data.startswith(b"\x89PNG"):
        return b"acTL" in data[: data.find(b"IDAT")]
    if data[8:16] == b"WEBPVP8X":
        return bool(data[20] & 2)  # the flag for an animation
    return data[8:12] == b"avis"


def count_scans(data: bytes) -> int:
    """Counts the scans of a JPEG, up to one with the whole image; returns 0 for other formats.

    With only a few bytes, a scan can refine all pixels.
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
    """Returns whether the first scan of a JPEG is not the whole image.

    If so, the decoder has the coefficients of all pixels in memory at once.
    """
    first_is_whole = next(_scans(data), False)
    return not first_is_whole


def _scans(data: bytes) -> Iterator[bool]:
    """Yields for each scan of a JPEG whether it is the whole image: sequential, all components."""
    components = b""
    for marker, at in _markers(data):
        if marker in SEQUENTIAL_FRAMES:
            components = data[at + 7 : at + 8]
        if marker == START_OF_SCAN:
            yield data[at + 2 : at + 3] == components


def _jpeg_size(data: bytes) -> Size | None:
    for marker, at in _markers(data):
        if marker in START_OF_FRAME:
            height, width = unpack_from(">HH", data, at + 3)
            return width, height
    return None


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the markers of a JPEG as libjpeg finds them, each with the offset of its payload."""
    at = len(JPEG) - 1
    segments = 0
    while match := MARKER.search(data, at):
        marker = match[1][0]
        if marker == END_OF_IMAGE:
            return
        segments += 1
        if segments > MAX_SEGMENTS:
            raise ImageError(f"too many segments of a JPEG: the limit is {MAX_SEGMENTS:,}")
        at = match.end()
        yield marker, at
        at += int.from_bytes(data[at : at + 2], "big")


def _bmp_size(data: bytes) -> Size:
    (header,) = unpack_from("<I", data, 14)
    width, height = unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(width), abs(height)  # the height is negative if rows go from top to bottom


def _webp_size(data: bytes) -> Size | None:
    chunk_id = data[12:16]
    if chunk_id == b"VP8X":
        width, wider, height, higher = unpack_from("<HBHB", data, 24)
        return width + (wider << 16) + 1, height + (higher << 16) + 1
    if chunk_id == b"VP8L":
        (bits,) = unpack_from("<I", data, 21)  # 14 bits for each side
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk_id == b"VP8 ":
        width, height = unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _avif_size(data: bytes) -> Size | None:
    """Returns the largest size that the boxes of an AVIF give for a picture or a track.

    None if no box gives a size, or too many boxes do.
    """
    sizes: list[Size] = []
    for start, end in _boxes(data, (b"meta", b"moov")):
        matches = [*islice(SIZE_BOX.finditer(data, start, end), MAX_BOXES + 1)]
        if len(matches) > MAX_BOXES:
            return None
        for match in matches:
            at = match.start()
            if match[0] == b"ispe":
                sizes.append(unpack_from(">II", data, at + 8))
                continue
            # sides of a track are in 65,536ths of a pixel; in version 1, the times before the sides
            # are longer
            offset = 92 if data[at + 4] == 1 else 80
            width, height = unpack_from(">II", data, at + offset)
            sizes.append((width >> 16, height >> 16))
    return max(sizes, key=math.prod, default=None)


def _boxes(data: bytes, types: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Yields start and end of each box of the given types at the top of a file (ISO 14496-12)."""
    start = 0
    for _ in range(MAX_BOXES):
        if start + 8 > len(data):
            return
        size, box_type = unpack_from(">I4s", data, start)
        if size == 1:
            (size,) = unpack_from(">Q", data, start + 8)
        end = start + size if size else len(data)
        if box_type in types:
            yield start, min(end, len(data))
        start = max(end, start + 8)


def _has_alpha(data: bytes) -> bool:
    """Returns whether an AVIF has transparency; the decoder stores transparency twice."""
    urn = re.compile(b"urn:mpeg:(mpegB:cicp:systems:auxiliary:alpha|hevc:2015:auxid:1)")
    boxes = _boxes(data, (b"meta", b"moov"))
    return any(urn.search(data, start, end) for start, end in boxes)


def _tiff_size(data: bytes) -> Size:
    """Returns the size in the first directory of a TIFF, or of a BigTIFF with 64-bit offsets."""
    order = "<" if data.startswith(b"II") else ">"
    is_big = 43 in data[2:4]
    if is_big:
        (start,) = unpack_from(f"{order}Q", data, 8)
        (entries,) = unpack_from(f"{order}Q", data, start)
        first = start + 8
        entry_size = 20
        value_offset = 12
    else:
        (start,) = unpack_from(f"{order}I", data, 4)
        (entries,) = unpack_from(f"{order}H", data, start)
        first = start + 2
        entry_size = 12
        value_offset = 8

    sides = {WIDTH: 0, HEIGHT: 0}
    for number in range(min(entries, MAX_ENTRIES)):
        at = first + number * entry_size
        tag, field_type = unpack_from(f"{order}HH", data, at)
        if tag in sides:  # the largest of repeated tags, since decoders take different ones
            (side,) = unpack_from(order + INTEGERS[field_type], data, at + value_offset)
            sides[tag] = max(sides[tag], side)
    return sides[WIDTH], sides[HEIGHT]


class ImageFormat(NamedTuple):
    """An image format, with the most pixels that are decoded."""

    signature: re.Pattern[bytes]  # matches the first bytes of a file
    suffix: str
    size: Callable[[bytes], Size | None]  # reads the size from the header
    # Decoding takes at most 1.2 GB: this number times the bytes per pixel (measured at the peak).
    max_pixels: int
    is_heavy: Callable[[bytes], bool]  # whether decoding an image takes more bytes per pixel
    max_heavy_pixels: int  # the limit for a heavy image, instead of `max_pixels`


def _never(_: bytes) -> bool:
    return False


def _format_of(
    signature: bytes,
    suffix: str,
    size: Callable[[bytes], Size | None],
    max_pixels: int,
    is_heavy: Callable[[bytes], bool] = _never,
    max_heavy_pixels: int = 0,
) -> ImageFormat:
    pattern = re.compile(signature, re.DOTALL)
    return ImageFormat(pattern, suffix, size, max_pixels, is_heavy, max_heavy_pixels)


IMAGE_FORMATS = (
    # one scan: 6.1 bytes per pixel; several scans: up to 11.1 (four components, not subsampled)
    _format_of(
        JPEG,
        ".jpeg",
        _jpeg_size,
        MAX_PIXELS,
        is_heavy=_has_several_scans,
        max_heavy_pixels=108 * MEGA,
    ),
    # 6.1 bytes per pixel; 12.2 for an animation
    _format_of(
        rb"\x89PNG\r\n\x1a\n",
        ".png",
        lambda data: unpack_from(">II", data, 16),
        MAX_PIXELS,
        is_heavy=is_animated,
        max_heavy_pixels=100 * MEGA,
    ),
    # lossless: 8.1 bytes per pixel; 11.2 for an animation
    _format_of(
        rb"RIFF....WEBP",
        ".webp",
        _webp_size,
        150 * MEGA,
        is_heavy=is_animated,
        max_heavy_pixels=108 * MEGA,
    ),
    # 8.5 bytes per pixel
    _format_of(rb"GIF8[79]a", ".gif", lambda data: unpack_from("<HH", data, 6), 140 * MEGA),
    # 6.2 bytes per pixel
    _format_of(rb"BM", ".bmp", _bmp_size, MAX_PIXELS),
    # up to 12.4 bytes per pixel: CMYK, or 16 bits with transparency in one strip
    _format_of(rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]", ".tiff", _tiff_size, 97 * MEGA),
    # AVIF: up to 24 bytes per pixel; with transparency, up to 46
    _format_of(
        rb"....ftyp",
        ".avif",
        _avif_size,
        50 * MEGA,
        is_heavy=_has_alpha,
        max_heavy_pixels=26 * MEGA,
    ),
)


def find_image_format(data: bytes) -> ImageFormat | None:
    """Returns the format of an encoded image by the first bytes; None for an unknown format."""
    for image_format in IMAGE_FORMATS:
        if image_format.signature.match(data):
            return image_format
    return None
