"""Probabilities over time: averages of their logarithms within a track, beside the raw ones."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import numpy as np

from fer_vit.geometry import Array
from fer_vit.predict.photos import Photo
from fer_vit.predict.results import FaceResult

REACH = 3.0
"""The window to either side, in time constants: 99.7 % of the weight."""
FLOOR = 1e-6
"""The smallest probability that counts: the logarithm of 0 would decide alone."""


def smooth(probabilities: Array, elapsed: Array, constant: float, causal: bool = False) -> Array:
    """Averages the probabilities (T, C) of one person at T times into (C,) at one of them.

    The logarithms are averaged, so that one frame that is certain cannot outvote many that are not.

    Args:
        probabilities: Of C expressions, in any order of time.
        elapsed: Seconds (T,) from each to the time that is asked for; negative for later ones.
        constant: Time constant in seconds; 0 takes what is at that time alone.
        causal: For live pictures: an exponential average of the past. Else a Gaussian one to both sides, which delays
            nothing.
    """
    ages = elapsed / max(constant, 1e-9)
    weights = np.where(ages >= 0, np.exp(-ages.clip(0)), 0.0) if causal else np.exp(-0.5 * ages**2)
    logs = weights @ np.log(np.maximum(probabilities, FLOOR)) / weights.sum()
    shares: Array = np.exp(logs) / np.exp(logs).sum()
    return shares


def smoothed(photos: Iterable[Photo[FaceResult]], constant: float, causal: bool = False) -> Iterator[Photo[FaceResult]]:
    """Yields photos as they are and frames with `smoothed` probabilities.

    It holds a window of frames; `causal`, those of the past only: each frame is yielded as soon as it is given.
    """
    for _, frames in groupby(photos, attrgetter("source")):
        yield from _smoothed_video(frames, constant, causal)


def _smoothed_video(frames: Iterable[Photo[FaceResult]], constant: float, causal: bool) -> Iterator[Photo[FaceResult]]:
    reach = REACH * constant
    waiting: deque[tuple[float, Photo[FaceResult]]] = deque()
    seen: defaultdict[int | None, deque[tuple[float, list[float]]]] = defaultdict(deque)  # times, shares by track

    def first() -> Photo[FaceResult]:
        seconds, frame = waiting.popleft()
        faces = []
        for face in frame.faces:
            window = seen[face.track]
            while abs(seconds - window[0][0]) > reach:
                window.popleft()
            times, shares = zip(*window, strict=True)
            average = smooth(np.array(shares), seconds - np.array(times), constant, causal)
            faces.append(replace(face, smoothed=dict(zip(face.probabilities, average.tolist(), strict=True))))
        return Photo(frame.path, frame.status, faces, *frame[3:])

    for frame in frames:
        if frame.seconds is None:  # an image, or the end of a video that broke
            yield from (first() for _ in range(len(waiting)))
            yield frame
            continue
        while waiting and abs(frame.seconds - waiting[0][0]) > reach:
            yield first()
        gone = {track for track, window in seen.items() if abs(frame.seconds - window[-1][0]) > reach}
        for track in gone - {face.track for _, later in waiting for face in later.faces}:
            del seen[track]
        for face in frame.faces:
            seen[face.track].append((frame.seconds, [*face.probabilities.values()]))
        waiting.append((frame.seconds, frame))
        if causal:
            yield first()
    yield from (first() for _ in range(len(waiting)))
