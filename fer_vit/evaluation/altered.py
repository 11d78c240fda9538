"""Scores models on altered images: their expressions, and the errors of further heads.

N faces, V variants of a corruption, K outputs of a head.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from fer_vit.evaluation.predicted_manifest import ManifestFaces
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED, AlteredFaces, read_altered
from fer_vit.evaluation.sets import ALTERED, FACES, count_row
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import EXPRESSION, Output
from fer_vit.stats.bootstrap import Scale, mean_intervals
from fer_vit.stats.means import mean_of_finite
from fer_vit.stats.results import Row
from fer_vit.stats.tests import PairedTest, compare_means
from fer_vit.tables.labelled import Labelled


def score_robustness(faces: ManifestFaces, second: Labelled | None = None) -> list[Row]:
    """Predicts altered images, and returns the accuracy and the errors of further heads on them.

    Args:
        faces: The faces of a manifest.
        second: The same faces with another model; None: no comparison.
    """
    if not faces.outputs:
        faces = faces.take(faces.labelled)
    other = read_images(second, faces.rows) if isinstance(second, ManifestFaces) else None
    return score_altered(faces, read_images(faces, faces.rows), other)


def score_altered(
    faces: Labelled, altered: AlteredFaces, other: AlteredFaces | None = None
) -> list[Row]:
    """Returns the accuracy, and the errors of further heads, on altered images.

    Args:
        faces: The faces (N). A face without a label counts for further heads only.
        altered: Their predictions by corruption.
        other: The predictions of another model; None: no comparison.
    """
    rows = []
    if faces.targets is not None:
        labelled = faces.take(faces.labelled)
        assert labelled.targets is not None
        truth = labelled.targets.argmax(1)  # (M,), the index of each label
        hits = altered.hits(truth, faces.labelled)  # (M,), by corruption
        other_hits = None if other is None else other.hits(truth, faces.labelled)
        rows += altered_rows(EXPRESSION, "accuracy", hits, labelled.units, other_hits)

    for head, outputs in groupby(faces.outputs, lambda output: output.head):
        # two models are compared over the outputs that both have
        shared = [output for output in outputs if other is None or output in other.outputs]
        errors = face_errors(faces, shared, altered)
        other_errors = None if other is None else face_errors(faces, shared, other)
        rows += altered_rows(head, "error", errors, faces.units, other_errors)
    return rows


def read_images(faces: ManifestFaces, rows: IntArray) -> AlteredFaces:
    """Predicts rows of the manifest of some faces, altered in each way."""
    chosen = faces.manifest.select(np.isin(np.arange(len(faces.manifest)), rows))
    return read_altered(faces.model, chosen, merge=faces.merge)


def face_errors(
    faces: Labelled, outputs: Sequence[Output], altered: AlteredFaces
) -> Mapping[str, Array]:
    """Returns the mean absolute error of each face over outputs and variants (N,), by corruption.

    An error is NaN if no output has a target, or the face does not count.
    """
    errors = {}
    for name, reading in altered.readings.items():
        deviations = []
        for output in outputs:
            targets = faces.outputs[output].targets  # (N,)
            values = reading.values[:, :, altered.outputs.outputs.index(output)]  # (V, N)
            near = output.kind.near(values, np.broadcast_to(targets, values.shape))
            deviations.append(np.abs(near - targets))
        means = mean_of_finite(np.concatenate(deviations), axis=0)
        errors[name] = np.where(reading.counts, means, np.nan)
    return errors


def altered_rows(
    part: str,
    measure: str,
    values: Mapping[str, Array],
    units: IntArray | None = None,
    others: Mapping[str, Array] | None = None,
) -> list[Row]:
    """Returns, by corruption, a mean, its change, and its difference from another model's mean.

    The p-values have Holm's correction for the number of corruptions.

    Args:
        part: The expression or a further head.
        measure: The name of the mean: "accuracy" for hits (0 or 1), or "error".
        values: The hits or errors (N,) by corruption.
        units: The person or photo of each face (N,), as for `score_intervals`.
        others: The values of another model, of the same kind; None: no comparison.
    """
    scale: Scale = "share" if measure == "accuracy" else "number"
    change_scale: Scale = "difference" if measure == "accuracy" else "number"
    columns = np.column_stack([*values.values()])  # (N, corruptions)
    means = mean_intervals(columns, units, scale)
    changes = mean_intervals(columns - values[UNALTERED][:, None], units, change_scale)
    compared: Sequence[PairedTest | None] = [None] * len(values)
    if others is not None:
        other_columns = np.column_stack([others[name] for name in values])  # (N, corruptions)
        compared = compare_means(columns, other_columns, units, scale)

    rows = []
    for name, mean, change, test in zip(values, means, changes, compared, strict=True):
        rows.append(count_row(part, ALTERED, name, FACES, mean.n))
        rows.append(Row(part, ALTERED, name, measure, mean))
        if name not in (UNALTERED, MOST_TURNED):  # the images are unaltered
            rows.append(Row(part, ALTERED, name, "difference", change))
        if test is not None:
            rows.append(Row(part, ALTERED, name, "the other model", test.second))
            rows.append(Row(part, ALTERED, name, "difference from it", test.difference, test.p))
    return rows
