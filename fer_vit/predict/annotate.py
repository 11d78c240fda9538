"""A copy of a video in which the faces are marked."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import dropwhile
from pathlib import Path
from typing import Any, TypeAlias, cast

import av
import numpy as np
from av.error import FFmpegError

from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError
from fer_vit.files import atomic_write
from fer_vit.geometry import Image
from fer_vit.predict.photos import Photo, PhotoOptions
from fer_vit.predict.results import FaceResult
from fer_vit.predict.video import open_video, read_frames
from fer_vit.report.overlay import draw_faces

CODECS = ("libx264", "libopenh264", "mpeg4")
"""Encoders, the best first: H.264 is played everywhere, but FFmpeg need not have been built with it."""
TICK = Fraction(1, 60000)
"""Unit of the frames' times in seconds: MPEG-4 allows no finer one, and the usual frame rates are multiples of it."""
PRIMING = 0.1
"""Seconds of sound that are kept before the first frame: a decoder may need what was encoded before it."""
Packet: TypeAlias = "av.Packet[Any]"


def annotated(
    photos: Iterable[Photo[FaceResult]], source: Path, output: Path, options: PhotoOptions
) -> Iterator[Photo[FaceResult]]:
    """Yields photos as they are, and writes the frames of the video `source` among them, with their faces marked.

    Frames keep their times. The sound is copied where an MP4 file can hold it.

    Raises:
        FerVitError: The video has no frame that can be read, or the copy cannot be written.
    """
    frames = read_frames(source, options.every, options.fps, options.start, options.end)
    reason = ""
    # Else the time of a late first frame would be rounded to milliseconds.
    exact = {"movie_timescale": str(TICK.denominator)}
    with (
        _reading(source),
        atomic_write(output) as path,
        open_video(source) as (container, _),
        _writing(output),
        av.open(path, "w", format="mp4", options=exact) as file,
    ):
        writer = FrameWriter(file, container)
        for photo in photos:
            if photo.frame is not None:
                frame = next(frames)
                writer.add(draw_faces(frame.image, [face.marked for face in photo.faces]), frame.seconds)
            elif photo.path == str(source):
                reason = photo.status
            yield photo
        if not writer.started:
            raise ImageError(reason)
        writer.finish()
    print(f"Video: {output} ({writer.codec}, {writer.sound})")


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Adds the source's name to what is wrong with it."""
    try:
        yield
    except ImageError as error:
        raise FerVitError(f"{source}: {error}.") from error


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Tells FFmpeg's errors as those of the copy; else they were taken for the source's."""
    try:
        yield
    except FFmpegError as error:
        raise FerVitError(f"Cannot write {output} ({error.strerror}).") from error


class FrameWriter:
    """Writes frames with their times to a file, beside the sound of the video that they come from."""

    def __init__(self, file: av.container.OutputContainer, source: av.container.InputContainer) -> None:
        self._file = file
        self._source = source
        self._seconds = 0.0
        self._ticks = -1
        self.started = False
        self.codec = next(name for name in CODECS if name in av.codecs_available)
        self.sound = "no sound"

    def add(self, image: Image, seconds: float) -> None:
        """Writes a frame (H, W, 3), RGB uint8, and the sound that is heard with it."""
        image = np.pad(image, [(0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)], "edge")  # codecs want it even
        if not self.started:
            self._start(image.shape[1], image.shape[0], seconds)
        self._copy_sound(2 * seconds - self._seconds)  # until the next frame, if that takes as long as this one
        self._seconds, self._ticks = seconds, max(round(seconds / TICK), self._ticks + 1)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = self._ticks, TICK
        self._file.mux(self._video.encode(frame))

    def finish(self) -> None:
        """Writes what the encoder still holds."""
        self._file.mux(self._video.encode())

    def _start(self, width: int, height: int, seconds: float) -> None:
        rate = self._source.streams.video[0].guessed_rate or 25
        stream = self._file.add_stream(self.codec, rate, width=width, height=height, pix_fmt="yuv420p")
        self._video = cast(av.VideoStream, stream)
        self._video.codec_context.time_base = TICK
        if self.codec != "libx264":  # which keeps the quality instead
            self._video.bit_rate = 8 * width * height
        try:
            self._video.codec_context.open()
        except FFmpegError as error:
            raise FerVitError(f"{self.codec} cannot encode frames of {width} x {height} pixels.") from error
        self._packets = dropwhile(lambda packet: _time(packet) < seconds - PRIMING, self._sound_packets())
        self._packet = next(self._packets, None)
        self._seconds, self.started = seconds, True

    def _sound_packets(self) -> Iterator[Packet]:
        for heard in self._source.streams.audio[:1]:
            name = heard.codec_context.name if heard.codec_context else "of an unknown codec"
            if name not in self._file.supported_codecs:
                self.sound = f"without its sound, {name}, which MP4 cannot hold"
                return
            self.sound = "with its sound"
            stream = self._file.add_stream_from_template(heard)
            with suppress(FFmpegError):  # the end of a broken video
                last, length, shift = -(2**63), 0, 0
                for packet in self._source.demux(heard):
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
            self._file.mux(self._packet)
            self._packet = next(self._packets, None)


def _time(packet: Packet) -> float:
    return float((packet.pts or 0) * packet.time_base)
