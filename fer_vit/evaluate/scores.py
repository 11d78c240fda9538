"""Scores of predictions with their intervals, and of one model against another; NumPy and SciPy.

A score is a function of sums over faces, so that 2,000 resamples of all scores are one matrix product.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from fer_vit.geometry import Array
from fer_vit.intervals import Interval, exact, of_several, score_intervals

BINS = 15


def face_sums(probabilities: Array, shares: Array) -> Array:
    """Returns what each face adds to the sums that `scores` reads (N, 3 C + 18).

    `probabilities` and `shares`, of those who labelled, are (N, C); the true class is the one with the largest share.
    """
    classes = np.eye(shares.shape[1])
    truth, guess = classes[shares.argmax(1)], classes[probabilities.argmax(1)]
    confidence, right = probabilities.max(1), (truth * guess).sum(1)
    bins = np.eye(BINS)[np.ceil(confidence * BINS).astype(int).clip(1, BINS) - 1]
    taggers = np.column_stack([(shares * guess).sum(1), (shares**2).sum(1)])
    if not ((shares > 0) & (shares < 1)).any():
        taggers[:] = np.nan  # labels, not votes
    loss = face_losses(probabilities, shares)[:, None]
    return np.hstack([truth, guess, truth * guess, bins * (confidence - right)[:, None], loss, taggers])


def face_losses(probabilities: Array, shares: Array) -> Array:
    """Returns the cross-entropy of each face (N,)."""
    losses: Array = -(shares * np.log(probabilities.clip(1e-12))).sum(1)
    return losses


def scores(sums: Array, labels: Sequence[str]) -> dict[str, Array]:
    """Returns every score (...) of sums (..., 3 C + 18) over faces.

    Accuracy; macro F1 and UAR, the mean recall, without classes that do not occur; expected calibration error in 15
    bins; cross-entropy against the shares; with votes, how often the model, and a second tagger, agree with a tagger
    who is drawn by the shares (with replacement: two of ten different people agree up to 6 points less); and the recall
    of every class.
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
        "agreement with a tagger": rest[..., 1] / faces,
        "agreement of two taggers": rest[..., 2] / faces,
        **{f"recall of {label}": recall[..., index] for index, label in enumerate(labels)},
    }


def scored(
    probabilities: Array, shares: Array, labels: Sequence[str], units: NDArray[np.int64] | None = None
) -> dict[str, Interval]:
    """Returns the scores of N faces with their intervals."""
    found = score_intervals(face_sums(probabilities, shares), partial(scores, labels=labels), units)
    counted = dict.fromkeys(("accuracy", "macro F1", "UAR"), np.ones(len(shares), bool))  # all are 0 or 1 if one is
    counted |= recalled(shares, labels)
    return found | {name: exact(found[name], mine, units) for name, mine in counted.items()}


def recalled(shares: Array, labels: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Returns by the name of each class's recall the faces that count in it (N,)."""
    return {f"recall of {label}": shares.argmax(1) == index for index, label in enumerate(labels)}


def confusion_matrix(probabilities: Array, shares: Array) -> NDArray[np.int64]:
    """Counts faces (C, C), a row per true class, a column per predicted one."""
    classes = shares.shape[1]
    cells = shares.argmax(1) * classes + probabilities.argmax(1)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def compared(
    ours: Array, theirs: Array, shares: Array, labels: Sequence[str], units: NDArray[np.int64] | None = None
) -> dict[str, Interval]:
    """Returns the difference of every score, ours minus theirs, with its interval: both over the same resamples."""

    def difference(sums: Array) -> dict[str, Array]:
        first, second = (scores(half, labels) for half in np.split(sums, 2, axis=-1))
        return {name: first[name] - second[name] for name in first}

    found = score_intervals(np.hstack([face_sums(ours, shares), face_sums(theirs, shares)]), difference, units)
    counted = recalled(shares, labels)
    return found | {name: of_several(found[name], mine, units) for name, mine in counted.items()}


def mcnemar(right: NDArray[np.bool_], also: NDArray[np.bool_]) -> dict[str, float]:
    """Returns how many faces only the first and only the second model names right, and McNemar's exact p-value."""
    first, second = int((right & ~also).sum()), int((also & ~right).sum())
    p = float(binomtest(first, first + second).pvalue) if first + second else 1.0
    return {"first": first, "second": second, "p": p}


def normal(difference: Interval) -> float:
    """Returns the p-value of no difference, whose error is taken from its 95 % interval; 1 without one."""
    mean, low, high = (difference[key] for key in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return 1.0
    return float(2 * norm.sf(abs(mean) / max((high - low) / (2 * norm.ppf(0.975)), 1e-12)))


def suspected(probabilities: Array, shares: Array) -> NDArray[np.int64]:
    """Returns the faces whose label is likely wrong, the likeliest first, as pairs (face, better class) (M, 2).

    Confident learning (Northcutt et al. 2021, arXiv:1911.00068): a class is likely for a face that has at least the
    mean probability of the faces labelled with it. The model must not have learned from these faces.
    """
    label = shares.argmax(1)
    sizes = np.bincount(label, minlength=shares.shape[1])
    mean = np.bincount(label, probabilities[np.arange(len(label)), label], len(sizes))
    threshold = np.divide(mean, sizes, out=np.full(len(sizes), np.inf), where=sizes > 0)
    likely = np.where(probabilities >= threshold, probabilities, -1.0)
    better = likely.argmax(1)
    wrong = np.flatnonzero((likely.max(1) >= 0) & (better != label))
    margin = probabilities[wrong, label[wrong]] - probabilities[wrong, better[wrong]]
    order = wrong[np.argsort(margin, kind="stable")]
    return np.column_stack([order, better[order]])
