"""Finds the cuts of a video: jumps of the whole picture, after which others may be in its places.

Frames are compared by the edges in small grey pictures. Edges keep their places when the light
changes, and a motion of the camera shifts them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import cv2
import numpy as np

from fer_vit.faces import PhotoInfo
from fer_vit.geometry import Float32Array, Image
from fer_vit.wording import counted

SMALL_WIDTH = 32  # width of the grey pictures that are compared, in pixels
SMALL_HEIGHT = 18
# The largest motion of the picture from frame to frame that is followed, in pixels of the small
# picture: a fifth of its width.
MAX_SHIFT_X = 6
MAX_SHIFT_Y = 3
MIN_OVERLAP = 0.5  # a shift is judged by at least this fraction of the edges
MIN_CONTRAST = 2.0  # standard deviation of grey levels below which a frame shows nothing

# The least likeness of a frame with its shot, by the seconds since the frame before, linear in
# between. In a clip of a woman who laughs and cries, neighbouring frames are alike by 0.89 or more,
# and 99% of the frames 0.5 seconds apart by 0.44 or more; in a fast pan by 0.91, after a zoom by a
# tenth 0.73. Of pairs of portraits of two people in the same place, 97 to 99% are alike by less
# than 0.65, and 70% by less than 0.4.
SECONDS_APART = (0.2, 0.6)
LEAST_LIKENESS = (0.65, 0.4)

# A flash is over within this time and number of frames. Frames wait for its end.
MAX_FLASH_SECONDS = 0.2
MAX_FLASH_FRAMES = 3

AnyFrame = TypeVar("AnyFrame")
WHOLE = np.ones((SMALL_HEIGHT, SMALL_WIDTH), np.float32)


def make_small(picture: Image) -> Image:
    """Returns a picture (H, W, 3) with channels in any order as a small grey one (h, w)."""
    small = cv2.resize(picture, (SMALL_WIDTH, SMALL_HEIGHT), interpolation=cv2.INTER_AREA)
    return np.asarray(small.mean(2), np.uint8)


def find_edges(small: Image) -> Float32Array | None:
    """Returns the edges (h, w, 2) of a small grey picture (h, w), with the sum of squares 1.

    The values are the slopes of the grey levels, to the right and down, over the root of the
    steepness. So no single edge decides, such as the bars above and below a film. None: the picture
    shows nothing, such as a black frame.
    """
    if small.std() < MIN_CONTRAST:
        return None
    grey = small.astype(np.float32)
    slopes = np.dstack([cv2.Sobel(grey, -1, 1, 0), cv2.Sobel(grey, -1, 0, 1)])
    steepness = np.linalg.norm(slopes, axis=2, keepdims=True)
    edges = slopes / np.sqrt(np.maximum(steepness, 1.0))
    return np.asarray(edges / np.linalg.norm(edges))


def likeness(before: Float32Array, after: Float32Array) -> float:
    """Returns the correlation of two pictures' edges (h, w, 2) where they overlap best, up to 1."""
    products = cv2.matchTemplate(_pad(before), after, cv2.TM_CCORR)  # a value for each shift
    of_before = cv2.matchTemplate(_pad((before**2).sum(2)), WHOLE, cv2.TM_CCORR)
    of_after = cv2.matchTemplate(_pad(WHOLE), (after**2).sum(2), cv2.TM_CCORR)
    overlap = np.sqrt(np.maximum(of_before * of_after, MIN_OVERLAP**2))
    return float((products / overlap).max())


def _pad(values: Float32Array) -> Float32Array:
    """Returns values (h, w) or (h, w, 2) with zeros around them, for all shifts."""
    sides = (MAX_SHIFT_Y, MAX_SHIFT_Y, MAX_SHIFT_X, MAX_SHIFT_X)
    padded = cv2.copyMakeBorder(values, *sides, cv2.BORDER_CONSTANT)
    return np.asarray(padded, np.float32)


class TimedFrame(NamedTuple, Generic[AnyFrame]):
    """A frame that waits for its number of the shot."""

    frame: AnyFrame
    seconds: float
    edges: Float32Array | None  # None: it shows nothing
    least_likeness: float  # with the frames of its shot


class ShotFrame(NamedTuple, Generic[AnyFrame]):
    """A frame, its time, and the number of its shot."""

    frame: AnyFrame
    seconds: float
    shot: int  # 0 is the first one


@dataclass
class ShotCounter(Generic[AnyFrame]):
    """Numbers the shots of frames that arrive one after another."""

    _shot: int = 0
    _edges: Float32Array | None = None  # of the shot's last frame that shows something
    _seconds: float = -np.inf  # time of the frame before
    _waiting: deque[TimedFrame[AnyFrame]] = field(default_factory=deque)

    def add(self, frame: AnyFrame, seconds: float, small: Image) -> None:
        """Lets a frame wait, with its small grey picture."""
        least = float(np.interp(seconds - self._seconds, SECONDS_APART, LEAST_LIKENESS))
        self._waiting.append(TimedFrame(frame, seconds, find_edges(small), least))
        self._seconds = seconds

    def take(self, to_end: bool) -> Iterator[ShotFrame[AnyFrame]]:
        """Yields the waiting frames whose shot is known; with `to_end`, all.

        A jump is a cut, unless the picture is soon as before: then it was a flash.
        """
        while self._waiting:
            first = self._waiting[0]
            if self._belongs_to_shot(first):
                if first.edges is not None:
                    self._edges = first.edges
                yield self._take_first()
                continue
            flash = self._count_flash()
            if flash is None and not to_end:
                return
            if flash:
                for _ in range(flash):
                    yield self._take_first()
                continue
            self._shot += 1
            self._edges = first.edges
            yield self._take_first()

    def _take_first(self) -> ShotFrame[AnyFrame]:
        first = self._waiting.popleft()
        return ShotFrame(first.frame, first.seconds, self._shot)

    def _belongs_to_shot(self, frame: TimedFrame[AnyFrame]) -> bool:
        if self._edges is None or frame.edges is None:
            return True
        without_shift = float((self._edges * frame.edges).sum())
        if without_shift >= frame.least_likeness:  # nearly always, and 50 times as fast
            return True
        return likeness(self._edges, frame.edges) >= frame.least_likeness

    def _count_flash(self) -> int | None:
        """Returns how many waiting frames are a flash; 0: a cut; None: later frames will tell."""
        start = self._waiting[0].seconds
        for number, frame in enumerate(self._waiting):
            if number > MAX_FLASH_FRAMES or frame.seconds - start > MAX_FLASH_SECONDS:
                return 0
            if frame.edges is not None and self._belongs_to_shot(frame):
                return number
        return None


def number_shots(
    frames: Iterable[tuple[AnyFrame, float]],
    make_small: Callable[[AnyFrame], Image],
    live: bool = False,
) -> Iterator[ShotFrame[AnyFrame]]:
    """Yields frames with the numbers of their shots.

    Args:
        frames: Frames with their times in seconds.
        make_small: Returns a frame as a small grey picture.
        live: Whether no frame waits, so that a flash is a cut.
    """
    counter = ShotCounter[AnyFrame]()
    for frame, seconds in frames:
        counter.add(frame, seconds, make_small(frame))
        yield from counter.take(to_end=live)
    yield from counter.take(to_end=True)


@dataclass
class Cuts:
    """The number of cuts between the frames of videos."""

    count: int = 0
    _video: int | None = None  # the index of the last frame's video; None: no frame
    _shot: int = 0  # of the last frame

    def add(self, info: PhotoInfo) -> None:
        """Adds a photo, a frame, or the status of a damaged video, in order."""
        if info.shot is None:
            self._video = None
            return
        if info.index == self._video:
            self.count += info.shot - self._shot
        self._video = info.index
        self._shot = info.shot

    def describe(self) -> str:
        """Returns the number of cuts and what follows from them."""
        return f"{counted(self.count, 'cut')}: after a cut, each person has a new number"
