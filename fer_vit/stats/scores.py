"""Scores of predictions with intervals, and differences between two models.

A score is a function of sums over faces; `bootstrap` computes its interval.

Shapes: N faces, C classes, K columns.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fer_vit.geometry import Array, IntArray
from fer_vit.stats.bootstrap import Scale, Sums, bound, has_no_width, score_intervals
from fer_vit.stats.estimate import Estimate

CALIBRATION_BINS = 15  # number of bins of the calibration error
AGREEMENTS = ("agreement with an annotator", "agreement of two annotators")


def have_votes(targets: Array) -> bool:
    """Returns whether targets (N, C) are shares of votes, not labels alone."""
    return bool(((targets > 0) & (targets < 1)).any())


def contributions(
    probabilities: Array, targets: Array, votes: bool | None = None
) -> dict[str, Array]:
    """Returns what each face adds to the sums of `scores` (N, K), by name.

    `probabilities` and `targets` are (N, C). `votes` is whether the targets are shares of votes,
    which may be unanimous; None: see `have_votes`.

    `truth`, `guess` and `hits` have a column for each class. `bins` has the confidence minus
    correctness, in the column of the confidence's bin. `model agrees` and `annotators agree` are
    the probability that the prediction, or a second annotator, agrees with an annotator; NaN for
    labels without votes.
    """
    one_hot = np.eye(targets.shape[1])
    truth = one_hot[targets.argmax(1)]  # (N, C)
    guess = one_hot[probabilities.argmax(1)]  # (N, C)
    hits = truth * guess  # (N, C)

    confidence = probabilities.max(1)  # (N,)
    index = np.ceil(confidence * CALIBRATION_BINS).astype(int).clip(1, CALIBRATION_BINS) - 1
    bins = (
        np.eye(CALIBRATION_BINS)[index] * (confidence - hits.sum(1))[:, None]
    )  # (N, CALIBRATION_BINS)

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
    """Returns the cross-entropy of each face (N,); both inputs are (N, C)."""
    return np.asarray(-(targets * np.log(probabilities.clip(1e-12))).sum(1))


RECALL = "recall of "


def recall_name(label: str) -> str:
    """Returns the name that the recall of a class has among the scores."""
    return f"{RECALL}{label}"


def is_recall(name: str) -> bool:
    """Returns whether a score is the recall of a class."""
    return name.startswith(RECALL)


def scores(sums: Sums, labels: Sequence[str]) -> dict[str, Array]:
    """Computes every score (...) from the sums of `contributions` over faces, by name.

    The scores are the accuracy; macro F1 and unweighted average recall (UAR), without classes that
    do not occur; the expected calibration error in 15 bins; the cross-entropy against the targets;
    how often the model, and a second annotator, agree with a first annotator, if there are votes;
    and the recall of every class.

    Annotators are drawn by the targets, with replacement. Two different annotators of V agree less,
    by the share of pairs that disagree, divided by V - 1.
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
) -> dict[str, Estimate]:
    """Returns the scores of N faces with intervals, or their differences from a second model's.

    Args:
        probabilities: The probabilities of the model (N, C).
        targets: The fractions of the votes (N, C).
        labels: The names of the classes.
        units: The person or photo of each face (N,), as for `score_intervals`.
        minus: The probabilities of a second model (N, C), to subtract its scores; None: no second
            model.
        votes: Whether the targets are shares of votes, as for `contributions`.
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

    label = targets.argmax(1)  # (N,)
    of_recalls = {recall_name(name): label == index for index, name in enumerate(labels)}
    intervals = score_intervals(values, results, units, members=of_recalls)

    # without exceptions, a share of faces needs other bounds than the bootstrap's
    scale: Scale = "share" if minus is None else "difference"
    every = np.ones(len(targets), bool)
    intervals["accuracy"] = bound(intervals["accuracy"], every, units, scale)
    for name, member in of_recalls.items():
        intervals[name] = bound(intervals[name], member, units, scale)

    # these scores are no shares of faces
    for name in ("cross-entropy", *AGREEMENTS):
        intervals[name] = bound(intervals[name], every, units, "number")

    # Macro F1 and UAR weight all classes equally. If no resample differs, the class with the fewest
    # faces therefore sets the bounds.
    sizes = np.bincount(label)
    rarest = label == np.where(sizes > 0, sizes, len(label) + 1).argmin()
    for name in ("macro F1", "UAR"):
        limiting = rarest if has_no_width(intervals[name]) else every
        bounded = bound(intervals[name], limiting, units, scale)
        intervals[name] = replace(bounded, n=len(targets))

    # Resamples add noise to each bin, and absolute values of noise only add up: a bootstrap
    # interval of the calibration error would be too high.
    error = intervals["calibration error"]
    intervals["calibration error"] = replace(error, low=None, high=None)
    return intervals


def confusion_matrix(probabilities: Array, targets: Array) -> IntArray:
    """Returns the number of faces (C, C) by true class (row) and predicted class (column)."""
    classes = targets.shape[1]
    cells = targets.argmax(1) * classes + probabilities.argmax(1)  # (N,)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def occurring(confusion: IntArray) -> list[int]:
    """Returns the indices of the classes that occur as label or as prediction."""
    return np.flatnonzero(confusion.sum(0) + confusion.sum(1)).tolist()


def suspect_labels(probabilities: Array, targets: Array) -> IntArray:
    """Returns pairs (M, 2) of a face whose label is likely wrong, and a better class.

    The most likely errors come first. Confident learning (Northcutt et al. 2021, arXiv:1911.00068):
    a class is likely for a face if its probability is at least its mean probability over the faces
    with this label. The model must not have been trained on these faces.
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
