"""The frames of videos with the times in their files, read by FFmpeg through PyAV."""

import math
import os
import time
from collections import Counter, deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, check_size
from fer_vit.geometry import Image

try:
    import av
    from av.error import ExitError, FFmpegError
    from av.stream import Disposition
    from av.video.reformatter import Colorspace
except ModuleNotFoundError as missing:
    raise FerVitError(
        'Videos need one more package: pip install -c constraints.txt ".[video]".'
    ) from missing

FORMATS = "mov,mp4,matroska,webm,avi,gif,mpeg,mpegts,flv,asf,ogg,h264,hevc"
"""Containers that are read, with any suffix. Others, such as playlists, may name files and addresses to open."""
LIVE_FORMATS, PROTOCOLS = "rtsp,hls,mpjpeg,mjpeg", "http,https,rtmp,rtp,rtsp,tcp,tls,udp"
"""Further formats and the protocols for addresses, without `file`, because playlists could name files."""
PATIENCE = 8.0  # seconds without data after which an address counts as lost
UNREADABLE = "not a video that can be decoded"
MAX_PIXELS = 36_000_000  # of a frame: decoders hold many; 8K (7680 x 4320) has 33 megapixels
HD = 720  # lines from which players assume BT.709 for a video without colour tags, and BT.601 below
UNTAGGED = 2  # the colour space of a frame without tags (ITU-T H.273)
MOST_SWAPPED = 4  # frames by which guessed times may be out of order
JOINT = 1.0  # seconds by which times fall back where files were joined, beyond swapped frames; there they continue


class Frame(NamedTuple):
    """A frame of a video."""

    image: Image  # upright RGB uint8 (H, W, 3) of square pixels
    number: int  # from the first frame, 0
    seconds: float


def read_frames(
    path: Path,
    every: int = 1,  # yield every n-th frame
    fps: float | None = None,  # yield at most this many frames per second, evenly by their times
    start: float = 0.0,  # seconds after the first frame
    end: float = math.inf,
    only: Container[int] | None = None,  # indices of frames
) -> Iterator[Frame]:
    """Yields frames of a video in display order; their indices do not depend on the selection.

    Raises ImageError when the video cannot be read; or not to its end, after the readable frames.
    """
    slot, first, begin, lost = None, None, None, Counter[str]()
    with open_video(path) as (container, stream):
        for index, (frame, seconds) in enumerate(
            _time_frames(_decode(container, stream, lost), stream)
        ):
            begin = seconds if begin is None else begin
            if seconds - begin >= end:
                break
            if seconds - begin < start:
                continue
            first = (index, seconds) if first is None else first
            due = (
                (index - first[0]) // every
                if fps is None
                else math.floor((seconds - first[1]) * fps + 1e-6)
            )
            if due != slot and (only is None or index in only):
                slot = due
                yield Frame(_to_rgb(frame, stream), index, seconds)
    _check(lost)
    if first is None:
        raise ImageError("no frame between start and end")


def play(source: Path | str) -> Iterator[Frame]:
    """Yields the frames of a file (path) or an address (text) in real time.

    Live frames have the seconds since the first one arrived, because times in a stream jump or are guesses. Raises
    ImageError when the source cannot be read, or live frames ended.
    """
    lost = Counter[str]()
    with open_video(source) as (container, stream):
        live = not isinstance(source, Path) and container.duration is None
        frames = _decode(container, stream, lost)
        timed = ((frame, 0.0) for frame in frames) if live else _time_frames(frames, stream)
        for number, (frame, seconds) in enumerate(timed):
            if number == 0:
                start = time.perf_counter() - seconds
            elapsed = time.perf_counter() - start
            time.sleep(max(0, seconds - elapsed))
            yield Frame(_to_rgb(frame, stream), number, elapsed if live else seconds)
    _check(lost)
    if live:
        raise ImageError("the stream ended")


def _check(lost: Counter[str]) -> None:
    if found := +lost:
        raise ImageError(
            f"damaged: {', '.join(f'{number:,} {name}' for name, number in found.items())}"
        )


def _decode(
    file: av.container.InputContainer, stream: av.VideoStream, lost: Counter[str]
) -> Iterator[av.VideoFrame]:
    last, begin, length = (
        0.0,
        *((value or 0) / av.time_base for value in (file.start_time, file.duration)),
    )
    for packet in file.demux():
        if packet.pts is not None and packet.time_base:
            last = max(last, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream.index != stream.index:
            continue
        try:
            for frame in cast(list[av.VideoFrame], packet.decode()):
                lost["frames may show wrong pictures"] += frame.is_corrupt
                yield frame
        except FFmpegError:
            lost["packets cannot be decoded"] += 1
    lost["seconds are missing at the end"] = round(begin + length - last)


def _time_frames(
    frames: Iterator[av.VideoFrame], stream: av.VideoStream
) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yields frames with their seconds in order: FFmpeg guesses swapped times for B-frames in AVI files."""
    waiting, times, newest, offset = deque[av.VideoFrame](), list[float](), -math.inf, 0.0
    rate = float(stream.guessed_rate or 25)
    for number, frame in enumerate(frames):
        seconds = offset + (
            number / rate if frame.time is None else frame.time
        )  # bare streams have no times
        if seconds < newest - JOINT - MOST_SWAPPED / rate:
            offset, seconds = offset + newest + 1 / rate - seconds, newest + 1 / rate
        newest = max(newest, seconds)
        waiting.append(frame)
        heappush(times, seconds)
        if len(waiting) > MOST_SWAPPED:
            yield waiting.popleft(), heappop(times)
    yield from zip(waiting, sorted(times), strict=True)


@contextmanager
def open_video(source: Path | str) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """Opens a video (path) or an address (text). Raises ImageError if opening or reading fails."""
    if isinstance(source, Path):
        if source.exists() and not source.is_file():
            raise ImageError("not a regular file")  # reading a pipe could block forever
        url, patience = f"file:{os.path.abspath(source)}", None
        options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    else:
        url, patience = source, PATIENCE
        options = {"format_whitelist": f"{FORMATS},{LIVE_FORMATS}", "protocol_whitelist": PROTOCOLS}
        options["rtsp_flags"] = "prefer_tcp"  # UDP loses parts of frames
    try:
        # Metadata such as the title need not be Unicode.
        with av.open(
            url, options=options, metadata_errors="replace", timeout=patience
        ) as container:
            streams = [
                s for s in container.streams.video if not s.disposition & Disposition.attached_pic
            ]
            if not streams:
                raise ImageError("no video in the file")
            if streams[0].codec_context is None:  # PyAV's annotations exclude it
                raise ImageError(UNREADABLE)
            check_size((streams[0].width, streams[0].height), MAX_PIXELS)
            streams[0].codec_context.options = {"max_pixels": str(MAX_PIXELS)}
            yield container, streams[0]
    except ExitError as error:
        raise ImageError(f"no data for {PATIENCE:g} seconds") from error
    except FFmpegError as error:
        raise ImageError(
            UNREADABLE if isinstance(error, ValueError | EOFError) else str(error.strerror)
        ) from error


def _to_rgb(frame: av.VideoFrame, stream: av.VideoStream) -> Image:
    """Returns a frame as upright RGB with square pixels; DVDs and HDV have others, which distort faces."""
    width = max(1, round(frame.width * (stream.sample_aspect_ratio or 1)))
    check_size((width, frame.height), MAX_PIXELS)  # a few bytes can claim pixels of any width
    if frame.colorspace == UNTAGGED and frame.height >= HD:
        frame.colorspace = Colorspace.ITU709
    image = frame.to_ndarray(format="rgb24", width=width, height=frame.height)
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)), np.uint8)
