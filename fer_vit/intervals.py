"""Means over faces with their intervals."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 2000


class Interval(TypedDict):
    """A mean over faces with its 95 % bootstrap interval; null where no face has a value, or a single one."""

    mean: float | None
    low: float | None
    high: float | None
    faces: int


def mean_intervals(values: Array) -> list[Interval]:
    """Returns the mean of each of M values over N faces (N, M) and its interval; values that are NaN do not count.

    The percentile bootstrap of Efron & Tibshirani (1993). All values are drawn together, each time by how often every
    face was drawn: that is a matrix product, and hundreds of values take no longer than one.
    """
    there = ~np.isnan(values)
    faces = there.sum(0)
    filled = np.where(there, values, 0.0)
    random = np.random.default_rng(0)
    means = []
    for _ in range(0, RESAMPLES if len(values) > 1 else 0, 100):  # in parts, for the sake of memory
        times = random.multinomial(len(values), np.full(len(values), 1 / len(values)), 100).astype(float)  # (100, N)
        count = times @ there
        means.append(np.divide(times @ filled, count, out=np.full(count.shape, np.nan), where=count > 0))
    found: list[Interval] = []
    for column, number in enumerate(faces):
        mean = low = high = None
        if number:
            mean = float(filled[:, column].sum() / number)
        if number > 1:
            drawn = np.concatenate([one[:, column] for one in means])
            low, high = np.nanpercentile(drawn, [2.5, 97.5]).tolist()
        found.append(Interval(mean=mean, low=low, high=high, faces=int(number)))
    return found
