"""The image reader against Pillow, and against files that are none."""

import io
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from fer_vit.face.image import ImageError, decode_image, encode_png, read_bytes, read_image


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


def test_exif_does_not_rotate_an_avif_again() -> None:
    turned, camera = Image.Exif(), Image.Exif()
    turned[0x0112], camera[0x010F] = 6, "a camera"
    old, new = camera.tobytes(), turned.tobytes().removeprefix(b"Exif\0\0")
    camera[0x0112] = 6  # Pillow removes it from EXIF, and this restores it
    data = encoded(Image.fromarray(drawing()), "avif", exif=camera, quality=95)
    both = data.replace(struct.pack(">I", 6) + old, struct.pack(">I", 0) + new.ljust(len(old), b"\0"))
    assert both != data
    assert difference(both) <= 3
    assert decode_image(both).shape == (40, 24, 3)


@pytest.mark.parametrize("brands", [b"heic\0\0\0\0mif1heic", b"mif1\0\0\0\0mif1heix", b"msf1\0\0\0\0msf1hevc"])
def test_heic_is_named(brands: bytes) -> None:
    with pytest.raises(ImageError, match=r"^HEIC, which is not read: save it as JPEG$"):
        decode_image(struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands + bytes(100))


def test_an_avif_may_name_the_brands_of_heic() -> None:
    data = encoded(Image.fromarray(drawing()), "avif", quality=95)
    assert b"mif1" in data[:40]
    assert difference(data.replace(b"ftypavif", b"ftypmif1", 1)) <= 6


@pytest.mark.parametrize("kind", ["avif", "bmp", "tiff"])
def test_opencv_prints_nothing(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    level = cv2.utils.logging.getLogLevel()
    data = encoded(Image.fromarray(drawing(64, 64)), kind)
    with pytest.raises(ImageError):
        decode_image(data[: len(data) * 6 // 10])
    assert capfd.readouterr() == ("", "")
    assert cv2.utils.logging.getLogLevel() == level


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "gif", "webp"])
def test_channels_are_rgb(kind: str) -> None:
    solid = np.broadcast_to(np.array([200, 100, 30], np.uint8), (16, 16, 3))
    data = encoded(Image.fromarray(solid), kind, **({"lossless": True} if kind == "webp" else {}))
    np.testing.assert_array_equal(decode_image(data), solid)


def test_sixteen_bits_become_eight() -> None:
    grey = np.linspace(0, 65535, 24 * 40).astype(np.uint16).reshape(24, 40)
    image = decode_image(encoded(Image.fromarray(grey), "png"))
    assert np.abs(image.astype(int) - (grey[..., None] // 256)).max() <= 1


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    picture = Image.fromarray(drawing())
    if mode == "RGBA":
        picture.putalpha(128)
    how = {"format": "jpeg", "quality": 95, "subsampling": 0} if mode == "CMYK" else {"format": "png"}
    data = encoded(picture.convert(mode), how.pop("format"), **how)
    assert Image.open(io.BytesIO(data)).mode == mode
    assert difference(data) <= (6 if mode == "CMYK" else 0)


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (20, 12), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    assert getattr(Image.open(io.BytesIO(data)), "n_frames", 1) == 3
    assert difference(data) <= 4
    assert decode_image(data)[6, 10].argmax() == 0


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
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
