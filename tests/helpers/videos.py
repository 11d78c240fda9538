"""Videos for tests: files of all kinds with known frames and times,
and drawn people whose places are known.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import cv2
import numpy as np

from fer_vit.face.detection import Detection
from fer_vit.face.detectors import Detector
from fer_vit.geometry import TEMPLATE, Array, Image
from fer_vit.sources.cartoon import draw_face

NTSC = Fraction(30000, 1001)
WITH_B_FRAMES = {"bf": "3", "g": "15", "threads": "1"}  # the same file on any machine


def numbered(number: int, width: int = 160, height: int = 120) -> Image:
    """A picture that shows its number in ten white or grey squares,
    and a red corner at the lower left.
    """
    image = np.full((height, width, 3), 60, np.uint8)
    for bit in range(10):
        if number >> bit & 1:
            image[10:30, 10 + 14 * bit : 20 + 14 * bit] = 255
    image[60:100, 10:50] = (200, 40, 40)
    return image


def number_of(image: Image) -> int:
    """The number that a picture shows."""
    return sum(int(image[20, 15 + 14 * bit].mean() > 150) << bit for bit in range(10))


def write_video(
    path: Path,
    images: Iterable[Image],
    times: Iterable[float],
    codec: str = "libx264",
    tick: Fraction = Fraction(1, 90000),
    rate: Fraction = NTSC,
    pixels: str = "yuv420p",
    options: dict[str, str] = WITH_B_FRAMES,
    container: dict[str, str] | None = None,
    shape: Fraction = Fraction(1),
) -> Path:
    """Writes images to be shown at these times, in seconds,
    with pixels `shape` times as wide as high.
    """
    with av.open(str(path), "w", options=container or {}) as file:
        if codec != "libx264":
            options = {}
        stream = file.add_stream(codec, rate, options=options)
        for image, time in zip(images, times, strict=False):
            if not stream.codec_context.is_open:
                stream.height, stream.width = image.shape[:2]
                stream.pix_fmt = pixels
                stream.codec_context.time_base = tick
                stream.codec_context.sample_aspect_ratio = shape
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = round(time / tick)
            frame.time_base = tick
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def write_numbered(path: Path, times: Sequence[float], **kind: object) -> Path:
    return write_video(path, map(numbered, range(len(times))), times, **kind)  # type: ignore[arg-type]


def turned(path: Path, goal: Path, degrees: int) -> Path:
    """A copy of an MP4 that its header turns clockwise, as phones do."""
    cos, sin = (round(f(np.deg2rad(degrees))) for f in (np.cos, np.sin))
    return with_matrix(path, goal, (cos, sin, -sin, cos))


def with_matrix(path: Path, goal: Path, matrix: tuple[float, float, float, float]) -> Path:
    """A copy of an MP4 whose track has the display matrix (a, b, c, d) (ISO 14496-12)."""
    data = bytearray(path.read_bytes())
    start = data.find(b"tkhd") + 44  # the matrix of the track's header
    a, b, c, d = (round(value * 2**16) for value in matrix)
    data[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    goal.write_bytes(data)
    return goal


def matroska(
    times: Sequence[int], pictures: Sequence[bytes], size: tuple[int, int], duration: float
) -> bytes:
    """A Matroska file by hand: JPEG pictures at times in milliseconds, in any order."""
    info = _uint("2ad7b1", 1_000_000) + _element("4489", struct.pack(">d", duration))
    video = _uint("b0", size[0]) + _uint("ba", size[1])
    track = _uint("d7", 1) + _uint("73c5", 1) + _uint("83", 1)
    track += _element("86", b"V_MJPEG") + _element("e0", video)
    body = _element("1549a966", info) + _element("1654ae6b", _element("ae", track))
    for time, picture in zip(times, pictures, strict=True):
        block = _element("a3", b"\x81\0\0\x80" + picture)
        body += _element("1f43b675", _uint("e7", time) + block)
    head = _element("4282", b"matroska") + _uint("4287", 4) + _uint("4285", 2)
    return _element("1a45dfa3", head) + _element("18538067", body)


def _element(name: str, payload: bytes) -> bytes:
    return bytes.fromhex(name) + (len(payload) | 1 << 56).to_bytes(8, "big") + payload


def _uint(name: str, number: int) -> bytes:
    return _element(name, number.to_bytes(8, "big"))


@dataclass(frozen=True)
class Actor:
    """A drawn person: the middle of the face and its width at a time, None while away;
    in front of those before.
    """

    seed: int
    place: Callable[[float], tuple[float, float, float] | None]
    expression: Callable[[float], str] = lambda seconds: "neutral"


@dataclass(frozen=True)
class Seen:
    """An actor in a frame, and whether enough is visible that a face must, or may not, be found."""

    actor: int
    landmarks: Array
    width: float
    visible: bool


def scene(
    actors: Sequence[Actor],
    times: Sequence[float],
    size: tuple[int, int] = (640, 360),
    walls: Sequence[range] = (),
) -> Iterator[tuple[Image, list[Seen]]]:
    """Draws people on a grey stage, behind walls: columns of pixels."""
    for seconds in times:
        image = np.full((size[1], size[0], 3), 110, np.uint8)
        covers = np.full((size[1], size[0]), -1)
        seen = []
        for number, actor in enumerate(actors):
            if (place := actor.place(seconds)) is None:
                continue
            x, y, width = place
            side = round(width)
            face, landmarks = draw_face(actor.expression(seconds), actor.seed, side, colour=True)
            to_stage = np.array([[1.0, 0, x - side / 2], [0, 1, y - side / 2]])
            cv2.warpAffine(face, to_stage, size, dst=image, borderMode=cv2.BORDER_TRANSPARENT)
            corner = (to_stage[:, 2].round()).astype(int)
            covers[max(corner[1], 0) : corner[1] + side, max(corner[0], 0) : corner[0] + side] = (
                number
            )
            seen.append((number, landmarks + to_stage[:, 2], side))
        for wall in walls:
            image[:, wall.start : wall.stop], covers[:, wall.start : wall.stop] = 90, -1
        yield image, [Seen(n, p, w, bool((covers == n).sum() > 0.85 * w * w)) for n, p, w in seen]


class TrackScores(NamedTuple):
    """How well tracks follow people: IDF1 (Ristani et al. 2016),
    MOTA and switches (Bernardin & Stiefelhagen 2008).
    """

    idf1: float
    mota: float
    switches: int


def track_scores(
    truth: Sequence[Sequence[Seen]], tracked: Sequence[Sequence[tuple[int, Array]]]
) -> TrackScores:
    """Compares tracks, landmarks by frame, with the people who were there. Those hidden
    in part do not count.
    """
    import motmetrics  # only here: it takes a second to import

    events = motmetrics.MOTAccumulator(auto_id=True)
    for seen, tracks in zip(truth, tracked, strict=True):
        far = np.array(
            [
                [np.linalg.norm(p - s.landmarks, axis=1).mean() / s.width for _, p in tracks]
                for s in seen
            ]
        )
        far = far.reshape(len(seen), len(tracks))
        hidden = np.array([not s.visible for s in seen], bool)
        near = far < 0.25
        ignored = (near & (far == far.min(0, initial=np.inf)))[hidden].any(0)
        people = [s.actor for s in seen if s.visible]
        numbers = [number for (number, _), skip in zip(tracks, ignored, strict=True) if not skip]
        events.update(people, numbers, np.where(near, far, np.nan)[~hidden][:, ~ignored])
    scores = motmetrics.metrics.create().compute(events, metrics=["idf1", "mota", "num_switches"])
    return TrackScores(*scores.iloc[0])


class Blobs(Detector):
    """A detector of bright squares on a dark ground, with the template's landmarks;
    stores the sizes of its inputs.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def detect(self, image: Image) -> list[Detection]:
        self.seen.append(image.shape[:2])
        mask = (image[..., 0] > 128).astype(np.uint8)
        _, _, boxes, _ = cv2.connectedComponentsWithStats(mask)
        boxes = [
            np.array([x, y, x + w, y + h], float) for x, y, w, h, area in boxes[1:] if area >= 100
        ]
        return [Detection(b, b[:2] + np.array(TEMPLATE) * (b[2:] - b[:2]), 0.9) for b in boxes]


def write_lossless(path: Path, images: Iterable[Image], times: Iterable[float]) -> Path:
    """A Matroska file whose frames are exactly these images; its times are milliseconds."""
    return write_video(path, images, times, "ffv1", Fraction(1, 1000), pixels="bgr0")
