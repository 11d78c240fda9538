"""Averages the predictions for the faces of a video over time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Generic, NamedTuple

import numpy as np

from fer_vit.angles import average_direction
from fer_vit.faces import AnyFaces
from fer_vit.geometry import Array
from fer_vit.heads import HeadOutputs

# Half the width of an average's window in time constants. The window has 99.7% of the weight of a
# Gaussian, and 95% of the weight of an exponential.
HALF_WIDTH = 3.0

# Lower limit of averaged probabilities: a logarithm of 0 would outweigh all other frames.
MIN_PROBABILITY = 1e-6
MIN_FRAME_SECONDS = 1e-6  # shortest duration of a frame; times may be equal


class TimedFaces(NamedTuple, Generic[AnyFaces]):
    """The faces of a frame, with times in seconds."""

    seconds: float
    faces: AnyFaces
    before: float | None  # time of the frame before; None: this frame is the first


class Kernel(NamedTuple):
    """The weights of frames in an average over time.

    Attributes:
        weigh: Returns the weights (W,) of frames by their ages (W,). An age is the time from a
            frame to the averaged frame, in time constants, from -`HALF_WIDTH` to `HALF_WIDTH`;
            later frames have negative ages.
        causal: Whether later frames have no weight, so that frames are yielded without delay.
        meaning: A description that the time constant follows, for the methods of a study and the
            help.
    """

    weigh: Callable[[Array], Array]
    causal: bool
    meaning: str

    def describe(self, constant: float | str) -> str:
        """Describes the average, with its time constant in seconds."""
        return f"{self.meaning} {constant} s"


def gaussian(ages: Array) -> Array:
    """Returns weights (W,) without a shift in time; the time constant is a standard deviation."""
    return np.asarray(np.exp(-0.5 * ages**2))


def exponential(ages: Array) -> Array:
    """Returns weights (W,) of past frames; the time constant is the mean age."""
    return np.asarray(np.exp(-ages))


RECORDED = Kernel(  # the average of video files: frames are yielded half a window later
    gaussian,
    causal=False,
    meaning="a Gaussian over time with a standard deviation of",
)
LIVE = Kernel(  # the average of live video
    exponential,
    causal=True,
    meaning="an exponential average of the past with a time constant of",
)


def smooth_faces(
    batches: Iterable[AnyFaces], constant: float, kernel: Kernel = RECORDED
) -> Iterator[AnyFaces]:
    """Yields each photo unchanged, and each frame with averages over time, in order.

    Log-probabilities, the outputs of further heads, and the directions of a pose are averaged.
    Averages are over time, not over frames: with twice as many frames a second, each frame counts
    half.

    Args:
        batches: Classified photos and frames, in order.
        constant: The time constant in seconds; 0: no average.
        kernel: The weights of the frames around a time.
    """
    for _, frames in groupby(_each_photo(batches), lambda faces: faces.infos[0].index):
        yield from _smooth_video(frames, constant, kernel)


def _each_photo(batches: Iterable[AnyFaces]) -> Iterator[AnyFaces]:
    """Yields the faces of each photo or frame."""
    for faces in batches:
        for index in range(len(faces.infos)):
            yield faces.of_photo(index)


def _smooth_video(
    frames: Iterable[AnyFaces], constant: float, kernel: Kernel
) -> Iterator[AnyFaces]:
    """Yields each frame of a video with averages over time, and photos unchanged."""
    half_width = HALF_WIDTH * constant
    window = deque[TimedFaces[AnyFaces]]()
    num_yielded = 0  # frames at the start of the window that were yielded; later averages need them
    before: float | None = None
    for faces in frames:
        seconds = faces.infos[0].seconds
        if seconds is None:  # a photo, or the end of a damaged video
            for timed in list(window)[num_yielded:]:
                yield _smooth_frame(timed, window, constant, kernel)
            window.clear()
            num_yielded = 0
            before = None
            yield faces
            continue

        window.append(TimedFaces(seconds, faces, before))
        before = seconds
        while num_yielded < len(window):
            timed = window[num_yielded]
            if not kernel.causal and seconds - timed.seconds <= half_width:
                break  # frames of its window may follow
            yield _smooth_frame(timed, window, constant, kernel)
            num_yielded += 1
        while num_yielded and seconds - window[0].seconds > 2 * half_width:
            window.popleft()
            num_yielded -= 1
    for timed in list(window)[num_yielded:]:
        yield _smooth_frame(timed, window, constant, kernel)


def _smooth_frame(
    timed: TimedFaces[AnyFaces],
    window: Iterable[TimedFaces[AnyFaces]],
    constant: float,
    kernel: Kernel,
) -> AnyFaces:
    """Returns the faces of a frame with the averages over the frames around it."""
    seconds = timed.seconds
    faces = timed.faces
    frames = list(window)
    near = []
    lengths = []  # durations of these frames in seconds
    for index, frame in enumerate(frames):
        if abs(seconds - frame.seconds) <= HALF_WIDTH * constant:
            after = frames[index + 1].seconds if index + 1 < len(frames) else None
            near.append(frame)
            lengths.append(_frame_length(frame, after, constant, kernel.causal))

    # the values of all W faces in these frames
    counts = [len(frame.faces) for frame in near]
    ages = np.repeat([seconds - frame.seconds for frame in near], counts)
    durations = np.repeat(lengths, counts)
    tracks = np.concatenate([frame.faces.track for frame in near])  # (W,)
    probabilities = np.concatenate([frame.faces.probabilities for frame in near])  # (W, C)
    outputs = np.concatenate([frame.faces.outputs for frame in near])  # (W, K)

    smoothed = np.empty_like(faces.probabilities)
    smoothed_outputs = np.empty_like(faces.outputs)
    for row, track in enumerate(faces.track):
        same = tracks == track
        weights = kernel.weigh(ages[same] / max(constant, 1e-9)) * durations[same]
        weights /= weights.sum()
        logs = np.log(np.maximum(probabilities[same], MIN_PROBABILITY))
        average = np.exp(weights @ logs)  # (C,)
        average[(probabilities[same] == 0).all(0)] = 0  # such as for labels that `classes` excludes
        smoothed[row] = average / average.sum()
        smoothed_outputs[row] = _average_outputs(faces.scheme.outputs, outputs[same], weights)
    return replace(faces, smoothed=smoothed, smoothed_outputs=smoothed_outputs)


def _frame_length(
    frame: TimedFaces[Any], after: float | None, constant: float, causal: bool
) -> float:
    """Returns the duration of a frame in seconds, at most the time constant.

    The duration is half of the time from the frame before to the frame after; if `causal`, the time
    since the frame before. At an end of the video, the missing side is assumed to be as long as the
    other side. So with a constant frame rate, all frames count equally.
    """
    sides = []
    if frame.before is not None:
        sides.append(frame.seconds - frame.before)
    if after is not None and not (causal and sides):
        sides.append(after - frame.seconds)
    length = sum(sides) / len(sides) if sides else MIN_FRAME_SECONDS  # a single frame
    return max(min(length, constant), MIN_FRAME_SECONDS)


def _average_outputs(outputs: HeadOutputs, values: Array, weights: Array) -> Array:
    """Returns the weighted means (K,) of values (W, K); angles are averaged as directions.

    Weights (W,) sum to 1. The mean of opposite angles is NaN.
    """
    means = np.asarray(weights @ values)
    for index, output in enumerate(outputs):
        period = output.kind.period
        if period is not None:
            means[index] = average_direction(values[:, index], period, weights.dot)
    return means
