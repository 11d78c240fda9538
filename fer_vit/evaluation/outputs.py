"""Measures of the outputs of further heads, with bootstrap intervals over persons or photos.

Shapes: N faces, U persons or photos, R resamples.
"""

from collections.abc import Sequence

import numpy as np

from fer_vit.evaluation.evaluated import EvaluatedFaces, HeadOutputs
from fer_vit.evaluation.groups import MIN_GROUP
from fer_vit.evaluation.join import align_outputs
from fer_vit.evaluation.results import (
    ComparedError,
    ComparedHeads,
    HeadResults,
    Measured,
    OtherModel,
)
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import HEADS
from fer_vit.stats.bootstrap import (
    MIN_UNITS,
    bound,
    count_units,
    mean_intervals,
    percentile_interval,
    resample,
)
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.measures import MEASURES, Pairs
from fer_vit.stats.tests import holm, paired_p


def score_outputs(faces: EvaluatedFaces) -> dict[str, Measured]:
    """Returns the measures of each output of the heads with targets, by head."""
    known = faces.take(faces.predicted)
    units = np.unique(known.units, return_inverse=True)[1]
    return {head: score_head(head, outputs, units) for head, outputs in known.heads.items()}


def evaluate_heads(faces: EvaluatedFaces, by: Sequence[str] = ()) -> dict[str, HeadResults]:
    """Returns the results of further heads, over all faces and by the groups of each column."""
    if not faces.heads:
        return {}
    groups = {column: score_groups(faces, column) for column in by}
    results = {}
    for head, measured in score_outputs(faces).items():
        by_column = {column: by_head[head] for column, by_head in groups.items()}
        results[head] = HeadResults(measured, by_column)
    return results


def compare_heads(faces: EvaluatedFaces, second: EvaluatedFaces, name: object) -> ComparedHeads:
    """Compares the errors of two models for the outputs that both have.

    Args:
        faces: The faces.
        second: The same faces with the other model's predictions.
        name: The name of the other model or of its table, for messages.
    """
    second_outputs = align_outputs(faces, second, name)
    compared = {}
    for head, outputs in faces.heads.items():
        if head in second_outputs:
            compared[head] = compare_outputs(outputs, second_outputs[head], faces.units)
    return compared


def score_head(head: str, outputs: HeadOutputs, units: IntArray) -> Measured:
    """Returns the measures of each output with intervals.

    `units` (N,) is the person or photo of each face. Fewer than `MIN_UNITS` have no interval.
    """
    return score_variants(head, [outputs], units)


def score_variants(head: str, variants: Sequence[HeadOutputs], units: IntArray) -> Measured:
    """Returns the measures of each output with intervals, averaged over variants of the faces.

    `units` (N,) is the person or photo of each face. An output with values for fewer than
    `MIN_UNITS` units has no interval.
    """
    names = HEADS[head].measures
    first = variants[0]
    known = np.isfinite(first.targets) & np.isfinite(first.values)
    means = _measure_mean(names, variants, np.ones((1, len(units))))[0]  # (K, measures)
    num_units = int(units.max(initial=-1)) + 1
    drawn = None  # (R, K, measures)
    if num_units >= MIN_UNITS:
        drawn = resample(lambda draws: _measure_mean(names, variants, draws[:, units]), num_units)

    measured: dict[str, dict[str, Estimate]] = {}
    for column, output in enumerate(first.names):
        member = known[:, column]
        count = count_units(member, units)
        measured[output] = {}
        for index, name in enumerate(names):
            resamples = None if drawn is None else drawn[:, column, index]
            estimate = percentile_interval(means[column, index], resamples, count)
            measured[output][name] = bound(estimate, member, units, "number")
    return measured


def score_groups(faces: EvaluatedFaces, column: str) -> dict[str, dict[str, Measured]]:
    """Returns the measures of `score_outputs` by head, then by group of a column.

    Groups of fewer than `MIN_GROUP` persons or photos with a prediction are left out.
    """
    known = faces.take(faces.predicted)
    cells = known.columns[column]
    group_of = np.array(["" if cell is None else str(cell) for cell in cells])  # (N,)
    groups: dict[str, dict[str, Measured]] = {head: {} for head in known.heads}
    for name in np.unique(group_of[group_of != ""]).tolist():
        group = known.take(group_of == name)
        if len(np.unique(group.units)) < MIN_GROUP:
            continue
        for head, measured in score_outputs(group).items():
            groups[head][name] = measured
    return groups


def compare_outputs(
    outputs: HeadOutputs, second: HeadOutputs, units: IntArray
) -> dict[str, ComparedError]:
    """Compares the absolute errors of two models by output.

    The p-values are by `tests.paired_p` over persons or photos, with Holm's correction for the
    number of outputs of a head. The results are for the K outputs in `second`.

    Args:
        outputs: The outputs of the model, with targets.
        second: The outputs of another model for the same faces; it may lack some.
        units: The person or photo of each face (N,).
    """
    shared = [outputs.names.index(name) for name in second.names]
    targets = outputs.targets[:, shared]
    errors = np.abs(outputs.values[:, shared] - targets)  # (N, K)
    second_errors = np.abs(second.values - targets)  # (N, K)
    differences = errors - second_errors
    both = np.isfinite(differences)
    errors[~both] = np.nan
    second_errors[~both] = np.nan

    error = mean_intervals(errors, units)
    second_error = mean_intervals(second_errors, units)
    difference = mean_intervals(differences, units)
    p_values = holm([paired_p(values, units) for values in differences.T])
    compared = {}
    for index, name in enumerate(second.names):
        other_model = OtherModel(second_error[index], difference[index], p_values[index])
        compared[name] = ComparedError(error[index], other_model)
    return compared


def _measure_mean(names: tuple[str, ...], variants: Sequence[HeadOutputs], weights: Array) -> Array:
    """Returns measures (R, K, measures) for weights (R, N), averaged over variants."""
    measured = [_measure_outputs(names, outputs, weights) for outputs in variants]
    return np.asarray(np.mean(measured, axis=0))


def _measure_outputs(names: tuple[str, ...], outputs: HeadOutputs, weights: Array) -> Array:
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
