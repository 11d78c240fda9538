"""Files as scraping finds them: every format and kind of pixel, and a part of them broken. A seed gives the same file.

Run by hand, with more files than the tests take:  python tests/hostile.py FOLDER 20000
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

FORMATS = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P", "RGB"),
    "BMP": ("1", "L", "P", "RGB"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
}
SIZES = ((1, 1), (1, 300), (300, 1), (7, 5), (64, 64), (120, 90), (2000, 3))
NAMES = (
    "plain",
    "with space",
    "with 'quotes\"",
    "line\nbreak",
    "ünï-漢字",
    "=1+1",
    "-dash",
    "<script>alert(1)<",
    "%s{}",
)


def hostile(seed: int) -> tuple[str, bytes]:
    """Returns a name and what is in the file; about half of them are whole."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(list(FORMATS)))
    mode = str(rng.choice(FORMATS[kind]))
    width, height = SIZES[rng.integers(len(SIZES))]
    data = picture(rng, kind, mode, width, height)
    harm = rng.integers(8)
    if harm == 0:
        data = data[: rng.integers(len(data))]
    elif harm == 1:
        broken = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 20)):
            broken[place] ^= 1 << int(rng.integers(8))
        data = bytes(broken)
    elif harm == 2:
        data = b"" if rng.random() < 0.5 else b"This is text.\n" * int(rng.integers(1, 50))
    elif harm == 3:
        start = int(rng.integers(len(data)))
        data = data[:start] + rng.bytes(int(rng.integers(1, 400))) + data[start:]
    suffix = str(rng.choice([kind.lower(), "jpg", "PNG"]))
    return f"{seed:06d} {NAMES[rng.integers(len(NAMES))]}.{suffix}", data


def picture(rng: np.random.Generator, kind: str, mode: str, width: int, height: int) -> bytes:
    """Encodes noise, some of it animated, some turned by EXIF."""
    pixels = rng.integers(0, 256, (height, width, 4), np.uint8)
    image = Image.fromarray(pixels).convert("RGBA")
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 2**16, (height, width), np.uint16))
    elif mode != "RGBA":
        image = image.convert("RGB").convert(mode) if mode not in ("LA",) else image.convert(mode)
    more: dict[str, object] = {}
    if kind in ("GIF", "WEBP") and rng.random() < 0.3:
        more = {"save_all": True, "append_images": [image.copy()] * 2}
    if kind in ("JPEG", "PNG", "WEBP"):
        exif = Image.Exif()
        exif[0x0112] = int(rng.integers(0, 10))  # 1 to 8 mean something
        more["exif"] = exif
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def write_hostile(folder: Path, count: int) -> list[Path]:
    """Writes so many files; returns them in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        name, data = hostile(seed)
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


if __name__ == "__main__":
    print(len(write_hostile(Path(sys.argv[1]), int(sys.argv[2]))), "files")
