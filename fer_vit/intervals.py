"""Means over faces with their intervals."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


class Interval(TypedDict):
    """A mean over faces with its 95 % bootstrap interval; null where no face has a value, or a single one."""

    mean: float | None
    low: float | None
    high: float | None
    faces: int


def mean_intervals(values: NDArray[np.float64]) -> list[Interval]:
    """Returns the mean of each of M values over N faces (N, M) and its interval; values that are NaN do not count.

    The percentile bootstrap of Efron & Tibshirani (1993). All M values share the resamples. A resample is stored as how
    often each face was drawn, so all means are one matrix product, and hundreds of values take no longer than one.
    """
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    random = np.random.default_rng(0)
    chunks = []
    for _ in range(0, RESAMPLES if len(values) > 1 else 0, 100):  # 100 resamples at once, to save memory
        drawn = random.multinomial(len(values), np.full(len(values), 1 / len(values)), 100).astype(float)  # (100, N)
        count = drawn @ present
        chunks.append(np.divide(drawn @ filled, count, out=np.full(count.shape, np.nan), where=count > 0))
    intervals: list[Interval] = []
    for column, number in enumerate(present.sum(0).tolist()):
        mean = float(filled[:, column].sum() / number) if number else None
        low = high = None
        if number > 1:
            means = np.concatenate([chunk[:, column] for chunk in chunks])
            low, high = np.nanpercentile(means, [2.5, 97.5]).tolist()
        intervals.append(Interval(mean=mean, low=low, high=high, faces=number))
    return intervals
