"""Means of values in groups, also of periodic values such as angles.

N values, G groups.
"""

import numpy as np

from fer_vit.angles import mean_direction, values_near
from fer_vit.geometry import Array, IntArray


def mean_of_finite(values: Array, axis: int) -> Array:
    """Returns the mean of the finite values along an axis; NaN without a finite value."""
    finite = np.isfinite(values)
    counts = finite.sum(axis)
    sums = np.where(finite, values, 0.0).sum(axis)
    missing = np.full(np.shape(counts), np.nan)
    return np.asarray(np.divide(sums, counts, out=missing, where=counts > 0))


def average(values: Array, group: IntArray, groups: int, period: float | None = None) -> Array:
    """Returns the mean (G, ...) of the values (N, ...) of each group; NaN values do not count.

    Values (N,) with a period are unwrapped around the direction of their group, then averaged as
    numbers: -179 and 179 degrees have the mean 180, and -90 and 90 have none. Group means are
    unwrapped around their common direction, so that one mean can be subtracted from another.

    Args:
        values: The values.
        group: The index of each value's group (N,).
        groups: The number of groups G. A group without values has NaN.
        period: The period of the values, such as 360 degrees.
    """
    if period is None:
        return _plain_average(values, group, groups)
    directions = find_directions(values, group, groups, period)  # (G,)
    means = _plain_average(values_near(values, directions[group], period), group, groups)  # (G,)
    means[np.isnan(directions)] = np.nan
    (common,) = find_directions(means, np.zeros(groups, int), 1, period)
    return values_near(means, common, period)


def _plain_average(values: Array, group: IntArray, groups: int) -> Array:
    """Returns the mean (G, ...) of the values (N, ...) of each group."""
    finite = np.isfinite(values)
    sums = np.zeros((groups, *values.shape[1:]))
    np.add.at(sums, group, np.where(finite, values, 0.0))
    count = np.zeros(sums.shape)
    np.add.at(count, group, finite.astype(float))
    means = np.full(sums.shape, np.nan)
    np.divide(sums, count, out=means, where=count > 0)
    return means


def find_directions(values: Array, group: IntArray, groups: int, period: float) -> Array:
    """Returns the mean direction (G,) of the periodic values (N,) of each group (N,)."""
    angles = 2 * np.pi / period * values
    sine = _plain_average(np.sin(angles), group, groups)
    cosine = _plain_average(np.cos(angles), group, groups)
    return mean_direction(sine, cosine, period)
