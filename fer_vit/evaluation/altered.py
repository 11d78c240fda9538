"""Scores models on altered images: their expressions and further heads.

N faces, V variants of a corruption, K outputs of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fer_vit.evaluation.evaluated import EvaluatedFaces, HeadOutputs
from fer_vit.evaluation.outputs import score_variants
from fer_vit.evaluation.results import AlteredMean, Evaluation, HeadRobustness, OtherModel
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED, Altered, AlteredFaces
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import nearest_to
from fer_vit.stats.bootstrap import Scale, mean_intervals
from fer_vit.stats.tests import holm, paired_p


def score_altered(
    evaluation: Evaluation,
    faces: EvaluatedFaces,
    altered: AlteredFaces,
    against: AlteredFaces | None,
) -> Evaluation:
    """Returns an evaluation that also has the scores on altered images of N faces.

    Args:
        evaluation: The results on the unaltered images.
        faces: The faces. A face without a label counts for further heads only.
        altered: What the model reads from the altered images.
        against: What another model reads from the altered images; None: no comparison.
    """
    robustness: Mapping[str, AlteredMean] = {}
    if faces.targets is not None:
        labelled = faces.take(faces.labelled)
        assert labelled.targets is not None
        truth = labelled.targets.argmax(1)  # (M,), the index of each label
        hits = altered.hits(truth, faces.labelled)  # (M,), by corruption
        other_hits = None if against is None else against.hits(truth, faces.labelled)
        robustness = summarize_robustness(hits, labelled.units, other_hits)

    heads = {}
    for head, results in evaluation.heads.items():
        scored = score_altered_head(faces, head, altered, against)
        heads[head] = replace(results, robustness=scored)
    return replace(evaluation, robustness=robustness, heads=heads)


def score_altered_head(
    faces: EvaluatedFaces, head: str, altered: AlteredFaces, against: AlteredFaces | None
) -> HeadRobustness:
    """Returns the errors and measures of a further head on altered images.

    The error of a face is the mean absolute error over the outputs that have a target. Two models
    are compared over the outputs that both models have.
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
    summary = summarize_robustness(errors, faces.units, other_errors, is_share=False)
    return HeadRobustness(summary, measured)


def take_values(
    outputs: HeadOutputs, columns: Sequence[str], reading: Altered
) -> list[HeadOutputs]:
    """Returns V `HeadOutputs`, with the values of each variant; NaN where a face does not count.

    `columns` are the columns of all outputs of the model, in the order of the values.
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

    An error is NaN if no output has a target, or the face does not count.
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
    is_share: bool = True,
) -> dict[str, AlteredMean]:
    """Returns, by corruption, a mean, its change, and its difference from another model's mean.

    The p-values have Holm's correction for the number of corruptions.

    Args:
        values: The hits or errors (N,) by corruption; NaN where a face does not count.
        units: The person or photo of each face (N,), as for `score_intervals`.
        others: The values of another model, of the same kind; None: no comparison.
        is_share: Whether the values are hits, 0 or 1, rather than errors.
    """
    scale: Scale = "share" if is_share else "number"
    change_scale: Scale = "difference" if is_share else "number"
    columns = np.column_stack([*values.values()])  # (N, corruptions)
    changes = columns - values[UNALTERED][:, None]
    means = mean_intervals(columns, units, scale)
    differences = mean_intervals(changes, units, change_scale)
    other_models: Sequence[OtherModel | None] = [None] * len(values)
    if others is not None:
        other_columns = np.column_stack([others[name] for name in values])  # (N, corruptions)
        other_models = compare_altered(columns, other_columns, units, is_share)

    results = {}
    for index, name in enumerate(values):
        change = None if name in (UNALTERED, MOST_TURNED) else differences[index]
        results[name] = AlteredMean(means[index], change, other_models[index])
    return results


def compare_altered(
    values: Array, others: Array, units: IntArray | None, is_share: bool
) -> list[OtherModel]:
    """Returns another model's mean of each corruption, and the difference from this mean.

    `values` and `others` are (N, corruptions). The other arguments are as for
    `summarize_robustness`.
    """
    gains = values - others
    means = mean_intervals(others, units, "share" if is_share else "number")
    differences = mean_intervals(gains, units, "difference" if is_share else "number")
    p_values = holm([paired_p(column, units) for column in gains.T])
    compared = []
    for mean, difference, p in zip(means, differences, p_values, strict=True):
        compared.append(OtherModel(mean, difference, p))
    return compared
