"""Sizes out of headers against Pillow's, and files that would take a machine's memory or time."""

import io
import random
import struct

import numpy as np
import pytest
from PIL import Image

from fer_vit.face.image import MAX_PIXELS, MAX_SCANS, ImageError, count_scans, decode_image, image_size, reduction_to
from tests.helpers.hostile import BOMBS, FORMATS, bomb, many_scans, picture, tiff_bomb


def encoded(kind: str, size: tuple[int, int], **how: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, kind, **how)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in FORMATS.items() for mode in modes])
def test_sizes_of_all_formats(kind: str, mode: str) -> None:
    for seed in range(10):
        data = picture(np.random.default_rng(seed), kind, mode, 70, 50)
        expected = (0, 0) if kind == "AVIF" or data[12:16] in (b"VP8 ", b"VP8L") else (70, 50)
        assert image_size(data) == expected


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("JPEG", {"progressive": True}),
        ("JPEG", {"comment": b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff" * 9}),
        ("JPEG", {"icc_profile": b"\xff\xda\xff\xc0" * 50_000}),
        ("TIFF", {"big_tiff": True}),
        ("WEBP", {"icc_profile": b"x"}),
    ],
)
def test_sizes_in_other_places(kind: str, how: dict[str, object]) -> None:
    assert image_size(encoded(kind, (70, 50), **how)) == (70, 50)


def test_a_tiff_of_the_other_byte_order_and_with_two_widths() -> None:
    entries = ((256, 3, 1, 70 << 16), (256, 4, 1, 900), (257, 4, 1, 50))
    data = b"MM\0\x2a" + struct.pack(">IH", 8, 3) + b"".join(struct.pack(">HHII", *entry) for entry in entries)
    assert image_size(data) == (900, 50)


def test_an_old_bitmap_and_one_from_the_top() -> None:
    old = b"BM" + bytes(12) + struct.pack("<IHH", 12, 70, 50)
    top = b"BM" + bytes(12) + struct.pack("<Iii", 40, 70, -50)
    assert image_size(old) == image_size(top) == (70, 50)


def test_garbage_between_segments_is_skipped() -> None:
    data = encoded("JPEG", (70, 50))
    data = data[:20] + b"garbage\xff\0\xff\xd0" + b"\xff" * 9 + data[20:]
    assert image_size(data) == (70, 50)
    assert decode_image(data).shape == (50, 70, 3)


SHORT = [b"", b"text", b"\0" * 1000, b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0"]


@pytest.mark.parametrize("data", [*SHORT, b"P6 2 2 255 " * 9, b"#?RADIANCE\n"])
def test_other_formats_and_short_files_reach_no_decoder(data: bytes) -> None:
    assert image_size(data) is None
    with pytest.raises(ImageError, match=r"^(not an image that can be decoded|the file is empty)$"):
        decode_image(data)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_an_image_error(name: str) -> None:
    assert len(bomb(name)) < 100_000
    words = "too many scans of a JPEG: 1,000" if name == "scans" else r"too large: \d\d,\d\d\d x \d\d,\d\d\d pixels"
    with pytest.raises(ImageError, match=f"^{words}, the limit is "):
        # Reduced, these two pass OpenCV's own limit
        decode_image(bomb(name), 8 if name in ("jpeg", "progressive") else 1)


def test_the_largest_photos_of_phones_pass() -> None:
    assert MAX_PIXELS > 16_384 * 12_288
    assert decode_image(tiff_bomb(300)).shape == (300, 300, 3)
    with pytest.raises(ImageError, match=r"^too large: 16,385 x 16,384 pixels, the limit is 268 megapixels$"):
        decode_image(b"BM" + bytes(12) + struct.pack("<Iii", 40, 16_385, 16_384))


def test_scans() -> None:
    assert count_scans(encoded("PNG", (70, 50))) == 0
    assert count_scans(encoded("JPEG", (70, 50)) + b"\xff\xda" * 1000) == 1  # a film may follow a photo
    assert count_scans(encoded("JPEG", (70, 50), progressive=True)) == 10
    assert count_scans(many_scans(64, MAX_SCANS)) == MAX_SCANS
    assert decode_image(many_scans(64, MAX_SCANS)).shape == (64, 64, 3)


@pytest.mark.parametrize("kind", FORMATS)
def test_torn_headers_have_a_size_or_none(kind: str) -> None:
    rng = random.Random(0)
    whole = picture(np.random.default_rng(1), kind, FORMATS[kind][0], 70, 50)
    torn = [whole[:end] for end in range(min(len(whole), 400))]
    for _ in range(500):
        data = bytearray(whole[: rng.randrange(4, len(whole))])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(min(len(data), 300))] = rng.randrange(256)
        torn.append(bytes(data))
    torn += [bomb(name)[:end] for name in BOMBS for end in range(100)]
    for data in torn:
        size = image_size(data)
        assert size is None or (len(size) == 2 and min(size) >= 0)
        assert count_scans(data) >= 0
        assert reduction_to(data, 10) in (1, 2, 4, 8)
