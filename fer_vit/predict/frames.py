"""The frames of videos with the times in their files, read by FFmpeg through PyAV."""

import math
import os
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import av
import numpy as np
from av.error import ExitError, FFmpegError
from av.sidedata.sidedata import Type
from av.stream import Disposition
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter
from numpy.typing import NDArray
from PIL import Image as Pil

from fer_vit.face.image import (
    UNREADABLE_VIDEO,
    ImageError,
    check_size,
    reduce_depth,
    rotate_upright,
    used_bits,
)
from fer_vit.files import open_input
from fer_vit.geometry import Image
from fer_vit.predict.hdr import to_sdr
from fer_vit.predict.shots import SMALL_HEIGHT, SMALL_WIDTH, ShotFrame, number_shots

# Containers that are read, with any suffix. Other containers, such as playlists, may name further
# files and addresses to open.
CONTAINERS = (
    "mov,mp4,matroska,webm,avi,gif,mpeg,mpegts,flv,asf,ogg,dv,mxf,wtv,"
    "h264,hevc,m4v,mpegvideo,mjpeg,yuv4mpegpipe,ivf"
)

# Containers by suffix, for files with contents that look like a single picture.
BY_SUFFIX = {".mjpeg": "mjpeg", ".mjpg": "mjpeg"}

LIVE_CONTAINERS = "rtsp,hls,mpjpeg"  # further formats for addresses

# Protocols for addresses, without `file`, because playlists could name files.
PROTOCOLS = "http,https,rtmp,rtp,rtsp,tcp,tls,udp"

STREAM_TIMEOUT = 8.0  # seconds without data after which an address counts as lost
NO_VIDEO = "no video in the file"
NO_FRAME = "no frame in the video"
NO_FRAME_CHOSEN = "no frame between start and end"
WRONG_PICTURES = "frames may show wrong pictures"
MAX_FRAME_PIXELS = 36_000_000  # most pixels of a frame; 8K (7680 x 4320) has 33 megapixels
# Most bytes of a decoded frame; 8K with 10 bits has 100 MB. Decoders hold up to 17 frames.
MAX_FRAME_BYTES = 108_000_000

# Formats with headers in which some programs write the time of the end, and others the length.
ABSOLUTE_TIMES = frozenset(("matroska,webm", "asf"))

# Number of lines from which players assume BT.709 for a video without colour tags; below, they
# assume BT.601.
HD = 720
UNTAGGED = 2  # the colour space of a frame without tags (ITU-T H.273)
DEEP_BITS = 16  # bits of a deep format; infrared and depth cameras use 10 to 14 of them
MAX_SWAPPED = 4  # frames by which guessed times may be out of order

Item = TypeVar("Item")


class Frame(NamedTuple):
    """A frame of a video."""

    image: Image  # upright RGB uint8 (H, W, 3) of square pixels
    number: int  # 0 is the first frame
    seconds: float
    shot: int = 0  # 0 is the first shot; a cut begins the next one


class UntilError(Generic[Item]):
    """Iterates over frames until a damaged file raises an error, and keeps the error.

    The frames before the damage are good. A function that lets frames wait takes them from here,
    yields all that it has, and only then raises the error with `check`.
    """

    def __init__(self, frames: Iterable[Item]) -> None:
        self._frames = frames
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Item]:
        try:
            yield from self._frames
        except Exception as error:
            self._error = error

    def check(self) -> None:
        """Raises the error, if there was one, and forgets it.

        The traceback of the error leads back to this object. Frames that it holds would fill the
        memory until the garbage collector finds this circle.
        """
        error = self._error
        self._error = None
        if error is None:
            return
        try:
            raise error
        finally:
            del error


def read_frames(
    path: Path,
    every: int = 1,  # yield every n-th frame
    fps: float | None = None,  # yield at most this many frames per second, at regular times
    start: float = 0.0,  # seconds after the first frame
    end: float = math.inf,
    only: Container[int] | None = None,  # yield only frames with these numbers
) -> Iterator[Frame]:
    """Yields frames of a video in display order; their numbers do not depend on the selection.

    Raises ImageError when the video cannot be read. If it cannot be read to its end, the error
    comes after the readable frames.
    """
    begin: float | None = None  # the time of the first frame
    first_index: int | None = None  # index of the first frame at `start` or later
    first_seconds = 0.0
    last_frame = ""  # words about the end of the video, where it is known
    # One frame is yielded from each slot: a slot is `every` frames, or 1 / `fps` seconds.
    last_slot: int | None = None

    with open_video(path) as (container, stream):
        decoder = _Decoder(container, stream)
        converter = _Converter(stream)
        # Skipped frames count, too: without them, a shot changes as much as another one differs.
        frames = _number_frames(decoder, live=False)
        for index, (frame, seconds, shot) in enumerate(frames):
            if begin is None:
                begin = seconds
            if seconds - begin >= end:
                break
            if seconds - begin < start:
                last_frame = f" (the last frame is at {seconds - begin:.2f} s)"
                continue

            if first_index is None:
                first_index = index
                first_seconds = seconds
            slot = (index - first_index) // every
            if fps is not None:
                slot = math.floor((seconds - first_seconds) * fps + 1e-6)
            if slot != last_slot and (only is None or index in only):
                last_slot = slot
                yield Frame(converter.to_rgb(frame), index, seconds, shot)
    decoder.damage.check()
    if begin is None:
        raise ImageError(NO_FRAME)
    if first_index is None:
        raise ImageError(f"{NO_FRAME_CHOSEN}{last_frame}")


def start_of(path: Path) -> float:
    """Returns when a video or its sound starts, in seconds; 0 if the video cannot be read."""
    with suppress(ImageError), open_video(path) as (container, _):
        return (container.start_time or 0) / av.time_base
    return 0.0


def count_pixels(path: Path, end: float, max_pixels: int) -> int:
    """Returns the number of pixels of all frames together, up to `end` seconds after the first.

    The number is 0 if the video cannot be read. Counting stops beyond `max_pixels`. Only key frames
    are decoded, because they can have another size than the frames before.
    """
    pixels = 0
    first: float | None = None
    with suppress(ImageError), open_video(path) as (container, stream):
        codec = stream.codec_context
        codec.skip_frame = "NONKEY"
        for packet in container.demux(stream):
            if packet.is_keyframe:
                with suppress(FFmpegError):
                    packet.decode()
            if packet.pts is not None and packet.time_base is not None:
                seconds = float(packet.pts * packet.time_base)
                if first is None:
                    first = seconds
                if seconds - first > end:
                    break
            pixels += codec.width * codec.height
            if pixels > max_pixels:
                break
    return pixels


def play(source: Path | str) -> Iterator[Frame]:
    """Yields the frames of a file (path) or an address (text) in real time.

    Times of live frames count from the arrival of the first frame, because times in a stream jump
    or are guesses. Raises ImageError when the source cannot be read, or live frames ended.
    """
    with open_video(source) as (container, stream):
        decoder = _Decoder(container, stream)
        converter = _Converter(stream)
        live = not isinstance(source, Path) and container.duration is None
        for number, (frame, seconds, shot) in enumerate(_number_frames(decoder, live)):
            if not live:
                if number == 0:
                    start = time.perf_counter() - seconds
                elapsed = time.perf_counter() - start
                time.sleep(max(0, seconds - elapsed))
            yield Frame(converter.to_rgb(frame), number, seconds, shot)
    decoder.damage.check()
    if live:
        raise ImageError("the stream ended")


def _number_frames(decoder: "_Decoder", live: bool) -> Iterator[ShotFrame[av.VideoFrame]]:
    """Yields frames with their times and the numbers of their shots, then raises an error of these.

    No frame waits if it is `live`.
    """
    decoded = UntilError(decoder.read())
    timed = _at_arrival(decoded) if live else _time_frames(decoded, decoder.stream)
    reformatter = VideoReformatter()  # one for all frames, as in `_Converter`

    def to_small(frame: av.VideoFrame) -> Image:  # (h, w), neither upright nor in SDR
        small = reformatter.reformat(
            frame, SMALL_WIDTH, SMALL_HEIGHT, "gray", interpolation=Interpolation.AREA, threads=1
        )
        return np.asarray(small.to_ndarray(), np.uint8)

    yield from number_shots(timed, to_small, live)
    decoded.check()


def _at_arrival(frames: Iterable[av.VideoFrame]) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yields frames with the seconds since the first one arrived."""
    start: float | None = None
    for frame in frames:
        arrived = time.perf_counter()
        if start is None:
            start = arrived
        yield frame, arrived - start


@dataclass
class Damage:
    """How many parts of a video are damaged, by the kind of damage."""

    wrong_pictures: int = 0  # frames that FFmpeg decoded with errors
    undecoded_packets: int = 0
    missing_seconds: int = 0  # below 0: the video is longer than in its header
    undelayed_frames: int = 0  # frames of a GIF without a delay

    def check(self) -> None:
        """Raises ImageError when a part is damaged."""
        counts = {
            WRONG_PICTURES: self.wrong_pictures,
            "packets cannot be decoded": self.undecoded_packets,
            "seconds are missing at the end": self.missing_seconds,
            "frames without a delay cannot be read": self.undelayed_frames,
        }
        damage = [f"{count:,} {text}" for text, count in counts.items() if count > 0]
        if damage:
            raise ImageError(f"damaged: {', '.join(damage)}")


@dataclass
class _Decoder:
    """Decodes a stream of a file, and counts damaged parts."""

    file: av.container.InputContainer
    stream: av.VideoStream
    damage: Damage = field(default_factory=Damage)

    def read(self) -> Iterator[av.VideoFrame]:
        """Yields the frames in display order; `damage` is complete after the last one."""
        end = 0.0  # end of the last packet so far, of all streams, in seconds
        num_frames = 0
        for packet in self.file.demux():
            if packet.pts is not None and packet.time_base:
                packet_end = (packet.pts + (packet.duration or 0)) * packet.time_base
                end = max(end, float(packet_end))
            if packet.stream.index != self.stream.index:
                continue
            try:
                for frame in cast(list[av.VideoFrame], packet.decode()):
                    check_frame((frame.width, frame.height), frame.format)
                    if frame.is_corrupt:
                        self.damage.wrong_pictures += 1
                    num_frames += 1
                    yield frame
            except FFmpegError:
                self.damage.undecoded_packets += 1

        self.damage.missing_seconds = round(_claimed_end(self.file) - end)
        if self.file.format.name == "gif":
            path = self.file.name.removeprefix("file:")
            # Pillow raises many types for broken files
            with suppress(Exception), Pil.open(path, formats=["GIF"]) as image:
                self.damage.undelayed_frames = getattr(image, "n_frames", 1) - num_frames


def _claimed_end(file: av.container.InputContainer) -> float:
    """Returns the end of a file by its header, in seconds; the earlier possible one of two."""
    start = (file.start_time or 0) / av.time_base
    length = (file.duration or 0) / av.time_base
    if file.format.name in ABSOLUTE_TIMES and length > start:
        return length
    return start + length


def _time_frames(
    frames: Iterable[av.VideoFrame], stream: av.VideoStream
) -> Iterator[tuple[av.VideoFrame, float]]:
    """Yields frames with times in seconds that never fall.

    FFmpeg guesses swapped times for B-frames in AVI files, so a few frames and times wait. A time
    is unusual if it is before the last yielded time, or more than a few frames after the next time.
    If the next time continues the earlier times, an unusual time is wrong and is replaced. If not,
    files were joined or a clock was set back: times continue after the newest time.
    """
    waiting = deque[av.VideoFrame]()
    times: list[float] = []  # a heap of the times of waiting frames
    newest = -math.inf
    last = -math.inf  # the time that was yielded last
    offset = 0.0  # added to the times after a joint
    step = 1 / float(stream.guessed_rate or 25)
    for frame, time_in_file, following in _with_next(frames, step):
        seconds = time_in_file + offset
        falls_back = seconds < last
        if following is not None and following + offset >= newest:
            runs_ahead = seconds > following + offset + MAX_SWAPPED * step
            if falls_back or runs_ahead:
                seconds = max(newest, following + offset - step)
        elif falls_back:
            offset += newest + step - seconds
            seconds = newest + step
        newest = max(newest, seconds)

        waiting.append(frame)
        heappush(times, seconds)
        if len(waiting) > MAX_SWAPPED:
            last = max(last, heappop(times))
            yield waiting.popleft(), last

    for frame, seconds in zip(waiting, sorted(times), strict=True):
        yield frame, max(last, seconds)


def _with_next(
    frames: Iterable[av.VideoFrame], step: float
) -> Iterator[tuple[av.VideoFrame, float, float | None]]:
    """Yields frames with their time in the file and the time of the next frame, None at the end.

    Frames of bare streams have no times, and are assumed to be `step` seconds apart.
    """
    before: tuple[av.VideoFrame, float] | None = None
    for number, frame in enumerate(frames):
        seconds = number * step if frame.time is None else frame.time
        if before is not None:
            yield *before, seconds
        before = (frame, seconds)
    if before is not None:
        yield *before, None


@contextmanager
def open_video(source: Path | str) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """Opens a video (path) or address (text). Raises ImageError for FFmpeg errors in the block."""
    if isinstance(source, Path):
        check_video_file(source)
        url = f"file:{os.path.abspath(source)}"
        container_name = BY_SUFFIX.get(source.suffix.lower())
        timeout = None
        options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    else:
        url = source
        container_name = None
        timeout = STREAM_TIMEOUT
        options = {
            "format_whitelist": f"{CONTAINERS},{LIVE_CONTAINERS}",
            "protocol_whitelist": PROTOCOLS,
            "rtsp_flags": "prefer_tcp",  # UDP loses parts of frames
        }
    try:
        # Metadata such as the title need not be Unicode.
        with av.open(
            url,
            format=container_name,
            options=options,
            metadata_errors="replace",
            timeout=timeout,
        ) as container:
            stream = _choose_stream(container.streams.video)
            codec = stream.codec_context
            if codec is None:  # although PyAV's annotations exclude it
                raise ImageError(UNREADABLE_VIDEO)
            check_frame((stream.width, stream.height), codec.format)
            codec.options = {"max_pixels": str(MAX_FRAME_PIXELS)}
            yield container, stream
    except ExitError as error:  # PyAV raises it at the timeout
        raise ImageError(f"no data for {STREAM_TIMEOUT:g} seconds") from error
    except FFmpegError as error:
        # PyAV's errors for invalid data and a cut file, with texts that do not help a user
        unreadable = isinstance(error, ValueError | EOFError)
        reason = UNREADABLE_VIDEO if unreadable else str(error.strerror)
        raise ImageError(reason) from error


def check_video_file(path: Path) -> None:
    """Raises ImageError for what FFmpeg cannot read, or could read forever."""
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ImageError(error.strerror or type(error).__name__) from error
    except ValueError as error:  # a NUL byte in the path
        raise ImageError("not a valid file name") from error
    if not size:  # files of the kernel (/proc) have no size, and some have no end
        raise ImageError(UNREADABLE_VIDEO)


def _choose_stream(streams: Sequence[av.VideoStream]) -> av.VideoStream:
    """Returns the stream that players show: the first default stream, or else the first stream."""
    videos = [stream for stream in streams if not stream.disposition & Disposition.attached_pic]
    if not videos:
        raise ImageError(NO_VIDEO)
    for stream in videos:
        if stream.disposition & Disposition.default:
            return stream
    return videos[0]


def check_frame(size: tuple[int, int], pixel_format: av.VideoFormat | None) -> None:
    """Raises ImageError for a size (width, height) and pixel format that need too much memory."""
    check_size(size, MAX_FRAME_PIXELS)
    if pixel_format is None:
        return
    width, height = size
    frame_bytes = width * height * pixel_format.padded_bits_per_pixel // 8
    if frame_bytes > MAX_FRAME_BYTES:
        raise ImageError(
            f"too large: {width:,} x {height:,} pixels ({pixel_format.name}) take "
            f"{frame_bytes // 10**6:,} MB, the limit of a frame is {MAX_FRAME_BYTES // 10**6} MB"
        )


@dataclass
class _Converter:
    """Converts the frames of a stream to upright RGB in SDR with square pixels."""

    stream: av.VideoStream
    # One for all frames: a new one would prepare its tables for each frame.
    reformatter: VideoReformatter = field(default_factory=VideoReformatter)
    # EXIF orientations by PyAV's angle of a frame
    orientations: dict[float, int] = field(default_factory=dict)
    bits: int = 8  # most bits that deep frames have used so far

    def to_rgb(self, frame: av.VideoFrame) -> Image:
        """Returns a frame as RGB uint8 (H, W, 3)."""
        width = max(1, round(frame.width * (self.stream.sample_aspect_ratio or 1)))
        # a few bytes can claim pixels of any width
        check_size((width, frame.height), MAX_FRAME_PIXELS)
        if frame.colorspace == UNTAGGED and frame.height >= HD:
            frame.colorspace = Colorspace.ITU709
        if frame.format.components[0].bits == DEEP_BITS:
            image = self._reduce_depth(frame, width)
        else:
            shown = self.reformatter.reformat(frame, width, frame.height, "rgb24", threads=1)
            image = np.asarray(shown.to_ndarray(), np.uint8)
        image = to_sdr(image, frame.color_trc)
        return rotate_upright(image, self._orientation(frame))

    def _reduce_depth(self, frame: av.VideoFrame, width: int) -> Image:
        """Returns a frame of 16 bits as RGB uint8 (H, W, 3), by the bits used so far."""
        deep = frame.to_ndarray(format="rgb48le", width=width, height=frame.height)
        image = np.asarray(deep, np.uint16)
        self.bits = max(self.bits, used_bits(image))
        return reduce_depth(image, self.bits)

    def _orientation(self, frame: av.VideoFrame) -> int:
        """Returns the EXIF orientation of a frame.

        The side data of a frame is read only once for each angle: frame and side data refer to each
        other, so the pixels stay in memory until Python's garbage collection.
        """
        angle = frame.rotation
        if angle not in self.orientations:
            side_data = cast(Mapping[Type, Any], frame.side_data)
            matrix = np.array([1, 0, 0, 0, 1, 0, 0, 0, 1], np.int32)
            if Type.DISPLAYMATRIX in side_data:
                matrix = np.frombuffer(side_data[Type.DISPLAYMATRIX], np.int32)  # (9,)
            self.orientations[angle] = orientation_of(matrix)
        return self.orientations[angle]


def orientation_of(matrix: NDArray[np.integer[Any]]) -> int:
    """Returns the EXIF orientation (1 to 8) nearest to the display matrix (9,) of a frame.

    The matrix [a, b, u, c, d, v, x, y, w] maps a pixel (p, q) to (a p + c q, b p + d q) (ISO
    14496-12). Scale and shift are ignored: the shape of the pixels has the scale, and the shift
    does not change the picture. Other angles become a quarter turn, as players show them.
    """
    a, b, _, c, d = matrix[:5].tolist()
    transposed = abs(b) + abs(c) > abs(a) + abs(d)
    if transposed:
        return 4 + REFLECTIONS[c < 0, b < 0]
    return REFLECTIONS[a < 0, d < 0]


# The EXIF orientation by whether a picture is mirrored horizontally and vertically.
REFLECTIONS = {(False, False): 1, (True, False): 2, (True, True): 3, (False, True): 4}
