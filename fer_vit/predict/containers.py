"""Checks that the file of a video is complete, by the size in its header or the blocks of a GIF.

FFmpeg raises no error for a file that was cut off.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import unpack_from

from PIL import Image as Pil

HEADER_BYTES = 2**16  # bytes at the start of a file in which its size is looked for
GIF_EXTENSION = b"!"
GIF_IMAGE = b","
GIF_TRAILER = b";"


def missing_bytes(path: Path, format_name: str) -> int:
    """Returns how many bytes are missing in a file, by the size in its header; 0 without a size."""
    if format_name not in CLAIMED_SIZES:
        return 0
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES) + bytes(HEADER_BYTES)
    claimed = CLAIMED_SIZES[format_name](head)
    return max(0, claimed - path.stat().st_size)


def _matroska_size(head: bytes) -> int:
    """Returns the size of a Matroska or WebM file by its header (RFC 9559); 0 if it is unknown."""
    header_size, header_start = _ebml_size(head, 4)  # after the four bytes of its identifier
    segment = header_start + header_size
    if head[segment : segment + 4] != b"\x18\x53\x80\x67":
        return 0
    size, start = _ebml_size(head, segment + 4)
    return start + size if size else 0


def _ebml_size(head: bytes, offset: int) -> tuple[int, int]:
    """Reads the size of an element (RFC 8794) at an offset.

    Returns the size in bytes, 0 if it is unknown, and the offset of the contents that follow.
    """
    width = 9 - head[offset].bit_length()  # bytes of the size
    unknown_size = (1 << 7 * width) - 1  # all bits of the size are 1
    size = int.from_bytes(head[offset : offset + width], "big") & unknown_size
    if size == unknown_size:
        size = 0
    return size, offset + width


def _asf_size(head: bytes) -> int:
    """Returns the size of an ASF or WMV file by its header; 0 for a recorded stream."""
    properties = head.find(bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365"))
    if properties < 0:
        return 0
    (size,) = unpack_from("<Q", head, properties + 40)
    (flags,) = unpack_from("<I", head, properties + 88)
    return 0 if flags & 1 else int(size)


def _avi_size(head: bytes) -> int:
    """Returns the size of an AVI, or of its first part, by its header; 0 if it is unknown."""
    (size,) = unpack_from("<I", head, 4)
    if size in (0, 2**32 - 1):
        return 0
    return 8 + int(size)


# By container, the function that reads the size of a file from its header; 0 if it is unknown.
# The argument is the first bytes of the file, padded with zeros.
CLAIMED_SIZES: dict[str, Callable[[bytes], int]] = {
    "matroska,webm": _matroska_size,
    "asf": _asf_size,
    "avi": _avi_size,
}


def count_gif(path: Path) -> int:
    """Returns the number of all frames of a GIF, also without a delay; 0 if the GIF is damaged."""
    with suppress(Exception), Pil.open(path, formats=["GIF"]) as image:
        return int(getattr(image, "n_frames", 1))
    return 0


def gif_is_complete(path: Path) -> bool:
    """Returns whether a GIF has its last block, the trailer (GIF89a, 27)."""
    with path.open("rb") as file:
        screen = file.read(13).ljust(13, b"\0")
        file.seek(_palette_bytes(screen[10]), os.SEEK_CUR)
        while block := file.read(1):
            if block == GIF_TRAILER:
                return True
            if block not in (GIF_EXTENSION, GIF_IMAGE):  # some programs write zeros between blocks
                continue
            if block == GIF_IMAGE:
                descriptor = file.read(9)
                if len(descriptor) < 9:
                    return False
                file.seek(_palette_bytes(descriptor[8]), os.SEEK_CUR)
            file.seek(1, os.SEEK_CUR)  # the kind of an extension, or the code size of an image
            while (size := file.read(1)) not in (b"", b"\0"):
                file.seek(size[0], os.SEEK_CUR)
    return False


def _palette_bytes(flags: int) -> int:
    """Returns the number of bytes of the palette after a block of a GIF with these flags."""
    if not flags & 0x80:
        return 0
    colours = 2 << (flags & 7)
    return 3 * colours
