"""Measures of one output of a head: how well values agree with targets.

N faces of U units. A measure also takes R sets of weights of the units, so that one call computes R
bootstrap resamples: the weight of a unit is how often it was drawn, with all its faces. An
undefined measure is NaN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.stats.bootstrap import MIN_UNITS, bound, percentile_interval, resample
from fer_vit.stats.estimate import Estimate

THRESHOLD = 0.5  # the smallest value at which a binary output counts as predicted

MIN_VARIANCE = 1e-12  # series with a smaller variance have no correlation


@dataclass(frozen=True)
class Pairs:
    """Values and targets of one output, and weights.

    Attributes:
        value: The values from the model (N,).
        target: The true values (N,).
        weight: R sets of weights (R, U), not negative.
        unit: The index of the unit of each face (N,); None: each face is a unit.
    """

    value: Array
    target: Array
    weight: Array
    unit: IntArray | None = None

    def sum(self, of_faces: Array | Mask) -> Array:
        """Returns the weighted sums (R,) of numbers (N,)."""
        if self.unit is None:
            return self.weight @ of_faces
        return self.weight @ np.bincount(self.unit, of_faces, self.weight.shape[1])

    @cached_property
    def total(self) -> Array:
        """The weights of all faces (R,)."""
        return self.sum(np.ones(len(self.value)))

    def mean(self, of_faces: Array) -> Array:
        """Returns the weighted means (R,) of numbers (N,)."""
        return ratio(self.sum(of_faces), self.total)

    @property
    def is_binary(self) -> bool:
        """Whether all targets are 0 or 1, and both occur."""
        return set(np.unique(self.target).tolist()) == {0.0, 1.0}


def ratio(numerator: Array, denominator: Array) -> Array:
    """Returns a quotient (...), NaN where the denominator is not positive."""
    missing = np.full(np.broadcast(numerator, denominator).shape, np.nan)
    return np.asarray(np.divide(numerator, denominator, out=missing, where=denominator > 0))


def variance(pairs: Pairs, of_faces: Array) -> Array:
    """Returns the weighted variances (R,) of numbers (N,); 0 where they are constant."""
    away = of_faces - of_faces.mean()
    spread = pairs.mean(away**2) - pairs.mean(away) ** 2
    return np.where(spread < MIN_VARIANCE, 0.0, spread)


def covariance(pairs: Pairs) -> Array:
    """Returns the weighted covariances (R,) of values and targets."""
    x = pairs.value - pairs.value.mean()
    y = pairs.target - pairs.target.mean()
    return pairs.mean(x * y) - pairs.mean(x) * pairs.mean(y)


def correlation(pairs: Pairs) -> Array:
    """Returns Pearson's r (R,)."""
    x = variance(pairs, pairs.value)
    y = variance(pairs, pairs.target)
    return ratio(covariance(pairs), np.sqrt(x * y))


def concordance(pairs: Pairs) -> Array:
    """Returns Lin's concordance correlation coefficient (R,); 1989."""
    difference = pairs.mean(pairs.value - pairs.target)
    y = variance(pairs, pairs.target)
    spread = variance(pairs, pairs.value) + y + difference**2
    return np.where(y > 0, ratio(2 * covariance(pairs), spread), np.nan)


def mean_absolute_error(pairs: Pairs) -> Array:
    """Returns the mean absolute error (R,)."""
    return pairs.mean(np.abs(pairs.value - pairs.target))


def root_mean_square_error(pairs: Pairs) -> Array:
    """Returns the root of the mean squared error (R,)."""
    return np.sqrt(pairs.mean((pairs.value - pairs.target) ** 2))


def sign_agreement(pairs: Pairs) -> Array:
    """Returns the share of faces whose value and target have the same sign (R,)."""
    same = np.sign(pairs.value) == np.sign(pairs.target)
    return pairs.mean(same.astype(float))


def f1(pairs: Pairs) -> Array:
    """Returns the F1 score (R,) of predicting the output for values of `THRESHOLD` or more.

    The score is NaN unless targets are binary.
    """
    if not pairs.is_binary:
        return undefined(pairs)
    predicted = pairs.value >= THRESHOLD
    positive = pairs.target > 0
    true_positives = pairs.sum(predicted & positive)  # (R,)
    sizes = pairs.sum(predicted) + pairs.sum(positive)
    return ratio(2.0 * true_positives, sizes)


def auroc(pairs: Pairs) -> Array:
    """Returns the area under the ROC curve (R,); NaN unless targets are binary.

    The area is the probability that a random face with the target 1 has a larger value than a
    random face with the target 0. Equal values count half (Mann & Whitney 1947).
    """
    if not pairs.is_binary:
        return undefined(pairs)
    _, rank = np.unique(pairs.value, return_inverse=True)  # equal values have one rank
    weight = pairs.weight if pairs.unit is None else pairs.weight[:, pairs.unit]  # (R, N)
    positive = _by_rank(weight, rank, pairs.target > 0)  # (R, ranks)
    negative = _by_rank(weight, rank, pairs.target == 0)
    below = negative.cumsum(1) - negative
    wins = (positive * (below + negative / 2)).sum(1)
    return ratio(wins, positive.sum(1) * negative.sum(1))


def _by_rank(weight: Array, rank: IntArray, member: Mask) -> Array:
    """Returns the sums (R, ranks) of the weights (R, N) of members with each rank.

    `rank` (N,) is the rank of each value; `member` (N,) selects faces.
    """
    sums = np.zeros((rank.max() + 1, len(weight)))
    np.add.at(sums, rank[member], weight[:, member].T)
    return sums.T


def undefined(pairs: Pairs) -> Array:
    """Returns NaN (R,)."""
    return np.full(len(pairs.weight), np.nan)


class Measure(NamedTuple):
    """A measure of outputs; its name is its key in `MEASURES`."""

    compute: Callable[[Pairs], Array]  # (R,)
    meaning: str  # for pages


# A measure is added here; `heads.Head.measures` names the measures of a head.
MEASURES = {
    "r": Measure(correlation, "Pearson's correlation with the targets"),
    "MAE": Measure(mean_absolute_error, "mean absolute error, in the unit of the targets"),
    "CCC": Measure(concordance, "Lin's concordance correlation coefficient"),
    "RMSE": Measure(root_mean_square_error, "root mean square error, in the unit of the targets"),
    "sign agreement": Measure(
        sign_agreement, "share of faces whose value and target have the same sign"
    ),
    "F1": Measure(f1, f"F1 of values from {THRESHOLD:g} on, where all targets are 0 or 1"),
    "AUROC": Measure(auroc, "area under the ROC curve, where all targets are 0 or 1"),
}


def measure_intervals(
    names: Sequence[str], values: Array, targets: Array, units: IntArray
) -> dict[str, Estimate]:
    """Returns measures of one output with their intervals, by name.

    NaN is an unknown value or target. Fewer than `MIN_UNITS` persons or photos with a value have no
    interval.

    Args:
        names: The names of the measures.
        values: The values from the model (N,).
        targets: The true values (N,).
        units: The person or photo of each face (N,).
    """
    known = np.isfinite(targets) & np.isfinite(values)
    if not known.any():
        return dict.fromkeys(names, Estimate(None))
    value = values[known]
    target = targets[known]
    unit = units[known]

    def compute(weight: Array) -> Array:
        pairs = Pairs(value, target, weight, unit)
        return np.column_stack([MEASURES[name].compute(pairs) for name in names])  # (R, measures)

    all_units = int(units.max()) + 1
    (means,) = compute(np.ones((1, all_units)))  # (measures,)
    num_units = len(np.unique(unit))
    drawn = None  # (R, measures)
    if num_units >= MIN_UNITS:
        drawn = resample(compute, all_units)
    measured = {}
    for index, name in enumerate(names):
        resamples = None if drawn is None else drawn[:, index]
        estimate = percentile_interval(means[index], resamples, num_units)
        measured[name] = bound(estimate, known, units, "number")
    return measured


def measure(name: str, value: Array, target: Array) -> float:
    """Returns a measure of values (N,) for targets (N,). NaN is an unknown value or target."""
    value = np.asarray(value, float)
    target = np.asarray(target, float)
    known = np.isfinite(target) & np.isfinite(value)
    if not known.any():
        return float("nan")
    weight = np.ones((1, int(known.sum())))
    return float(MEASURES[name].compute(Pairs(value[known], target[known], weight))[0])
