"""Scores of what models read from altered images: the expression and further heads.

N faces, V variants of a corruption, K outputs of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from fer_vit.evaluation.evaluated import EvaluatedFaces, HeadOutputs
from fer_vit.evaluation.inference import Scale, holm, mean_intervals, paired_p
from fer_vit.evaluation.outputs import Measured, score_variants
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED, Altered, AlteredFaces
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import nearest_to


class AlteredHead(TypedDict):
    """How well a head reads altered images."""

    errors: dict[str, dict[str, Any]]  # by corruption, see `summarize_robustness`
    outputs: dict[str, Measured]  # by corruption


def score_altered(
    faces: EvaluatedFaces, altered: AlteredFaces, against: AlteredFaces | None
) -> dict[str, Any]:
    """Returns scores of what a model reads from altered images of N faces.

    Args:
        faces: The faces. Those without a label count for further heads alone.
        altered: What the model reads from them.
        against: What another model reads from them.

    Returns:
        `robustness` of the expression, if there are labels, and `heads robustness`, if there are
        targets of further heads.
    """
    results: dict[str, Any] = {}
    if faces.targets is not None:
        labelled = faces.with_label()
        assert labelled.targets is not None
        truth = labelled.targets.argmax(1)
        hits = altered.hits(truth, faces.labelled)
        other_hits = None if against is None else against.hits(truth, faces.labelled)
        results["robustness"] = summarize_robustness(hits, labelled.units, other_hits)
    if faces.heads:
        heads = {}
        for head in faces.heads:
            heads[head] = score_altered_head(faces, head, altered, against)
        results["heads robustness"] = heads
    return results


def score_altered_head(
    faces: EvaluatedFaces, head: str, altered: AlteredFaces, against: AlteredFaces | None
) -> AlteredHead:
    """Returns how well a further head is read from altered images.

    The error of a face is the mean absolute error of the outputs that have a target. Two models are
    compared by the outputs that both have.
    """
    outputs = faces.heads[head]
    measured = {}
    for name, reading in altered.readings.items():
        variants = take_values(outputs, altered.columns, reading)
        measured[name] = score_variants(head, variants, faces.units)

    shared = outputs
    other_errors = None
    if against is not None:
        shared = outputs.take_columns([name in against.columns for name in outputs.columns])
        other_errors = face_errors(shared, against)
    errors = face_errors(shared, altered)
    summary = summarize_robustness(errors, faces.units, other_errors, measure="error")
    return AlteredHead(errors=summary, outputs=measured)


def take_values(
    outputs: HeadOutputs, columns: Sequence[str], reading: Altered
) -> list[HeadOutputs]:
    """Returns outputs with the values of each variant (V); NaN where a face does not count.

    `columns` names all outputs of the model.
    """
    places = [columns.index(name) for name in outputs.columns]
    variants = []
    for values in reading.values:  # (N, all outputs)
        counted = np.where(reading.counts[:, None], values[:, places], np.nan)  # (N, K)
        near = nearest_to(outputs.head, counted, outputs.targets)
        variants.append(replace(outputs, values=near))
    return variants


def face_errors(outputs: HeadOutputs, altered: AlteredFaces) -> Mapping[str, Array]:
    """Returns the mean absolute error of each face over outputs and variants (N,), by corruption.

    NaN: no output has a target, or the face does not count.
    """
    errors = {}
    for name, reading in altered.readings.items():
        variants = take_values(outputs, altered.columns, reading)
        deviations = np.stack([np.abs(variant.values - outputs.targets) for variant in variants])
        known = np.isfinite(deviations)  # (V, N, K)
        total = np.where(known, deviations, 0.0).sum((0, 2))
        count = known.sum((0, 2))
        missing = np.full(len(total), np.nan)
        errors[name] = np.divide(total, count, out=missing, where=count > 0)
    return errors


def summarize_robustness(
    values: Mapping[str, Array],
    units: IntArray | None = None,
    others: Mapping[str, Array] | None = None,
    measure: str = "accuracy",
) -> dict[str, dict[str, Any]]:
    """Returns the number of faces, a mean and its difference from the unaltered faces.

    All are by corruption. With the values of another model, also its mean, the difference from it,
    and the p-value of that difference with Holm's correction for the number of corruptions.

    Args:
        values: Of the faces (N,), NaN where a face does not count: hits, or errors.
        units: The persons or photos, as for `score_intervals`.
        others: The values of another model.
        measure: The name of the mean: `accuracy`, of values of 0 or 1, or another one.
    """
    is_accuracy = measure == "accuracy"
    scale: Scale = "share" if is_accuracy else "number"
    of_changes: Scale = "difference" if is_accuracy else "number"
    columns = np.column_stack([*values.values()])  # (N, corruptions)
    changes = columns - values[UNALTERED][:, None]
    means = mean_intervals(columns, units, scale)
    differences = mean_intervals(changes, units, of_changes)

    results: dict[str, dict[str, Any]] = {}
    for name, mean, difference in zip(values, means, differences, strict=True):
        results[name] = {"faces": mean.faces, measure: mean}
        if name not in (UNALTERED, MOST_TURNED):
            results[name]["difference"] = difference
    if others is None:
        return results

    other_columns = np.column_stack([others[name] for name in values])  # (N, corruptions)
    gains = columns - other_columns
    other_means = mean_intervals(other_columns, units, scale)
    mean_gains = mean_intervals(gains, units, of_changes)
    p_values = holm([paired_p(column, units) for column in gains.T])
    for name, mean, gain, p in zip(values, other_means, mean_gains, p_values, strict=True):
        results[name]["the other model"] = mean
        results[name]["difference from it"] = gain
        results[name]["p"] = p
    return results
