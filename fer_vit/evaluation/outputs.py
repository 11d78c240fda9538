"""Measures of the outputs of further heads, with bootstrap intervals over persons or photos.

Shapes: N faces, U persons or photos, R resamples.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np

from fer_vit.evaluation.evaluated import EvaluatedFaces, HeadOutputs
from fer_vit.evaluation.groups import MIN_GROUP
from fer_vit.evaluation.inference import (
    LEAST_UNITS,
    draw_units,
    holm,
    mean_intervals,
    paired_p,
    percentiles,
)
from fer_vit.evaluation.join import align_outputs
from fer_vit.evaluation.results import FaceEstimate
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import HEADS
from fer_vit.measures import MEASURES, Pairs

Measured: TypeAlias = dict[str, dict[str, FaceEstimate]]
"""The measures of a head by output and name."""


def score_outputs(faces: EvaluatedFaces) -> dict[str, Measured]:
    """Returns the measures of each output of each head that has targets, by head."""
    known = faces.take(faces.predicted)
    units = np.unique(known.units, return_inverse=True)[1]
    return {head: score_head(head, outputs, units) for head, outputs in known.heads.items()}


def evaluate_heads(
    faces: EvaluatedFaces,
    by: Sequence[str] = (),
    second: EvaluatedFaces | None = None,
    name: object = "",
) -> dict[str, Any]:
    """Returns the measures of further heads, overall and by group, and compares with a model.

    Args:
        faces: The faces.
        by: The columns to group by.
        second: The faces of another model.
        name: The name of the other model in messages.

    Returns:
        `heads`; with groups `heads by`, with another model `heads compared`.
    """
    results: dict[str, Any] = {"heads": score_outputs(faces)}
    if by:
        results["heads by"] = {column: score_groups(faces, column) for column in by}
    if second:
        results["heads compared"] = compare_outputs(faces, align_outputs(faces, second, name))
    return results


def score_head(head: str, outputs: HeadOutputs, units: IntArray) -> Measured:
    """Returns the measures of each output with intervals; `units` (N,) are persons or photos.

    There is no interval for fewer than `LEAST_UNITS`.
    """
    return score_variants(head, [outputs], units)


def score_variants(head: str, variants: Sequence[HeadOutputs], units: IntArray) -> Measured:
    """Returns the measures of each output, means over variants of the same faces, with intervals.

    `units` (N,) are persons or photos. There is no interval where fewer than `LEAST_UNITS` have
    values.
    """
    names = HEADS[head].figures
    first = variants[0]
    known = np.isfinite(first.targets) & np.isfinite(first.values)
    means = _measure_mean(names, variants, np.ones((1, len(units))))[0]  # (K, measures)
    drawn = [_measure_mean(names, variants, weights) for weights in draw_weights(units)]
    resamples = np.concatenate(drawn) if drawn else None  # (R, K, measures)

    measured: Measured = {}
    for column, output in enumerate(first.names):
        faces = int(known[:, column].sum())
        count = len(np.unique(units[known[:, column]]))  # of persons or photos
        measured[output] = {}
        for index, name in enumerate(names):
            mean = None
            low = None
            high = None
            if np.isfinite(means[column, index]):
                mean = float(means[column, index])
                if resamples is not None and count >= LEAST_UNITS:
                    drawn_means = resamples[:, column, index]  # (R,)
                    low, high = np.nanpercentile(drawn_means, percentiles(count)).tolist()
            measured[output][name] = FaceEstimate(mean, low, high, faces)
    return measured


def score_groups(faces: EvaluatedFaces, column: str) -> dict[str, dict[str, Measured]]:
    """Returns the measures of `score_outputs` by head, for each group of a column.

    Groups of fewer than `MIN_GROUP` persons or photos with a prediction are left out.
    """
    known = faces.take(faces.predicted)
    names = np.array(["" if cell is None else str(cell) for cell in known.columns[column]])
    groups: dict[str, dict[str, Measured]] = {head: {} for head in known.heads}
    for name in np.unique(names[names != ""]).tolist():
        group = known.take(names == name)
        if len(np.unique(group.units)) < MIN_GROUP:
            continue
        for head, measured in score_outputs(group).items():
            groups[head][name] = measured
    return groups


class Compared(TypedDict):
    """The absolute errors of two models for one output, means over the same faces."""

    faces: int
    error: FaceEstimate
    other: FaceEstimate
    difference: FaceEstimate  # of the first model from the other
    p: float


def compare_outputs(
    faces: EvaluatedFaces, second: Mapping[str, HeadOutputs]
) -> dict[str, dict[str, Compared]]:
    """Compares the absolute errors of two models, by head and output.

    The p-values are of `inference.paired_p` over persons or photos, with Holm's correction for the
    number of outputs of a head. `second` has the second model's values of the same faces.
    """
    compared: dict[str, dict[str, Compared]] = {}
    for head, second_outputs in second.items():
        outputs = faces.heads[head]
        shared = [outputs.names.index(name) for name in second_outputs.names]
        targets = outputs.targets[:, shared]
        errors = np.abs(outputs.values[:, shared] - targets)  # (N, K)
        second_errors = np.abs(second_outputs.values - targets)  # (N, K)
        differences = errors - second_errors
        both = np.isfinite(differences)
        errors[~both] = np.nan
        second_errors[~both] = np.nan

        error = mean_intervals(errors, faces.units)
        second_error = mean_intervals(second_errors, faces.units)
        difference = mean_intervals(differences, faces.units)
        p_values = holm([paired_p(values, faces.units) for values in differences.T])
        compared[head] = {}
        for index, name in enumerate(second_outputs.names):
            compared[head][name] = Compared(
                faces=int(both[:, index].sum()),
                error=error[index],
                other=second_error[index],
                difference=difference[index],
                p=p_values[index],
            )
    return compared


def _measure_mean(names: tuple[str, ...], variants: Sequence[HeadOutputs], weights: Array) -> Array:
    """Returns measures (R, K, measures), means over variants, for weights (R, N)."""
    measured = [_measure(names, outputs, weights) for outputs in variants]
    return np.asarray(np.mean(measured, axis=0))


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
    """Yields how often each face is drawn in bootstrap resamples of persons or photos.

    `units` (N,) are the person or photo of each face. The counts (R, N) come in blocks; there are
    none for fewer than `LEAST_UNITS` persons or photos.
    """
    count = int(units.max(initial=-1)) + 1
    if count < LEAST_UNITS:
        return
    for draws in draw_units(count):
        yield draws[:, units].astype(float)
