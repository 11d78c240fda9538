"""Scores of predictions with their intervals: of all faces, of groups, and of two models.

A score is a function of sums over faces; `inference` makes its interval.

Shapes: N faces, C classes, R resamples, G groups.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest, fisher_exact
from scipy.stats.contingency import crosstab

from fer_vit.data.schema import VOTES
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.inference import (
    Scale,
    Sums,
    bound,
    has_no_width,
    holm,
    hybrid_difference,
    mean_intervals,
    paired_p,
    score_intervals,
    t_p,
)
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED
from fer_vit.geometry import Array, IntArray
from fer_vit.report.table import Interval

BINS = 15  # bins of the calibration error


def have_votes(targets: Array) -> bool:
    """Returns whether targets (N, C) are shares of votes, not labels alone."""
    return bool(((targets > 0) & (targets < 1)).any())


def contributions(
    probabilities: Array, targets: Array, votes: bool | None = None
) -> dict[str, Array]:
    """Returns what each face adds to the sums of `scores` (N, K); both inputs are (N, C).

    `votes`: the targets are shares of votes, even if they are unanimous; None: see `have_votes`.

    `truth`, `guess` and `hits` have a column for each class. `bins`: confidence less correctness in
    the bin of the confidence. `model agrees` and `annotators agree`: the chance that the
    prediction, or a second annotator, agrees with an annotator; NaN for labels without votes.
    """
    one_hot = np.eye(targets.shape[1])
    truth = one_hot[targets.argmax(1)]  # (N, C)
    guess = one_hot[probabilities.argmax(1)]  # (N, C)
    hits = truth * guess  # (N, C)

    confidence = probabilities.max(1)  # (N,)
    index = np.ceil(confidence * BINS).astype(int).clip(1, BINS) - 1
    bins = np.eye(BINS)[index] * (confidence - hits.sum(1))[:, None]  # (N, BINS)

    model_agrees = (targets * guess).sum(1, keepdims=True)  # (N, 1)
    annotators_agree = (targets**2).sum(1, keepdims=True)  # (N, 1)
    if not (have_votes(targets) if votes is None else votes):
        model_agrees = np.full_like(model_agrees, np.nan)
        annotators_agree = np.full_like(annotators_agree, np.nan)
    return {
        "truth": truth,
        "guess": guess,
        "hits": hits,
        "bins": bins,
        "loss": face_losses(probabilities, targets)[:, None],
        "model agrees": model_agrees,
        "annotators agree": annotators_agree,
    }


def face_losses(probabilities: Array, targets: Array) -> Array:
    """Returns the cross-entropy of each face (N,)."""
    return np.asarray(-(targets * np.log(probabilities.clip(1e-12))).sum(1))


RECALL = "recall of "


def recall_name(label: str) -> str:
    """Returns the name of the recall of a class among the scores."""
    return f"{RECALL}{label}"


def is_recall(name: str) -> bool:
    """Returns whether a score is the recall of a class."""
    return name.startswith(RECALL)


def scores(sums: Sums, labels: Sequence[str]) -> dict[str, Array]:
    """Returns every score (...) of the sums of `contributions` over faces.

    Accuracy; macro F1 and UAR, the mean recall, without classes that do not occur; expected
    calibration error in 15 bins; cross-entropy against the targets; with votes, how often the
    model, and a second annotator, agree with an annotator drawn by the targets (with replacement:
    two different annotators of V agree less, by the share of pairs that disagree divided by V - 1);
    and the recall of every class.
    """
    truth, guess, hits = sums["truth"], sums["guess"], sums["hits"]  # (..., C)
    faces = truth.sum(-1)
    with np.errstate(invalid="ignore"):  # classes that do not occur
        f1 = 2 * hits / (truth + guess)
        recall = hits / truth

    results = {
        "accuracy": hits.sum(-1) / faces,
        "macro F1": np.nanmean(f1, -1),
        "UAR": np.nanmean(recall, -1),
        "calibration error": np.abs(sums["bins"]).sum(-1) / faces,
        "cross-entropy": sums["loss"][..., 0] / faces,
        "agreement with an annotator": sums["model agrees"][..., 0] / faces,
        "agreement of two annotators": sums["annotators agree"][..., 0] / faces,
    }
    for index, label in enumerate(labels):
        results[recall_name(label)] = recall[..., index]
    return results


def score_once(probabilities: Array, targets: Array, labels: Sequence[str]) -> dict[str, Array]:
    """Returns the scores of N faces without intervals; both inputs are (N, C)."""
    values = contributions(probabilities, targets)
    return scores({name: column.sum(0) for name, column in values.items()}, labels)


def score_faces(
    probabilities: Array,
    targets: Array,
    labels: Sequence[str],
    units: IntArray | None = None,
    minus: Array | None = None,
    votes: bool | None = None,
) -> dict[str, Interval]:
    """Returns the scores of N faces with intervals, or their differences from a second model's.

    Args:
        probabilities: Of the model (N, C).
        targets: The fraction of the votes (N, C).
        labels: The names of the classes.
        units: The persons or photos, as for `score_intervals`.
        minus: The probabilities of a second model (N, C), whose scores are subtracted.
        votes: As for `contributions`.
    """
    values = contributions(probabilities, targets, votes)
    names = list(values)
    if minus is not None:
        for name, column in contributions(minus, targets, votes).items():
            values[f"minus {name}"] = column

    def results(sums: Sums) -> dict[str, Array]:
        result = scores(sums, labels)
        if minus is None:
            return result
        subtracted = scores({name: sums[f"minus {name}"] for name in names}, labels)
        return {name: value - subtracted[name] for name, value in result.items()}

    intervals = score_intervals(values, results, units)

    # shares of faces that all agree need other bounds
    scale: Scale = "share" if minus is None else "difference"
    label = targets.argmax(1)  # (N,)
    every = np.ones(len(targets), bool)
    intervals["accuracy"] = bound(intervals["accuracy"], every, units, scale)
    for index, name in enumerate(labels):
        recall = recall_name(name)
        intervals[recall] = bound(intervals[recall], label == index, units, scale)

    # Each class counts equally in these, so that the class with the fewest faces limits what a
    # result without exceptions shows.
    sizes = np.bincount(label)
    rarest = label == np.where(sizes > 0, sizes, len(label) + 1).argmin()
    for name in ("macro F1", "UAR"):
        member = rarest if has_no_width(intervals[name]) else every
        intervals[name] = bound(intervals[name], member, units, scale)
        intervals[name]["faces"] = len(targets)
    return intervals


def confusion_matrix(probabilities: Array, targets: Array) -> IntArray:
    """Counts faces (C, C), a row per true class, a column per predicted one."""
    classes = targets.shape[1]
    cells = targets.argmax(1) * classes + probabilities.argmax(1)  # (N,)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def suspect_labels(probabilities: Array, targets: Array) -> IntArray:
    """Returns the faces whose label is likely wrong, the likeliest first, as pairs (M, 2).

    A pair is the face and its better class. Confident learning (Northcutt et al. 2021,
    arXiv:1911.00068): a class is likely for a face that has at least the mean probability of the
    faces labelled with it. The model must not have been trained on these faces.
    """
    label = targets.argmax(1)  # (N,)
    sizes = np.bincount(label, minlength=targets.shape[1])  # (C,)
    total = np.bincount(label, probabilities[np.arange(len(label)), label], len(sizes))
    never = np.full(len(sizes), np.inf)
    threshold = np.divide(total, sizes, out=never, where=sizes > 0)  # (C,)

    likely = np.where(probabilities >= threshold, probabilities, -1.0)  # (N, C)
    better = likely.argmax(1)  # (N,)
    wrong = np.flatnonzero((likely.max(1) >= 0) & (better != label))  # (M,)
    margin = probabilities[wrong, label[wrong]] - probabilities[wrong, better[wrong]]
    order = wrong[np.argsort(margin, kind="stable")]
    return np.column_stack([order, better[order]])


FEW = 30  # groups of fewer faces, or persons where these are known, are counted but not compared
FOUND = "face found"
LEAST_VOTES = 6  # the row of faces with this many votes, or fewer
MOST_VOTES = 10  # the row of faces with this many votes, or more
VOTES_NAMES = {LEAST_VOTES: f"{LEAST_VOTES} or fewer", MOST_VOTES: f"{MOST_VOTES} or more"}


def describe_results(faces: EvaluatedFaces, votes: bool | None = None) -> dict[str, Interval]:
    """Returns how many faces were found or are ambiguous, and scores.

    Without labels: confidence and the share of each expression instead of scores. `votes`: as for
    `contributions`, of all faces if these are a group.
    """
    # a photo counts once, however many faces it has
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


def _mean(values: Array, units: IntArray, scale: Scale = "number") -> Interval:
    """Returns the mean of one column (N,), without NaN, with its interval."""
    return mean_intervals(values[:, None], units, scale)[0]


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


def accuracy_by_votes(faces: EvaluatedFaces) -> dict[str, Any]:
    """Returns faces and accuracy by the votes for the label (column `label_votes`).

    The result is empty without this column.
    """
    votes = faces.columns.get(VOTES)
    if votes is None:
        return {}
    counts = np.array([_count(cell) for cell in votes])  # (N,)
    numbers = range(MOST_VOTES, LEAST_VOTES - 1, -1)
    member = counts.clip(LEAST_VOTES, MOST_VOTES)[:, None] == np.array(numbers)  # (N, G)
    hits = np.where(member, faces.correct[:, None], np.nan)  # (N, G)

    results = {}
    accuracies = mean_intervals(hits, faces.units, scale="share")
    for number, accuracy in zip(numbers, accuracies, strict=True):
        name = VOTES_NAMES.get(number, str(number))
        if accuracy["faces"]:
            results[name] = {"faces": accuracy["faces"], "accuracy": accuracy}
    return results


def _count(cell: object) -> float:
    """Returns the number of votes in a cell, which is text or a number; NaN if it is none."""
    try:
        count = float(str(cell))
    except ValueError:
        return np.nan
    return count if count.is_integer() and count >= 0 else np.nan


def compare_groups(faces: EvaluatedFaces, column: str) -> dict[str, Any]:
    """Describes the groups of a column and, with labels, compares their accuracy.

    Returns:
        `groups`: the number of faces and results of `describe_results`, by name; with labels the
        `difference` and `p` of `group_tests`. `few`: the sizes of groups that are too small to
        compare. `unknown`: the number of faces without a value. With labels also `worst` and `best`
        by accuracy, and the `gap` between them.
    """
    cells = faces.columns[column]
    names = np.array(["" if cell is None else str(cell) for cell in cells])  # (N,)
    known = faces.take((names != "") & faces.predicted)
    values = names[(names != "") & faces.predicted]
    sizes = Counter(values.tolist())  # photos without a face count for `FOUND` alone

    votes = None if faces.targets is None else have_votes(faces.targets)
    groups: dict[str, dict[str, Any]] = {}
    few = {}
    for name in np.unique(names[names != ""]).tolist():
        persons = len(np.unique(known.units[values == name]))
        if persons >= FEW:
            groups[name] = {
                "faces": sizes[name],
                **describe_results(faces.take(names == name), votes),
            }
        else:
            few[name] = sizes[name]
    unknown = int(((names == "") & faces.predicted).sum())
    results: dict[str, Any] = {"groups": groups, "few": few, "unknown": unknown}
    if faces.targets is None or len(groups) < 2:
        return results

    member = np.column_stack([values == name for name in groups]).astype(float)  # (N, G)
    differences, p_values = group_tests(known, member)
    for group, difference, p in zip(groups.values(), differences, p_values, strict=True):
        group["difference"] = difference
        group["p"] = p

    accuracy = {name: group["accuracy"]["mean"] for name, group in groups.items()}
    ranking = sorted(groups, key=accuracy.__getitem__)
    worst = ranking[0]
    best = ranking[-1]
    # No interval: worst and best are chosen by the same data, which biases the gap upwards.
    gap = Interval(
        mean=accuracy[best] - accuracy[worst], low=None, high=None, faces=len(known.paths)
    )
    return results | {"worst": worst, "best": best, "gap": gap}


def group_tests(faces: EvaluatedFaces, member: Array) -> tuple[list[Interval], list[float]]:
    """Returns the difference of each group's accuracy from the rest's, and its p-value.

    Each p-value is corrected for the number of tests. The test is Fisher's exact test. Where
    several faces are of one person, the p-value is also not below the one of a t test with the
    error of the bootstrap over persons.

    Args:
        faces: N faces with labels and predictions.
        member: 1 for the faces in each group, else 0 (N, G).
    """
    correct = faces.correct[:, None].astype(float)  # (N, 1)
    groups = member.shape[1]

    def differences(sums: Sums) -> dict[str, Array]:
        hits, size = sums["hits"], sums["size"]  # (..., G)
        with np.errstate(invalid="ignore"):  # groups that a resample has no face of
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
    of_groups = mean_intervals(hits, faces.units, "share")
    of_others = mean_intervals(misses, faces.units, "share")
    for place, (inside, outside) in enumerate(zip(of_groups, of_others, strict=True)):
        if inside["mean"] in (0, 1) or outside["mean"] in (0, 1):
            intervals[place] = hybrid_difference(inside, outside)

    p_values = [_fisher_p(correct[:, 0], group) for group in member.T]
    if faces.clustered:  # faces of a person are dependent: Fisher's p alone would be too small
        units = len(np.unique(faces.units))
        for place, interval in enumerate(intervals):
            p_values[place] = max(p_values[place], t_p(interval, units))
    complementary = groups == 2 and member.any(1).all()  # two tests of the same hypothesis
    if not complementary:
        p_values = holm(p_values)
    return intervals, p_values


def _fisher_p(correct: Array, group: Array) -> float:
    """Returns the p-value that being correct (N,) does not depend on being in a group (N,)."""
    table = crosstab(correct, group, levels=((0, 1), (0, 1))).count  # (2, 2)
    return float(fisher_exact(table).pvalue)


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
        results[name] = {"faces": mean["faces"], measure: mean}
        if name not in (UNALTERED, MOST_TURNED):
            results[name]["difference"] = difference
    if others is None:
        return results

    other_columns = np.column_stack([others[name] for name in values])  # (N, corruptions)
    gains = columns - other_columns
    means = mean_intervals(other_columns, units, scale)
    differences = mean_intervals(gains, units, of_changes)
    p_values = holm([paired_p(column, units) for column in gains.T])
    for name, mean, difference, p in zip(values, means, differences, p_values, strict=True):
        results[name]["the other model"] = mean
        results[name]["difference from it"] = difference
        results[name]["p"] = p
    return results
