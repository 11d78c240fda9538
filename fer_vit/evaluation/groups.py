"""Results of all faces and of groups: the share of faces found, scores, and tests.

N faces, C classes, G groups.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.stats import fisher_exact
from scipy.stats.contingency import crosstab

from fer_vit.data.schema import VOTES_COLUMN
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.inference import (
    Scale,
    Sums,
    half_width_error,
    holm,
    hybrid_difference,
    mean_intervals,
    score_intervals,
    standard_error,
    t_p,
)
from fer_vit.evaluation.results import FaceEstimate, Gap, Group, Grouping, GroupTest, Scores
from fer_vit.evaluation.scores import have_votes, score_faces
from fer_vit.geometry import Array, IntArray

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


def _mean(values: Array, units: IntArray, scale: Scale = "number") -> FaceEstimate:
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
        if accuracy.num_faces:
            results[name] = Group(accuracy.num_faces, {"accuracy": accuracy})
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

    member = np.column_stack([known_group_of == name for name in groups]).astype(float)  # (K, G)
    differences, p_values = group_tests(known, member)
    tested = {}
    for name, difference, p in zip(groups, differences, p_values, strict=True):
        tested[name] = replace(groups[name], test=GroupTest(difference, p))
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


def group_tests(faces: EvaluatedFaces, member: Array) -> tuple[list[FaceEstimate], list[float]]:
    """Returns the accuracy of each group minus the accuracy of all other faces, and p-values.

    The test is Fisher's exact test. Where several faces are of one person, the p-value is at least
    the p-value of a t test over persons. It is then 1 if one side has only correct or only wrong
    faces, and either side has no interval. P-values are corrected for the number of tests.

    Args:
        faces: N faces with labels and predictions.
        member: Whether each face is in each group (N, G): 1 or 0.
    """
    correct = faces.correct[:, None].astype(float)  # (N, 1)
    groups = member.shape[1]

    def differences(sums: Sums) -> dict[str, Array]:
        hits, size = sums["hits"], sums["size"]  # (..., G)
        with np.errstate(invalid="ignore"):  # a resample may have no face of a group
            inside = hits / size
            outside = (sums["all hits"] - hits) / (sums["all faces"] - size)
        return {str(group): (inside - outside)[..., group] for group in range(groups)}

    values = {
        "hits": correct * member,
        "size": member,
        "all hits": correct,
        "all faces": np.ones_like(correct),
    }
    intervals = list(score_intervals(values, differences, faces.units).values())
    hits = np.where(member > 0, correct, np.nan)  # (N, G)
    misses = np.where(member > 0, np.nan, correct)
    group_accuracies = mean_intervals(hits, faces.units, "share")
    other_accuracies = mean_intervals(misses, faces.units, "share")
    num_units = len(np.unique(faces.units))
    errors: list[float | None] = [
        difference_error(correct[:, 0], group, faces.units) for group in member.T
    ]
    for index, (inside, outside) in enumerate(zip(group_accuracies, other_accuracies, strict=True)):
        if inside.mean in (0, 1) or outside.mean in (0, 1):
            intervals[index] = hybrid_difference(inside, outside)
            errors[index] = half_width_error(intervals[index], num_units)

    p_values = [_fisher_p(correct[:, 0], group) for group in member.T]
    if faces.clustered:  # faces of a person are dependent: Fisher's p alone would be too small
        for index, (interval, error) in enumerate(zip(intervals, errors, strict=True)):
            if interval.mean is None or error is None:
                p_values[index] = 1.0  # the error over persons is unknown
            else:
                p_values[index] = max(p_values[index], t_p(interval.mean, error, num_units))
    complementary = groups == 2 and member.any(1).all()  # two tests of the same hypothesis
    if not complementary:
        p_values = holm(p_values)
    return intervals, p_values


def difference_error(correct: Array, group: Array, units: IntArray) -> float:
    """Returns the standard error, over units, of the accuracy in a group minus the rest's.

    Args:
        correct: Whether each prediction is correct (N,): 1 or 0.
        group: Whether each face is in the group (N,): 1 or 0.
        units: The person or photo of each face (N,).
    """
    outside = 1 - group
    hits = correct @ group / group.sum()
    others = correct @ outside / outside.sum()
    influences = group * (correct - hits) / group.sum()
    influences -= outside * (correct - others) / outside.sum()
    return standard_error(influences, units)


def _fisher_p(correct: Array, group: Array) -> float:
    """Returns the p-value of Fisher's exact test; arguments as for `difference_error`."""
    table = crosstab(correct, group, levels=((0, 1), (0, 1))).count  # (2, 2)
    return float(fisher_exact(table).pvalue)
