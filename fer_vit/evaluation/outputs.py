"""Measures of the outputs of further heads, with bootstrap intervals over persons or photos.

Shapes: N faces, U persons or photos, R resamples.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

import fer_vit.evaluation.scores as scores
from fer_vit.evaluation.evaluated import EvaluatedFaces, HeadOutputs
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import HEADS
from fer_vit.measures import MEASURES, Pairs
from fer_vit.report.table import Interval

Measured: TypeAlias = dict[str, dict[str, Interval]]
"""The measures of a head by output and name."""


def score_outputs(faces: EvaluatedFaces) -> dict[str, Measured]:
    """Returns the measures of each output of each head that has targets, by head."""
    known = faces.take(faces.predicted)
    units = np.unique(known.units, return_inverse=True)[1]
    return {head: score_head(head, outputs, units) for head, outputs in known.heads.items()}


def score_head(head: str, outputs: HeadOutputs, units: IntArray) -> Measured:
    """Returns the measures of each output with intervals; `units` (N,) are persons or photos.

    There is no interval for a single unit.
    """
    names = HEADS[head].figures
    targets = outputs.targets
    known = np.isfinite(targets) & np.isfinite(outputs.values)
    estimates = _measure(names, outputs, np.ones((1, len(units))))  # (1, K, measures)
    drawn = [_measure(names, outputs, weights) for weights in draw_weights(units)]
    resamples = np.concatenate(drawn) if drawn else None  # (R, K, measures)

    measured: Measured = {}
    for column, output in enumerate(outputs.names):
        faces = int(known[:, column].sum())
        measured[output] = {}
        for place, name in enumerate(names):
            estimate = estimates[0, column, place]
            interval = Interval(mean=None, low=None, high=None, faces=faces)
            if np.isfinite(estimate):
                interval["mean"] = float(estimate)
                if resamples is not None:
                    low, high = np.nanpercentile(resamples[:, column, place], [2.5, 97.5])
                    interval["low"] = float(low)
                    interval["high"] = float(high)
            measured[output][name] = interval
    return measured


def _measure(names: tuple[str, ...], outputs: HeadOutputs, weights: Array) -> Array:
    """Returns measures (R, K, measures) for weights (R, N)."""
    columns = []
    for value, target in zip(outputs.values.T, outputs.targets.T, strict=True):
        known = np.isfinite(target) & np.isfinite(value)
        if known.any():
            pairs = Pairs(value[known], target[known], weights[:, known])
            columns.append(np.column_stack([MEASURES[name](pairs) for name in names]))
        else:
            columns.append(np.full((len(weights), len(names)), np.nan))
    return np.stack(columns, axis=1)


def draw_weights(units: IntArray) -> Iterator[Array]:
    """Yields how often each face is drawn in bootstrap resamples of units, (R, N) at a time."""
    count = int(units.max(initial=-1)) + 1
    if count < 2:
        return
    rng = np.random.default_rng(0)
    chance = np.full(count, 1 / count)
    for _ in range(0, scores.RESAMPLES, scores.DRAWN_TOGETHER):
        draws = rng.multinomial(count, chance, scores.DRAWN_TOGETHER)
        yield draws[:, units].astype(float)
