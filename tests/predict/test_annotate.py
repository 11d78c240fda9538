"""Marked copies of videos: every frame at its time, and the sound."""

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from fer_vit.errors import FerVitError, ImageError
from fer_vit.face.image import encode_jpeg
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.predict.frames import read_frames
from fer_vit.predict.inputs import find_inputs
from fer_vit.predict.outputs import MarkedCopy, Outputs
from fer_vit.predict.photos import PhotoOptions
from tests.helpers.faces import make_faces, write_tables
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

pytestmark = pytest.mark.usefixtures("printed")

UNEVEN = [0.0, 0.04, 0.08, 0.3, 0.34, 0.5, 0.501, 1.7]
EVEN = [float(n / NTSC) for n in range(40)]
ALL = PhotoOptions()


def annotate_all(
    source: Path, output: Path, options: PhotoOptions = ALL, marked: bool = True
) -> None:
    """Copies a video, with a face at the lower right of each frame, as `predict` does.

    The probability of the face encodes the number of the frame.
    """
    photos = []
    with suppress(ImageError):
        for frame in read_frames(source, options.every, options.fps, *options.span):
            happy = 0.6 + frame.number / 1000
            photos.append(
                make_faces(
                    ("neutral", "happiness"),
                    [[1 - happy, happy]] if marked else [],
                    path=str(source),
                    frame=frame.number,
                    seconds=frame.seconds,
                    track=[3] if marked else [],
                    box=[[80.0, 70, 140, 110]] if marked else np.zeros((0, 4)),
                    smoothed=True,
                )
            )
    outputs = Outputs(output.with_suffix(".csv"), copy=MarkedCopy(source, output))
    write_tables(photos, [source], outputs, options=options)


def times(path: Path) -> list[float]:
    return [frame.seconds for frame in read_frames(path)]


@pytest.mark.parametrize(
    ("moments", "codec"),
    [(UNEVEN, "libx264"), (EVEN, "mpeg4"), ([5.2003, 5.3, 5.5], "libx264")],
    ids=["uneven", "29.97", "late"],
)
def test_frames_keep_their_times(
    moments: Sequence[float],
    codec: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Also where FFmpeg contains no H.264."""
    monkeypatch.setattr(av, "codecs_available", {codec})
    source = write_numbered(tmp_path / "a.mp4", moments, container={"movie_timescale": "60000"})
    annotate_all(source, tmp_path / "b.mp4")
    assert times(tmp_path / "b.mp4") == pytest.approx(moments, abs=1e-4)
    assert [number_of(frame.image) for frame in read_frames(tmp_path / "b.mp4")] == [
        *range(len(moments))
    ]
    assert f"b.mp4 ({codec}, without sound)" in capsys.readouterr().out


def test_a_copy_in_a_folder_is_no_input(tmp_path: Path) -> None:
    write_numbered(tmp_path / "clip.mp4", [n / 10 for n in range(5)])
    annotate_all(tmp_path / "clip.mp4", tmp_path / "marked.mp4")
    for name in ("clip.Marked.MP4", "marked.mov", "unmarked.mp4"):
        (tmp_path / name).touch()
    inputs = find_inputs([tmp_path, str(tmp_path / "*.mp4")], MEDIA_SUFFIXES)
    clips = [tmp_path / name for name in ("clip.mp4", "marked.mov", "unmarked.mp4")]
    assert inputs.files == clips
    assert any("2 videos with marked faces" in note for note in inputs.notes)

    named = find_inputs([tmp_path / "marked.mp4"], MEDIA_SUFFIXES)
    assert named.files == [tmp_path / "marked.mp4"]


def test_a_video_that_starts_below_0_is_shifted(tmp_path: Path) -> None:
    early = [number / 25 - 0.32 for number in range(9)]
    source = write_numbered(
        tmp_path / "a.ts", early, container={"avoid_negative_ts": "disabled"}, options={}
    )
    assert times(source)[0] == pytest.approx(-0.32)
    annotate_all(source, tmp_path / "b.mp4")
    assert times(tmp_path / "b.mp4") == pytest.approx([n / 25 for n in range(9)], abs=1e-4)


@pytest.mark.parametrize(
    ("shape", "width"), [(Fraction(1), 162), (Fraction(4, 3), 216)], ids=["square", "wide"]
)
def test_faces_are_marked_in_even_frames_of_square_pixels(
    shape: Fraction, width: int, tmp_path: Path
) -> None:
    images = [numbered(n, 161, 119) for n in range(3)]
    source = write_video(tmp_path / "a.mp4", images, EVEN[:3], pixels="yuv444p", shape=shape)
    annotate_all(source, tmp_path / "b.mp4")
    for before, after in zip(read_frames(source), read_frames(tmp_path / "b.mp4"), strict=True):
        assert after.image.shape == (120, width, 3)
        same_place = after.image[:119, : before.image.shape[1]].astype(float)
        changed = np.abs(same_place - before.image).max(-1) > 60
        assert changed[70:110, 80].all()  # the left side of the box
        assert changed[:40].sum() == changed[:, :60].sum() == 0


def test_turned_videos_stay_upright_and_a_choice_of_frames_is_kept(tmp_path: Path) -> None:
    source = turned(write_numbered(tmp_path / "a.mp4", EVEN), tmp_path / "turned.mp4", 90)
    annotate_all(source, tmp_path / "b.mp4", PhotoOptions(every=4, start=0.3, end=1.0))
    expected = list(read_frames(source, 4, None, 0.3, 1.0))
    written = list(read_frames(tmp_path / "b.mp4"))
    assert [frame.seconds for frame in written] == pytest.approx(
        [frame.seconds for frame in expected], abs=1e-4
    )
    assert written[0].image.shape == expected[0].image.shape == (160, 120, 3)
    assert np.abs(written[0].image[:40].astype(float) - expected[0].image[:40]).mean() < 4


def with_sound(path: Path, codec: str, moments: Iterable[float]) -> Path:
    """A video of numbers with a tone."""
    with av.open(str(path), "w") as file:
        pictures = file.add_stream("libx264", 25, width=160, height=120, pix_fmt="yuv420p")
        tone = file.add_stream(codec, 48000, layout="mono")
        for number, _ in enumerate(moments):
            file.mux(pictures.encode(av.VideoFrame.from_ndarray(numbered(number), format="rgb24")))
            wave = np.sin(np.arange(number * 1920, number * 1920 + 1920) / 20).astype(np.float32)[
                None
            ]
            if codec == "aac":
                sound = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
            else:
                samples = (wave * 9999).astype(np.int16)
                sound = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            sound.sample_rate = 48000
            sound.pts = number * 1920
            sound.time_base = Fraction(1, 48000)
            file.mux(tone.encode(sound))
        file.mux(pictures.encode())
        file.mux(tone.encode())
    return path


def sound_times(path: Path) -> list[float]:
    with av.open(str(path)) as file:
        return [
            float(packet.pts * packet.time_base)
            for packet in file.demux(audio=0)
            if packet.dts is not None
        ]


def test_sound_is_copied_with_its_times(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = with_sound(tmp_path / "a.mp4", "aac", EVEN)
    annotate_all(source, tmp_path / "b.mp4")
    sound = sound_times(tmp_path / "b.mp4")
    assert len(sound) > 60
    assert sound == pytest.approx(sound_times(source)[: len(sound)], abs=1e-4)
    assert times(tmp_path / "b.mp4") == pytest.approx(times(source), abs=1e-4)
    assert "with its sound" in capsys.readouterr().out
    annotate_all(source, tmp_path / "c.mp4", PhotoOptions(start=0.8, end=1.2))
    inside = sound_times(tmp_path / "c.mp4")
    assert (min(inside) > 0.6, max(inside) < 1.3) == (True, True)


BARS = np.repeat(
    np.repeat(191 * np.uint8([[[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 1]]]), 64, 1),
    8,
    0,
)


@pytest.mark.parametrize(("height", "code"), [(720, 1), (720, 2), (360, 2), (360, 5)])
def test_colours_are_kept_and_tagged(height: int, code: int, tmp_path: Path) -> None:
    """As players take them: FFmpeg converts by the tags,
    and by the number of lines without tags (code 2).
    """
    usual = 1 if height >= 720 else 6
    bars = np.repeat(BARS, height // 8, 0)
    matrix = "ITU709" if code == 1 or usual == 1 else "ITU601"
    with av.open(str(tmp_path / "a.mp4"), "w") as file:
        stream = file.add_stream(
            "libx264", 25, width=320, height=height, pix_fmt="yuv420p", options={"crf": "5"}
        )
        codec = stream.codec_context
        codec.colorspace = codec.color_primaries = codec.color_trc = code
        frame = av.VideoFrame.from_ndarray(bars, format="rgb24")
        file.mux(stream.encode(frame.reformat(format="yuv420p", dst_colorspace=matrix)))
        file.mux(stream.encode())
    annotate_all(tmp_path / "a.mp4", tmp_path / "b.mp4", marked=False)
    with av.open(str(tmp_path / "a.mp4")) as source, av.open(str(tmp_path / "b.mp4")) as copy:
        before, after = (next(file.decode(video=0)) for file in (source, copy))
    tag = usual if code == 2 else code
    assert after.colorspace == usual
    assert after.color_primaries == tag
    assert after.color_trc == tag
    assert after.color_range == 1
    before.colorspace = tag
    expected, written = (
        frame.to_ndarray(format="rgb24")[height // 2, 32::64].astype(int)
        for frame in (before, after)
    )
    assert np.abs(written - expected).max() <= 3


def test_sound_that_mp4_cannot_contain_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    annotate_all(with_sound(tmp_path / "a.avi", "adpcm_ms", EVEN[:5]), tmp_path / "b.mp4")
    assert "without its sound" in capsys.readouterr().out
    assert len(times(tmp_path / "b.mp4")) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no limit of files")
def test_failed_copies_are_removed(tmp_path: Path, rng: np.random.Generator) -> None:
    import resource

    noise = rng.integers(0, 256, (4, 120, 160, 3), np.uint8)
    source = write_video(tmp_path / "a.mp4", noise, EVEN[:4])
    copy = tmp_path / "b.mp4"
    with pytest.raises(FerVitError, match=r"a\.mp4 \(.*\bstart\b"):
        annotate_all(source, copy, PhotoOptions(start=50.0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(FerVitError, match=rf"{copy}.*{source}.*{os.strerror(errno.EFBIG)}"):
            annotate_all(source, copy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.csv"]


def test_times_that_mp4_cannot_contain_are_one_error(tmp_path: Path) -> None:
    times = [2 * 10**17 + 40 * number for number in range(3)]  # milliseconds
    pictures = [encode_jpeg(numbered(number)) for number in range(3)]
    source = tmp_path / "far.mkv"
    source.write_bytes(matroska(times, pictures, (160, 120), 120))
    assert len([*read_frames(source)]) == 3
    with pytest.raises(FerVitError, match=r"b\.mp4.*\bMP4\b"):
        annotate_all(source, tmp_path / "b.mp4")
    assert not (tmp_path / "b.mp4").exists()


def test_a_mirrored_video_is_copied_as_players_show_it(tmp_path: Path) -> None:
    flat = write_numbered(tmp_path / "flat.mp4", EVEN[:3])
    source = with_matrix(flat, tmp_path / "mirrored.mp4", (-1, 0, 0, 1))
    annotate_all(source, tmp_path / "b.mp4", marked=False)
    with av.open(str(tmp_path / "b.mp4")) as file:
        copies = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    for number, copy in enumerate(copies):
        assert np.abs(copy.astype(int) - numbered(number)[:, ::-1]).mean() < 8


def test_the_encoder_holds_no_frames(tmp_path: Path) -> None:
    """Each waiting frame of 36 megapixels takes a tenth of a gigabyte. x264 notes its settings."""
    annotate_all(write_numbered(tmp_path / "a.mp4", EVEN[:2]), tmp_path / "b.mp4")
    settings = (tmp_path / "b.mp4").read_bytes().decode("latin-1").split("x264 - core")[1]
    assert {"threads=1", "ref=1", "bframes=0"} <= {*settings.split()}
    assert "rc_lookahead" not in settings


def test_frames_of_another_size_keep_their_proportions(tmp_path: Path) -> None:
    shapes = [(120, 160), (160, 120), (60, 80)]
    pictures = [encode_jpeg(np.full((*shape, 3), 255, np.uint8)) for shape in shapes]
    source = tmp_path / "a.mkv"
    source.write_bytes(matroska([0, 40, 80], pictures, (160, 120), 120))
    annotate_all(source, tmp_path / "b.mp4", marked=False)

    first, tall, small = (frame.image for frame in read_frames(tmp_path / "b.mp4"))
    assert first.shape == tall.shape == small.shape == (120, 160, 3)
    assert first.min() > 250
    assert small.min() > 250
    assert tall[:, :88].min() > 250
    assert tall[:, 92:].max() < 5


def test_large_frames_are_reduced_in_the_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    large = np.zeros((2400, 4800, 3), np.uint8)
    source = write_video(
        tmp_path / "a.mp4", [large], [0.0], codec="mpeg4", rate=Fraction(25), tick=Fraction(1, 25)
    )
    annotate_all(source, tmp_path / "b.mp4", marked=False)
    (frame,) = read_frames(tmp_path / "b.mp4")
    height, width = frame.image.shape[:2]
    assert 0.99 * 4096 * 2304 < height * width <= 4096 * 2304
    assert width / height == pytest.approx(2, rel=1e-3)
    assert f"{width} x {height}" in capsys.readouterr().out
