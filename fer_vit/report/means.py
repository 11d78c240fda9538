"""Means over faces with their intervals."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

Array = NDArray[np.float64]


class Figures(TypedDict):
    """A mean over faces with its 95 % bootstrap interval; null where no face has a value, or a single one."""

    mean: float | None
    low: float | None
    high: float | None
    faces: int


def figures(values: Array) -> Figures:
    """Returns the mean of one value for each face (N,) and its interval; faces without one (NaN) do not count."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Figures(mean=None, low=None, high=None, faces=0)
    low = high = mean = float(values.mean())
    if len(values) == 1:
        return Figures(mean=mean, low=None, high=None, faces=1)
    if np.ptp(values):
        interval = bootstrap(
            (values,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=0
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Figures(mean=mean, low=low, high=high, faces=len(values))
