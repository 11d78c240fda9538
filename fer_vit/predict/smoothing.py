"""Smoothed probabilities: averages of log-probabilities over time within a track."""

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
"""Half the width of the window in time constants: 99.7 % of the weight."""
FLOOR = 1e-6
"""Lower limit of probabilities: a logarithm of 0 would outweigh all others."""


def smooth(probabilities: Array, elapsed: Array, constant: float, causal: bool = False) -> Array:
    """Averages the log-probabilities of one person at T times into probabilities (C,) at one time.

    Args:
        probabilities: Probabilities (T, C) in any order.
        elapsed: Seconds (T,) from each time to the result's time; negative for later ones.
        constant: Time constant in seconds; 0 uses the result's time only.
        causal: Exponential average of the past, for live video. Otherwise a Gaussian average, which has no delay.
    """
    ages = elapsed / max(constant, 1e-9)
    weights = np.where(ages >= 0, np.exp(-ages.clip(0)), 0.0) if causal else np.exp(-0.5 * ages**2)
    logs = weights @ np.log(np.maximum(probabilities, FLOOR)) / weights.sum()
    average: Array = np.exp(logs) / np.exp(logs).sum()
    return average


def smooth_photos(
    photos: Iterable[Photo[FaceResult]], constant: float, causal: bool = False
) -> Iterator[Photo[FaceResult]]:
    """Yields photos unchanged, and frames with `smoothed` probabilities.

    Frames are delayed by half a window; if `causal`, by nothing.
    """
    for _, frames in groupby(photos, attrgetter("source")):
        yield from _smooth_video(frames, constant, causal)


def _smooth_video(frames: Iterable[Photo[FaceResult]], constant: float, causal: bool) -> Iterator[Photo[FaceResult]]:
    reach = REACH * constant
    waiting: deque[tuple[float, Photo[FaceResult]]] = deque()
    seen: defaultdict[int | None, deque[tuple[float, list[float]]]] = defaultdict(deque)  # times, values by track

    def first() -> Photo[FaceResult]:
        seconds, frame = waiting.popleft()
        faces = []
        for face in frame.faces:
            window = seen[face.track]
            while abs(seconds - window[0][0]) > reach:
                window.popleft()
            times, probabilities = zip(*window, strict=True)
            average = smooth(np.array(probabilities), seconds - np.array(times), constant, causal)
            faces.append(replace(face, smoothed=dict(zip(face.probabilities, average.tolist(), strict=True))))
        return frame._replace(faces=faces)

    for frame in frames:
        if frame.seconds is None:  # a photo, or the end of a damaged video
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
