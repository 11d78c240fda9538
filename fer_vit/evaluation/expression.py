"""Evaluates the expressions of faces: all faces, groups, votes, and another model.

N faces, C classes.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.groups import accuracy_by_votes, compare_groups, describe_results
from fer_vit.evaluation.results import (
    Evaluation,
    LabelResults,
    ModelComparison,
    Scores,
    WrongLabel,
)
from fer_vit.geometry import Array
from fer_vit.stats.scores import confusion_matrix, have_votes, score_faces, suspect_labels
from fer_vit.stats.tests import mcnemar


def evaluate_faces(
    faces: EvaluatedFaces, by: Sequence[str] = (), against: Array | None = None
) -> Evaluation:
    """Returns the scores of all faces and of groups, and the comparison with another model.

    If some faces are near-duplicates of training faces, there are also scores without these.

    Args:
        faces: The faces.
        by: The columns to group by.
        against: Another model's probabilities (N, C), NaN for an image without a face; None: no
            comparison.
    """
    votes = None if faces.targets is None else have_votes(faces.targets)

    cells: Iterable[object] = faces.columns.get("near_duplicate", [])
    is_near_duplicate = np.array([str(cell).lower() in ("true", "1") for cell in cells], bool)
    without_near_duplicates: Scores | None = None
    if is_near_duplicate.any() and not is_near_duplicate.all():
        without_near_duplicates = describe_results(faces.take(~is_near_duplicate), votes)

    return Evaluation(
        scores=describe_results(faces, votes),
        num_near_duplicates=int(is_near_duplicate.sum()),
        without_near_duplicates=without_near_duplicates,
        by={column: compare_groups(faces, column) for column in by},
        comparison=None if against is None else compare_models(faces, against),
        labelled=None if faces.targets is None else compare_labels(faces),
    )


def compare_labels(faces: EvaluatedFaces) -> LabelResults:
    """Compares the predictions of labelled faces with their labels."""
    known = faces.take(faces.predicted)
    assert known.targets is not None
    return LabelResults(
        labels=faces.labels,
        confusion=confusion_matrix(known.probabilities, known.targets),
        likely_wrong=_wrong_labels(known, known.targets),
        by_votes=accuracy_by_votes(known),
    )


def _wrong_labels(faces: EvaluatedFaces, targets: Array) -> list[WrongLabel]:
    """Returns the faces that `suspect_labels` finds; `targets` are (N, C)."""
    truth = targets.argmax(1)
    wrong = []
    for row, better in suspect_labels(faces.probabilities, targets).tolist():
        label = faces.labels[truth[row]]
        wrong.append(WrongLabel(row, faces.paths[row], label, faces.labels[better]))
    return wrong


def compare_models(faces: EvaluatedFaces, against: Array) -> ModelComparison:
    """Compares a model with another model by McNemar's exact test and a t test over units.

    The larger p-value counts, and the difference of accuracy has the interval of this test.
    `against` are the other model's probabilities (N, C), NaN for an image without a face.
    """
    both = faces.predicted & np.isfinite(against[:, 0])
    faces = faces.take(both)
    against = against[both]
    assert faces.targets is not None
    targets = faces.targets
    labels = faces.labels
    units = faces.units
    differences = score_faces(faces.probabilities, targets, labels, units, minus=against)

    test = mcnemar(faces.correct, against.argmax(1) == targets.argmax(1), units)
    differences["accuracy"] = test.difference
    return ModelComparison(
        num_faces=int(both.sum()),
        other_scores=score_faces(against, targets, labels, units),
        differences=differences,
        num_only_first=test.only_first,
        num_only_second=test.only_second,
        p=test.p,
    )
