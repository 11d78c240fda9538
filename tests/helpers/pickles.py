"""Files of `torch.save` whose pickle does what a test writes."""

import struct
import zipfile
from pathlib import Path

PROTOCOL = b"\x80\x02"


def packed(path: Path, data: bytes, **more: bytes) -> Path:
    """Writes a file as torch.save does, with another pickle."""
    entries = {"data.pkl": data, "byteorder": b"little", "version": b"3\n"} | more
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(f"archive/{name}", content)
    return path


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


HEX = (
    b"c_codecs\nencode\n" * 32
    + text("a")
    + text("latin-1")
    + b"\x86R"
    + (text("hex") + b"\x86R") * 31
)
"""Each of the 31 calls doubles a string."""
