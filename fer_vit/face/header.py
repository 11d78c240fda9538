"""Reads an image's size from its header, without decoding: a few bytes can claim more pixels than memory holds.

OpenCV's limit (`OPENCV_IO_MAX_IMAGE_PIXELS`) does not suffice: it is fixed when a process first imports cv2, applies to
the user's images too, and counts the pixels of a JPEG after its reduction (4.12, 5.0).

Formats that are not listed here reach no decoder, so that a hostile file cannot select a rarely used one. Pillow takes
30 microseconds for a size, nearly as long as decoding a small PNG; this takes one or two.
"""

import re
import struct
from collections.abc import Callable, Iterator
from struct import unpack_from

Size = tuple[int, int]
"""Width and height in pixels, before EXIF turns the image."""

JPEG = b"\xff\xd8\xff"
MARKER = re.compile(rb"\xff([\x01-\xfe])")
"""The start of a JPEG's segment; in compressed pixels 0x00 follows every 0xff."""
START_OF_SCAN, END = 0xDA, 0xD9
NO_PAYLOAD = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers without a payload."""
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments with a JPEG's size, one per kind of compression."""
PLAIN_FRAMES = frozenset((0xC0, 0xC1, 0xC9))
"""Markers of frames that are not progressive."""

WIDTH, HEIGHT = 256, 257
"""The tags of a TIFF's size."""
INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}
"""The types in which a TIFF may give its size."""
MAX_BRANDS = 1024
"""Most bytes of a file's list of formats; twenty to forty are usual."""
MAX_ENTRIES = 4096
"""libtiff rejects directories with more."""


def image_size(data: bytes) -> Size | None:
    """Reads the size in the header of an encoded image; None for an unknown format or a truncated header.

    (0, 0): the format or its decoder limits the size to 16,384 x 16,384 pixels.
    """
    for signature, read in READERS.items():
        if re.match(signature, data, re.DOTALL):
            try:
                return read(data)
            except (struct.error, KeyError):
                return None
    return None


def brands(data: bytes) -> set[bytes]:
    """Returns the brands of a file in boxes (ISO 14496-12: AVIF, HEIC, MP4), which name its formats; else none."""
    if data[4:8] != b"ftyp":
        return set()
    end = int.from_bytes(data[:4], "big")
    return {data[at : at + 4] for at in range(8, min(end, len(data), MAX_BRANDS), 4)}


def is_clip(data: bytes) -> bool:
    """Returns whether a file is a video: MP4 or MOV, Matroska or WebM, or AVI."""
    boxed = data[4:8] == b"ftyp" and not brands(data) & {b"avif", b"avis"}
    return boxed or data.startswith(b"\x1a\x45\xdf\xa3") or (data[:4] == b"RIFF" and data[8:12] == b"AVI ")


def is_animated(data: bytes) -> bool:
    """Returns whether an encoded PNG, WebP or AVIF has more than one frame."""
    if data.startswith(b"\x89PNG"):
        return b"acTL" in data[: data.find(b"IDAT")]
    if data[8:16] == b"WEBPVP8X":
        return bool(data[20] & 2)
    return data[8:12] == b"avis"


def count_scans(data: bytes) -> int:
    """Returns the number of scans of a JPEG; 0 for other formats.

    A progressive JPEG is decoded in scans, each finer than the last, and a scan of all pixels can be a few bytes long.
    """
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


READERS: dict[bytes, Callable[[bytes], Size | None]] = {
    JPEG: _jpeg,
    rb"\x89PNG\r\n\x1a\n": lambda data: unpack_from(">II", data, 16),
    rb"RIFF....WEBP": _webp,
    rb"GIF8[79]a": lambda data: unpack_from("<HH", data, 6),
    rb"BM": _bmp,
    rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]": _tiff,
    rb"....ftyp": lambda _: (0, 0),  # AVIF: libavif itself refuses larger ones
}
"""The reader of each format's size, by the signature of its files, a regular expression."""
