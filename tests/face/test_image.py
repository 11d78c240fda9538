"""The image reader against Pillow, and files that would take a machine's memory or time."""

import io
import random
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

import fer_vit.face.image as reader
from fer_vit.face.crop import CropSpec
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import Detector
from fer_vit.face.finder import FaceFinder
from fer_vit.face.headers import image_size
from fer_vit.face.image import (
    ImageError,
    decode_image,
    encode_png,
    quiet_opencv,
    read_bytes,
    read_image,
)
from fer_vit.listing import PHOTO_SUFFIXES
from tests.helpers.hostile import (
    BOMBS,
    FORMATS,
    bomb,
    many_scans,
    picture,
    tiff_bomb,
)


def drawing(height: int = 24, width: int = 40) -> np.ndarray:
    """A smooth picture without any symmetry, so that every turn shows and JPEG stays close."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 6, y * 10, 255 - 3 * x - 5 * y], -1).clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def difference(data: bytes) -> int:
    """Largest difference between the reader's pixels and Pillow's, upright and in RGB."""
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"), int)
    image = decode_image(data)
    assert image.dtype == np.uint8
    assert image.shape == expected.shape
    return int(np.abs(image - expected).max())


@pytest.mark.parametrize("kind", ["jpeg", "avif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation  # which Pillow writes into an AVIF's own boxes
    how = {"subsampling": 0} if kind == "jpeg" else {"subsampling": "4:4:4"}
    data = encoded(Image.fromarray(drawing()), kind, exif=exif, quality=95, **how)
    assert decode_image(data).shape == ((24, 40, 3) if orientation <= 4 else (40, 24, 3))
    assert difference(data) <= 3


def test_heic_is_named_but_an_avif_may_have_its_brands() -> None:
    for brands in (b"heic\0\0\0\0mif1heic", b"mif1\0\0\0\0mif1heix", b"msf1\0\0\0\0msf1hevc"):
        with pytest.raises(ImageError, match=r"^HEIC.*JPEG$"):
            decode_image(struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands + bytes(100))
    data = encoded(Image.fromarray(drawing()), "avif", quality=95)
    assert b"mif1" in data[:40]
    assert difference(data.replace(b"ftypavif", b"ftypmif1", 1)) <= 6


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "gif", "webp"])
def test_channels_are_rgb(kind: str) -> None:
    solid = np.full((16, 16, 3), (200, 100, 30), np.uint8)
    options = {"lossless": True} if kind == "webp" else {}
    data = encoded(Image.fromarray(solid), kind, **options)
    np.testing.assert_array_equal(decode_image(data), solid)


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    picture = Image.fromarray(drawing())
    if mode == "RGBA":
        picture.putalpha(128)
    how = (
        {"format": "jpeg", "quality": 95, "subsampling": 0} if mode == "CMYK" else {"format": "png"}
    )
    data = encoded(picture.convert(mode), how.pop("format"), **how)
    assert Image.open(io.BytesIO(data)).mode == mode
    assert difference(data) <= (6 if mode == "CMYK" else 0)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
@pytest.mark.parametrize("share", [0.02, 0.6])
def test_a_truncated_file_is_an_image_error(kind: str, share: float) -> None:
    data = encoded(Image.fromarray(drawing(120, 200)), kind)
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


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_the_bits_that_are_used_become_eight(kind: str, bits: int) -> None:
    """Infrared and depth cameras write 10 to 14 of 16 bits."""
    grey = np.linspace(0, 2**bits - 1, 40 * 30).round().astype(np.uint16).reshape(30, 40)
    expected = np.repeat((grey >> bits - 8)[..., None], 3, axis=2)
    image = decode_image(encoded(Image.fromarray(grey), kind))
    assert image.dtype == np.uint8
    assert np.abs(image.astype(int) - expected).max() <= 1


def test_dark_images_of_eight_bits_stay_dark() -> None:
    image = np.full((20, 20, 3), 40, np.uint8)
    np.testing.assert_array_equal(decode_image(encode_png(image)), image)
    np.testing.assert_array_equal(decode_image(encoded(Image.fromarray(image), "tiff")), image)


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.jpg"
    with path.open("wb") as file:
        file.write(encoded(PLAIN, "JPEG"))
        file.truncate(3_221_225_472)
    with pytest.raises(ImageError, match=r"3,221 MB.* 256 MB$"):
        read_bytes(path)


def test_files_that_grow_or_have_no_size_are_read_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_FILE_BYTES", 100)
    with pytest.raises(ImageError, match=r"^too large: "):
        read_bytes(Path("/proc/self/maps"))  # its size is 0


# Headers

PLAIN = Image.new("RGB", (70, 50))
MOST_SCANS = 100


class Nothing(Detector):
    """Finds no face."""

    def detect(self, image: np.ndarray) -> list[Detection]:
        return []


FINDER = FaceFinder(CropSpec(48), "detect", Nothing())


@pytest.mark.parametrize(
    ("kind", "mode"), [(kind, mode) for kind, modes in FORMATS.items() for mode in modes]
)
def test_sizes_of_all_formats(kind: str, mode: str) -> None:
    for seed in range(3):
        data = picture(np.random.default_rng(seed), kind, mode, 70, 50)
        assert image_size(data) == (70, 50)


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
    assert image_size(encoded(PLAIN, kind, **how)) == (70, 50)


def test_sizes_in_rare_headers() -> None:
    top = bytearray(encoded(PLAIN, "BMP"))
    top[22:26] = struct.pack("<i", -50)  # rows from top to bottom
    assert image_size(bytes(top)) == (70, 50)
    data = encoded(PLAIN, "JPEG")
    data = data[:20] + b"garbage\xff\0\xff\xd0" + b"\xff" * 9 + data[20:]
    assert image_size(data) == (70, 50)
    assert decode_image(data).shape == (50, 70, 3)


OTHERS = {"ppm": "PNM", "jp2": "JPEG 2000", "j2k": "JPEG 2000", "tga": "TGA"}


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("suffix", OTHERS)
def test_formats_that_are_not_read_are_named_with_the_remedy(suffix: str, mode: str) -> None:
    buffer = io.BytesIO()
    buffer.name = f"a.{suffix}"
    Image.fromarray(drawing()).convert(mode).save(buffer)
    with pytest.raises(ImageError, match=f"^{OTHERS[suffix]},.*JPEG$"):
        decode_image(buffer.getvalue())


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("ras", b"\x59\xa6\x6a\x95" + bytes(28)),
        ("pam", b"P7\nWIDTH 2\nHEIGHT 2\n"),
        ("jxl", b"\xff\x0a" + bytes(20)),
        ("hdr", b"#?RADIANCE\n"),
        ("psd", b"8BPS\0\1" + bytes(20)),
        ("exr", b"\x76\x2f\x31\x01" + bytes(20)),
    ],
)
def test_headers_of_other_formats_are_named(suffix: str, data: bytes) -> None:
    with pytest.raises(ImageError, match=r"JPEG$"):
        decode_image(data)


def test_every_listed_suffix_is_read_or_has_a_remedy() -> None:
    """Pillow writes each format that it has; other formats are in the test before."""
    by_hand = {".heic", ".heif", ".hif", ".ras", ".sr", ".pam", ".jpm"}
    known = Image.registered_extensions()
    for suffix in PHOTO_SUFFIXES - by_hand:
        kind = known[".jpg" if suffix in (".jif", ".jfi") else suffix]
        buffer = io.BytesIO()
        buffer.name = f"a{suffix}"
        picture = Image.fromarray(drawing())
        picture.save(buffer, kind)
        if image_size(buffer.getvalue()):
            assert decode_image(buffer.getvalue()).shape == (24, 40, 3)
            continue
        with pytest.raises(ImageError, match=r"JPEG$"):
            decode_image(buffer.getvalue())


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_an_image_error(name: str) -> None:
    assert len(bomb(name)) < 100_000
    words = (
        "too many scans .*1,000, the limit is "
        if name == "scans"
        else r"too large: \d\d,\d\d\d x \d\d,\d\d\d pixels, the limit is "
    )
    if name == "webp":  # it ends after its header
        words = reader.UNREADABLE
    # Reduced, these two pass OpenCV's own limit
    reduction = 8 if name in ("jpeg", "progressive") else 1
    with pytest.raises(ImageError, match=f"^{words}"):
        decode_image(bomb(name), reduction)


def test_the_largest_photos_of_phones_pass() -> None:
    assert decode_image(tiff_bomb(300)).shape == (300, 300, 3)
    for sides, megapixels in (((16_384, 12_288), None), ((16_385, 12_288), 201)):
        data = with_sides(encoded(PLAIN, "BMP"), b"BM", 18, struct.pack("<ii", *sides))
        # the smaller one is no longer too large, but it ends after 70 x 50 pixels
        words = rf"16,385 x 12,288 .*{megapixels} megapixels$" if megapixels else reader.UNREADABLE
        with pytest.raises(ImageError, match=words):
            decode_image(data)


def claimed(kind: str) -> bytes:
    """A small file that claims 15,000 x 14,000 pixels."""
    if kind == "JPEG":
        place = (b"\xff\xc0", 5, struct.pack(">HH", 14_000, 15_000))
    elif kind == "PNG":
        place = (b"IHDR", 4, struct.pack(">II", 15_000, 14_000))
    else:
        place = (b"ispe", 8, struct.pack(">II", 15_000, 14_000))
    return with_sides(encoded(Image.new("RGB", (16, 16)), kind), *place)


def with_sides(data: bytes, mark: bytes, offset: int, sides: bytes) -> bytes:
    at = data.index(mark) + offset
    return data[:at] + sides + data[at + len(sides) :]


@pytest.mark.parametrize(("kind", "most"), [("JPEG", 201), ("PNG", 201), ("AVIF", 50)])
def test_each_format_has_the_limit_of_its_decoder(kind: str, most: int) -> None:
    with pytest.raises(ImageError, match=rf"^too large: 15,000 x 14,000 .* {most} megapixels$"):
        decode_image(claimed(kind))


def test_an_animated_avif_has_the_size_of_its_track() -> None:
    more = {"save_all": True, "append_images": [PLAIN.copy()]}
    data = encoded(PLAIN, "AVIF", **more)
    assert image_size(data) == (70, 50)
    at = data.index(b"tkhd")
    large = struct.pack(">II", 9_000 << 16, 9_000 << 16)
    place = at + (92 if data[at + 4] == 1 else 80)
    assert image_size(data[:place] + large + data[place + 8 :]) == (9_000, 9_000)


def test_headers_of_many_parts_are_refused() -> None:
    data = encoded(PLAIN, "JPEG")
    many = data[:2] + b"\xff\xe1\0\x02" * 1_000_000 + data[2:]
    with pytest.raises(ImageError, match="segments"):
        decode_image(many)
    png = encode_png(drawing())
    text = struct.pack(">I", 4) + b"zTXta\0\0x" + bytes(4)
    with pytest.raises(ImageError, match="texts"):
        decode_image(png[:33] + text * 1000 + png[33:])


def test_damaged_entries_of_a_header_print_nothing(tmp_path: Path) -> None:
    number = 5000
    size = 12 * number
    entries = [struct.pack("<HHII", 1000 + tag, 1, size, 8) for tag in range(number)]
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, number) + b"".join(entries) + bytes(4)
    data = encoded(PLAIN, "JPEG", exif=exif)
    (tmp_path / "a.jpg").write_bytes(data)
    code = (
        "import sys; from fer_vit.face.image import *; print(read_image(Path(sys.argv[1])).shape)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.jpg")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (run.stdout, run.stderr) == ("(50, 70, 3)\n", "")


@pytest.mark.parametrize("kind", FORMATS)
def test_torn_headers_have_a_size_or_none(kind: str) -> None:
    rng = random.Random(1)
    whole = picture(np.random.default_rng(1), kind, FORMATS[kind][0], 70, 50)
    torn = [whole[:end] for end in range(min(len(whole), 400))]
    for _ in range(200):
        data = bytearray(whole[: rng.randrange(4, len(whole))])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(min(len(data), 300))] = rng.randrange(256)
        torn.append(bytes(data))
    torn += [bomb(name)[:end] for name in BOMBS for end in range(100)]
    for data in torn:
        size = image_size(data)
        assert size is None or (len(size) == 2 and min(size) >= 0)
    for data in torn[::5]:
        with suppress(ImageError):
            FINDER.find_in_file(data)


def test_overlapping_blocks_restore_the_level_of_opencv() -> None:
    log = cv2.utils.logging
    before = log.setLogLevel(log.LOG_LEVEL_WARNING)
    first = ExitStack()
    second = ExitStack()
    try:
        first.enter_context(quiet_opencv())
        second.enter_context(quiet_opencv())
        first.close()
        assert log.getLogLevel() == log.LOG_LEVEL_SILENT
        second.close()
        assert log.getLogLevel() == log.LOG_LEVEL_WARNING
    finally:
        log.setLogLevel(before)


@pytest.mark.parametrize("data", [b"", b"text", b"\xff\xd8\xff\xe0", b"II*\0", b"P8 2 2 255 " * 9])
def test_other_formats_and_short_files_have_no_size_and_are_refused(data: bytes) -> None:
    assert image_size(data) is None
    with pytest.raises(ImageError, match=rf"^({reader.UNREADABLE}|the file is empty)$"):
        decode_image(data)


def test_the_scans_of_a_photo_alone_are_counted() -> None:
    # a film may follow a photo
    assert decode_image(encoded(PLAIN, "JPEG") + b"\xff\xda" * 1000).shape == (50, 70, 3)
    assert decode_image(many_scans(64, MOST_SCANS)).shape == (64, 64, 3)
    with pytest.raises(ImageError, match="scans"):
        decode_image(many_scans(64, MOST_SCANS + 1))
