"""Scores faces with truth: all faces, groups, votes, folds, two models, and further outputs.

Expressions are scored on the labelled faces (`Labelled.labelled`; all faces, if none has a label),
further outputs on all faces. Of either, the faces with a prediction count (`Labelled.predicted`);
the others only lower the share of photos in which a face was found.

N faces, C expressions, G groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from fer_vit.data.schema import VOTES_COLUMN
from fer_vit.errors import printable
from fer_vit.evaluation.evaluation_results import Evaluation
from fer_vit.evaluation.evaluation_rows import (
    ALL,
    COMPARED,
    DIFFERENCE,
    FACES,
    FOLDS,
    FOUND,
    GAP,
    GROUPS,
    MEANS,
    MIN_GROUP,
    NEAR_DUPLICATES,
    ONLY_FIRST,
    ONLY_SECOND,
    OTHER,
    TOO_FEW,
    UNKNOWN,
    VOTES,
    WITHOUT_NEAR_DUPLICATES,
    count_row,
    make_rows,
)
from fer_vit.geometry import Array, Mask
from fer_vit.heads import EXPRESSION
from fer_vit.labels import have_ties
from fer_vit.stats.bootstrap import mean_intervals
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.hypothesis_tests import GroupTest, compare_means, group_tests, mcnemar
from fer_vit.stats.output_measures import measure_intervals
from fer_vit.stats.results import Row
from fer_vit.stats.scores import have_votes, score_faces
from fer_vit.tables.groups import describe_groups
from fer_vit.tables.join import align
from fer_vit.tables.labelled import Labelled, has_values

MIN_VOTES = 6  # faces with this many votes or fewer share a row
MAX_VOTES = 10  # faces with this many votes or more share a row
VOTES_NAMES = {MIN_VOTES: f"{MIN_VOTES} or fewer", MAX_VOTES: f"{MAX_VOTES} or more"}


def score(
    faces: Labelled,
    by: Sequence[str] = (),
    second: Labelled | None = None,
    against: str = "",
    folds: str = "",
) -> Evaluation:
    """Returns the results of all faces and groups, and the comparison with another model.

    If some faces are near-duplicates of training faces, there are also scores without these. A face
    without a label counts for further outputs only.

    Args:
        faces: The faces.
        by: The columns to group by.
        second: The same faces with another model's predictions; None: no comparison.
        against: The name of the other model or of its table.
        folds: The column with the fold of each face; empty: no cross-validation.
    """
    notes = [*faces.notes, *describe_labels(faces), *describe_groups(faces, by)]
    facts = faces.facts
    if not faces.outputs:
        faces = faces.take(faces.labelled)
    if second is not None:
        facts = facts | {"against": against}
        second = align(faces, second, against)
        if faces.targets is not None:
            faces = replace(faces, second_probabilities=second.probabilities)
        if faces.outputs and not second.outputs:
            notes.append(f"{against} has none of the further outputs: they are not compared.")

    labelled = faces.take(faces.labelled)
    rows = score_expression(labelled, by, folds)
    rows += score_outputs(faces, by)
    if second is not None:
        rows += compare_outputs(faces, second)
    return Evaluation(
        facts=facts,
        rows=tuple(rows),
        notes=tuple(map(printable, notes)),
        faces=labelled.take(labelled.predicted),
    )


def describe_labels(faces: Labelled) -> list[str]:
    """Returns lines about faces without a label, and faces with several labels of most votes."""
    if faces.targets is None:
        return []
    notes = []
    targets = faces.targets[faces.labelled]
    num_unlabelled = len(faces.paths) - len(targets)
    if num_unlabelled:
        notes.append(
            f"{num_unlabelled:,} of {len(faces.paths):,} faces have no label: "
            "expressions are scored on the labelled faces."
        )
    num_tied = int(have_ties(targets).sum())
    if num_tied:
        notes.append(
            f"No single label has the most votes for {num_tied:,} of {len(targets):,} faces: "
            f"the first in the order {', '.join(faces.labels)} counts."
        )
    return notes


# ------------------------------------------------------------------------------------- expression


def score_expression(faces: Labelled, by: Sequence[str] = (), folds: str = "") -> list[Row]:
    """Returns the scores of expressions: of all faces, groups, folds, votes and two models."""
    votes = None if faces.targets is None else have_votes(faces.targets)
    rows = make_rows(EXPRESSION, ALL, "", measure_faces(faces, votes))

    cells = faces.columns.get("near_duplicate", np.array([], object))
    repeated = np.array([str(cell).lower() in ("true", "1") for cell in cells], bool)
    if repeated.any():
        rows.append(count_row(EXPRESSION, ALL, "", NEAR_DUPLICATES, int(repeated.sum())))
        if not repeated.all():
            estimates = measure_faces(faces.take(~repeated), votes)
            rows += make_rows(EXPRESSION, WITHOUT_NEAR_DUPLICATES, "", estimates)

    for column in by:
        rows += score_groups(faces, column, votes)
    if folds:
        for name in dict.fromkeys(faces.columns[folds].tolist()):
            part = faces.take(faces.columns[folds] == name)
            rows += group_rows(part, FOLDS, str(name), votes)
    if faces.targets is not None and VOTES_COLUMN in faces.columns:
        rows += score_votes(faces.take(faces.predicted))
    if faces.second_probabilities is not None:
        rows += compare_models(faces, faces.second_probabilities)
    return rows


def measure_faces(faces: Labelled, votes: bool | None = None) -> dict[str, Estimate]:
    """Returns the scores of faces, and the shares of faces that are ambiguous and were found.

    Without labels, confidence and the share of each expression replace the scores. `votes` is as
    for `contributions`; a group takes the value for all faces.
    """
    results: dict[str, Estimate] = {}
    predicted = faces.take(faces.predicted)
    if len(predicted.paths):
        if predicted.targets is None:
            confidence = predicted.probabilities.max(1, keepdims=True)
            (results["confidence"],) = mean_intervals(confidence, predicted.units)
            guess = np.eye(len(predicted.labels))[predicted.probabilities.argmax(1)]  # (N, C)
            shares = mean_intervals(guess, predicted.units, "share")
            for label, share in zip(predicted.labels, shares, strict=True):
                results[f"share of {label}"] = share
        else:
            results |= score_faces(
                predicted.probabilities,
                predicted.targets,
                predicted.labels,
                predicted.units,
                votes=votes,
            )
        for name, mean in MEANS.items():
            values = mean.values(predicted)
            if not np.isnan(values).all():
                (results[name],) = mean_intervals(values[:, None], predicted.units, mean.scale)

    # a photo with several faces counts once
    _, first = np.unique(faces.paths.astype(str), return_index=True)
    detected = faces.detected[first, None].astype(float)
    units = np.unique(faces.units[first], return_inverse=True)[1]
    (results[FOUND],) = mean_intervals(detected, units, "share")
    return results


def group_rows(faces: Labelled, set: str, group: str, votes: bool | None) -> list[Row]:
    """Returns the number of faces of a group with a prediction, and its scores."""
    size = count_row(EXPRESSION, set, group, FACES, int(faces.predicted.sum()))
    return [size, *make_rows(EXPRESSION, set, group, measure_faces(faces, votes))]


class Groups(NamedTuple):
    """The groups of a column."""

    members: dict[str, Mask]  # whether each face (N,) is in the group
    few: dict[str, Mask]  # the same for groups of fewer than `MIN_GROUP` persons or photos
    unknown: Mask  # (N,), whether each face has no value


def find_groups(faces: Labelled, column: str) -> Groups:
    """Returns the groups of a column, in the order of their names."""
    cells = faces.columns[column]
    group_of = np.array(["" if cell is None else str(cell) for cell in cells])  # (N,)
    groups = Groups({}, {}, group_of == "")
    for name in np.unique(group_of[~groups.unknown]).tolist():
        member = group_of == name
        units = np.unique(faces.units[member & faces.predicted])
        of_size = groups.few if len(units) < MIN_GROUP else groups.members
        of_size[name] = member
    return groups


def score_groups(faces: Labelled, column: str, votes: bool | None) -> list[Row]:
    """Returns the scores of the groups of a column and, with labels, tests of their accuracy."""
    set = GROUPS + column
    groups = find_groups(faces, column)
    tests: Mapping[str, GroupTest] = {}
    compared = faces.predicted & ~groups.unknown
    if faces.targets is not None and len(groups.members) > 1:
        predicted = faces.take(compared)
        members = [member[compared] for member in groups.members.values()]
        of_groups = group_tests(predicted.correct, members, predicted.units)
        tests = dict(zip(groups.members, of_groups, strict=True))

    rows = []
    for name, member in groups.members.items():
        for row in group_rows(faces.take(member), set, name, votes):
            rows.append(row)
            if name in tests and row.measure == "accuracy":
                rows.append(Row(EXPRESSION, set, name, "difference", *tests[name]))
    for name, member in groups.few.items():
        size = int((member & faces.predicted).sum())
        rows.append(count_row(EXPRESSION, set, name, FACES, size, TOO_FEW))
    unknown = int((groups.unknown & faces.predicted).sum())
    rows.append(count_row(EXPRESSION, set, "", UNKNOWN, unknown))
    if not tests:
        return rows

    # The gap has no interval. The same data choose the worst and the best group, so that the gap
    # is biased upwards.
    accuracies = {}
    for row in rows:
        if row.measure == "accuracy" and row.estimate.mean is not None:
            accuracies[row.group] = row.estimate.mean
    worst, *_, best = sorted(accuracies, key=accuracies.__getitem__)
    gap = Estimate(accuracies[best] - accuracies[worst], n=int(compared.sum()))
    rows.append(Row(EXPRESSION, set, "", GAP, gap, note=f"{best} - {worst}"))
    return rows


def score_votes(faces: Labelled) -> list[Row]:
    """Returns the accuracy by the votes for the label (column `label_votes`)."""
    counts = np.array([read_vote_count(cell) for cell in faces.columns[VOTES_COLUMN]])  # (N,)
    numbers = range(MAX_VOTES, MIN_VOTES - 1, -1)
    member = counts.clip(MIN_VOTES, MAX_VOTES)[:, None] == np.array(numbers)  # (N, G)
    hits = np.where(member, faces.correct[:, None], np.nan)  # (N, G)
    rows = []
    accuracies = mean_intervals(hits, faces.units, "share")
    for number, accuracy in zip(numbers, accuracies, strict=True):
        name = VOTES_NAMES.get(number, str(number))
        if accuracy.n:
            rows.append(count_row(EXPRESSION, VOTES, name, FACES, accuracy.n))
            rows.append(Row(EXPRESSION, VOTES, name, "accuracy", accuracy))
    return rows


def read_vote_count(cell: object) -> float:
    """Returns the number of votes in a cell; NaN if the cell is no whole number from 0."""
    try:
        count = float(str(cell))
    except ValueError:
        return np.nan
    if count < 0 or not count.is_integer():
        return np.nan
    return count


def compare_models(faces: Labelled, second: Array) -> list[Row]:
    """Compares a model with a second model on the faces that both predict.

    `second` are the second model's probabilities (N, C), NaN for an image without a face.
    """
    both = faces.predicted & has_values(second)
    faces = faces.take(both)
    second = second[both]
    assert faces.targets is not None
    targets = faces.targets
    of_second = score_faces(second, targets, faces.labels, faces.units)
    differences = score_faces(faces.probabilities, targets, faces.labels, faces.units, minus=second)
    test = mcnemar(faces.correct, second.argmax(1) == targets.argmax(1), faces.units)
    differences.pop("accuracy")  # the interval of the test replaces the bootstrap's
    return [
        count_row(EXPRESSION, COMPARED, "", FACES, int(both.sum())),
        count_row(EXPRESSION, COMPARED, "", ONLY_FIRST, test.only_first),
        count_row(EXPRESSION, COMPARED, "", ONLY_SECOND, test.only_second),
        *make_rows(EXPRESSION, OTHER, "", of_second),
        Row(EXPRESSION, DIFFERENCE, "", "accuracy", test.difference, test.p),
        *make_rows(EXPRESSION, DIFFERENCE, "", differences),
    ]


# -------------------------------------------------------------------------------- further outputs


def score_outputs(faces: Labelled, by: Sequence[str] = ()) -> list[Row]:
    """Returns the measures of further outputs with targets: of all faces, and of groups."""
    if not faces.outputs:
        return []
    predicted = faces.take(faces.predicted)
    rows = measure_outputs(predicted, ALL, "")
    for column in by:
        for name, member in find_groups(predicted, column).members.items():
            rows += measure_outputs(predicted.take(member), GROUPS + column, name)
    return rows


def measure_outputs(faces: Labelled, set: str, group: str) -> list[Row]:
    """Returns the measures of each output."""
    rows = []
    for output, (values, targets) in faces.outputs.items():
        estimates = measure_intervals(output.kind.measures, values, targets, faces.units)
        rows += make_rows(output.column, set, group, estimates)
    return rows


def compare_outputs(faces: Labelled, second: Labelled) -> list[Row]:
    """Compares the mean absolute errors of two models for the outputs that both have.

    `second` has the predictions of the other model for the same faces; see `align`.
    """
    rows = []
    for _, of_head in groupby(second.outputs, lambda output: output.head):
        outputs = [*of_head]
        errors = np.column_stack([faces.outputs[output].errors for output in outputs])  # (N, K)
        others = np.column_stack([second.outputs[output].errors for output in outputs])
        tests = compare_means(errors, others, faces.units)
        for output, test in zip(outputs, tests, strict=True):
            column = output.column
            rows += [
                count_row(column, COMPARED, "", FACES, test.first.n),
                Row(column, COMPARED, "", "error", test.first),
                Row(column, COMPARED, "", "the other's error", test.second),
                Row(column, COMPARED, "", "difference", test.difference, test.p),
            ]
    return rows
