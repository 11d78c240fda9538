"""Reads the headers of encoded images: the format, the size, and whether an image is an animation.

The size is checked before anything is decoded, since a few bytes can claim more pixels than memory
holds; `IMAGE_FORMATS` has the limit of each format. Where a decoder finds another image than the
header, the limit of memory in worker processes decides (see `image.decode_image`).
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from struct import unpack_from
from typing import NamedTuple

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import (
    IMAGELENGTH,
    IMAGEWIDTH,
    ImageFileDirectory_v2 as TiffDirectory,
    TiffImageFile,
)
from PIL.WebPImagePlugin import WebPImageFile

from fer_vit.errors import ImageError

# Pillow warns of each damaged entry in a header: a small file could print thousands of lines.
warnings.filterwarnings("ignore", module=r"PIL\.")

Size = tuple[int, int]  # width and height in pixels, before EXIF turns the image

MEGA = 1_000_000

# The largest photos of phones have 201 megapixels; a file of 68 bytes can claim 4,295 megapixels.
MAX_PIXELS = 16_384 * 12_288

JPEG = b"\xff\xd8\xff"

# A marker with a payload; in compressed pixels, 0x00 or a restart (0xd0 to 0xd7) follows 0xff.
MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")

START_OF_SCAN = 0xDA
END_OF_IMAGE = 0xD9

# Markers of the kinds of compression in which one scan can have all data of all pixels.
SEQUENTIAL_FRAMES = frozenset((0xC0, 0xC1, 0xC9))

# Most segments that a JPEG may have. Each segment takes time, but only four bytes; a hundred are
# many.
MAX_SEGMENTS = 10_000

TIFF = rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]"
SUBFILE_TYPE = 254  # the tag of a TIFF for what a page is
NO_PAGE = 1 | 4  # bits of this tag: a smaller copy of another page, and a transparency mask
MAX_COPIES = 32  # most smaller copies and masks before the second page; a pyramid has about ten

AVIF = frozenset((b"avif", b"avis"))  # the brands of an AVIF
MAX_BRAND_BYTES = 1024  # most bytes of a file's list of brands; twenty to forty are usual


def image_size(data: bytes) -> Size | None:
    """Returns the size in the header of an encoded image; None for other or damaged content.

    Raises:
        ImageError: A JPEG has too many segments.
        MemoryError: The decoder of a WebP does not fit in memory.
    """
    count_scans(data)  # Pillow would read any number of segments
    image_format = find_image_format(data)
    return image_format and image_format.read_size(data)


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
    image_format = find_image_format(data)
    if image_format is None or image_format.animated is None:
        return False
    with suppress(Exception):  # Pillow raises many types for headers that decoders accept
        return bool(getattr(image_format.animated(io.BytesIO(data)), "is_animated", False))
    return False


def has_several_pages(data: bytes) -> bool:
    """Returns whether a decodable TIFF has a second page that is a picture of its own."""
    if not re.match(TIFF, data):
        return False
    try:
        with TiffImageFile(io.BytesIO(data)) as image:
            for page in range(1, MAX_COPIES):
                image.seek(page)
                if not image.tag_v2.get(SUBFILE_TYPE, 0) & NO_PAGE:
                    return True
    except Exception:  # EOFError after the last page; Pillow raises many types for broken pages
        return False
    return False


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


def _scans(data: bytes) -> Iterator[bool]:
    """Yields for each scan of a JPEG whether it is the whole image: sequential, all components."""
    components = b""
    for marker, at in _markers(data):
        if marker in SEQUENTIAL_FRAMES:
            components = data[at + 7 : at + 8]
        if marker == START_OF_SCAN:
            yield data[at + 2 : at + 3] == components


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


def _tiff_size(data: bytes) -> Size:
    """Returns the size in the first directory of a TIFF.

    `TiffImageFile` refuses kinds of pixels that OpenCV reads.
    """
    is_big = 43 in data[2:4]  # BigTIFF, with a longer header
    directory = TiffDirectory(data[: 16 if is_big else 8])
    file = io.BytesIO(data)
    file.seek(directory.next)
    directory.load(file)
    return int(directory[IMAGEWIDTH]), int(directory[IMAGELENGTH])


def _size_by(plugin: Callable[[io.BytesIO], ImageFile]) -> Callable[[bytes], Size]:
    """Returns a function that reads the size with a plugin of Pillow.

    `Image.open` would warn of large photos, or refuse them.
    """
    return lambda data: plugin(io.BytesIO(data)).size


class ImageFormat(NamedTuple):
    """An image format, with the most pixels that are decoded."""

    signature: re.Pattern[bytes]  # matches the first bytes of a file
    suffix: str
    size: Callable[[bytes], Size]  # reads the size from the header
    # A usual image of so many pixels takes at most 1.2 GB: this number times the bytes per pixel.
    max_pixels: int
    animated: Callable[[io.BytesIO], ImageFile] | None = None  # finds animations

    def read_size(self, data: bytes) -> Size | None:
        """Returns the size in the header; None for a damaged header."""
        try:
            return self.size(data)
        except MemoryError:
            raise
        except Exception:  # Pillow raises many types for damaged headers
            return None


def _pattern(signature: bytes) -> re.Pattern[bytes]:
    return re.compile(signature, re.DOTALL)


IMAGE_FORMATS = (
    # one scan: 6.1 bytes per pixel; several scans: up to 11.1 (four components, not subsampled)
    ImageFormat(_pattern(JPEG), ".jpeg", _size_by(JpegImageFile), MAX_PIXELS),
    # 6.1 bytes per pixel; an animation with 16 bits and transparency: 26.4. The size is always
    # first; Pillow refuses texts that OpenCV reads.
    ImageFormat(
        _pattern(rb"\x89PNG\r\n\x1a\n"),
        ".png",
        lambda data: unpack_from(">II", data, 16),
        MAX_PIXELS,
        PngImageFile,
    ),
    # lossless: 8.1 bytes per pixel; 11.2 for an animation
    ImageFormat(
        _pattern(rb"RIFF....WEBP"), ".webp", _size_by(WebPImageFile), 150 * MEGA, WebPImageFile
    ),
    # 8.5 bytes per pixel
    ImageFormat(_pattern(rb"GIF8[79]a"), ".gif", _size_by(GifImageFile), 140 * MEGA),
    # 6.2 bytes per pixel
    ImageFormat(_pattern(rb"BM"), ".bmp", _size_by(BmpImageFile), MAX_PIXELS),
    # up to 12.4 bytes per pixel: CMYK, or 16 bits with transparency in one strip
    ImageFormat(_pattern(TIFF), ".tiff", _tiff_size, 97 * MEGA),
    # up to 24 bytes per pixel; with transparency, up to 46
    ImageFormat(_pattern(rb"....ftyp"), ".avif", _size_by(AvifImageFile), 50 * MEGA, AvifImageFile),
)


def find_image_format(data: bytes) -> ImageFormat | None:
    """Returns the format of an encoded image by the first bytes; None for an unknown format."""
    for image_format in IMAGE_FORMATS:
        if image_format.signature.match(data):
            return image_format
    return None
