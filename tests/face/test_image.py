"""The image reader against OpenCV, and files that would take a machine's memory or time."""

import io
import random
import struct
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import fer_vit.face.image as reader
from fer_vit.face.image import ImageError, count_scans, decode_image, encode_png, read_bytes, read_image
from tests.helpers.hostile import BOMBS, FORMATS, bomb, claiming, many_scans, picture, saved, tiff_bomb


def drawing(height: int = 24, width: int = 40) -> np.ndarray:
    """A smooth picture without any symmetry, so that every turn shows and JPEG stays close."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 6, y * 10, 255 - 3 * x - 5 * y], -1).clip(0, 255).astype(np.uint8)


def difference(data: bytes) -> int:
    """Largest difference between the reader's pixels and OpenCV's."""
    expected, image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB), decode_image(data)
    assert image.dtype == np.uint8
    assert image.shape == expected.shape
    return int(np.abs(image.astype(int) - expected).max())


PLAIN = Image.fromarray(drawing())
MODES = [(kind, mode) for kind, modes in FORMATS.items() for mode in modes if mode != "F"]


@pytest.mark.parametrize(("kind", "mode"), [*MODES, ("MPO", "RGB")])
def test_pixels_of_every_format_and_mode(kind: str, mode: str) -> None:
    deep = Image.fromarray(drawing()[..., 0].astype(np.uint16) * 256 + 255)
    image = deep if mode == "I;16" else PLAIN.convert(mode)
    if (kind, mode) == ("PNG", "RGBA"):
        image.putalpha(128)
    data = saved(image, kind)
    assert difference(data) <= (mode == "CMYK")
    assert Image.open(io.BytesIO(data)).mode == mode or kind in ("WEBP", "GIF", "AVIF")


def test_pixels_of_32_bits_are_an_error() -> None:
    with pytest.raises(ImageError, match=r"^pixels of 32 bits"):
        decode_image(saved(PLAIN.convert("F"), "TIFF"))


@pytest.mark.parametrize("kind", ["JPEG", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation  # which Pillow writes into an AVIF's own boxes
    upright = drawing().transpose(1, 0, 2) if orientation > 4 else drawing()
    rows, columns = ((1, 1), (1, -1), (-1, -1), (-1, 1))[(orientation - 1) % 4]
    image = decode_image(saved(PLAIN, kind, exif=exif, quality=100, subsampling="4:4:4"))
    assert np.abs(image - upright[::rows, ::columns].astype(int)).max() <= 6


def test_heic_is_named_but_an_avif_may_have_its_brands() -> None:
    for brands in (b"heic\0\0\0\0mif1heic", b"mif1\0\0\0\0mif1heix", b"msf1\0\0\0\0msf1hevc"):
        with pytest.raises(ImageError, match=r"^HEIC, which is not read: save it as JPEG$"):
            decode_image(struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands + bytes(100))
    data = saved(PLAIN, "AVIF")
    assert b"mif1" in data[:40]
    assert (decode_image(data.replace(b"ftypavif", b"ftypmif1", 1)) == decode_image(data)).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_truncated_file_is_an_image_error(kind: str, share: float) -> None:
    data = saved(Image.fromarray(drawing(120, 200)), kind)
    with pytest.raises(ImageError, match="not an image"):
        decode_image(data[: int(len(data) * share)])


def test_reading_files_and_reasons_of_failures(tmp_path: Path) -> None:
    path = tmp_path / "ä ö.png"
    path.write_bytes(encode_png(drawing()))
    np.testing.assert_array_equal(read_image(path), drawing())
    with pytest.raises(ImageError, match="No such file"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(ImageError, match="not a regular file"):
        read_bytes(tmp_path)
    with pytest.raises(ImageError, match="File name too long"):
        read_bytes(tmp_path / ("a" * 300))


# Files that would take memory or time

SHORT = [b"", b"text", b"\0" * 1000, b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0"]


@pytest.mark.parametrize("data", [*SHORT, b"P6 2 2 255 " * 9, b"#?RADIANCE\n"])
def test_other_formats_and_short_files_reach_no_decoder(data: bytes) -> None:
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
    assert reader.MAX_PIXELS > 16_384 * 12_288
    assert decode_image(tiff_bomb(300)).shape == (300, 300, 3)
    with pytest.raises(ImageError, match=r"^too large: 16,385 x 16,384 pixels, the limit is 268 megapixels$"):
        decode_image(claiming("BMP", 18, struct.pack("<ii", 16_385, 16_384)))


def test_scans() -> None:
    assert count_scans(saved(PLAIN, "PNG")) == 0
    assert count_scans(saved(PLAIN, "JPEG") + b"\xff\xda" * 1000) == 1  # a film may follow a photo
    assert count_scans(saved(PLAIN, "JPEG", progressive=True)) == 10
    assert count_scans(many_scans(64, reader.MAX_SCANS)) == reader.MAX_SCANS
    assert decode_image(many_scans(64, reader.MAX_SCANS)).shape == (64, 64, 3)


@pytest.mark.filterwarnings("ignore::UserWarning")  # from Pillow about damaged EXIF
@pytest.mark.parametrize("kind", FORMATS)
def test_torn_files_are_images_or_errors(kind: str) -> None:
    rng = random.Random(0)
    whole = picture(np.random.default_rng(1), kind, FORMATS[kind][0], 70, 50)
    for _ in range(300):
        data = bytearray(whole[: rng.randrange(4, len(whole))])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(min(len(data), 300))] = rng.randrange(256)
        with suppress(ImageError):
            assert reader.reduction_to(bytes(data), 10) in (1, 2, 4)
            assert decode_image(bytes(data)).ndim == 3
