"""Videos as streams of frames with the times in their files, read by FFmpeg through PyAV."""

import math
import os
import time
from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    raise FerVitError('Videos need one more package: pip install -c constraints.txt ".[video]".') from missing

FORMATS = "mov,mp4,matroska,webm,avi,gif,mpeg,mpegts,flv,asf,ogg,h264,hevc"
"""Containers that are read, with any suffix. Others, such as playlists, may name files and addresses to open."""
LIVE_FORMATS, PROTOCOLS = "rtsp,hls,mpjpeg,mjpeg", "http,https,rtmp,rtp,rtsp,tcp,tls,udp"
"""Further formats and the protocols for addresses, without `file`, because playlists could name files."""
PATIENCE = 8.0
"""Seconds without data after which an address counts as lost."""
UNREADABLE = "not a video that can be decoded"
MAX_PIXELS = 36_000_000
"""Larger frames are not decoded: decoders hold many frames. 8K (7680 x 4320) has 33 megapixels."""
HD = 720
"""Lines from which players assume BT.709 for a video without colour tags, and BT.601 below."""
UNTAGGED = 2
"""The colour space of a frame without tags (ITU-T H.273)."""
MOST_SWAPPED = 4
"""Frames by which guessed times may be out of order."""
JOINT = 1.0
"""Seconds by which times fall back where files were joined, beyond swapped frames."""
SLACK = 0.5
"""Seconds by which a file may be shorter than its header claims."""


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
    """Yields frames of a video in display order; their indices do not depend on the selection.

    Args:
        path: The video.
        every: Yield every n-th frame.
        fps: Yield at most this many frames per second, evenly by their times.
        start: Begin this many seconds after the first frame.
        end: End this many seconds after the first frame.
        only: Yield only frames with these indices.

    Raises:
        ImageError: The video cannot be read; or not to its end, raised after the readable frames.
    """
    slot, first, begin = None, None, None
    damage = Damage()
    with open_video(path) as (container, stream):
        for index, (frame, seconds) in enumerate(_sort_times(_decode(container, stream, damage))):
            begin = seconds if begin is None else begin
            if seconds - begin >= end:
                break
            if seconds - begin < start:
                continue
            first = (index, seconds) if first is None else first
            due = (index - first[0]) // every if fps is None else math.floor((seconds - first[1]) * fps + 1e-6)
            if due != slot and (only is None or index in only):
                slot = due
                yield Frame(_to_rgb(frame, stream), index, seconds)
    if first is None:
        raise ImageError("no frame between start and end")
    damage.check()


@dataclass
class Damage:
    """Counts what a decoder lost."""

    packets: int = 0
    frames: int = 0

    def check(self) -> None:
        """Raises ImageError if anything was lost."""
        lost = [f"{self.packets:,} packets cannot be decoded"] * (self.packets > 0)
        lost += [f"{self.frames:,} frames may show wrong pictures"] * (self.frames > 0)
        if lost:
            raise ImageError(f"damaged: {', '.join(lost)}")


def play(source: Path | str) -> Iterator[Frame]:
    """Yields the frames of a file (path) or an address (text) in real time.

    Live frames have the seconds since the first one arrived, because times in a stream jump or are guesses.

    Raises:
        ImageError: The source cannot be read, or live frames ended.
    """
    with open_video(source) as (container, stream):
        recorded = isinstance(source, Path) or container.duration is not None
        damage = Damage()
        frames = _decode(container, stream, damage)
        for number, (frame, seconds) in enumerate(_sort_times(frames) if recorded else frames):
            if number == 0:
                start = time.perf_counter() - (seconds if recorded else 0)
            elapsed = time.perf_counter() - start
            if recorded:
                time.sleep(max(0, seconds - elapsed))
            yield Frame(_to_rgb(frame, stream), number, seconds if recorded else elapsed)
    damage.check()
    if not recorded:
        raise ImageError("the stream ended")


def _sort_times(frames: Iterator[tuple[av.VideoFrame, float]]) -> Iterator[tuple[av.VideoFrame, float]]:
    """Sorts the times of frames: FFmpeg guesses swapped times for B-frames in AVI files, which contain none."""
    waiting: deque[av.VideoFrame] = deque()
    times: list[float] = []
    try:
        for frame, seconds in frames:
            waiting.append(frame)
            heappush(times, seconds)
            if len(waiting) > MOST_SWAPPED:
                yield waiting.popleft(), heappop(times)
    except ImageError:
        yield from zip(waiting, sorted(times), strict=True)
        raise
    yield from zip(waiting, sorted(times), strict=True)


def _decode(
    container: av.container.InputContainer, stream: av.VideoStream, damage: Damage
) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yields decoded frames with their times in seconds, and counts the damaged ones.

    Timestamps that restart (joined files) are shifted to continue those before.
    """
    count, last = 0, 0.0
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
            damage.packets += 1
            continue
        for frame in frames:
            # Streams without a container have no times.
            seconds = offset + (count / rate if frame.time is None else frame.time)
            if seconds < newest - JOINT - MOST_SWAPPED / rate:
                offset += newest + 1 / rate - seconds
                seconds = newest + 1 / rate
            newest = max(newest, seconds)
            damage.frames += frame.is_corrupt
            yield frame, seconds
            count += 1
    begin, length = (container.start_time or 0) / av.time_base, (container.duration or 0) / av.time_base
    if not count:
        damage.check()
        raise ImageError("no frames")
    if not damage.packets and last < begin + length - SLACK:
        raise ImageError(f"ends early: after {last - begin:.1f} of {length:.1f} seconds")


@contextmanager
def open_video(source: Path | str) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """Opens a video (path) or an address (text). Raises ImageError if opening or reading fails."""
    if isinstance(source, Path):
        if source.exists() and not source.is_file():
            raise ImageError("not a regular file")  # reading a pipe could block forever
        if source.exists() and not source.stat().st_size:
            raise ImageError("the file is empty")
        if source.suffix.lower() == ".m3u8":
            raise ImageError("a playlist, which is not read: name the video files")
        url, patience, unreadable = f"file:{os.path.abspath(source)}", None, UNREADABLE
        options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    else:
        url, patience, unreadable = source, PATIENCE, "no video at this address"
        options = {"format_whitelist": f"{FORMATS},{LIVE_FORMATS}", "protocol_whitelist": PROTOCOLS}
    if url.startswith("rtsp:"):
        options["rtsp_flags"] = "prefer_tcp"  # UDP loses parts of frames
    try:
        # Metadata such as the title need not be Unicode.
        with av.open(url, options=options, metadata_errors="replace", timeout=patience) as container:
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise ImageError("no video in the file")
            if streams[0].codec_context is None:  # PyAV's annotations exclude it
                raise ImageError(unreadable)
            check_size((streams[0].width, streams[0].height), MAX_PIXELS)
            streams[0].codec_context.options = {"max_pixels": str(MAX_PIXELS)}
            yield container, streams[0]
    except ExitError as error:
        raise ImageError(f"no data for {PATIENCE:g} seconds") from error
    except FFmpegError as error:
        raise ImageError(unreadable if isinstance(error, ValueError | EOFError) else str(error.strerror)) from error


def _to_rgb(frame: av.VideoFrame, stream: av.VideoStream) -> Image:
    """Returns a frame as upright RGB with square pixels; DVDs and HDV have others, which distort faces."""
    width = max(1, round(frame.width * (stream.sample_aspect_ratio or 1)))
    check_size((width, frame.height), MAX_PIXELS)  # a few bytes can claim pixels of any width
    if frame.colorspace == UNTAGGED and frame.height >= HD:
        frame.colorspace = Colorspace.ITU709
    image = frame.to_ndarray(format="rgb24", width=width, height=frame.height)
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)), np.uint8)
