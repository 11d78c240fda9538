"""A copy of a video in which the faces are marked."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from fractions import Fraction
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any, TypeAlias, cast

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import ColorRange, Colorspace, Interpolation

from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError
from fer_vit.files import atomic_write
from fer_vit.geometry import Image
from fer_vit.predict.photos import Photo, PhotoOptions
from fer_vit.predict.results import FaceResult
from fer_vit.predict.video import HD, UNTAGGED, Frame, open_video, read_frames
from fer_vit.report.draw import draw_faces

CODECS = ("libx264", "libopenh264", "mpeg4")  # the best first: H.264 plays everywhere, but FFmpeg may not contain it
TICK = Fraction(1, 60000)  # seconds, the finest unit of MPEG-4; frame times at the usual rates are multiples
PRIMING = 0.1  # seconds of sound before the first frame that are kept, because decoders may need them
TAGS = {Colorspace.ITU709: 1, Colorspace.SMPTE170M: 6}  # also of their primaries and transfer functions (ITU-T H.273)
EXACT = Interpolation.BILINEAR | Interpolation.ACCURATE_RND  # otherwise colours become darker by up to 3 levels
Packet: TypeAlias = "av.Packet[Any]"


def annotate_video(
    photos: Iterable[Photo[FaceResult]],
    source: Path,
    output: Path,
    options: PhotoOptions,
    errors: list[FerVitError],
    overwrite: bool = True,
) -> Iterator[Photo[FaceResult]]:
    """Yields photos unchanged, and writes a copy of the video `source`, one of them, with marked faces.

    Frames keep their times; a video whose first time is negative is shifted to 0. Sound is copied if MP4 can contain
    it. If the copy fails, the error is added to `errors`, no file is left, and iteration continues.
    """
    with closing(_write_copy(source, output, options, overwrite)) as copy:
        for photo in chain([None], photos, [None]):  # None starts and ends the copy
            try:
                copy.send(photo)
            except FerVitError as error:  # whose traceback would keep the encoder: workers cannot free its threads
                errors.append(FerVitError(str(error)))
            except StopIteration:  # the copy has ended
                pass
            if photo:
                yield photo


def _write_copy(
    source: Path, output: Path, options: PhotoOptions, overwrite: bool
) -> Generator[None, Photo[FaceResult] | None, None]:
    """Writes the copy from the photos that are sent to it."""
    frames = read_frames(source, options.every, options.fps, options.start, options.end)
    writer, reason = None, "no frames"
    exact = {"movie_timescale": str(TICK.denominator)}  # the default rounds the start to milliseconds
    try:
        with (
            atomic_write(output, overwrite=overwrite) as path,
            open_video(source) as (container, _),
            av.open(path, "w", format="mp4", options=exact) as file,
        ):
            while photo := (yield):
                if photo.frame is not None:
                    frame = next(frames)
                    writer = writer or FrameWriter(file, container, frame)
                    writer.add(draw_faces(frame.image, [face.marked for face in photo.faces]), frame.seconds)
                elif photo.path == str(source):
                    reason = photo.status
            if not writer:
                raise ImageError(reason)
            writer.finish()
    except ImageError as error:  # as which `open_video` raises errors of FFmpeg, of the output as well
        raise FerVitError(f"Cannot write {output}, a copy of {source} ({error}).") from error
    start = f", shifted by {writer.shift:.3f} s to start at 0" if writer.shift else ""
    print(f"Video: {output} ({writer.codec}, {writer.sound}{start})")


class FrameWriter:
    """Writes frames with their times, and the sound of their source, to a file. `first` is like all frames."""

    def __init__(self, file: av.container.OutputContainer, source: av.container.InputContainer, first: Frame) -> None:
        self._file, self._source = file, source
        self._seconds, self._ticks = first.seconds, -1
        self.shift = max(0.0, -first.seconds)
        self.codec, self.sound = next(name for name in CODECS if name in av.codecs_available), "no sound"
        height, width = (side + side % 2 for side in first.image.shape[:2])  # even, for the codecs
        rate, tags = source.streams.video[0].guessed_rate or 25, source.streams.video[0].codec_context
        stream = file.add_stream(self.codec, rate, width=width, height=height, pix_fmt="yuv420p")
        self._video = cast(av.VideoStream, stream)
        codec = self._video.codec_context
        codec.time_base = TICK
        self._colour = Colorspace.ITU709 if height >= HD else Colorspace.SMPTE170M
        # Players convert primaries as well; these do not change when a face is drawn.
        codec.colorspace = usual = TAGS[self._colour]
        codec.color_primaries = usual if tags.color_primaries == UNTAGGED else tags.color_primaries
        codec.color_trc = usual if tags.color_trc == UNTAGGED else tags.color_trc
        codec.color_range = ColorRange.MPEG
        if self.codec != "libx264":  # which has a constant quality by default
            self._video.bit_rate = 8 * width * height
        try:
            codec.open()
        except FFmpegError as error:
            raise FerVitError(f"{self.codec} cannot encode frames of {width} x {height} pixels.") from error
        self._packets = dropwhile(lambda packet: _time(packet) < first.seconds - PRIMING, self._sound_packets())
        self._packet = next(self._packets, None)

    def add(self, image: Image, seconds: float) -> None:
        """Writes a frame (H, W, 3), RGB uint8, padded to even sides, and its sound."""
        self._copy_sound(2 * seconds - self._seconds)  # to the next frame, at a constant rate
        self._seconds, self._ticks = seconds, max(round((seconds + self.shift) / TICK), self._ticks + 1)
        image = np.pad(image, [(0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)], "edge")
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame = frame.reformat(
            format="yuv420p", dst_colorspace=self._colour.name, dst_color_range="MPEG", interpolation=EXACT
        )
        frame.pts, frame.time_base = self._ticks, TICK
        self._file.mux(self._video.encode(frame))

    def finish(self) -> None:
        """Writes the frames that are still in the encoder."""
        self._file.mux(self._video.encode())

    def _sound_packets(self) -> Iterator[Packet]:
        for audio in self._source.streams.audio[:1]:
            name = audio.codec_context.name if audio.codec_context else "an unknown codec"
            if name not in self._file.supported_codecs:
                self.sound = f"without its sound: MP4 cannot contain {name}"
                return
            self.sound = "with its sound"
            stream = self._file.add_stream_from_template(audio)
            with suppress(FFmpegError):  # the end of a broken video
                last, length, shift = -(2**63), 0, 0
                for packet in self._source.demux(audio):
                    if packet.dts is None:
                        continue
                    if packet.dts + shift <= last:  # times start again where files were joined
                        shift = last + length - packet.dts
                    last, length = packet.dts + shift, packet.duration or 1
                    packet.pts = packet.dts = last
                    packet.stream = stream
                    yield packet

    def _copy_sound(self, end: float) -> None:
        while self._packet is not None and _time(self._packet) <= end:
            packet = self._packet
            packet.pts = packet.dts = (packet.dts or 0) + round(self.shift / packet.time_base)
            self._file.mux(packet)
            self._packet = next(self._packets, None)


def _time(packet: Packet) -> float:
    return float((packet.pts or 0) * packet.time_base)
