"""Writes a copy of a video with marked faces."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

import av
import cv2
import numpy as np
from av.video.reformatter import ColorRange, Interpolation

from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError
from fer_vit.files import atomic_write
from fer_vit.geometry import Image
from fer_vit.predict.frames import HD, UNTAGGED, Frame, open_video, read_frames
from fer_vit.predict.hdr import HLG, PQ
from fer_vit.predict.photos import PhotoOptions
from fer_vit.report.draw import Marked, draw_faces

LOGGER = logging.getLogger("fer_vit")

# Encoders from best to worst: H.264 plays everywhere, but FFmpeg may not contain it.
CODECS = ("libx264", "libopenh264", "mpeg4")
# The finest unit of time in MPEG-4, in seconds. Times of frames at the usual rates are multiples.
TICK = Fraction(1, 60000)
LAST_TICK = 2**62  # largest time in ticks: beyond, FFmpeg's arithmetic fails
BEFORE_ALL = -(2**63)  # a time before all other times, in any unit

# The encoder holds no frames. By default, x264 holds up to 60 frames, with 160 bytes a pixel.
X264 = {"tune": "zerolatency", "refs": "1"}

# Most pixels of a frame in the copy: most players show such frames. Larger frames are reduced.
MAX_COPY_PIXELS = 4096 * 2304
# Seconds of sound that are kept before the first frame, because decoders may need them.
PRIMING = 0.1
# With other settings, colours become darker by up to 3 levels.
EXACT_COLOURS = Interpolation.BILINEAR | Interpolation.ACCURATE_RND
Packet: TypeAlias = "av.Packet[Any]"


def annotate_video(
    source: Path,
    output: Path,
    marks: Sequence[list[Marked]],
    options: PhotoOptions,
    overwrite: bool = True,
) -> None:
    """Writes a copy of a video: the frames that `options` selects, with marked faces.

    Frames keep their times; a video with a negative first time is shifted to 0. Sound is copied
    if MP4 can contain it. Raises FerVitError when the copy cannot be written; no file is left.
    """
    start, last = options.span
    frames = read_frames(source, options.every, options.fps, start, last)
    try:
        first = next(frames)
        begin = first.seconds - PRIMING
        end = first.seconds + last - start
        # By default the start is rounded to milliseconds.
        mp4_options = {
            "movie_timescale": str(TICK.denominator),
            "output_ts_offset": str(max(0.0, -first.seconds)),
        }
        with (
            atomic_write(output, overwrite=overwrite) as path,
            open_video(source) as (container, stream),
            av.open(path, "w", format="mp4", options=mp4_options) as file,
        ):
            video = _add_video(file, stream, first)
            # `marks` is first in `zip`, so that a damaged end without marks is not read.
            marked_frames = zip(marks, chain([first], frames), strict=False)
            pictures = _encode_frames(video, marked_frames)
            sound = _copy_sound(file, container, begin, end)
            for packet in merge(pictures, sound, key=_time):
                file.mux(packet)
            sounds = _sound_in_words(bool(container.streams.audio), bool(file.streams.audio))
    # `open_video` raises an ImageError for each FFmpeg error in its block, also of the output
    except ImageError as error:
        raise FerVitError(f"Cannot write {output}, a copy of {source} ({error}).") from error
    height, width = copy_size(first.image)
    if height * width < first.image.shape[0] * first.image.shape[1]:
        LOGGER.info(f"The copy is reduced to {width} x {height} pixels.")
    LOGGER.info(f"Video: {output} ({video.codec_context.name}, {sounds})")


def _sound_in_words(of_source: bool, of_copy: bool) -> str:
    """Describes the sound of a copy, given whether the video and the copy have sound."""
    if of_copy:
        return "with its sound"
    if of_source:
        return "without its sound, which MP4 cannot contain"
    return "without sound"


def _add_video(
    file: av.container.OutputContainer, source: av.VideoStream, first: Frame
) -> av.VideoStream:
    """Adds a stream for frames like `first`, with the colour tags of `source` or the usual ones."""
    name = next(name for name in CODECS if name in av.codecs_available)
    height, width = copy_size(first.image)
    rate = source.guessed_rate or 25
    stream = file.add_stream(name, rate, width=width, height=height, pix_fmt="yuv420p")
    video = cast(av.VideoStream, stream)
    codec = video.codec_context
    codec.time_base = TICK
    codec.thread_count = 1  # each thread holds frames
    if name == "libx264":
        codec.options = X264
    else:  # x264 has a constant quality by default
        video.bit_rate = 8 * width * height

    usual = 1 if height >= HD else 6  # BT.709 and BT.601 (ITU-T H.273)
    tags = source.codec_context
    is_hdr = tags.color_trc in (PQ, HLG)  # the frames were converted to SDR
    codec.colorspace = usual
    codec.color_primaries = usual
    codec.color_trc = usual
    codec.color_range = ColorRange.MPEG
    # Primaries and transfer of SDR are copied: drawing faces does not change them.
    if not is_hdr and tags.color_primaries != UNTAGGED:
        codec.color_primaries = tags.color_primaries
    if not is_hdr and tags.color_trc != UNTAGGED:
        codec.color_trc = tags.color_trc
    return video


def copy_size(image: Image) -> tuple[int, int]:
    """Returns the height and width of an image (H, W, 3) in the copy: even, and not too large.

    The colours of H.264 and MPEG-4 (yuv420p) need even sides: an odd side gets one more pixel, so
    that none is lost. A frame with more than `MAX_COPY_PIXELS` pixels is reduced, and odd sides
    lose a pixel, so that the limit holds.
    """
    height, width = image.shape[:2]
    scale = math.sqrt(MAX_COPY_PIXELS / (height * width))
    if scale >= 1:
        return height + height % 2, width + width % 2
    even_height = int(height * scale) // 2 * 2
    even_width = int(width * scale) // 2 * 2
    return max(2, even_height), max(2, even_width)


def _encode_frames(
    video: av.VideoStream, frames: Iterable[tuple[list[Marked], Frame]]
) -> Iterator[Packet]:
    """Yields the packets of frames with marked faces, padded to even sides."""
    matrix = "ITU709" if video.height >= HD else "SMPTE170M"
    ticks = BEFORE_ALL
    for marked, selected in frames:
        image = draw_faces(selected.image, marked) if marked else selected.image
        frame = av.VideoFrame.from_ndarray(
            _fit_to_copy(image, video.height, video.width), format="rgb24"
        )
        frame = frame.reformat(
            format="yuv420p",
            dst_colorspace=matrix,
            dst_color_range="MPEG",
            interpolation=EXACT_COLOURS,
        )
        ticks = max(round(selected.seconds / TICK), ticks + 1)  # times must rise
        if ticks > LAST_TICK:
            raise ImageError(f"MP4 cannot contain a frame at {selected.seconds:.3g} s")
        frame.pts = ticks
        frame.time_base = TICK
        yield from video.encode(frame)
    yield from video.encode()


def _fit_to_copy(image: Image, height: int, width: int) -> Image:
    """Returns an image (H, W, 3) in the size of the copy (height, width, 3).

    The image is reduced, or padded to even sides. An image of another size than the first one is
    scaled with its proportions, and the rest is black.
    """
    if copy_size(image) != (height, width):
        scale = min(height / image.shape[0], width / image.shape[1])
        scaled = np.zeros((height, width, 3), np.uint8)
        scaled_height = max(1, int(image.shape[0] * scale))
        scaled_width = max(1, int(image.shape[1] * scale))
        scaled[:scaled_height, :scaled_width] = _resize(image, scaled_height, scaled_width)
        return scaled
    if height * width < image.shape[0] * image.shape[1]:
        image = _resize(image, height, width)
    below = height - image.shape[0]
    right = width - image.shape[1]
    if below or right:
        image = np.pad(image, [(0, below), (0, right), (0, 0)], "edge")
    return image


def _resize(image: Image, height: int, width: int) -> Image:
    """Returns an image (H, W, 3) in another size."""
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(resized, np.uint8)


def _copy_sound(
    file: av.container.OutputContainer,
    source: av.container.InputContainer,
    begin: float,
    end: float,
) -> Iterator[Packet]:
    """Yields the packets of the first sound that MP4 can contain, between two times in seconds."""
    audio = _choose_sound(file, source)
    if audio is None:
        return
    stream = file.add_stream_from_template(audio)
    last = BEFORE_ALL  # time of the previous packet, in the unit of packets
    length = 0  # duration of the previous packet
    shift = 0  # added to the times after a joint, where files were joined
    for packet in source.demux(audio):
        if packet.dts is None:
            continue
        if packet.dts + shift <= last:  # times begin again after a joint
            shift = last + length - packet.dts
        last = packet.dts + shift
        length = packet.duration or 1
        packet.pts = last
        packet.dts = last
        if begin <= _time(packet) <= end:
            packet.stream = stream
            yield packet


def _choose_sound(
    file: av.container.OutputContainer, source: av.container.InputContainer
) -> av.AudioStream | None:
    """Returns the first sound whose codec the file supports."""
    for audio in source.streams.audio:
        codec = audio.codec_context
        if codec and codec.name in file.supported_codecs:
            return audio
    return None


def _time(packet: Packet) -> float:
    """Returns when a packet is decoded, in seconds."""
    return float((packet.dts or 0) * packet.time_base)
