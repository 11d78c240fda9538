"""Results of all faces and of groups: the share of faces found, scores, and tests.

N faces, C classes, G groups.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fer_vit.data.schema import VOTES_COLUMN
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.results import Gap, Group, Grouping, Scores
from fer_vit.geometry import Array, IntArray
from fer_vit.stats.bootstrap import Scale, mean_intervals
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.scores import have_votes, score_faces
from fer_vit.stats.tests import group_tests

# A group of fewer persons (photos where persons are unknown) is counted, but not compared.
MIN_GROUP = 30
FOUND = "face found"
MIN_VOTES = 6  # faces with this many votes or fewer share a row
MAX_VOTES = 10  # faces with this many votes or more share a row
VOTES_NAMES = {MIN_VOTES: f"{MIN_VOTES} or fewer", MAX_VOTES: f"{MAX_VOTES} or more"}


def describe_results(faces: EvaluatedFaces, votes: bool | None = None) -> Scores:
    """Returns the shares of faces that were found and that are ambiguous, and the scores.

    Without labels, confidence and the share of each expression replace the scores. `votes` is as
    for `contributions`; a group takes the value for all faces.
    """
    # a photo with several faces counts once
    _, first = np.unique(faces.paths.astype(str), return_index=True)
    photos = faces.take(first)
    detected = photos.detected[:, None].astype(float)
    results = {FOUND: mean_intervals(detected, photos.units, scale="share")[0]}
    known = faces.take(faces.predicted)
    if not len(known.paths):
        return results

    ambiguous = known.ambiguous
    if not np.isnan(ambiguous).all():
        results["ambiguous"] = _mean(ambiguous, known.units, scale="share")
        if known.targets is not None:
            clear = np.where(ambiguous == 0, known.correct, np.nan)
            results["accuracy where unambiguous"] = _mean(clear, known.units, scale="share")
    if known.targets is not None:
        return results | score_faces(
            known.probabilities, known.targets, known.labels, known.units, votes=votes
        )

    results["confidence"] = _mean(known.probabilities.max(1), known.units)
    guess = np.eye(len(known.labels))[known.probabilities.argmax(1)]  # (N, C)
    shares = mean_intervals(guess, known.units, scale="share")
    return results | dict(zip(known.labels, shares, strict=True))


def _mean(values: Array, units: IntArray, scale: Scale = "number") -> Estimate:
    """Returns the mean of a column (N,) with its interval; NaN values do not count."""
    return mean_intervals(values[:, None], units, scale)[0]


def accuracy_by_votes(faces: EvaluatedFaces) -> dict[str, Group]:
    """Returns the accuracy by the votes for the label (column `label_votes`).

    The result is empty without this column.
    """
    votes = faces.columns.get(VOTES_COLUMN)
    if votes is None:
        return {}
    counts = np.array([_read_vote_count(cell) for cell in votes])  # (N,)
    numbers = range(MAX_VOTES, MIN_VOTES - 1, -1)
    member = counts.clip(MIN_VOTES, MAX_VOTES)[:, None] == np.array(numbers)  # (N, G)
    hits = np.where(member, faces.correct[:, None], np.nan)  # (N, G)

    results = {}
    accuracies = mean_intervals(hits, faces.units, scale="share")
    for number, accuracy in zip(numbers, accuracies, strict=True):
        name = VOTES_NAMES.get(number, str(number))
        if accuracy.n:
            results[name] = Group(accuracy.n, {"accuracy": accuracy})
    return results


def _read_vote_count(cell: object) -> float:
    """Returns the number of votes in a cell; NaN if the cell is no whole number from 0."""
    try:
        count = float(str(cell))
    except ValueError:
        return np.nan
    if count < 0 or not count.is_integer():
        return np.nan
    return count


def describe_parts(faces: EvaluatedFaces, column: str) -> dict[str, Group]:
    """Returns the scores of the faces for each value of a column.

    The values are parts of one set, such as folds. They are not compared.
    """
    votes = None if faces.targets is None else have_votes(faces.targets)
    parts = {}
    for name in dict.fromkeys(faces.columns[column].tolist()):
        part = faces.take(faces.columns[column] == name)
        parts[str(name)] = Group(int(part.predicted.sum()), describe_results(part, votes))
    return parts


def compare_groups(faces: EvaluatedFaces, column: str) -> Grouping:
    """Describes the groups of a column and, with labels, compares their accuracy."""
    cells = faces.columns[column]
    group_of = np.array(["" if cell is None else str(cell) for cell in cells])  # (N,)
    has_group = group_of != ""

    # K faces with a group and a prediction
    is_known = has_group & faces.predicted
    known = faces.take(is_known)
    known_group_of = group_of[is_known]  # (K,)
    sizes = Counter(known_group_of.tolist())

    votes = None if faces.targets is None else have_votes(faces.targets)
    groups: dict[str, Group] = {}
    small_groups = {}
    for name in np.unique(group_of[has_group]).tolist():
        num_units = len(np.unique(known.units[known_group_of == name]))
        if num_units < MIN_GROUP:
            small_groups[name] = sizes[name]
            continue
        # `FOUND` also counts the photos without a face
        scores = describe_results(faces.take(group_of == name), votes)
        groups[name] = Group(sizes[name], scores)
    num_unknown = int((faces.predicted & ~has_group).sum())
    if faces.targets is None or len(groups) < 2:
        return Grouping(groups, small_groups, num_unknown)

    members = [known_group_of == name for name in groups]
    tests = group_tests(known.correct, members, known.units)
    tested = {}
    for name, test in zip(groups, tests, strict=True):
        tested[name] = replace(groups[name], test=test)
    gap = find_gap(groups, len(known.paths))
    return Grouping(tested, small_groups, num_unknown, gap)


def find_gap(groups: Mapping[str, Group], num_faces: int) -> Gap:
    """Returns the gap between the accuracies of labelled groups; `num_faces` is as in `Gap`.

    The gap has no interval. The same data choose the worst and the best group, so that the gap is
    biased upwards.
    """
    accuracies = {}
    for name, group in groups.items():
        accuracy = group.scores["accuracy"].mean
        assert accuracy is not None  # each group has faces
        accuracies[name] = accuracy
    ranking = sorted(groups, key=accuracies.__getitem__)
    worst = ranking[0]
    best = ranking[-1]
    size = accuracies[best] - accuracies[worst]
    return Gap(worst, best, size, num_faces)
