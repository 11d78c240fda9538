"""The image reader: Pillow decodes files to RGB uint8, or an error has the reason.

The size is checked before the pixels are decoded, since a few bytes can claim more of them than memory holds. Formats
that are not listed here reach no decoder, so that a hostile file cannot select a rarely used one. `PIL.Image.open`
refuses the largest photos of phones by a limit that other code of the process may set.
"""

import io
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil, ImageOps
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from fer_vit.errors import FerVitError
from fer_vit.geometry import Image

IMAGE_SUFFIXES = frozenset(
    [".jpg", ".jpeg", ".jfif", ".png", ".apng", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif", ".heic", ".heif"]
)
"""Lower-case suffixes of the files in a folder that count as images, decodable or not."""
MAX_PIXELS = 2**28  # 16,384 x 16,384: the limit of AVIF's decoder; a file of 68 bytes can claim 4,295 megapixels
"""The largest photos of phones have 201 megapixels."""
MAX_SCANS = 100  # of a JPEG: each takes time for all pixels, but only 300 bytes; ten are usual
STRIP = 2**18  # pixels of an image that are converted at once
UNREADABLE = "not an image that can be decoded"

JPEG = rb"\xff\xd8\xff"
READERS: dict[bytes, type[ImageFile] | str] = {  # by a regular expression for a file's first bytes
    JPEG: JpegImageFile,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF....WEBP": WebPImageFile,
    rb"GIF8[79]a": GifImageFile,
    rb"BM": BmpImageFile,
    rb"II[*+]\0|MM\0[*+]": TiffImageFile,
    rb"....ftyp(....)*?avi[fs]": AvifImageFile,  # a list of formats, perhaps also of HEIC
    rb"....ftyp(....)*?(hei[cmsx]|hev[cx]|mif1|msf1)": "HEIC, which is not read: save it as JPEG",
    rb"....ftyp|\x1a\x45\xdf\xa3|RIFF....AVI ": "a video, not an image: give it the suffix of one, such as .mp4",
    rb"\Z": "the file is empty",
    rb"": UNREADABLE,
}

MARKER = re.compile(rb"\xff([\x01-\xfe])")  # of a JPEG's segment; in compressed pixels 0x00 follows every 0xff
START_OF_SCAN, END, NO_PAYLOAD = 0xDA, 0xD9, frozenset((0x01, *range(0xD0, 0xD8)))
PLAIN_FRAMES = frozenset((0xC0, 0xC1, 0xC9))  # markers of frames that are not progressive


class ImageError(FerVitError):
    """An image that cannot be read; the message is only the reason, without the path."""


def open_image(file: BinaryIO) -> ImageFile:
    """Reads the header of an image. Raises ImageError for other formats, and when the header is damaged."""
    start = file.read(128)
    file.seek(0)
    reader = next(reader for pattern, reader in READERS.items() if re.match(pattern, start, re.DOTALL))
    if isinstance(reader, str):
        raise ImageError(reader)
    try:
        return reader(file)
    except Exception as error:  # Pillow raises many types for damaged files
        raise ImageError(UNREADABLE) from error


def decode_image(data: bytes, reduction: int = 1) -> Image:
    """Decodes an encoded image to RGB uint8 (H, W, 3), upright by its EXIF or by the boxes of an AVIF.

    Other modes become 8-bit RGB; an animation gives its first frame. `reduction` (1, 2, 4 or 8) divides width and
    height of a JPEG, which is decoded in a third of the time or less. Raises ImageError for a file that is no image,
    or that takes too much memory or time: the full size counts, since progressive JPEGs are always decoded in full.
    """
    image = open_image(io.BytesIO(data))
    check_size(image.size)
    if (scans := count_scans(data)) > MAX_SCANS:
        raise ImageError(f"too many scans of a JPEG: {scans:,}, the limit is {MAX_SCANS}")
    image.draft(None, (image.width // reduction, image.height // reduction))
    try:
        image.load()
        with suppress(Exception):  # from damaged EXIF
            ImageOps.exif_transpose(image, in_place=True)
        return from_pil(image)
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow raises many types for damaged files
        raise ImageError(UNREADABLE) from error


def from_pil(image: Pil.Image) -> Image:
    """Converts a PIL image to RGB uint8 (H, W, 3) without alpha; 16 bits become 8. Raises ImageError for 32 bits."""
    if image.mode in ("I", "F"):
        raise ImageError(f"pixels of 32 bits (PIL's mode {image.mode}): scale them to 8 bits, 0 to 255")
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, STRIP // max(1, image.width))
    for top in range(0, image.height, rows):  # conversion of a full image would copy it twice
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        wide = strip.mode.startswith("I;16")
        pixels[top : top + rows] = np.asarray(strip)[..., None] >> 8 if wide else np.asarray(strip.convert("RGB"))
    return pixels


def is_animated(path: Path) -> bool:
    """Returns whether a file is a GIF, PNG, WebP or AVIF of several frames."""
    if not path.is_file():  # opening a pipe could block forever
        return False
    with suppress(Exception), path.open("rb") as file:  # Pillow raises many types for damaged files
        image = open_image(file)
        return not isinstance(image, TiffImageFile) and bool(getattr(image, "is_animated", False))
    return False


def count_scans(data: bytes) -> int:
    """Returns the number of scans of a JPEG, each of which can refine all pixels by a few bytes; else 0."""
    scans, components, at = 0, b"", 2 if re.match(JPEG, data) else len(data)
    while (found := MARKER.search(data, at)) and (marker := found[1][0]) != END:  # as libjpeg finds them
        at = found.end()  # the start of its payload
        if marker in PLAIN_FRAMES:
            components = data[at + 7 : at + 8]
        if marker == START_OF_SCAN:
            scans += 1
            if data[at + 2 : at + 3] == components:  # one scan contains all of them
                break
        if marker not in NO_PAYLOAD:
            at += int.from_bytes(data[at : at + 2], "big")
    return scans


def check_size(size: tuple[int, int], most: int = MAX_PIXELS) -> None:
    """Raises ImageError for a width and height of more than `most` pixels."""
    if math.prod(size) > most:
        raise ImageError(f"too large: {size[0]:,} x {size[1]:,} pixels, the limit is {most // 10**6} megapixels")


def reduction_to(data: bytes, min_side: int) -> int:
    """Returns the strongest reduction that leaves the longer side of an encoded JPEG at least `min_side` pixels.

    1 for other formats. If EXIF rotates the JPEG, the reduction divides its sides: padding would shift the image.
    """
    image, turned = open_image(io.BytesIO(data)), False
    if not isinstance(image, JpegImageFile):
        return 1
    with suppress(Exception):  # from damaged EXIF
        turned = image.getexif().get(Base.Orientation, 1) != 1
    fits = (factor for factor in (1, 2, 4, 8) if not (turned and any(side % factor for side in image.size)))
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
    if array.dtype != np.uint8 or array.ndim < 2 or not array.size or array.shape[2:] not in ((), (1,), (3,), (4,)):
        came = f"{array.dtype} {array.shape}"
        raise FerVitError(f"Expected an image as uint8 of shape (H, W), (H, W, 3) or (H, W, 4), but got {came}.")
    image = array.reshape(*array.shape[:2], -1)[..., :3]
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)), np.uint8)


def encode_jpeg(image: Image) -> bytes:
    """Encodes an image (H, W, 3) RGB as JPEG bytes of high quality."""
    return bytes(cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 95))[1])


def encode_png(image: Image) -> bytes:
    """Encodes an image (H, W, 3) RGB or (H, W) grey as PNG bytes."""
    return bytes(cv2.imencode(".png", image if image.ndim == 2 else image[..., ::-1])[1])
