"""Decodes image files to RGB uint8, or raises an error with the reason.

Formats and limits are in `headers`. All other formats are refused, so that a hostile file cannot
select a rarely used decoder. OpenCV's limit (`OPENCV_IO_MAX_IMAGE_PIXELS`) is not used: the limit
is fixed when a process first imports cv2, also applies to images that the user decodes, and counts
the pixels of a JPEG after reduction (OpenCV 4.12, 5.0).
"""

import io
import math
import os
import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL.AvifImagePlugin import AvifImageFile
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile

from fer_vit.errors import FerVitError, ImageError as ImageError
from fer_vit.face.headers import (
    AVIF,
    MEGA,
    Size,
    brands,
    count_scans,
    find_image_format,
    image_size,
    is_clip,
)
from fer_vit.files import open_input
from fer_vit.geometry import Image
from fer_vit.processes import is_worker
from fer_vit.system.settings import SharedSetting
from fer_vit.system.untrusted import memory_limit

# OpenCV's flags that divide width and height by 1, 2, 4 or 8. The constants of cv2 cannot be used,
# because they include grey or BGR.
REDUCED = {
    1: 0,
    2: 16,
    4: 32,
    8: 64,
}
ORIENTATION = Base.Orientation
# Steps of rows and columns for the EXIF orientations 1 to 4; -1: in reverse order.
FLIPS = ((1, 1), (1, -1), (-1, -1), (-1, 1))
MAX_FILE_BYTES = 256 * MEGA  # most bytes of an encoded image

# Most bytes of memory that decoding takes in a worker process. A JPEG of 201 megapixels takes 1.2
# GB.
MAX_MEMORY = 2_000 * MEGA

# Most scans of a JPEG. A scan can have 300 bytes, but takes time for all pixels; ten are usual.
MAX_SCANS = 100
MAX_TEXTS = 100  # most compressed texts of a PNG; each text takes up to 46 ms
DEEP_SIGNATURES = (b"\x89PNG", b"II", b"MM")  # the first bytes of formats with 16 bits
# Most pixels of an image that is decoded with 16 bits, at 15 bytes per pixel. A larger image stays
# dark.
MAX_DEEP_PIXELS = 80 * MEGA
# If an image has only levels (0 to 255) below this, it may have 16 bits, with at most 14 in use.
DARK_LEVEL = 64
# The brands of a HEIC; an AVIF may have these brands, too.
HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
UNREADABLE = "not an image that can be decoded"

# The status of a video. The text is here, since `predict/frames.py` needs PyAV, which may not be
# installed.
UNREADABLE_VIDEO = "not a video that can be decoded"

# The first bytes of known formats that are refused.
UNREAD_FORMATS = {
    "JPEG 2000": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a",
    "DIB without the header of a file": rb"\x28\0\0\0.{8}\x01\0",
    "PNM": rb"P[1-7]\s",
    "Sun raster": rb"\x59\xa6\x6a\x95",
    "PSD": rb"8BPS",
    "OpenEXR": rb"\x76\x2f\x31\x01",
    "Radiance HDR": rb"#\?(RADIANCE|RGBE)",
    # without a colour map, as in photos, or with the last bytes of version 2
    "TGA": rb"[\0-\xff]\x00[\x02\x03\x0a\x0b]\x00{9}"
    rb"|[\0-\xff][\0\x01][\x01-\x0b].*TRUEVISION-XFILE\.\0\Z",
}

# The status of a file that killed the process while it was read.
CRASHED = "cannot be decoded: the decoder crashed or ran out of memory"


OPENCV_LOG_LEVEL = SharedSetting(cv2.utils.logging.getLogLevel, cv2.utils.logging.setLogLevel)


def quiet_opencv() -> AbstractContextManager[None]:
    """Returns a block in which OpenCV prints nothing; errors become exceptions."""
    return OPENCV_LOG_LEVEL.changed(cv2.utils.logging.LOG_LEVEL_SILENT)


def decode_image(data: bytes, reduction: int = 1, checked: bool = False) -> Image:
    """Decodes an encoded image to RGB uint8 (H, W, 3), made upright by EXIF or AVIF boxes.

    Other modes become 8-bit RGB; an animation gives the first frame. `reduction` (1, 2, 4 or 8)
    divides width and height; a reduced JPEG is decoded in a third of the time or less. Raises
    ImageError as `check_cost`, unless the caller has `checked` that, and for an image that cannot
    be decoded. In a worker process, decoding may take `MAX_MEMORY` (Linux).
    """
    with memory_limit(MAX_MEMORY) if is_worker() else nullcontext():
        try:
            if not checked:
                check_cost(data)
            return _decode(data, reduction)
        except MemoryError as error:
            raise ImageError(CRASHED) from error


def _decode(data: bytes, reduction: int) -> Image:
    flags = cv2.IMREAD_COLOR_RGB | REDUCED[reduction]
    orientation = 1
    if brands(data) & AVIF:  # OpenCV applies EXIF, which AVIF ignores
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
        orientation = _avif_orientation(data)
    image = _decode_with_opencv(data, flags)
    pixels = image.shape[0] * image.shape[1]
    if data.startswith(DEEP_SIGNATURES) and pixels <= MAX_DEEP_PIXELS and image.max() < DARK_LEVEL:
        del image  # before the next decoding: the memory limit allows only one image
        image = _decode_with_opencv(data, flags | cv2.IMREAD_ANYDEPTH)
        if image.dtype == np.uint16:
            image = reduce_depth(image)
    return rotate_upright(np.asarray(image, np.uint8), orientation)


def _decode_with_opencv(data: bytes, flags: int) -> NDArray[Any]:
    """Decodes an encoded image with flags of OpenCV; raises ImageError if that fails."""
    image = None
    with quiet_opencv():
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error as error:
            if error.code == cv2.Error.StsNoMem:
                raise MemoryError from error
    if image is None:
        raise ImageError(UNREADABLE)
    return image


def reduce_depth(image: NDArray[np.uint16], bits: int | None = None) -> NDArray[np.uint8]:
    """Reduces 16 bits to 8: takes the highest 8 of the lowest `bits` (None: of the bits in use).

    Infrared and depth cameras use only 10 to 14 bits, so the highest 8 of all 16 bits would give a
    black image.
    """
    used = used_bits(image) if bits is None else bits
    return np.asarray(image >> (used - 8), np.uint8)


def used_bits(image: NDArray[np.uint16]) -> int:
    """Returns how many of 16 bits an image uses: 8, 10, 12, 14 or 16."""
    used = max(8, int(image.max()).bit_length())
    return used + used % 2


def _avif_orientation(data: bytes) -> int:
    """Returns the orientation in the boxes of an AVIF, as an EXIF orientation.

    Returns 1 (upright) for a broken header.
    """
    try:
        # reads only the header
        return int(AvifImageFile(io.BytesIO(data)).getexif().get(ORIENTATION, 1))
    except Exception:  # Pillow raises many types for broken headers
        return 1


def rotate_upright(image: Image, orientation: int) -> Image:
    """Applies an EXIF orientation (1 to 8) to an image (H, W, 3).

    Orientations 5 to 8 transpose the image, then flip it as 1 to 4 do (`FLIPS`).
    """
    if orientation > 4:
        image = image.transpose(1, 0, 2)
    row_step, column_step = FLIPS[(orientation - 1) % 4]
    return np.ascontiguousarray(image[::row_step, ::column_step])


def check_cost(data: bytes) -> None:
    """Raises ImageError for an image of unknown format, or an image that takes much memory or time.

    The full size counts, even if decoding reduces the image: progressive JPEGs are always decoded
    in full.
    """
    if not data:
        raise ImageError("the file is empty")
    file_brands = brands(data)
    if file_brands & HEIC and not file_brands & AVIF:
        raise ImageError("HEIC, which is not read: save it as JPEG")
    if is_clip(data):
        raise ImageError("a video, not an image: give it the suffix of one, such as .mp4")
    image_format = find_image_format(data)
    if image_format is None:
        raise ImageError(_reason_unread(data))
    scans = count_scans(data)
    size = image_format.read_size(data)
    if size is None:
        raise ImageError(UNREADABLE)
    check_size(size, image_format.max_pixels)
    if scans > MAX_SCANS:
        raise ImageError(f"too many scans of a JPEG: {scans:,}, the limit is {MAX_SCANS}")
    if data.startswith(b"\x89PNG"):
        texts = data.count(b"zTXt") + data.count(b"iTXt")
        if texts > MAX_TEXTS:
            raise ImageError(f"too many texts in a PNG: {texts:,}, the limit is {MAX_TEXTS}")


def _reason_unread(data: bytes) -> str:
    """Returns why an image is refused that has none of `IMAGE_FORMATS`."""
    for name, signature in UNREAD_FORMATS.items():
        if re.match(signature, data, re.DOTALL):
            return f"{name}, which is not read: save it as JPEG"
    return UNREADABLE


def check_size(size: Size, max_pixels: int) -> None:
    """Raises ImageError for a width and height of more than `max_pixels` pixels."""
    if math.prod(size) > max_pixels:
        raise ImageError(
            f"too large: {size[0]:,} x {size[1]:,} pixels, the limit is {max_pixels // MEGA} "
            "megapixels"
        )


def check_file_size(size: int) -> None:
    """Raises ImageError if the size in bytes of an encoded image is too large.

    Call this before the file is read or unpacked.
    """
    if size > MAX_FILE_BYTES:
        raise ImageError(
            f"too large: {size / MEGA:,.0f} MB, the limit of an image is "
            f"{MAX_FILE_BYTES // MEGA} MB"
        )


def reduction_to(data: bytes, min_side: int) -> int:
    """Returns the strongest reduction of a JPEG (1, 2, 4 or 8) that leaves `min_side` pixels.

    The longer side of the reduced JPEG has at least `min_side` pixels. Other formats are not
    reduced. If EXIF rotates the JPEG, the sides must be multiples of the reduction: otherwise,
    padding would shift the image.
    """
    try:
        # reads only the header; `Image.open` would refuse large photos
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


def size_of_photo(data: bytes, image: Image, reduction: int) -> Size:
    """Returns width and height of an upright photo, given a reduced copy (H, W, 3).

    If a side is no multiple of the reduction, the side of the copy is rounded up, and the size
    comes from the header. Such a photo is not rotated by EXIF (see `reduction_to`).
    """
    height, width = image.shape[:2]
    size = (width * reduction, height * reduction)
    if reduction == 1:
        return size
    header = image_size(data)
    if header is None or all(side % reduction == 0 for side in header):
        return size
    return header


def read_image(path: Path) -> Image:
    """Reads an image file as RGB uint8 (H, W, 3).

    Raises ImageError when the file cannot be read or decoded.
    """
    return decode_image(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Reads the bytes of an image file.

    Raises ImageError when the file cannot be read, or is larger than MAX_FILE_BYTES.
    """
    try:
        with open_input(path) as file:
            check_file_size(os.fstat(file.fileno()).st_size)
            # the file may grow while it is read, or have size 0, as files in /proc
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ImageError(error.strerror or type(error).__name__) from error
    except ValueError as error:  # a NUL byte in the path
        raise ImageError("not a valid file name") from error
    check_file_size(len(data))
    return data


def to_rgb(array: NDArray[np.generic]) -> Image:
    """Converts a uint8 image in memory to RGB (H, W, 3): repeats grey, and drops alpha.

    Raises FerVitError for other arrays.
    """
    if np.ma.is_masked(array):
        raise FerVitError(
            "Expected an image without masked pixels, but some are. Fill them, for example by "
            "`image.filled(0)`."
        )
    array = np.asarray(array)  # `np.matrix` would always keep two dimensions
    is_grey = array.ndim == 2
    has_channels = array.ndim == 3 and array.shape[2] in (1, 3, 4)
    if array.dtype != np.uint8 or not array.size or not (is_grey or has_channels):
        actual = f"{array.dtype} {array.shape}"
        raise FerVitError(
            f"Expected an image as uint8 of shape (H, W), (H, W, 3) or (H, W, 4), but got {actual}."
        )
    image = array.reshape(*array.shape[:2], -1)[..., :3]
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)), np.uint8)


def encode_jpeg(image: Image) -> bytes:
    """Encodes an image (H, W, 3) RGB as JPEG bytes of high quality."""
    _, data = cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 95))
    return bytes(data)


def encode_png(image: Image) -> bytes:
    """Encodes an image (H, W, 3) RGB or (H, W) grey as PNG bytes."""
    if image.ndim == 3:
        image = image[..., ::-1]  # OpenCV expects BGR
    _, data = cv2.imencode(".png", image)
    return bytes(data)
