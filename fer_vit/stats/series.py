"""Expressions over time: change from rest, and a common grid."""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from fer_vit.angles import values_near
from fer_vit.errors import FerVitError, short
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.stats.means import average
from fer_vit.stats.persons import MIN_PERSONS
from fer_vit.times import TIME_FORMS, read_seconds

# A bin begins earlier by this fraction of its length, since 0.6 / 0.2 is below 3 in binary.
BIN_TOLERANCE = 1e-6

MAX_BINS = 1_000_000  # most bins in all clips together


class Rest(NamedTuple):
    """An interval in a clip, in seconds: from `start` up to but not including `end`.

    An interval that starts at 0 includes earlier frames: the times of some videos begin below 0.
    """

    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.start:g}-{self.end:g}"

    def contains(self, seconds: Array) -> Mask:
        """Returns whether each time (N,) lies in the interval."""
        least = self.start if self.start > 0 else -math.inf
        return np.asarray((seconds >= least) & (seconds < self.end))


def parse_rest(text: str) -> Rest:
    """Returns the interval of a text START-END.

    Raises FerVitError for another text.
    """
    start, dash, end = text.partition("-")
    if not dash:
        raise FerVitError(
            f"Expected `--rest` as START-END, such as 0-5, each in {TIME_FORMS}, "
            f"but got {short(text)}."
        )
    rest = Rest(start=read_seconds("rest", start), end=read_seconds("rest", end))
    if not rest.start < rest.end < math.inf:
        raise FerVitError(
            f"Expected `--rest` to end after its start, such as 0-5, but got {short(text)}."
        )
    return rest


class RestInClips(NamedTuple):
    """The interval of rest in the clips of N faces."""

    rest: Rest
    within: Mask  # (N,), whether the face is within the interval
    clip: IntArray  # (N,), the index of the clip; -1: no clip

    @property
    def in_clip(self) -> Mask:
        """Whether each face (N,) is in a clip."""
        return np.asarray(self.clip >= 0)

    @property
    def num_clips(self) -> int:
        """The number of clips."""
        return int(self.clip.max(initial=-1)) + 1

    def change(self, values: Array, period: float | None = None) -> Array:
        """Returns values (N, ...) minus their mean over the interval of rest in the same clip.

        A value is NaN if it is in no clip, or its clip has no value in the interval. Values (N,)
        with a period change the shorter way: 179 and -179 degrees are 2 degrees apart.
        """
        resting = self.in_clip & self.within
        means = average(values[resting], self.clip[resting], self.num_clips, period)
        changes = np.full(values.shape, np.nan)
        changes[self.in_clip] = values[self.in_clip] - means[self.clip[self.in_clip]]
        if period is None:
            return changes
        return values_near(changes, np.zeros(len(changes)), period)


def count_bins(seconds: Array, clips: int, step: float) -> int:
    """Returns the number of bins of `step` seconds from 0 to the latest of the times (N,).

    `clips` is the number of clips; each clip has this number of bins.

    Raises:
        FerVitError: No time is known, the step is not positive or is longer than all clips, or
            there are too many bins.
    """
    if not 0 < step < math.inf:
        raise FerVitError(f"Expected `--grid` to be seconds above 0, but got {short(step)}.")
    if not np.isfinite(seconds).any():
        raise FerVitError("`--grid` needs clips, but no face has a time. Predict videos.")
    last = float(np.nanmax(seconds))
    quotient = min(last / step, MAX_BINS)  # infinite for a tiny step
    bins = math.floor(quotient + BIN_TOLERANCE) + 1
    if bins < 2:
        raise FerVitError(
            f"Expected `--grid` to be shorter than the clips, but the last face is at {last:g} s, "
            f"and the grid is {step:g} s."
        )
    if bins * clips > MAX_BINS:
        raise FerVitError(
            f"`--grid {step:g}` makes over {MAX_BINS:,} bins in {clips:,} clips that last up to "
            f"{last:g} s. Choose a larger grid."
        )
    return bins


def bin_values(values: Array, seconds: Array, clip: IntArray, step: float) -> Array:
    """Returns the mean of values (N, C) in bins of `step` seconds of each clip (clips, T, C).

    Bin t has the values from `t * step` up to `(t + 1) * step`; the first bin also has values
    before 0. A bin without values is NaN. `seconds` (N,) are the times, NaN for a photo, and `clip`
    (N,) the indices of the clips.
    """
    clips = int(clip.max()) + 1
    bins = count_bins(seconds, clips, step)
    timed = np.isfinite(seconds)
    bin_in_clip = np.floor(seconds[timed] / step + BIN_TOLERANCE).astype(int).clip(min=0)
    index = clip[timed] * bins + bin_in_clip  # index among the bins of all clips
    means = average(values[timed], index, clips * bins)  # (clips T, C)
    return means.reshape(clips, bins, -1)


class MeanCourse(NamedTuple):
    """The mean over persons at each of T times, with its 95% t interval."""

    mean: Array  # (T,), NaN without a person
    low: Array  # (T,), NaN for fewer persons than `MIN_PERSONS`
    high: Array  # (T,), NaN as `low`
    num_persons: IntArray  # (T,), the number of persons with a value


def mean_course(series: Array) -> MeanCourse:
    """Returns the mean over persons of series (P, T); NaN values do not count."""
    finite = np.isfinite(series)
    num_persons = finite.sum(0)  # (T,)
    mean = average(series, np.zeros(len(series), int), 1)[0]  # (T,)
    squares = np.where(finite, (series - mean) ** 2, 0.0).sum(0)
    enough = num_persons >= MIN_PERSONS
    count = num_persons[enough]
    error = np.sqrt(squares[enough] / (count - 1) / count)
    margin = np.full(len(mean), np.nan)
    margin[enough] = stats.t.ppf(0.975, count - 1) * error
    return MeanCourse(mean=mean, low=mean - margin, high=mean + margin, num_persons=num_persons)
