"""Videos as streams of frames, read by FFmpeg through PyAV, with the times that the file gives them."""

import math
import os
import time
from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fer_vit.errors import FerVitError
from fer_vit.face.image import MAX_PIXELS, ImageError, check_size
from fer_vit.geometry import Image

try:
    import av
    from av.error import ExitError, FFmpegError
    from av.stream import Disposition
except ModuleNotFoundError as missing:
    raise FerVitError('Videos need one more package: pip install "fer-vit[video]".') from missing

FORMATS = "mov,mp4,matroska,webm,avi,gif,mpeg,mpegts,flv,asf,ogg,h264,hevc"
"""Containers that are read, whatever the suffix. Others, such as playlists, may name files and addresses to open."""
LIVE_FORMATS, PROTOCOLS = "rtsp,hls,mpjpeg,mjpeg", "http,https,rtmp,rtp,rtsp,tcp,tls,udp"
"""What may come from an address besides, and how; never a file, whatever a playlist says."""
PATIENCE = 8.0
"""Seconds after which a camera at an address that sends nothing is lost."""
UNREADABLE = "not a video that can be decoded"
MOST_SWAPPED = 4
"""How many frames away the time of a frame may be."""
JOINT = 1.0
"""Seconds by which times fall where a recording was joined to another; swapped ones may fall by frames besides."""
SLACK = 0.5
"""Seconds by which a file may end before the time that its header gives."""


class Frame(NamedTuple):
    """A frame of a video: its index from the first one, its time, and upright RGB uint8 (H, W, 3) of square pixels."""

    image: Image
    number: int
    seconds: float


def read_frames(
    path: Path,
    every: int = 1,
    fps: float | None = None,
    start: float = 0.0,
    end: float = math.inf,
    only: Container[int] | None = None,
) -> Iterator[Frame]:
    """Yields frames of a video in the order in which they are shown.

    All frames up to the last one are decoded, so that a frame has the same index whatever is chosen.

    Args:
        path: The video.
        every: Take every so many frames.
        fps: Take at most so many frames a second, evenly by their times.
        start: Take frames from so many seconds after the first one.
        end: Take frames before so many seconds after the first one.
        only: Take only frames with these indices.

    Raises:
        ImageError: It cannot be read, or (after the frames that could be) not to its end.
    """
    slot, first, begin = None, None, None
    with open_video(path) as (container, stream):
        for index, (frame, seconds) in enumerate(_in_order(_decoded(container, stream))):
            begin = seconds if begin is None else begin
            if seconds - begin >= end:
                break
            if seconds - begin < start:
                continue
            first = (index, seconds) if first is None else first
            due = (index - first[0]) // every if fps is None else math.floor((seconds - first[1]) * fps + 1e-6)
            if due != slot and (only is None or index in only):
                slot = due
                yield Frame(_upright(frame, stream), index, seconds)
    if first is None:
        raise ImageError("no frame in the time that was chosen")


def play(source: Path | str) -> Iterator[Frame]:
    """Yields the frames of a file, or of an address (text), when they are due.

    What was recorded comes at its own speed. Live pictures come as they arrive, with the seconds since the first: their
    own times jump, or are guesses.

    Raises:
        ImageError: It cannot be opened or read, or live pictures ended.
    """
    with open_video(source) as (container, stream):
        recorded = isinstance(source, Path) or container.duration is not None
        frames = _decoded(container, stream)
        for number, (frame, seconds) in enumerate(_in_order(frames) if recorded else frames):
            if number == 0:
                start = time.perf_counter() - (seconds if recorded else 0)
            elapsed = time.perf_counter() - start
            if recorded:
                time.sleep(max(0, seconds - elapsed))
            yield Frame(_upright(frame, stream), number, seconds if recorded else elapsed)
    if not recorded:
        raise ImageError("no more pictures come")


def _in_order(frames: Iterator[tuple[av.VideoFrame, float]]) -> Iterator[tuple[av.VideoFrame, float]]:
    """Gives frames their times in order: for B-frames in an AVI file, which has none, FFmpeg's guesses are swapped."""
    waiting: deque[av.VideoFrame] = deque()
    times: list[float] = []
    error = None
    try:
        for frame, seconds in frames:
            waiting.append(frame)
            heappush(times, seconds)
            if len(waiting) > MOST_SWAPPED:
                yield waiting.popleft(), heappop(times)
    except ImageError as end:
        error = end
    yield from zip(waiting, sorted(times), strict=True)
    if error:
        raise error


def _decoded(container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yields decoded frames with their times in seconds; damaged packets are left out, and told at the end.

    Where times start again, as where files were joined, they go on instead.
    """
    damaged, count, last = 0, 0, 0.0
    newest, offset = -math.inf, 0.0
    rate = float(stream.guessed_rate or 25)
    for packet in container.demux():
        if packet.pts is not None and packet.time_base:
            last = max(last, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream.index != stream.index:
            continue
        try:
            frames = cast(list[av.VideoFrame], packet.decode())
        except FFmpegError:
            damaged += 1
            continue
        for frame in frames:
            # Streams without a container have no times.
            seconds = offset + (count / rate if frame.time is None else frame.time)
            if seconds < newest - JOINT - MOST_SWAPPED / rate:
                offset += newest + 1 / rate - seconds
                seconds = newest + 1 / rate
            newest = max(newest, seconds)
            yield frame, seconds
            count += 1
    begin, length = (container.start_time or 0) / av.time_base, (container.duration or 0) / av.time_base
    if damaged:
        raise ImageError(f"damaged: {damaged:,} of its packets cannot be decoded")
    if not count:
        raise ImageError("no frames")
    if last < begin + length - SLACK:
        raise ImageError(f"ends early: after {last - begin:.1f} of {length:.1f} seconds")


@contextmanager
def open_video(source: Path | str) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """Opens a video or, given text, an address. Raises ImageError when it, or what is read from it, is none."""
    if isinstance(source, Path):
        if source.exists() and not source.is_file():
            raise ImageError("not a regular file")  # reading a pipe could block forever
        url, patience, unreadable = f"file:{os.path.abspath(source)}", None, UNREADABLE
        options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    else:
        url, patience, unreadable = source, PATIENCE, "no video comes from there"
        options = {"format_whitelist": f"{FORMATS},{LIVE_FORMATS}", "protocol_whitelist": PROTOCOLS}
    if url.startswith("rtsp:"):
        options["rtsp_flags"] = "prefer_tcp"  # by UDP pictures come with holes
    try:
        # The words in a file, such as its title, need not be Unicode.
        with av.open(url, options=options, metadata_errors="replace", timeout=patience) as container:
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise ImageError("no video in the file")
            if streams[0].codec_context is None:  # PyAV's annotations do not know of it
                raise ImageError(unreadable)
            streams[0].codec_context.options = {"max_pixels": str(MAX_PIXELS)}
            yield container, streams[0]
    except ExitError as error:
        raise ImageError(f"nothing came for {PATIENCE:g} seconds") from error
    except FFmpegError as error:
        raise ImageError(unreadable if isinstance(error, ValueError | EOFError) else str(error.strerror)) from error


def _upright(frame: av.VideoFrame, stream: av.VideoStream) -> Image:
    """Returns a frame as RGB with square pixels, turned as its file says.

    DVDs and HDV store pixels that are shown wider or narrower than high; left so, faces would be distorted.
    """
    width = max(1, round(frame.width * (stream.sample_aspect_ratio or 1)))
    check_size((width, frame.height))  # a few bytes can claim pixels of any width
    image = frame.to_ndarray(format="rgb24", width=width, height=frame.height)
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)), np.uint8)
