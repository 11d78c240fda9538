"""Evaluates the expressions of faces: all faces, groups, votes, and another model.

N faces, C classes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.groups import accuracy_by_votes, compare_groups, describe_results
from fer_vit.evaluation.inference import paired_p
from fer_vit.evaluation.scores import confusion_matrix, have_votes, score_faces, suspect_labels
from fer_vit.geometry import Array


def evaluate_faces(
    faces: EvaluatedFaces, by: Sequence[str] = (), against: Array | None = None
) -> dict[str, Any]:
    """Describes all faces, all but near-duplicates of train, and groups; compares with a model.

    Args:
        faces: The faces.
        by: The columns to group by.
        against: Another model's probabilities (N, C), NaN for an image without a face.

    Returns:
        The results; with labels also `labels`, the `confusion` (C, C) and `likely wrong labels`.
    """
    votes = None if faces.targets is None else have_votes(faces.targets)
    results: dict[str, Any] = {"all": describe_results(faces, votes)}

    cells: Iterable[object] = faces.columns.get("near_duplicate", [])
    marks = np.array([str(cell).lower() in ("true", "1") for cell in cells], bool)
    if marks.any():
        results["near-duplicates of train"] = int(marks.sum())
        if not marks.all():
            results["without near-duplicates"] = describe_results(faces.take(~marks), votes)

    if by:
        results["by"] = {column: compare_groups(faces, column) for column in by}
    if against is not None:
        results["comparison"] = compare_models(faces, against)
    if faces.targets is None:
        return results

    known = faces.take(faces.predicted)
    assert known.targets is not None
    by_votes = accuracy_by_votes(known)
    if by_votes:
        results["by votes"] = by_votes
    results["labels"] = faces.labels
    results["confusion"] = confusion_matrix(known.probabilities, known.targets).tolist()
    results["likely wrong labels"] = _wrong_labels(known, known.targets)
    return results


def _wrong_labels(faces: EvaluatedFaces, targets: Array) -> list[dict[str, Any]]:
    """Returns the path, label and better label of the faces of `suspect_labels`.

    The targets are (N, C).
    """
    truth = targets.argmax(1)
    wrong = []
    for row, better in suspect_labels(faces.probabilities, targets).tolist():
        label = faces.labels[truth[row]]
        wrong.append({"path": faces.paths[row], "label": label, "better": faces.labels[better]})
    return wrong


def compare_models(faces: EvaluatedFaces, against: Array) -> dict[str, Any]:
    """Compares a model with another one's probabilities (N, C), NaN without a face.

    The test is McNemar's exact test.
    """
    both = faces.predicted & np.isfinite(against[:, 0])
    faces = faces.take(both)
    against = against[both]
    assert faces.targets is not None
    targets = faces.targets
    labels = faces.labels
    units = faces.units
    difference = score_faces(faces.probabilities, targets, labels, units, minus=against)

    # faces that only the first, or only the second model classifies correctly
    correct = against.argmax(1) == targets.argmax(1)  # (N,)
    first = int((faces.correct & ~correct).sum())
    second = int((correct & ~faces.correct).sum())
    p = 1.0
    if first + second:
        p = float(binomtest(first, first + second).pvalue)
    if faces.clustered:  # faces of a person are dependent: McNemar's p alone would be too small
        gains = faces.correct.astype(float) - correct
        p = max(p, paired_p(gains, units))
    return {
        "faces": int(both.sum()),
        "other": score_faces(against, targets, labels, units),
        "difference": difference,
        "McNemar": {"first": first, "second": second, "p": p},
    }
