"""Expressions over time: change from rest, a common grid, and synchrony between persons."""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from fer_vit.angles import values_near
from fer_vit.comparison.averages import average, average_directions
from fer_vit.comparison.statistics import (
    MIN_PERSONS,
    PersonEstimate,
    is_constant,
    without_interval,
)
from fer_vit.errors import FerVitError, short
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.times import TIME_FORMS, read_seconds

# A bin begins earlier by this fraction of its length, since 0.6 / 0.2 is below 3 in binary.
BIN_TOLERANCE = 1e-6

MAX_BINS = 1_000_000  # most bins in all clips together
MIN_BINS = 3  # a correlation needs at least this many bins
NO_VARIANCE = 1e-9  # a series whose deviations have a smaller norm has no correlation
NEARLY_ONE = 1 - 1e-12  # larger correlations have no finite z


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
    seconds: Array  # (N,), the time in the clip; NaN for a photo
    clip: IntArray  # (N,), the index of the clip; -1: no clip

    @property
    def in_clip(self) -> Mask:
        """Whether each face (N,) is in a clip."""
        return np.asarray(self.clip >= 0)

    @property
    def num_clips(self) -> int:
        """The number of clips."""
        return int(self.clip.max(initial=-1)) + 1

    def change(self, values: Array) -> Array:
        """Returns values (N, C) minus their mean over the interval of rest in the same clip.

        A value is NaN if it is in no clip, or its clip has no value in the interval.
        """
        resting = self.in_clip & self.rest.contains(self.seconds) & np.isfinite(values).all(1)
        means = average(values[resting], self.clip[resting], self.num_clips)  # (clips, C)
        changes = np.full(values.shape, np.nan)
        changes[self.in_clip] = values[self.in_clip] - means[self.clip[self.in_clip]]
        return changes

    def change_output(self, values: Array, period: float | None) -> Array:
        """Returns the change from rest of an output (N,), which may be periodic; see `change`.

        Periodic values change the shorter way: 179 and -179 degrees are 2 degrees apart.
        """
        if period is None:
            return self.change(values[:, None])[:, 0]
        resting = self.in_clip & self.rest.contains(self.seconds)
        means = average_directions(
            values[resting], self.clip[resting], self.num_clips, period
        )  # (clips,)
        changes = np.full(len(values), np.nan)
        changes[self.in_clip] = values[self.in_clip] - means[self.clip[self.in_clip]]
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


def leave_one_out(series: Array) -> Array:
    """Returns the correlation (P,) of each person's series with the mean of all other persons.

    `series` is (P, T). Inter-subject correlation: Hasson et al. 2004; Nastase et al. 2019. A
    correlation uses the bins in which the person and any other person have values. The result is
    NaN for fewer than `MIN_BINS` such bins, or without variance.
    """
    finite = np.isfinite(series)
    total = np.where(finite, series, 0.0).sum(0)  # (T,)
    count = finite.sum(0)  # (T,)
    correlations = np.full(len(series), np.nan)
    for person, values in enumerate(series):
        remaining = count - finite[person]  # (T,), number of other persons with values
        shared = finite[person] & (remaining > 0)
        if shared.sum() < MIN_BINS:
            continue
        x = values[shared]
        y = (total[shared] - x) / remaining[shared]
        deviations = np.stack([x - x.mean(), y - y.mean()])  # (2, bins)
        norms = np.sqrt((deviations**2).sum(1))
        if norms.min() > NO_VARIANCE:
            standard = deviations / norms[:, None]
            correlation = np.prod(standard, axis=0).sum()
            correlations[person] = np.clip(correlation, -1, 1)
    return correlations


def pair_correlations(series: Array) -> Array:
    """Returns the correlation of each pair of persons (P, P), from their series (P, T).

    A correlation uses the bins in which both persons have values. The result is NaN for fewer than
    `MIN_BINS` such bins, without variance, and on the diagonal.
    """
    finite = np.isfinite(series)
    count = finite.sum(1, keepdims=True)  # (P, 1)
    centres = np.where(finite, series, 0.0).sum(1, keepdims=True) / count.clip(1)
    centred = np.where(finite, series - centres, 0.0)  # (P, T), near 0 for exact sums
    weight = finite.astype(float)

    # (P, P), sums over the bins that persons i and j share; `sums` and `squares` are of person i
    bins = weight @ weight.T
    sums = centred @ weight.T
    squares = centred**2 @ weight.T
    products = centred @ centred.T

    enough = bins >= MIN_BINS
    np.fill_diagonal(enough, False)
    shared = np.where(enough, bins, 1.0)
    spread = squares - sums**2 / shared
    norm = np.sqrt(spread.clip(0))
    enough &= (norm > NO_VARIANCE) & (norm.T > NO_VARIANCE)
    correlations = np.full(bins.shape, np.nan)
    covariance = products - sums * sums.T / shared
    np.divide(covariance, norm * norm.T, out=correlations, where=enough)
    return correlations.clip(-1, 1)


def synchrony(correlations: Array) -> PersonEstimate:
    """Returns the mean of the correlations of pairs of persons (P, P), with its interval.

    Pairs with a common person are dependent, even if persons are independent. The interval is
    therefore by the jackknife over persons (Arvesen 1969; Snijders and Borgatti 1999), with t
    quantiles. Its variance is at least the variance for independent pairs. Mean and interval are by
    Fisher's z; NaN values do not count.
    """
    defined = np.isfinite(correlations)
    member = defined.any(1)  # (P,), whether each person is in a pair
    num_persons = int(member.sum())
    if num_persons == 0:
        return without_interval(None, num_persons=0)
    bounded = np.where(defined, correlations, 0.0).clip(-NEARLY_ONE, NEARLY_ONE)
    z = np.arctanh(bounded)  # (P, P)
    pairs = z[np.triu(defined)]  # (pairs,), each pair once
    mean = pairs.mean()
    remaining = len(pairs) - defined.sum(1)[member]  # (persons,), the pairs without each person
    too_few = num_persons < MIN_PERSONS or not remaining.all()
    if too_few or is_constant(pairs):
        return without_interval(float(np.tanh(mean)), num_persons)

    means_without = (pairs.sum() - z.sum(1)[member]) / remaining  # (persons,)
    squares = (means_without - means_without.mean()) ** 2
    jackknife = (num_persons - 1) / num_persons * squares.sum()
    independent = pairs.var(ddof=1) / len(pairs)
    margin = stats.t.ppf(0.975, num_persons - 1) * np.sqrt(max(jackknife, independent))
    return PersonEstimate(
        mean=float(np.tanh(mean)),
        low=float(np.tanh(mean - margin)),
        high=float(np.tanh(mean + margin)),
        num_persons=num_persons,
    )
