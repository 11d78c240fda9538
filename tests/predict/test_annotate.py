"""Marked copies of videos: every frame at its time, and the sound."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_jpeg
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.predict import annotate
from fer_vit.predict.annotate import annotate_video
from fer_vit.predict.frames import Frame, read_frames
from fer_vit.predict.inputs import find_inputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.report.draw import Marked
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

pytestmark = pytest.mark.usefixtures("printed")

UNEVEN = [0.0, 0.04, 0.08, 0.3, 0.34, 0.5, 0.501, 1.7]
EVEN = [float(n / NTSC) for n in range(40)]
ALL = PhotoOptions()


def face(number: int) -> Marked:
    """A face at the lower right whose probability encodes the frame's number."""
    return Marked(np.array([80.0, 70.0, 140.0, 110.0]), "happiness", 0.6 + number / 1000, 3)


def annotate_all(source: Path, output: Path, options: PhotoOptions = ALL) -> None:
    frames = read_frames(source, options.every, options.fps, options.start, options.end)
    annotate_video(source, output, [[face(frame.number)] for frame in frames], options)


def times(path: Path) -> list[float]:
    return [frame.seconds for frame in read_frames(path)]


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize(
    "moments", [UNEVEN, EVEN, [5.2003, 5.3, 5.5]], ids=["uneven", "29.97", "late"]
)
def test_frames_keep_their_times(
    moments: Sequence[float],
    codec: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(annotate, "CODECS", (codec,))
    source = write_numbered(tmp_path / "a.mp4", moments, container={"movie_timescale": "60000"})
    annotate_all(source, tmp_path / "b.mp4")
    assert times(tmp_path / "b.mp4") == pytest.approx(moments, abs=1e-4)
    assert [number_of(frame.image) for frame in read_frames(tmp_path / "b.mp4")] == [
        *range(len(moments))
    ]
    assert f"b.mp4 ({codec}, without sound)" in capsys.readouterr().out


@pytest.mark.parametrize("codec", ["libx264", *slow("mpeg4")])
def test_a_copy_in_a_folder_is_no_input(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotate, "CODECS", (codec,))
    write_numbered(tmp_path / "clip.mp4", [n / 10 for n in range(20)])
    annotate_all(tmp_path / "clip.mp4", tmp_path / "marked.mp4")
    for name in ("clip.Marked.MP4", "marked.mov", "unmarked.mp4"):
        (tmp_path / name).touch()
    inputs = find_inputs([tmp_path, str(tmp_path / "*.mp4")], MEDIA_SUFFIXES)
    clips = [tmp_path / name for name in ("clip.mp4", "marked.mov", "unmarked.mp4")]
    assert inputs.files == clips
    assert any("2 videos with marked faces" in note for note in inputs.notes)

    named = find_inputs([tmp_path / "marked.mp4"], MEDIA_SUFFIXES)
    assert named.files == [tmp_path / "marked.mp4"]


def test_a_video_that_starts_below_0_is_shifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_numbered(tmp_path / "a.mp4", EVEN[:9])
    early = (frame._replace(seconds=frame.seconds - 0.3) for frame in read_frames(source))
    monkeypatch.setattr(annotate, "read_frames", lambda *_: early)
    annotate_video(source, tmp_path / "b.mp4", [[]] * 9, ALL)
    assert times(tmp_path / "b.mp4") == pytest.approx(EVEN[:9], abs=1e-4)


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


@pytest.mark.parametrize(
    ("height", "code"), [(720, 1), (720, 2), (360, 1), (360, 2), (360, 5), (360, 6)]
)
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
    annotate_video(tmp_path / "a.mp4", tmp_path / "b.mp4", [[]], ALL)
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


def test_failed_copies_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_numbered(tmp_path / "a.mp4", EVEN[:3])
    copy = tmp_path / "b.mp4"
    with pytest.raises(FerVitError, match=r"a\.mp4 \(.*\bstart\b"):
        annotate_video(source, copy, [], PhotoOptions(start=50.0))
    monkeypatch.setattr(
        annotate,
        "draw_faces",
        Mock(side_effect=av.error.OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    )
    with pytest.raises(
        FerVitError,
        match=rf"{copy}.*{source}.*{os.strerror(errno.ENOSPC)}",
    ):
        annotate_all(source, copy)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


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
    annotate_video(source, tmp_path / "b.mp4", [[]] * 3, ALL)
    with av.open(str(tmp_path / "b.mp4")) as file:
        copies = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    for number, copy in enumerate(copies):
        assert np.abs(copy.astype(int) - numbered(number)[:, ::-1]).mean() < 8


def test_the_encoder_holds_no_frames(tmp_path: Path) -> None:
    """Each waiting frame of 36 megapixels takes a tenth of a gigabyte."""
    source = write_numbered(tmp_path / "a.mp4", EVEN)
    encoded: list[int] = []

    def frames() -> Iterator[tuple[list[Marked], Frame]]:
        for frame in read_frames(source):
            encoded.append(frame.number)
            yield [], frame

    with (
        av.open(str(source)) as container,
        av.open(str(tmp_path / "b.mp4"), "w") as file,
    ):
        first = next(read_frames(source))
        video = annotate._add_video(file, container.streams.video[0], first)
        file.mux(next(annotate._encode_frames(video, frames())))
    assert encoded == [0]


def test_frames_of_another_size_keep_their_proportions(tmp_path: Path) -> None:
    shapes = [(120, 160), (160, 120), (60, 80)]
    pictures = [encode_jpeg(np.full((*shape, 3), 255, np.uint8)) for shape in shapes]
    source = tmp_path / "a.mkv"
    source.write_bytes(matroska([0, 40, 80], pictures, (160, 120), 120))
    annotate_video(source, tmp_path / "b.mp4", [[], [], []], ALL)

    first, tall, small = (frame.image for frame in read_frames(tmp_path / "b.mp4"))
    assert first.shape == tall.shape == small.shape == (120, 160, 3)
    assert first.min() > 250
    assert small.min() > 250
    assert tall[:, :88].min() > 250
    assert tall[:, 92:].max() < 5


def test_large_frames_are_reduced_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(annotate, "MAX_COPY_PIXELS", 80 * 60)
    source = write_numbered(tmp_path / "a.mp4", EVEN[:2])
    annotate_all(source, tmp_path / "b.mp4")
    assert [frame.image.shape for frame in read_frames(tmp_path / "b.mp4")] == [(60, 80, 3)] * 2
    assert "80 x 60" in capsys.readouterr().out
