"""Attacks on decoders: peak memory of files within the limits. Memory is read
from /proc (Linux).
"""

import multiprocessing
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import av
import pytest
from PIL import Image

from fer_vit.face.image import CRASHED, UNREADABLE, ImageError, decode_image
from fer_vit.predict.frames import read_frames
from fer_vit.predict.outputs import MarkedCopy, Outputs
from fer_vit.processes import work_in_processes
from tests.helpers.faces import make_faces, write_tables
from tests.helpers.hostile import jpeg_bomb, saved

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

MEGABYTES = 2**20


def measure(work: Callable[[], object], connection: Connection) -> None:
    """Sends by how many bytes the resident memory of this process grows at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    try:
        work()
    except ImageError as error:
        print(error)
    connection.send(peak() - before)


def peak() -> int:
    match = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return 1024 * int(match[1])


def growth(work: Callable[[], object]) -> int:
    """The peak of the work in a new process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=measure, args=(work, sender))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    grown: int = receiver.recv()
    process.join()
    return grown


def animated_png(width: int, height: int, depth: int) -> bytes:
    """Two transparent frames of zeros."""
    rows = zlib.compress(bytes(height * (1 + 4 * width * depth // 8)), 1)
    control = [struct.pack(">IIIIIHHBB", n, width, height, 0, 0, 1, 10, 0, 0) for n in (0, 1)]
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 6, 0, 0, 0)),
        (b"tEXt", b"Comment\0IDAT"),
        (b"acTL", struct.pack(">II", 2, 0)),
        (b"fcTL", control[0]),
        (b"IDAT", rows),
        (b"fcTL", control[1]),
        (b"fdAT", struct.pack(">I", 2) + rows),
        (b"IEND", b""),
    ]
    data = b"\x89PNG\r\n\x1a\n"
    for kind, content in chunks:
        check = zlib.crc32(kind + content)
        data += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
    return data


SIDE = 14_188  # 201 megapixels
IMAGES: dict[str, Callable[[], bytes]] = {
    "JPEG": partial(jpeg_bomb, SIDE),
    "progressive JPEG": partial(jpeg_bomb, 10_392, progressive=True, subsampling=0),
    "animated PNG": partial(animated_png, 6000, 4000, 8),
    "lossy WebP": lambda: saved(Image.new("RGB", (8000, 6000)), "WEBP", method=0),
    "PNG": lambda: saved(Image.new("1", (SIDE, SIDE)), "PNG"),
    "WebP": lambda: saved(Image.new("RGB", (12_247, 12_247)), "WEBP", lossless=True, method=0),
    "GIF": lambda: saved(Image.new("P", (11_832, 11_832)), "GIF"),
    "TIFF": lambda: saved(Image.new("CMYK", (7_900, 7_900)), "TIFF"),
    "AVIF": lambda: saved(Image.new("RGB", (7_071, 7_071)), "AVIF", speed=10, quality=1),
    "transparent AVIF": lambda: saved(
        Image.new("RGBA", (5_099, 5_099)), "AVIF", speed=10, quality=1, subsampling="4:4:4"
    ),
}


def avif_that_claims_less() -> bytes:
    """90 megapixels whose boxes say 64 x 64."""
    image = Image.new("RGBA", (10_000, 9000))
    data = saved(image, "AVIF", speed=10, quality=1, subsampling="4:4:4")
    return re.sub(rb"(?<=ispe.{4}).{8}", struct.pack(">II", 64, 64), data, flags=re.DOTALL)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "animated PNG": partial(animated_png, 11_000, 9_080, 16),
    "AVIF": avif_that_claims_less,
}
"""Images within the limits of pixels that would take 2.6 and 2.5 GB."""


@pytest.mark.parametrize("name", IMAGES)
def test_an_honest_image_takes_1_2_gb(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    data = IMAGES[name]()
    grown = growth(partial(decode_image, data))
    print(f"{name}: {grown / MEGABYTES:,.0f} MB")
    assert grown < 1200 * MEGABYTES
    ((_, outcome),) = work_in_processes(decoded, [data], 1)
    assert outcome == "decoded"


def decoded(data: bytes) -> Iterator[str]:
    """Yields the outcome of decoding."""
    try:
        decode_image(data)
        yield "decoded"
    except ImageError as error:
        yield str(error)


@pytest.mark.parametrize("name", HOSTILE)
def test_an_image_that_takes_too_much_has_a_status(name: str) -> None:
    ((_, outcome),) = work_in_processes(decoded, [HOSTILE[name]()], 1)
    assert outcome in (CRASHED, UNREADABLE)


@pytest.fixture(scope="module")
def large_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 grey frames of 36 megapixels: 1.1 GB, and 2.1 GB in RGB."""
    path = tmp_path_factory.mktemp("clip") / "large.mp4"
    options = {"preset": "ultrafast", "g": "1000"}
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", 25, options=options)
        stream.width = 5984
        stream.height = 5984
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame(5984, 5984, "yuv420p")
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for number in range(20):
            frame.pts = number
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def test_a_clip_of_36_megapixels_takes_0_8_gb(large_clip: Path) -> None:
    def read() -> None:
        for _ in read_frames(large_clip):
            pass

    assert growth(read) < 800 * MEGABYTES


def test_the_copy_of_a_clip_of_36_megapixels_takes_1_gb(large_clip: Path, tmp_path: Path) -> None:
    frames = [make_faces(("a", "b"), [], frame=n, seconds=n / 25, track=[]) for n in range(20)]
    outputs = Outputs(tmp_path / "t.csv", copy=MarkedCopy(large_clip, tmp_path / "b.mp4"))
    # what a table imports is no memory of the copy
    write_tables(frames, [large_clip], Outputs(tmp_path / "first.csv"), ("a", "b"))
    copy = partial(write_tables, frames, [large_clip], outputs, ("a", "b"))
    assert growth(copy) < 1020 * MEGABYTES  # the copy alone takes 995, and its table 10
