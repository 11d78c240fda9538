"""Scores of predictions with their intervals, and of one model against another; NumPy and SciPy.

A score is a function of sums over faces, so that 2,000 resamples of all scores are one matrix product. Intervals are
the percentile bootstrap of Efron & Tibshirani (1993). Where all faces agree, all resamples do, so fractions of 0 and 1
have the bounds of Clopper & Pearson (1934) instead.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from fer_vit.geometry import Array
from fer_vit.report.table import Interval

RESAMPLES = 2000
"""Bootstrap resamples."""
BINS = 15
"""Bins of the calibration error."""


def resampled_sums(values: Array, units: NDArray[np.int64] | None = None) -> Array:
    """Sums the values (N, M) of N faces in bootstrap resamples; returns (RESAMPLES, M).

    A resample is stored as how often each face was drawn, so all sums are one matrix product, and hundreds of values
    take no longer than one. `units` (N,), counted from 0, are the persons or photos that faces belong to. All faces of
    a unit are drawn together, since they are similar.
    """
    if units is not None:
        each, values = values, np.zeros((units.max() + 1, values.shape[1]))
        np.add.at(values, units, each)
    random, chance = np.random.default_rng(0), np.full(len(values), 1 / len(values))
    # 100 resamples at once, to save memory
    draws = (random.multinomial(len(values), chance, 100).astype(float) for _ in range(0, RESAMPLES, 100))
    return np.concatenate([drawn @ values for drawn in draws])


def score_intervals(
    values: Array, score: Callable[[Array], Mapping[str, Array]], units: NDArray[np.int64] | None = None
) -> dict[str, Interval]:
    """Returns results that are functions of sums over N faces, with their intervals.

    Args:
        values: What each face adds to the sums (N, M).
        score: The results (...) by name, NaN where there is none, of sums (..., M).
        units: See `resampled_sums`.
    """
    drawn = score(resampled_sums(values, units)) if count_units(np.ones(len(values), bool), units) > 1 else {}
    results = {}
    for name, value in score(values.sum(0)).items():
        mean = float(value) if np.isfinite(value) else None
        low, high = (None, None) if mean is None or not drawn else np.nanpercentile(drawn[name], [2.5, 97.5]).tolist()
        results[name] = Interval(mean=mean, low=low, high=high, faces=len(values))
    return results


def mean_intervals(values: Array, units: NDArray[np.int64] | None = None, binary: bool = False) -> list[Interval]:
    """Returns the mean of each of M values over N faces (N, M) and its interval; values that are NaN do not count.

    `binary`: values are 0 or 1; means of exactly 0 or 1 get Clopper-Pearson bounds.
    """
    present = ~np.isnan(values)

    def means(sums: Array) -> dict[str, Array]:
        total, count = np.split(sums, 2, axis=-1)
        mean = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
        return {str(index): mean[..., index] for index in range(values.shape[1])}

    found = score_intervals(np.hstack([np.where(present, values, 0.0), present]), means, units)
    return [bound(one, member, units, binary) for one, member in zip(found.values(), present.T, strict=True)]


def bound(
    one: Interval, member: NDArray[np.bool_], units: NDArray[np.int64] | None = None, binary: bool = True
) -> Interval:
    """Returns a result of the faces in `member` (N,): without an interval if they are of one person or image.

    `binary`: exactly 0 or 1 gets the bounds of Clopper & Pearson.
    """
    count, (mean, low, high) = count_units(member, units), (one["mean"], one["low"], one["high"])
    if count < 2:
        low = high = None
    elif binary and low is not None and mean in (0, 1):
        low, high = (0.025 ** (1 / count), 1.0) if mean else (0.0, 1 - 0.025 ** (1 / count))
    return Interval(mean=mean, low=low, high=high, faces=int(member.sum()))


def count_units(member: NDArray[np.bool_], units: NDArray[np.int64] | None) -> int:
    """Counts the persons or images of the faces in `member`."""
    return int(member.sum()) if units is None else len(np.unique(units[member]))


def face_sums(probabilities: Array, targets: Array) -> Array:
    """Returns the summands of each face for the sums that `scores` reads (N, 3 C + 18).

    `probabilities` and `targets` (fractions of votes) are (N, C); the true class has most votes.
    """
    classes = np.eye(targets.shape[1])
    truth, guess = classes[targets.argmax(1)], classes[probabilities.argmax(1)]
    confidence, correct = probabilities.max(1), (truth * guess).sum(1)
    bins = np.eye(BINS)[np.ceil(confidence * BINS).astype(int).clip(1, BINS) - 1]
    annotators = np.column_stack([(targets * guess).sum(1), (targets**2).sum(1)])
    if not ((targets > 0) & (targets < 1)).any():
        annotators[:] = np.nan  # labels, not votes
    loss = face_losses(probabilities, targets)[:, None]
    return np.hstack([truth, guess, truth * guess, bins * (confidence - correct)[:, None], loss, annotators])


def face_losses(probabilities: Array, targets: Array) -> Array:
    """Returns the cross-entropy of each face (N,)."""
    losses: Array = -(targets * np.log(probabilities.clip(1e-12))).sum(1)
    return losses


def scores(sums: Array, labels: Sequence[str]) -> dict[str, Array]:
    """Returns every score (...) of sums (..., 3 C + 18) over faces.

    Accuracy; macro F1 and UAR, the mean recall, without classes that do not occur; expected calibration error in 15
    bins; cross-entropy against the targets; with votes, how often the model, and a second annotator, agree with an
    annotator drawn by the targets (with replacement: two of ten different people agree up to 6 points less); and the
    recall of every class.
    """
    classes = len(labels)
    truth, guess, hits, bins, rest = np.split(sums, np.cumsum([classes, classes, classes, BINS]), axis=-1)
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
    probabilities: Array, targets: Array, labels: Sequence[str], units: NDArray[np.int64] | None = None
) -> dict[str, Interval]:
    """Returns the scores of N faces with their intervals."""
    results = score_intervals(face_sums(probabilities, targets), lambda sums: scores(sums, labels), units)
    counted = dict.fromkeys(("accuracy", "macro F1", "UAR"), np.ones(len(targets), bool))  # all are 0 or 1 if one is
    counted |= recall_masks(targets, labels)
    return results | {name: bound(results[name], member, units) for name, member in counted.items()}


def recall_masks(targets: Array, labels: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Returns by the name of each class's recall the faces that count in it (N,)."""
    return {f"recall of {label}": targets.argmax(1) == index for index, label in enumerate(labels)}


def confusion_matrix(probabilities: Array, targets: Array) -> NDArray[np.int64]:
    """Counts faces (C, C), a row per true class, a column per predicted one."""
    classes = targets.shape[1]
    cells = targets.argmax(1) * classes + probabilities.argmax(1)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def compare_scores(
    first: Array, second: Array, targets: Array, labels: Sequence[str], units: NDArray[np.int64] | None = None
) -> dict[str, Interval]:
    """Returns the difference of every score, first minus second, with its interval: both over the same resamples."""

    def difference(sums: Array) -> dict[str, Array]:
        one, other = (scores(half, labels) for half in np.split(sums, 2, axis=-1))
        return {name: one[name] - other[name] for name in one}

    results = score_intervals(np.hstack([face_sums(first, targets), face_sums(second, targets)]), difference, units)
    counted = recall_masks(targets, labels)
    return results | {name: bound(results[name], member, units, binary=False) for name, member in counted.items()}


def mcnemar(correct: NDArray[np.bool_], other: NDArray[np.bool_]) -> dict[str, float]:
    """Counts the faces that only the first and only the second model predicts correctly; McNemar's exact p-value."""
    first, second = int((correct & ~other).sum()), int((other & ~correct).sum())
    p = float(binomtest(first, first + second).pvalue) if first + second else 1.0
    return {"first": first, "second": second, "p": p}


def normal_p(difference: Interval) -> float:
    """Returns the p-value of no difference by a normal test with the error of the 95 % interval; 1 without one."""
    mean, low, high = (difference[key] for key in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return 1.0
    return float(2 * norm.sf(abs(mean) / max((high - low) / (2 * norm.ppf(0.975)), 1e-12)))


def suspect_labels(probabilities: Array, targets: Array) -> NDArray[np.int64]:
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
