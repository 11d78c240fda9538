"""Angles, and other values with a period: their mean direction, and values near others."""

from collections.abc import Callable

import numpy as np

from fer_vit.geometry import Array

# A shorter mean of unit vectors is a rounding error, and has no direction.
MIN_DIRECTION = 1e-9


def mean_direction(sine: Array, cosine: Array, period: float) -> Array:
    """Returns the mean direction (...) of values with a period, from -period / 2 to period / 2.

    `sine` and `cosine` are the means of the sines and cosines of the values times 2 pi / period.
    The direction is NaN where opposite values cancel, such as 90 and -90 degrees.
    """
    direction = period / (2 * np.pi) * np.arctan2(sine, cosine)
    return np.where(np.hypot(sine, cosine) > MIN_DIRECTION, direction, np.nan)


def average_direction(values: Array, period: float, average: Callable[[Array], Array]) -> Array:
    """Returns the `mean_direction` (...) of values.

    `average` returns the means (...) of numbers in the shape of the values.
    """
    angles = 2 * np.pi / period * values
    return mean_direction(average(np.sin(angles)), average(np.cos(angles)), period)


def values_near(values: Array, targets: Array, period: float) -> Array:
    """Returns the equivalent values (...) nearest to targets (...), for values with a period.

    A value whose target is NaN is unaltered.
    """
    turns = np.round((targets - values) / period)
    return np.asarray(values + period * np.nan_to_num(turns))


def join_directions(values: Array, period: float) -> Array:
    """Returns the equivalent values (M, ...) nearest to the mean direction of each output (...).

    Correlations need such values: 179 and -179 degrees become 179 and 181.
    """
    known = np.maximum(np.isfinite(values).sum(axis=0), 1)  # (...)
    directions = average_direction(values, period, lambda x: np.nansum(x, axis=0) / known)
    return values_near(values, np.broadcast_to(directions, values.shape), period)
