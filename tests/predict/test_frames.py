"""Videos as frames with their times, and the files that are not videos."""

import errno
import gc
import os
import re
import struct
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image as Pil

from fer_vit.face.image import UNREADABLE_VIDEO, ImageError, encode_jpeg, encode_png
from fer_vit.predict import frames as video
from fer_vit.predict.frames import read_frames
from fer_vit.predict.inputs import is_video
from tests.helpers.marks import slow
from tests.helpers.videos import (
    NTSC,
    matroska,
    number_of,
    numbered,
    turned,
    with_matrix,
    write_numbered,
    write_video,
)

EVEN = [number / float(NTSC) for number in range(30)]
UNEVEN = (
    np.cumsum([0, *np.random.default_rng(0).choice([0.02, 0.04, 0.2, 0.5], 29)]).round(3).tolist()
)
MILLI = Fraction(1, 1000)
HUNDREDTH = Fraction(1, 100)  # seconds of the unit of time in a GIF


PAL = {"tick": Fraction(1, 25), "rate": 25}
OLD: dict[str, dict[str, object]] = {
    "a.mxf": {"codec": "mpeg2video"},
    "a.vob": {"codec": "mpeg2video"},
    "a.dv": {"codec": "dvvideo"},
    "a.y4m": {"codec": "wrapped_avframe"},
}


@pytest.mark.parametrize("name", slow(*OLD))
def test_old_formats_are_read(name: str, tmp_path: Path) -> None:
    images = [cv2.resize(numbered(number), (720, 576)) for number in range(10)]
    path = write_video(tmp_path / name, images, [n / 25 for n in range(10)], **PAL, **OLD[name])
    assert len([*read_frames(path)]) == 10
    assert is_video(path)


def read(path: Path, **options: float) -> tuple[list[tuple[int, int, float]], str]:
    """The frames' contents, numbers and times, and the error at the end."""
    frames = []
    try:
        for frame in read_frames(path, **options):
            frames.append((number_of(frame.image), frame.number, frame.seconds))
    except ImageError as error:
        return frames, str(error)
    return frames, ""


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
        {"codec": "gif", "tick": HUNDREDTH, "rate": 10, "pixels": "rgb8"},
    ),
    "one.mp4": ([0.0], {}),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H.264 with B-frames and uneven times; its index comes first,
    so that a part of it can be read.
    """
    times, kind = KINDS["index first.mp4"]
    return write_numbered(tmp_path_factory.mktemp("clip") / "clip.mp4", times, **kind)


FORMATS = ["phone.mov", *slow(*(name for name in KINDS if name != "phone.mov"))]


@pytest.mark.parametrize("name", FORMATS)
def test_every_frame_once_with_its_time(name: str, tmp_path: Path) -> None:
    times, kind = KINDS[name]
    frames, end = read(write_numbered(tmp_path / name, times, **kind))
    assert [(shown, number) for shown, number, _ in frames] == [(n, n) for n in range(len(times))]
    # some count milliseconds
    assert np.allclose([seconds for *_, seconds in frames], times, atol=6e-4)
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
    frames, end = read(write_numbered(tmp_path / name, EVEN, **kind))
    steps = np.diff([seconds for *_, seconds in frames])
    assert [shown for shown, *_ in frames] == [*range(30)]
    assert np.allclose(steps, 1 / float(NTSC), atol=2e-5)
    assert end == ""


@pytest.mark.parametrize("name", ["a.ts", *slow("a.m2ts")])
def test_times_continue_in_joined_files(name: str, tmp_path: Path) -> None:
    path = write_numbered(tmp_path / name, [float(n / NTSC) for n in range(40)])
    path.write_bytes(path.read_bytes() * 3)
    frames, end = read(path)
    assert [shown for shown, *_ in frames] == 3 * [*range(40)]
    assert np.allclose(np.diff([seconds for *_, seconds in frames]), 1 / float(NTSC), atol=2e-3)
    assert end == ""


@pytest.mark.parametrize("degrees", [0, 90])
@pytest.mark.parametrize(
    "shape", [Fraction(1), Fraction(64, 45), Fraction(8, 9)], ids=["square", "wide DVD", "NTSC"]
)
def test_pixels_become_square_before_they_are_turned(
    shape: Fraction, degrees: int, tmp_path: Path
) -> None:
    flat = write_numbered(tmp_path / "flat.mp4", EVEN[:2], shape=shape)
    frame, _ = read_frames(turned(flat, tmp_path / "turned.mp4", degrees))
    expected = np.rot90(cv2.resize(numbered(0), (round(160 * shape), 120)), -degrees // 90)
    assert frame.image.shape == expected.shape
    assert np.abs(frame.image.astype(int) - expected).mean() < 5


@pytest.mark.parametrize(
    ("degrees", "mirrored", "scale"),
    [
        *((degrees, mirrored, (1.0, 1.0)) for degrees in (0, 90, 180, 270) for mirrored in (0, 1)),
        (90, 1, (2.0, 1.9)),
    ],
)
def test_all_display_matrices(
    degrees: int, mirrored: int, scale: tuple[float, float], tmp_path: Path
) -> None:
    cos = round(np.cos(np.deg2rad(degrees)))
    sin = round(np.sin(np.deg2rad(degrees)))
    mirror = -1 if mirrored else 1
    a = mirror * cos
    b = mirror * sin
    c = -sin
    d = cos
    scaled = (a * scale[0], b * scale[0], c * scale[1], d * scale[1])
    flat = write_numbered(tmp_path / "flat.mp4", EVEN[:2])
    frame, _ = read_frames(with_matrix(flat, tmp_path / "turned.mp4", scaled))

    rows, columns = np.mgrid[0:120, 0:160]
    across = a * columns + c * rows
    down = b * columns + d * rows
    across = across - across.min()
    down = down - down.min()
    expected = np.zeros((down.max() + 1, across.max() + 1, 3), np.uint8)
    expected[down, across] = numbered(0)
    if scale[0] != scale[1]:  # FFmpeg takes this as the shape of the pixels
        expected = cv2.resize(expected, frame.image.shape[1::-1])
    assert frame.image.shape == expected.shape
    assert np.abs(frame.image.astype(int) - expected).mean() < 5


@pytest.mark.parametrize("matrix", [(0, 0, 0, 0), (1, 0.2, 0, 1), (0.98, 0.17, -0.17, 0.98)])
def test_other_display_matrices_become_the_nearest_turn(
    matrix: tuple[float, float, float, float], tmp_path: Path
) -> None:
    flat = write_numbered(tmp_path / "flat.mp4", EVEN[:2])
    frame, _ = read_frames(with_matrix(flat, tmp_path / "odd.mp4", matrix))
    assert np.abs(cv2.resize(frame.image, (160, 120)).astype(int) - numbered(0)).mean() < 5


def test_pixels_of_absurd_shapes_take_no_memory(tmp_path: Path) -> None:
    data = write_numbered(tmp_path / "a.mp4", EVEN[:2], shape=Fraction(4, 3)).read_bytes()
    old, new = (b"pasp" + struct.pack(">II", *shape) for shape in ((4, 3), (60_000, 1)))
    (tmp_path / "b.mp4").write_bytes(data.replace(old, new))
    frames, end = read(tmp_path / "b.mp4")
    assert frames == []
    assert re.search(r"9,600,000 x 120 .*\b36 megapixels", end)


def test_frames_of_many_bytes_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_numbered(tmp_path / "a.mp4", EVEN[:2], pixels="yuv444p10le")
    assert len(read(path)[0]) == 2
    monkeypatch.setattr(video, "MAX_FRAME_BYTES", 160 * 120 * 6 - 1)
    frames, end = read(path)
    assert frames == []
    assert "160 x 120 " in end
    assert "yuv444p10le" in end


@pytest.mark.slow
def test_a_frame_of_8k_is_read(tmp_path: Path) -> None:
    picture = encode_jpeg(np.zeros((4320, 7680, 3), np.uint8))
    (tmp_path / "a.mkv").write_bytes(matroska([0], [picture], (7680, 4320), 40))
    (frame,) = read_frames(tmp_path / "a.mkv")
    assert frame.image.shape == (4320, 7680, 3)


def test_all_pixels_are_counted_where_the_size_changes(tmp_path: Path) -> None:
    path = tmp_path / "grows.h264"
    streams = []
    for image in (numbered(0), numbered(0, 640, 480)):
        part = write_video(tmp_path / "part.h264", [image] * 20, EVEN, tick=1 / NTSC)
        streams.append(part.read_bytes())
    path.write_bytes(b"".join(streams))
    shapes = [frame.image.shape[0] for frame in read_frames(path)]
    assert shapes == [120] * 20 + [480] * 20
    pixels = 20 * (160 * 120 + 640 * 480)
    assert pixels <= video.count_pixels(path, np.inf, 10**9) <= pixels + 640 * 480
    assert video.count_pixels(path, np.inf, 10**6) <= 10**6 + 640 * 480


@pytest.mark.parametrize("degrees", [*slow(0), 90])
def test_frames_are_not_held_in_memory(degrees: int, tmp_path: Path) -> None:
    flat = write_numbered(tmp_path / "flat.mp4", EVEN)
    frames = read_frames(turned(flat, tmp_path / "turned.mp4", degrees))
    gc.freeze()  # so that only objects that are made from here on are counted
    gc.disable()
    try:
        held = [sum(type(item) is av.VideoFrame for item in gc.get_objects()) for _ in frames]
    finally:
        gc.enable()
    assert len(held) == 30
    assert max(held) >= 1
    assert max(held) <= 13  # where the picture jumps, frames wait for the end of a flash


LATE: dict[str, dict[str, object]] = {
    "a.mkv": {"tick": MILLI},
    "a.webm": {"codec": "libvpx", "tick": MILLI},
    "a.wmv": {"codec": "wmv2", "tick": MILLI},
    "a.flv": {"codec": "flv", "tick": MILLI},
    "a.avi": {"codec": "mpeg4", "tick": 1 / NTSC},
    "a.mp4": {},
    "parts.mp4": {"container": {"movflags": "frag_keyframe+empty_moov"}},
    "a.ts": {},
    "a.ogv": {"codec": "libvpx", "tick": 1 / NTSC},
    "stream.mkv": {"tick": MILLI, "container": {"live": "1"}},
}
# where a file ends early cannot be known; FFmpeg ignores the length of a WMV that was cut off
WITHOUT_LENGTH = {"a.ts", "a.ogv", "a.wmv", "stream.mkv"}
INDEX_LAST = {"a.mp4"}


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("a.mkv", 0.0),
        ("a.mkv", 10.0),
        ("a.flv", 10.0),
        *slow(*((name, 10.0) for name in LATE if name not in ("a.mkv", "a.flv"))),
    ],
)
def test_only_cut_files_are_damaged_early_or_late(name: str, begin: float, tmp_path: Path) -> None:
    times = [begin + number / float(NTSC) for number in range(90)]
    path = write_numbered(tmp_path / name, times, **LATE[name])
    frames, end = read(path)
    assert len(frames) == 90
    assert end == ""
    if name not in WITHOUT_LENGTH | INDEX_LAST:
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
        frames, end = read(path)
        assert 0 < len(frames) < 90
        assert end.startswith("damaged: ")


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("begin", "duration"), [(0, 4000), (10_000, 4000), (10_000, 14_000)])
def test_both_meanings_of_the_duration_in_matroska(
    begin: int, duration: float, cut: bool, tmp_path: Path
) -> None:
    pictures = [encode_jpeg(numbered(number)) for number in range(40)]
    times = [begin + 100 * number for number in range(40)]
    data = matroska(times, pictures, (160, 120), duration)
    (tmp_path / "a.mkv").write_bytes(data[: len(data) * (6 if cut else 10) // 10])
    frames, end = read(tmp_path / "a.mkv")
    assert (len(frames) < 40) == cut
    assert end.startswith("damaged: ") == cut


@pytest.mark.parametrize(("delay", "unread"), [(None, 2), (0, 2), (40, 0)])
def test_frames_of_a_gif_that_are_not_read_are_counted(
    delay: int | None, unread: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    pictures = [Pil.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)) for _ in range(3)]
    options = {} if delay is None else {"duration": delay}
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], **options)
    frames = []
    context = pytest.raises(ImageError, match=f"damaged: {unread} frames")
    with context if unread else nullcontext():
        for frame in read_frames(tmp_path / "a.gif"):
            frames.append(frame.number)
    assert frames == [0, 1, 2][: 3 - unread]


def test_a_gif_that_is_read_in_part_is_not_damaged(tmp_path: Path) -> None:
    pictures = [Pil.fromarray(numbered(number)) for number in range(3)]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], duration=40)
    assert len(list(read_frames(tmp_path / "a.gif", end=0.01))) == 1


def test_frames_whose_times_fall_back_are_kept(tmp_path: Path) -> None:
    times = [1000 + 40 * n for n in range(5)] + [40 * n for n in range(100)]
    data = matroska(times, [encode_jpeg(numbered(n)) for n in range(105)], (160, 120), 4000)
    (tmp_path / "a.mkv").write_bytes(data)
    frames, end = read(tmp_path / "a.mkv")
    assert [shown for shown, *_ in frames] == [*range(105)]
    assert end == ""


def read_times(path: Path, times: list[int]) -> list[float]:
    """The seconds of JPEG pictures with times in ms in a Matroska file."""
    pictures = [encode_jpeg(numbered(number)) for number in range(len(times))]
    path.write_bytes(matroska(times, pictures, (160, 120), max(times)))
    frames, end = read(path)
    assert [shown for shown, *_ in frames] == [*range(len(times))]
    assert end == ""
    return [seconds for *_, seconds in frames]


@pytest.mark.parametrize(("first", "back"), [(10, 6), (20, 10), (20, 40), (40, 40)])
def test_times_that_fall_continue(first: int, back: int, tmp_path: Path) -> None:
    """Also by less than a second, as where short clips were joined or a clock was set back."""
    start = max(0, first - back)
    numbers = [*range(first), *range(start, start + 20)]
    seconds = read_times(tmp_path / "a.mkv", [40 * number for number in numbers])
    assert seconds == pytest.approx([n / 25 for n in range(len(numbers))])


@pytest.mark.parametrize("wrong", [0, 400, 9000])
def test_one_wrong_time_does_not_shift_other_frames(wrong: int, tmp_path: Path) -> None:
    times = [40 * number for number in range(60)]
    seconds = read_times(tmp_path / "a.mkv", [*times[:30], wrong, *times[31:]])
    assert seconds == pytest.approx([time / 1000 for time in times])


def test_frames_before_one_that_is_too_large_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [encode_jpeg(numbered(number)) for number in range(9)]
    pictures.append(encode_jpeg(np.zeros((240, 320, 3), np.uint8)))
    times = [40 * number for number in range(10)]
    (tmp_path / "a.mkv").write_bytes(matroska(times, pictures, (160, 120), 400))
    monkeypatch.setattr(video, "MAX_FRAME_BYTES", 100_000)
    frames, end = read(tmp_path / "a.mkv")
    assert [shown for shown, *_ in frames] == [*range(9)]
    assert "320 x 240" in end


def test_a_gif_with_remains_behind_its_end_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    pictures = [Pil.fromarray(numbered(number)).resize((32, 24)) for number in range(3)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=40)
    data = path.read_bytes()
    for end in (b";", b";" + b"\0" * 20, b";remains of a longer file", b"\0;"):
        path.write_bytes(data[:-1] + end)
        assert len([*read_frames(path)]) == 3


def test_bare_streams_are_videos_by_their_suffix(tmp_path: Path) -> None:
    pictures = [encode_jpeg(numbered(number)) for number in range(5)]
    camera = tmp_path / "camera.MJPEG"
    camera.write_bytes(b"".join(pictures))
    vp9 = write_numbered(tmp_path / "a.ivf", EVEN[:5], codec="libvpx-vp9", tick=MILLI)
    h264 = write_numbered(tmp_path / "a.h264", EVEN[:5], tick=1 / NTSC)
    for path in (camera, vp9, h264):
        assert is_video(path)
        frames, end = read(path)
        assert [shown for shown, *_ in frames] == [*range(5)]
        assert end == ""


def test_a_video_without_frames_has_its_own_reason(clip: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", 25)
        stream.width = 160
        stream.height = 120
        file.start_encoding()
    assert read(path) == ([], "no frame in the video")
    _, reason = read(clip, start=1e6)
    last = read(clip)[0][-1]
    assert re.search(rf"no frame between start and end .*\b{last[2]:.2f} s", reason)


def test_the_default_stream_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    for default in (None, 0, 1):
        with av.open(str(path), "w") as file:
            streams = [file.add_stream("libx264", 25) for _ in range(2)]
            for number, stream in enumerate(streams):
                stream.width = 160
                stream.height = 120
                stream.pix_fmt = "yuv420p"
                if number == default:
                    stream.disposition = Disposition.default
            for number, stream in enumerate(streams):
                frame = av.VideoFrame.from_ndarray(numbered(number), format="rgb24")
                frame.pts = 0
                file.mux(stream.encode(frame))
                file.mux(stream.encode())
        assert [shown for shown, *_ in read(path)[0]] == [default or 0]


PQ = 16  # transfer characteristics of HDR (ITU-T H.273)
HLG = 18
BT2020_TO_BT709 = [
    [1.6605, -0.5876, -0.0728],
    [-0.1246, 1.1329, -0.0083],
    [-0.0182, -0.1006, 1.1187],
]


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_hdr_frames_look_as_in_sdr(transfer: int, tmp_path: Path) -> None:
    wide = np.linalg.inv(np.array(BT2020_TO_BT709))
    nits = 203 * (numbered(5) / 255.0) ** 2.4 @ wide.T  # (H, W, 3)
    if transfer == PQ:
        power = (nits / 10_000) ** 0.1593017578125
        code = ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
    else:
        scene = (nits / 1000) ** (1 / 1.2)
        log = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
        code = np.where(scene <= 1 / 12, np.sqrt(3 * scene), log)
    image = np.rint(65_535 * code).astype(np.uint16)
    path = tmp_path / "hdr.mkv"
    # With B-frames, libx265 writes a random decoding time when a stream has one frame.
    options = {"crf": "5", "x265-params": "log-level=0:bframes=0"}
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx265", 25, options=options)
        stream.width = 160
        stream.height = 120
        stream.pix_fmt = "yuv420p10le"
        stream.codec_context.color_trc = transfer
        stream.codec_context.color_primaries = stream.codec_context.colorspace = 9
        frame = av.VideoFrame.from_ndarray(image, format="rgb48le")
        frame = frame.reformat(format="yuv420p10le", dst_colorspace=9)
        frame.pts = 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    (read_back,) = read_frames(path)
    expected = numbered(5).astype(float)
    bright = expected > 255 * 0.5 ** (1 / 2.4)  # above the knee
    difference = np.abs(read_back.image - expected)
    assert np.median(difference[~bright]) <= 2
    assert difference[~bright].mean() < 5
    assert np.median(read_back.image[bright]) > 190


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_the_bits_that_frames_use_become_eight(bits: int, tmp_path: Path) -> None:
    """As for images: cameras of 12 bits write 16, of which the highest four are 0."""
    path = tmp_path / "deep.mkv"
    pictures = [numbered(number)[..., 0] for number in range(3)]  # (H, W), up to 255
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", 25)
        stream.width = 160
        stream.height = 120
        stream.pix_fmt = "gray16le"
        for number, picture in enumerate(pictures):
            deep = picture.astype(np.uint16) << (bits - 8)
            frame = av.VideoFrame.from_ndarray(deep, format="gray16le")
            frame.pts = number
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    for picture, frame in zip(pictures, read_frames(path), strict=True):
        assert np.abs(frame.image.astype(int) - picture[..., None]).max() <= 1


@pytest.mark.parametrize("name", ["index first.mp4", *slow("vp9.webm", "h264.mkv")])
def test_cut_off_files_keep_their_frames(name: str, tmp_path: Path) -> None:
    times, kind = KINDS[name]
    data = write_numbered(tmp_path / name, times, **kind).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
    frames, end = read(tmp_path / name)
    assert 0 < len(frames) < len(times)
    assert [number for _, number, _ in frames] == [*range(len(frames))]
    assert [seconds for *_, seconds in frames] == pytest.approx(
        [times[shown] for shown, *_ in frames], abs=6e-4
    )
    assert end.startswith("damaged: ")


def test_frames_after_damage_are_read(clip: Path, tmp_path: Path) -> None:
    holes = bytearray(clip.read_bytes())
    holes[len(holes) // 2 : len(holes) // 2 + 300] = bytes(300)
    (tmp_path / "holes.mp4").write_bytes(holes)
    frames, end = read(tmp_path / "holes.mp4")
    assert frames[-1][2] == pytest.approx(UNEVEN[-1], abs=1e-4)
    assert end.startswith("damaged: ")


def test_concealed_frames_are_counted(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    path = tmp_path / "odd.mp4"
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
    data = write_numbered(tmp_path / name, times, **kind).read_bytes()
    path = tmp_path / f"odd{Path(name).suffix}"
    rng = np.random.default_rng(0)
    ends = set()
    for _ in range(40):
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
        stream.width = 160
        stream.height = 120
        stream.pix_fmt = "yuv420p"
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
        (lambda path: path.write_text("hello\n" * 100), UNREADABLE_VIDEO),
        (
            lambda path: path.write_bytes(np.random.default_rng(0).bytes(50_000)),
            UNREADABLE_VIDEO,
        ),
        (lambda path: path.write_bytes(encode_png(numbered(0))), UNREADABLE_VIDEO),
        (lambda path: None, os.strerror(errno.ENOENT)),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (only_sound, "no video in the file"),
        (without_frames, UNREADABLE_VIDEO),
        (playlist, UNREADABLE_VIDEO),
        (concatenation, UNREADABLE_VIDEO),
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


def test_which_files_are_videos(tmp_path: Path) -> None:
    still = write_numbered(
        tmp_path / "still.gif", [0.0], codec="gif", tick=HUNDREDTH, rate=10, pixels="rgb8"
    )
    moving = write_numbered(
        tmp_path / "a.gif", [0.0, 0.1], codec="gif", tick=HUNDREDTH, rate=10, pixels="rgb8"
    )
    (tmp_path / "torn.gif").write_bytes(moving.read_bytes()[:20])
    assert not is_video(still)
    assert is_video(moving)
    assert not is_video(tmp_path / "torn.gif")
    assert not is_video(tmp_path / "none.gif")
    assert is_video(Path("CLIP.MOV"))
    assert is_video(Path("list.m3u8"))
    assert not is_video(Path("photo.jpg"))
    assert not is_video(numbered(0))  # an image, not a path
