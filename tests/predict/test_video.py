"""Videos as frames with their times, and the files that are not videos."""

import os
import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, encode_png
from fer_vit.predict import frames as video
from fer_vit.predict.frames import read_frames
from fer_vit.predict.photos import is_video
from tests.helpers.marks import slow
from tests.helpers.videos import NTSC, number_of, numbered, turned, write_numbered

EVEN = [number / float(NTSC) for number in range(30)]
UNEVEN = (
    np.cumsum([0, *np.random.default_rng(0).choice([0.02, 0.04, 0.2, 0.5], 29)]).round(3).tolist()
)
MILLI, TENTH = Fraction(1, 1000), Fraction(1, 100)


def read(path: Path, **options: float) -> tuple[list[tuple[int, int, float]], str]:
    """The frames' contents, numbers and times, and the error at the end."""
    found = []
    try:
        for frame in read_frames(path, **options):
            found.append((number_of(frame.image), frame.number, frame.seconds))
    except ImageError as error:
        return found, str(error)
    return found, ""


KINDS: dict[str, tuple[list[float], dict[str, object]]] = {
    "index first.mp4": (UNEVEN, {"container": {"movflags": "faststart"}}),
    "even.mp4": (EVEN, {}),
    "late.mp4": ([0.5 + t for t in EVEN], {}),
    "hevc.mp4": (EVEN, {"codec": "libx265"}),
    "phone.mov": (UNEVEN, {}),
    "vp9.webm": (UNEVEN, {"codec": "libvpx-vp9", "tick": MILLI}),
    "vp8.webm": (EVEN, {"codec": "libvpx", "tick": MILLI}),
    "h264.mkv": (UNEVEN, {}),
    "prores.mov": (EVEN, {"codec": "prores_ks", "pixels": "yuv422p10le"}),
    "old.wmv": (EVEN, {"codec": "wmv2", "tick": MILLI}),
    "old.flv": (EVEN, {"codec": "flv", "tick": MILLI}),
    "mpeg4.avi": (EVEN, {"codec": "mpeg4", "tick": 1 / NTSC}),
    "moves.gif": (
        [n / 10 for n in range(15)],
        {"codec": "gif", "tick": TENTH, "rate": 10, "pixels": "rgb8"},
    ),
    "one.mp4": ([0.0], {}),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H.264 with B-frames and uneven times; its index comes first, so that a part of it can be read."""
    times, kind = KINDS["index first.mp4"]
    return write_numbered(tmp_path_factory.mktemp("clip") / "clip.mp4", times, **kind)


FORMATS = ["phone.mov", *slow(*(name for name in KINDS if name != "phone.mov"))]


@pytest.mark.parametrize("name", FORMATS)
def test_every_frame_once_with_its_time(name: str, tmp_path: Path) -> None:
    times, kind = KINDS[name]
    found, end = read(write_numbered(tmp_path / name, times, **kind))
    assert [(shown, number) for shown, number, _ in found] == [(n, n) for n in range(len(times))]
    assert np.allclose(
        [seconds for *_, seconds in found], times, atol=6e-4
    )  # some count milliseconds
    assert end == ""
    assert is_video(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("b.ts", {}),
        ("b.m2ts", {}),
        ("b.mpg", {"codec": "mpeg2video", "tick": 1 / NTSC}),
        ("parts.mp4", {"container": {"movflags": "frag_keyframe"}}),
        ("b.avi", {"tick": 1 / NTSC}),
        ("b.h264", {"tick": 1 / NTSC}),
    ],
)
def test_times_that_start_late_or_are_guessed(
    name: str, kind: dict[str, object], tmp_path: Path
) -> None:
    found, end = read(write_numbered(tmp_path / name, EVEN, **kind))
    steps = np.diff([seconds for *_, seconds in found])
    assert [shown for shown, *_ in found] == [*range(30)]
    assert np.allclose(steps, 1 / float(NTSC), atol=2e-5)
    assert end == ""


@pytest.mark.parametrize("name", ["a.ts", *slow("a.m2ts")])
def test_times_continue_in_joined_files(name: str, tmp_path: Path) -> None:
    path = write_numbered(tmp_path / name, [float(n / NTSC) for n in range(40)])
    path.write_bytes(path.read_bytes() * 3)
    found, end = read(path)
    assert [shown for shown, *_ in found] == 3 * [*range(40)]
    assert np.allclose(np.diff([seconds for *_, seconds in found]), 1 / float(NTSC), atol=2e-3)
    assert end == ""


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize(
    "shape", [Fraction(1), Fraction(64, 45), Fraction(8, 9)], ids=["square", "wide DVD", "NTSC"]
)
def test_pixels_become_square_before_they_are_turned(
    shape: Fraction, degrees: int, tmp_path: Path
) -> None:
    flat = write_numbered(tmp_path / "flat.mp4", EVEN[:2], shape=shape)
    (frame, _) = read_frames(turned(flat, tmp_path / "turned.mp4", degrees))
    expected = np.rot90(cv2.resize(numbered(0), (round(160 * shape), 120)), -degrees // 90)
    assert frame.image.shape == expected.shape
    assert np.abs(frame.image.astype(int) - expected).mean() < 5


def test_pixels_of_absurd_shapes_take_no_memory(tmp_path: Path) -> None:
    data = write_numbered(tmp_path / "a.mp4", EVEN[:2], shape=Fraction(4, 3)).read_bytes()
    old, new = (b"pasp" + struct.pack(">II", *shape) for shape in ((4, 3), (60_000, 1)))
    (tmp_path / "b.mp4").write_bytes(data.replace(old, new))
    assert read(tmp_path / "b.mp4") == (
        [],
        "too large: 9,600,000 x 120 pixels, the limit is 36 megapixels",
    )


def test_huge_frames_are_not_decoded(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_PIXELS", 1000)
    assert read(clip) == ([], "too large: 160 x 120 pixels, the limit is 0 megapixels")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 7}, [0, 7, 14, 21, 28]),
        ({"fps": 10}, [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]),
        ({"fps": 1000}, list(range(30))),
        ({"start": 0.5, "end": 0.7}, [15, 16, 17, 18, 19, 20]),
        ({"start": 0.5, "every": 10}, [15, 25]),
    ],
)
def test_choice_of_frames(options: dict[str, float], expected: list[int], tmp_path: Path) -> None:
    found, end = read(write_numbered(tmp_path / "even.mp4", EVEN), **options)
    assert [number for _, number, _ in found] == [shown for shown, *_ in found] == expected
    assert end == ""


def test_choice_by_times(clip: Path, tmp_path: Path) -> None:
    found, _ = read(
        write_numbered(tmp_path / "late.mp4", [0.5 + t for t in EVEN]), start=0.1, end=0.3
    )
    assert [number for _, number, _ in found] == [3, 4, 5, 6, 7, 8]
    assert found[0][2] == pytest.approx(0.6, abs=0.002)  # seconds in the file
    for times in ({"start": UNEVEN[-1] + 0.01}, {"end": -1}, {"start": 0.021, "end": 0.0211}):
        assert read(clip, **times) == ([], "no frame between start and end")
    times = [seconds for *_, seconds in read(clip, fps=5)[0]]
    slots = np.floor(np.array(UNEVEN) * 5 + 1e-6)
    assert times == pytest.approx(
        [t for t, new in zip(UNEVEN, np.diff(slots, prepend=-1) > 0, strict=True) if new]
    )


@pytest.mark.parametrize("name", ["index first.mp4", *slow("vp9.webm", "h264.mkv")])
def test_cut_off_files_keep_their_frames(name: str, tmp_path: Path) -> None:
    times, kind = KINDS[name]
    data = write_numbered(tmp_path / name, times, **kind).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
    found, end = read(tmp_path / name)
    assert 0 < len(found) < len(times)
    assert [number for _, number, _ in found] == [*range(len(found))]
    assert [seconds for *_, seconds in found] == pytest.approx(
        [times[shown] for shown, *_ in found], abs=6e-4
    )
    assert end.startswith("damaged: ")


def test_frames_after_damage_are_read(clip: Path, tmp_path: Path) -> None:
    holes = bytearray(clip.read_bytes())
    holes[len(holes) // 2 : len(holes) // 2 + 300] = bytes(300)
    (tmp_path / "holes.mp4").write_bytes(holes)
    found, end = read(tmp_path / "holes.mp4")
    assert found[-1][2] == pytest.approx(UNEVEN[-1], abs=1e-4)
    assert end.startswith("damaged: ")


def test_concealed_frames_are_counted(clip: Path, tmp_path: Path) -> None:
    data, path = bytearray(clip.read_bytes()), tmp_path / "odd.mp4"
    for place in np.random.default_rng(8).integers(len(data) // 2, len(data), 3):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with av.open(str(path)) as file:
        marked = sum(frame.is_corrupt for frame in file.decode(video=0))
    assert marked
    assert read(path)[1] == f"damaged: {marked} frames may show wrong pictures"
    assert read(path, end=UNEVEN[-2])[1].startswith("damaged: ")


@pytest.mark.parametrize("name", FORMATS)
def test_random_damage_gives_frames_or_an_error(name: str, tmp_path: Path) -> None:
    times, kind = KINDS[name]
    data, path = (
        write_numbered(tmp_path / name, times, **kind).read_bytes(),
        tmp_path / f"odd{Path(name).suffix}",
    )
    rng, ends = np.random.default_rng(0), set()
    for _ in range(100):
        odd = bytearray(data[: rng.choice([len(data), rng.integers(len(data))])])
        for place in rng.integers(0, len(data), rng.integers(30)):
            odd[place : place + 1] = rng.bytes(1)
        path.write_bytes(odd)
        try:
            ends.add(f"{len(list(read_frames(path)))} frames")
        except ImageError as error:
            ends.add(str(error))
    assert len(ends) > 2


def only_sound(path: Path) -> None:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 44100), np.float32), format="fltp", layout="mono"
        )
        frame.rate, frame.pts = 44100, 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode())


def without_frames(path: Path) -> None:
    with av.open(str(path), "w", format="matroska") as file:
        stream = file.add_stream("libx264", 25)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        file.start_encoding()


def playlist(path: Path) -> None:
    secret = write_numbered(path.parent / "secret.ts", EVEN[:3])
    path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:2,\n{secret}\n#EXT-X-ENDLIST\n")


def concatenation(path: Path) -> None:
    write_numbered(path.parent / "secret.mp4", EVEN[:3])
    path.write_text("ffconcat version 1.0\nfile secret.mp4\n")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_text("hello\n" * 100), video.UNREADABLE),
        (lambda path: path.write_bytes(np.random.default_rng(0).bytes(50_000)), video.UNREADABLE),
        (lambda path: path.write_bytes(encode_png(numbered(0))), video.UNREADABLE),
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (only_sound, "no video in the file"),
        (without_frames, video.UNREADABLE),
        (playlist, video.UNREADABLE),
        (concatenation, video.UNREADABLE),
    ],
    ids=[
        "text",
        "noise",
        "picture",
        "gone",
        "folder",
        "pipe",
        "sound",
        "none",
        "playlist",
        "concatenation",
    ],
)
def test_files_that_are_not_videos(
    make: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    make(path)
    assert read(path) == ([], reason)


def test_a_wrong_suffix_and_names_that_are_no_unicode(clip: Path, tmp_path: Path) -> None:
    for name in (b"clip.avi", b"\xff.mp4", b"a:b.mp4", b"%03d.mp4"):
        path = tmp_path / os.fsdecode(name)
        path.write_bytes(clip.read_bytes())
        assert len(read(path)[0]) == 30


def test_videos_without_pyav(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    for module in ("frames", "video"):
        monkeypatch.delitem(sys.modules, f"fer_vit.predict.{module}", raising=False)
    with pytest.raises(
        FerVitError, match=r'^Videos need one more package: pip install .* "\.\[video\]"\.$'
    ):
        load(device="cpu").predict(clip, face="crop", detector="none")
    assert load(device="cpu").predict(numbered(0), face="crop", detector="none")


def test_which_files_are_videos(tmp_path: Path) -> None:
    still = write_numbered(
        tmp_path / "still.gif", [0.0], codec="gif", tick=TENTH, rate=10, pixels="rgb8"
    )
    moving = write_numbered(
        tmp_path / "a.gif", [0.0, 0.1], codec="gif", tick=TENTH, rate=10, pixels="rgb8"
    )
    (tmp_path / "torn.gif").write_bytes(moving.read_bytes()[:20])
    assert [
        is_video(path) for path in (still, moving, tmp_path / "torn.gif", tmp_path / "none.gif")
    ] == [0, 1, 0, 0]
    assert is_video(Path("CLIP.MOV"))
    assert is_video(Path("list.m3u8"))
    assert not is_video(Path("photo.jpg"))
    assert not is_video(numbered(0))
