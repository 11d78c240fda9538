"""Files as scraping finds them: every format and kind of pixel, some damaged, empty,
text or bombs.
"""

import io
import os
import re
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.data import astronaut

FORMATS = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P", "RGB"),
    "BMP": ("1", "L", "P", "RGB"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "AVIF": ("RGB", "RGBA"),
}
ANIMATED = ("GIF", "WEBP", "PNG")
WITH_EXIF = ("JPEG", "PNG", "WEBP")
SIZES = {
    (1, 1): 3,
    (1, 300): 3,
    (300, 1): 3,
    (7, 5): 3,
    (64, 64): 3,
    (120, 90): 3,
    (2000, 3): 2,
    (20000, 10): 1,
}
"""Width and height, and how many of 21 have it."""
FACE = Image.fromarray(astronaut()[:256, 100:356])
NAMES = [b"plain", b"with space", b"with 'quotes\"", b"line\nbreak", "ünï-漢字 \u202egnp".encode()]
NAMES += [
    b"not unicode \xff\xfe",
    b"=1+1",
    b"-dash",
    b"<script>alert(1)<",
    b"%s{}#?&amp;",
    b"long" * 60,
]


def hostile(seed: int) -> tuple[str, bytes]:
    """Returns a name and what is in the file; about half of them are whole."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(list(FORMATS)))
    mode = str(rng.choice(FORMATS[kind]))
    sizes = [size for size, number in SIZES.items() for _ in range(number)]
    width, height = sizes[rng.integers(len(sizes))]
    if kind == "WEBP":
        width = min(width, 16_383)
    data = picture(rng, kind, mode, width, height)
    harm = rng.integers(10)
    if harm == 0:
        data = data[: rng.integers(len(data))]
    elif harm == 1:
        data = flipped(rng, data, 20)
    elif harm == 2:
        data = b"" if rng.random() < 0.5 else b"This is text.\n" * int(rng.integers(1, 50))
    elif harm == 3:
        data = bomb(list(BOMBS)[rng.integers(len(BOMBS))])
    suffix = str(rng.choice([kind.lower(), "jpg", "PNG"])).encode()
    return os.fsdecode(b"%06d %s.%s" % (seed, NAMES[rng.integers(len(NAMES))], suffix)), data


def flipped(rng: np.random.Generator, data: bytes, most: int) -> bytes:
    """Flips fewer than `most` bits."""
    broken = bytearray(data)
    for place in rng.integers(0, len(data), size=rng.integers(1, most)):
        broken[place] ^= 1 << int(rng.integers(8))
    return bytes(broken)


def picture(rng: np.random.Generator, kind: str, mode: str, width: int, height: int) -> bytes:
    """Encodes noise or, where it can be seen, a face; some animated,
    some turned by EXIF or with one that is torn.
    """
    image = Image.fromarray(rng.integers(0, 256, (height, width, 4), np.uint8))
    if min(width, height) >= 64:
        image.paste(FACE.resize((width, height)))
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 2**16, (height, width), np.uint16))
    elif mode != "RGBA":
        between = "RGBA" if mode == "LA" else "RGB"
        image = image.convert(between).convert(mode)
    more: dict[str, object] = {"speed": 10} if kind == "AVIF" else {}
    if kind in ANIMATED and rng.random() < 0.3:
        more |= {
            "save_all": True,
            "append_images": [image.copy(), image.transpose(Image.Transpose.ROTATE_180)],
        }
    if kind in WITH_EXIF:
        more["exif"] = exif(rng)
    return saved(image, kind, **more)


def saved(image: Image.Image, kind: str, **how: object) -> bytes:
    image.save(file := io.BytesIO(), kind, **how)
    return file.getvalue()


def exif(rng: np.random.Generator) -> bytes:
    """Returns an EXIF block with a turn; half of them are cut or flipped."""
    block = Image.Exif()
    block[0x0112] = int(rng.integers(0, 10))  # 1 to 8 are orientations
    block[0x010F] = "maker" * int(rng.integers(1, 30))
    data = block.tobytes()
    harm = rng.integers(4)
    if harm == 0:
        return data[: rng.integers(7, len(data))]
    return data[:6] + flipped(rng, data[6:], 8) if harm == 1 else data


def png_bomb(side: int) -> bytes:
    """A PNG of one colour with so many pixels each way: a bit for each,
    compressed a thousandfold.
    """
    return saved(Image.new("1", (side, side)), "PNG", compress_level=9)


def claiming(kind: str, place: int, size: bytes, **how: object) -> bytes:
    """A small image whose header claims another size."""
    data = saved(Image.new("RGB", (16, 16)), kind, **how)
    return data[:place] + size + data[place + len(size) :]


def jpeg_bomb(side: int, **how: object) -> bytes:
    """A JPEG that claims so many pixels each way; what is missing of it is grey for a decoder."""
    plain = claiming("JPEG", 0, b"", **how)
    return claiming(
        "JPEG",
        re.search(rb"\xff[\xc0\xc2]", plain).start() + 5,
        struct.pack(">HH", side, side),
        **how,
    )


def webp_bomb(side: int) -> bytes:
    """An animated WebP with a canvas of so many pixels each way."""
    frames = {"save_all": True, "append_images": [Image.new("RGB", (16, 16), "red")]}
    return claiming("WEBP", 24, 2 * struct.pack("<I", side - 1)[:3], **frames)


def tiff_bomb(side: int, large: bool = False) -> bytes:
    """A TIFF with so many pixels each way: fax compression takes a bit for a row of white."""
    return saved(Image.new("1", (side, side)), "TIFF", compression="group4", big_tiff=large)


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG of one colour that goes over its pixels so many times."""
    data = saved(Image.new("L", (side, side)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (scans - data.count(b"\xff\xda")) + data[-2:]


SIDE = 14_300  # 204 megapixels
BOMBS: dict[str, Callable[[], bytes]] = {
    "png": partial(png_bomb, SIDE),
    "jpeg": partial(jpeg_bomb, 65_500),
    "progressive": partial(jpeg_bomb, 65_500, progressive=True),
    "gif": partial(claiming, "GIF", 6, struct.pack("<HH", 32_000, 32_000)),
    "webp": partial(webp_bomb, SIDE),
    "tiff": partial(tiff_bomb, SIDE),
    "bigtiff": partial(tiff_bomb, SIDE, large=True),
    "bmp": partial(claiming, "BMP", 18, struct.pack("<ii", SIDE, -SIDE)),
    "scans": partial(many_scans, 64, 1000),
}
"""Small files that take a decoder gigabytes or minutes."""


@cache
def bomb(name: str) -> bytes:
    """One of `BOMBS`; packing it takes up to a second."""
    return BOMBS[name]()


def write_hostile(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Writes so many files; returns them in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(seed, seed + count):
        name, data = hostile(number)
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def add_odd(folder: Path) -> None:
    """Adds what is no file: a loop, a link to nothing, a folder and a pipe;
    the link and the pipe count as images.
    """
    (folder / "loop").symlink_to(folder)
    (folder / "round.png").symlink_to(folder / "round.png")
    (folder / "dangling.png").symlink_to(folder / "gone")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
