"""Scores of predictions with their intervals: over all faces, over groups, and of one model against another.

A score is a function of sums over faces, and a resample is how often each face was drawn, so that 2,000 resamples of
all scores are one matrix product. Intervals are the percentile bootstrap of Efron & Tibshirani (1993). Where all faces
agree, all resamples do, so fractions of 0 and 1 have the bounds of Clopper & Pearson (1934) instead.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest, fisher_exact, norm
from scipy.stats.contingency import crosstab

from fer_vit.data.schema import VOTES
from fer_vit.evaluate.faces import MOST_TURNED, UNALTERED, Faces
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.report.table import Interval

RESAMPLES = 2000  # bootstrap resamples
BINS = 15  # bins of the calibration error


def score_intervals(
    values: Array, score: Callable[[Array], Mapping[str, Array]], units: IntArray | None = None
) -> dict[str, Interval]:
    """Returns results that are functions of sums over N faces, with their intervals.

    `values` (N, M) are what each face adds to the sums; `score` returns results (...), or NaN, of sums (..., M).
    `units` (N,), counted from 0, are the persons or photos that faces belong to. All faces of a unit are drawn
    together, since they are similar.
    """
    sums, drawn = values, dict[str, Array]()
    if units is not None:
        sums = np.zeros((units.max() + 1, values.shape[1]))
        np.add.at(sums, units, values)
    if (count := len(sums)) > 1:
        random, chance = np.random.default_rng(0), np.full(count, 1 / count)
        # 100 resamples at once, to save memory
        draws = (
            random.multinomial(count, chance, 100).astype(float) for _ in range(0, RESAMPLES, 100)
        )
        drawn |= score(np.concatenate([draw @ sums for draw in draws]))
    results = {}
    for name, value in score(values.sum(0)).items():
        mean = float(value) if np.isfinite(value) else None
        low, high = (
            (None, None)
            if mean is None or not drawn
            else np.nanpercentile(drawn[name], [2.5, 97.5]).tolist()
        )
        results[name] = Interval(mean=mean, low=low, high=high, faces=len(values))
    return results


def mean_intervals(
    values: Array, units: IntArray | None = None, binary: bool = False
) -> list[Interval]:
    """Returns the means of values (N, M), without NaN, over N faces with intervals; `binary`: each value is 0 or 1."""
    present = ~np.isnan(values)

    def means(sums: Array) -> dict[str, Array]:
        total, count = np.split(sums, 2, axis=-1)
        mean = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
        return {str(index): mean[..., index] for index in range(values.shape[1])}

    found = score_intervals(np.hstack([np.where(present, values, 0.0), present]), means, units)
    return [
        bound(one, member, units, binary)
        for one, member in zip(found.values(), present.T, strict=True)
    ]


def bound(
    one: Interval, member: Mask, units: IntArray | None = None, binary: bool = True
) -> Interval:
    """Returns a result of the faces in `member`: no interval for one unit, Clopper-Pearson's for `binary` 0 or 1."""
    count = (
        int(member.sum()) if units is None else len(np.unique(units[member]))
    )  # of persons or images
    low, high = one["low"], one["high"]
    if count < 2:
        low = high = None
    elif binary and low is not None and one["mean"] in (0, 1):
        low, high = (0.025 ** (1 / count), 1.0) if one["mean"] else (0.0, 1 - 0.025 ** (1 / count))
    return Interval(mean=one["mean"], low=low, high=high, faces=int(member.sum()))


def face_sums(probabilities: Array, targets: Array) -> Array:
    """Returns what each face adds to the sums of `scores` (N, 3 C + 18); both inputs are (N, C)."""
    classes = np.eye(targets.shape[1])
    truth, guess = classes[targets.argmax(1)], classes[probabilities.argmax(1)]
    confidence, correct = probabilities.max(1), (truth * guess).sum(1)
    bins = np.eye(BINS)[np.ceil(confidence * BINS).astype(int).clip(1, BINS) - 1]
    annotators = np.column_stack([(targets * guess).sum(1), (targets**2).sum(1)])
    if not ((targets > 0) & (targets < 1)).any():
        annotators[:] = np.nan  # labels, not votes
    loss = face_losses(probabilities, targets)[:, None]
    return np.hstack(
        [truth, guess, truth * guess, bins * (confidence - correct)[:, None], loss, annotators]
    )


def face_losses(probabilities: Array, targets: Array) -> Array:
    """Returns the cross-entropy of each face (N,)."""
    return np.asarray(-(targets * np.log(probabilities.clip(1e-12))).sum(1))


def scores(sums: Array, labels: Sequence[str]) -> dict[str, Array]:
    """Returns every score (...) of sums (..., 3 C + 18) over faces.

    Accuracy; macro F1 and UAR, the mean recall, without classes that do not occur; expected calibration error in 15
    bins; cross-entropy against the targets; with votes, how often the model, and a second annotator, agree with an
    annotator drawn by the targets (with replacement: two of ten different people agree up to 6 points less); and the
    recall of every class.
    """
    classes = len(labels)
    truth, guess, hits, bins, rest = np.split(
        sums, np.cumsum([classes, classes, classes, BINS]), axis=-1
    )
    faces = truth.sum(-1)
    with np.errstate(invalid="ignore"):
        f1, recall = 2 * hits / (truth + guess), hits / truth
    return {
        "accuracy": hits.sum(-1) / faces,
        "macro F1": np.nanmean(f1, -1),
        "UAR": np.nanmean(recall, -1),
        "calibration error": np.abs(bins).sum(-1) / faces,
        "cross-entropy": rest[..., 0] / faces,
        "agreement with an annotator": rest[..., 1] / faces,
        "agreement of two annotators": rest[..., 2] / faces,
        **{f"recall of {label}": recall[..., index] for index, label in enumerate(labels)},
    }


def score_faces(
    probabilities: Array,
    targets: Array,
    labels: Sequence[str],
    units: IntArray | None = None,
    minus: Array | None = None,
) -> dict[str, Interval]:
    """Returns the scores of N faces with intervals, less the scores of another model with probabilities `minus`."""
    sums = [face_sums(one, targets) for one in (probabilities, minus) if one is not None]

    def results(sums_of: Array) -> dict[str, Array]:
        first, *others = (scores(part, labels) for part in np.split(sums_of, len(sums), axis=-1))
        return {name: value - sum(other[name] for other in others) for name, value in first.items()}

    found = score_intervals(np.hstack(sums), results, units)
    counted = dict.fromkeys(
        ("accuracy", "macro F1", "UAR"), np.ones(len(targets), bool)
    )  # all are 0 or 1 if one is
    counted |= {
        f"recall of {label}": targets.argmax(1) == index for index, label in enumerate(labels)
    }
    return found | {
        name: bound(found[name], member, units, minus is None) for name, member in counted.items()
    }


def confusion_matrix(probabilities: Array, targets: Array) -> IntArray:
    """Counts faces (C, C), a row per true class, a column per predicted one."""
    classes = targets.shape[1]
    cells = targets.argmax(1) * classes + probabilities.argmax(1)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def normal_p(difference: Interval) -> float:
    """Returns the p-value of no difference by a normal test with the error of the 95 % interval; 1 without one."""
    mean, low, high = (difference[key] for key in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return 1.0
    return float(2 * norm.sf(abs(mean) / max((high - low) / (2 * norm.ppf(0.975)), 1e-12)))


def suspect_labels(probabilities: Array, targets: Array) -> IntArray:
    """Returns the faces whose label is likely wrong, the likeliest first, as pairs (face, better class) (M, 2).

    Confident learning (Northcutt et al. 2021, arXiv:1911.00068): a class is likely for a face that has at least the
    mean probability of the faces labelled with it. The model must not have been trained on these faces.
    """
    label = targets.argmax(1)
    sizes = np.bincount(label, minlength=targets.shape[1])
    mean = np.bincount(label, probabilities[np.arange(len(label)), label], len(sizes))
    threshold = np.divide(mean, sizes, out=np.full(len(sizes), np.inf), where=sizes > 0)
    likely = np.where(probabilities >= threshold, probabilities, -1.0)
    better = likely.argmax(1)
    wrong = np.flatnonzero((likely.max(1) >= 0) & (better != label))
    margin = probabilities[wrong, label[wrong]] - probabilities[wrong, better[wrong]]
    order = wrong[np.argsort(margin, kind="stable")]
    return np.column_stack([order, better[order]])


FEW = 30  # groups of fewer faces, or persons where these are known, are counted but not compared
FOUND = "face found"
LEAST_VOTES, MOST_VOTES = 6, 10
"""The range of the rows of the accuracy by votes; fewer and more votes are counted in the first and last row."""


def describe(faces: Faces) -> dict[str, Interval]:
    """Returns how many faces were found, or are ambiguous; and scores, or without labels confidence and labels."""
    photos = faces.take(
        np.unique(faces.paths.astype(str), return_index=True)[1]
    )  # each counts once
    results = {
        FOUND: mean_intervals(photos.detected[:, None].astype(float), photos.units, binary=True)[0]
    }
    known = faces.take(faces.predicted)
    if not len(known.paths):
        return results
    values = {} if np.isnan(known.ambiguous).all() else {"ambiguous": known.ambiguous}
    if values and known.targets is not None:
        values["accuracy where unambiguous"] = np.where(known.ambiguous == 0, known.correct, np.nan)
    for name, column in values.items():
        (results[name],) = mean_intervals(column[:, None], known.units, binary=True)
    if known.targets is not None:
        return results | score_faces(known.probabilities, known.targets, known.labels, known.units)
    (results["confidence"],) = mean_intervals(known.probabilities.max(1)[:, None], known.units)
    guess = np.eye(len(known.labels))[known.probabilities.argmax(1)]
    return results | dict(
        zip(known.labels, mean_intervals(guess, known.units, binary=True), strict=True)
    )


def evaluate_faces(
    faces: Faces, by: Sequence[str] = (), other: Array | None = None
) -> dict[str, Any]:
    """Describes all faces, all but near-duplicates of train, and groups; compares with a model, `other` (N, C).

    With labels also `labels`, the `confusion` (C, C) and the `likely wrong labels`.
    """
    results: dict[str, Any] = {"all": describe(faces)}
    marks = [
        str(value).lower() in ("true", "1") for value in faces.columns.get("near_duplicate", [])
    ]
    if any(marks):
        results["near-duplicates of train"] = sum(marks)
    if any(marks) and not all(marks):
        results["without near-duplicates"] = describe(faces.take(~np.array(marks)))
    if by:
        results["by"] = {column: compare_groups(faces, column) for column in by}
    if other is not None:
        results["comparison"] = compare_models(faces, other)
    if faces.targets is None:
        return results

    known = faces.take(faces.predicted)
    if votes := accuracy_by_votes(known):
        results["by votes"] = votes
    assert known.targets is not None
    truth = known.targets.argmax(1)
    results["labels"] = faces.labels
    results["confusion"] = confusion_matrix(known.probabilities, known.targets).tolist()
    results["likely wrong labels"] = [
        {
            "path": known.paths[row],
            "label": known.labels[truth[row]],
            "better": known.labels[label],
        }
        for row, label in suspect_labels(known.probabilities, known.targets).tolist()
    ]
    return results


def accuracy_by_votes(faces: Faces) -> dict[str, Any]:
    """Returns faces and accuracy by the votes for the label (column `label_votes`); {} without the column."""
    votes = faces.columns.get(VOTES)
    if votes is None:
        return {}
    numbers = [*range(MOST_VOTES, LEAST_VOTES - 1, -1)]
    counts = np.array([float(value) if str(value).isdecimal() else np.nan for value in votes])
    member = counts.clip(LEAST_VOTES, MOST_VOTES)[:, None] == numbers
    accuracies = mean_intervals(
        np.where(member, faces.correct[:, None], np.nan), faces.units, binary=True
    )
    return {
        f"{number}{' or fewer' * (number == LEAST_VOTES)}": {
            "faces": accuracy["faces"],
            "accuracy": accuracy,
        }
        for number, accuracy in zip(numbers, accuracies, strict=True)
        if accuracy["faces"]
    }


def compare_groups(faces: Faces, column: str) -> dict[str, Any]:
    """Describes the groups of a column and, with labels, compares their accuracy.

    Returns:
        `groups`: the number of faces and the results of `describe`, by name; with labels the `difference` and `p` of
        `group_tests`. `few`: the sizes of groups that are too small to compare. `unknown`: the number of faces without
        a value. With labels also `worst` and `best` by accuracy, and the `gap` between them.
    """
    names = np.array(["" if value is None else str(value) for value in faces.columns[column]])
    known = faces.take((names != "") & faces.predicted)
    values = names[(names != "") & faces.predicted]
    sizes = Counter(names[names != ""].tolist())
    large = [name for name in sorted(sizes) if len(np.unique(known.units[values == name])) >= FEW]
    results: dict[str, Any] = {
        "groups": {
            name: {"faces": sizes[name], **describe(faces.take(names == name))} for name in large
        },
        "few": {name: sizes[name] for name in sorted(sizes) if name not in large},
        "unknown": int((names == "").sum()),
    }
    if faces.targets is not None and len(large) > 1:
        accuracy = {name: results["groups"][name]["accuracy"]["mean"] for name in large}
        worst, *_, best = sorted(large, key=accuracy.__getitem__)
        tests = group_tests(
            known, np.column_stack([values == name for name in large]).astype(float)
        )
        for name, difference, p in zip(large, *tests, strict=True):
            results["groups"][name] |= {"difference": difference, "p": p}
        # No interval: worst and best are chosen by the same data, which biases the gap upwards.
        gap = Interval(
            mean=accuracy[best] - accuracy[worst], low=None, high=None, faces=len(known.paths)
        )
        results |= {"worst": worst, "best": best, "gap": gap}
    return results


def group_tests(faces: Faces, member: Array) -> tuple[list[Interval], list[float]]:
    """Returns the difference of each group's accuracy from the accuracy of all others, and its p-value.

    `faces` are N faces with labels and predictions; `member` (N, G) is 1 for the faces in each group, else 0. The
    p-value is corrected for several tests: Fisher's exact test, or, where several faces are of one person, a normal
    test with the error of the bootstrap over persons.
    """
    correct, groups = faces.correct[:, None].astype(float), member.shape[1]

    def differences(sums: Array) -> dict[str, Array]:
        hits, number, all_hits, all_faces = np.split(sums, np.cumsum([groups, groups, 1]), axis=-1)
        with np.errstate(invalid="ignore"):
            inside, outside = hits / number, (all_hits - hits) / (all_faces - number)
        return {str(group): (inside - outside)[..., group] for group in range(groups)}

    counts = np.hstack([correct * member, member, correct, np.ones_like(correct)])
    intervals = [*score_intervals(counts, differences, faces.units).values()]
    tables = (crosstab(correct[:, 0], group, levels=((0, 1), (0, 1))).count for group in member.T)
    p = (
        [*map(normal_p, intervals)]
        if faces.clustered
        else [float(fisher_exact(one).pvalue) for one in tables]
    )
    one_test = groups == 2 and member.any(1).all()  # the groups are complements
    return intervals, p if one_test else holm(p)


def holm(p: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests: Holm, "A simple sequentially rejective multiple test procedure", 1979."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(
        np.arange(len(p), 0, -1) * np.asarray(p, float)[order]
    ).clip(max=1)
    return corrected.tolist()


def compare_models(faces: Faces, other: Array) -> dict[str, Any]:
    """Compares a model with another one's probabilities (N, C), NaN without a face, by McNemar's exact test."""
    both = faces.predicted & np.isfinite(other[:, 0])
    faces, other = faces.take(both), other[both]
    assert faces.targets is not None
    truth = (faces.targets, faces.labels, faces.units)
    difference = score_faces(faces.probabilities, *truth, minus=other)
    also = other.argmax(1) == faces.targets.argmax(1)
    first, second = int((faces.correct & ~also).sum()), int((also & ~faces.correct).sum())
    p = float(binomtest(first, first + second).pvalue) if first + second else 1.0
    if (
        faces.clustered
    ):  # faces of one person are dependent, so McNemar's p alone would be too small
        p = max(p, normal_p(difference["accuracy"]))
    return {
        "faces": int(both.sum()),
        "other": score_faces(other, *truth),
        "difference": difference,
        "McNemar": {"first": first, "second": second, "p": p},
    }


def summarize_robustness(
    hits: dict[str, Array], units: IntArray | None = None
) -> dict[str, dict[str, Any]]:
    """Returns by corruption the number of faces, the accuracy, and the difference from the unaltered faces."""
    accuracies = mean_intervals(np.column_stack([*hits.values()]), units, binary=True)
    differences = mean_intervals(
        np.column_stack([hit - hits[UNALTERED] for hit in hits.values()]), units
    )
    return {
        name: {"faces": accuracy["faces"], "accuracy": accuracy}
        | ({} if name in (UNALTERED, MOST_TURNED) else {"difference": difference})
        for name, accuracy, difference in zip(hits, accuracies, differences, strict=True)
    }
