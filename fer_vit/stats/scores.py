"""Scores of predictions with intervals, and differences between two models.

A score is a function of sums over faces; `bootstrap` computes its interval.

Shapes: N faces, C classes, K columns.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fer_vit.geometry import Array, IntArray
from fer_vit.stats.bootstrap import Scale, Sums, bound, has_no_width, score_intervals
from fer_vit.stats.estimate import Estimate

CALIBRATION_BINS = 15  # number of bins of the calibration error


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


class Score(NamedTuple):
    """A score of expressions; its name is its key in `SCORES`."""

    compute: Callable[[Sums], Array]  # the score (...) from the sums of `contributions`
    # What the interval is for: a share of faces, a number, a mean over classes, or none.
    interval: Literal["share", "number", "classes", "none"]
    meaning: str = ""  # for pages; empty: the name says it
    form: str = ".1%"  # the format of the number


def _share(sums: Sums, name: str) -> Array:
    """Returns the share of faces (...) of a sum over faces."""
    return np.asarray(sums[name].sum(-1) / sums["truth"].sum(-1))


def _recalls(sums: Sums) -> Array:
    """Returns the recall of each class (..., C), NaN for a class that does not occur."""
    with np.errstate(invalid="ignore"):
        return np.asarray(sums["hits"] / sums["truth"])


def _macro_f1(sums: Sums) -> Array:
    """Returns the mean F1 (...) of the classes that occur."""
    with np.errstate(invalid="ignore"):
        f1 = 2 * sums["hits"] / (sums["truth"] + sums["guess"])
    return np.asarray(np.nanmean(f1, -1))


# Scores in the order of tables. A score is added here alone: pages and files have what stands here.
SCORES = {
    "accuracy": Score(lambda sums: _share(sums, "hits"), "share"),
    "macro F1": Score(
        _macro_f1,
        "classes",
        "the mean over the labels of F1, which combines recall and precision. If each recall is "
        "0% or 100%, only a score of 0% or 100% has an interval",
    ),
    "UAR": Score(  # unweighted average recall
        lambda sums: np.asarray(np.nanmean(_recalls(sums), -1)),
        "classes",
        "the mean recall of the labels: each label counts the same, also a rare one",
    ),
    # Resamples add noise to each bin, and absolute values of noise only add up: a bootstrap
    # interval would be too high.
    "calibration error": Score(
        lambda sums: np.abs(sums["bins"]).sum(-1) / sums["truth"].sum(-1),
        "none",
        "how far confidence is from accuracy, on average over bins of confidence. Chance adds to "
        "it: of a calibrated model it is about 8% with 100 faces, 3% with 1,000. It has no "
        "interval, because resamples add chance again",
    ),
    "cross-entropy": Score(
        lambda sums: _share(sums, "loss"),
        "number",
        "against the labels, or the fractions of the votes; lower is better",
        form=".3f",
    ),
    # Annotators are drawn by the targets, with replacement. Two different annotators of V agree
    # less, by the share of pairs that disagree, divided by V - 1.
    "agreement with an annotator": Score(
        lambda sums: _share(sums, "model agrees"),
        "number",
        "how often the prediction equals the label of one annotator, who is drawn at random from "
        "the votes. Where rare votes were dropped (FERPlus), people agree less than this",
    ),
    "agreement of two annotators": Score(
        lambda sums: _share(sums, "annotators agree"),
        "number",
        "the same for two annotators. The second draw may be the same annotator, so that two "
        "different annotators agree less",
    ),
}


def scores(sums: Sums, labels: Sequence[str]) -> dict[str, Array]:
    """Computes every score (...) and the recall of every class from sums over faces, by name."""
    results = {name: score.compute(sums) for name, score in SCORES.items()}
    recalls = _recalls(sums)  # (..., C)
    for index, label in enumerate(labels):
        results[recall_name(label)] = recalls[..., index]
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
    for name, member in of_recalls.items():
        intervals[name] = bound(intervals[name], member, units, scale)

    recalls = [intervals[name] for name in of_recalls if intervals[name].mean is not None]
    same_recalls = has_no_width(intervals["UAR"])  # no resample has an exception
    for name, score in SCORES.items():
        interval = intervals[name]
        if score.interval == "none":
            intervals[name] = Estimate(interval.mean, n=interval.n)
        elif score.interval == "number":
            intervals[name] = bound(interval, every, units, "number")
        elif score.interval == "classes" and same_recalls:
            intervals[name] = _bound_by_recalls(interval, recalls)
        else:
            intervals[name] = bound(interval, every, units, scale)
    return intervals


def _bound_by_recalls(score: Estimate, recalls: Sequence[Estimate]) -> Estimate:
    """Returns a mean over classes whose bounds are as far away as those of the mean recall.

    No resample has an exception. If the score nevertheless differs between resamples, as macro F1
    may, it differs by the sizes of the classes alone and has no bounds. It has none, too, if the
    recall of a class has none.
    """
    if score.mean is None or not has_no_width(score):
        return Estimate(score.mean, n=score.n)
    lower_parts = []
    upper_parts = []
    for recall in recalls:
        if recall.mean is None or recall.low is None or recall.high is None:
            return Estimate(score.mean, n=score.n)
        lower_parts.append(recall.mean - recall.low)
        upper_parts.append(recall.high - recall.mean)
    low = score.mean - float(np.mean(lower_parts))
    high = score.mean + float(np.mean(upper_parts))
    return Estimate(score.mean, low, high, score.n)


def confusion_matrix(probabilities: Array, targets: Array) -> IntArray:
    """Returns the number of faces (C, C) by true class (row) and predicted class (column)."""
    classes = targets.shape[1]
    cells = targets.argmax(1) * classes + probabilities.argmax(1)  # (N,)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def row_shares(confusion: IntArray) -> Array:
    """Returns the share of each cell of a confusion matrix (C, C) in its row; 0 in an empty row."""
    return np.asarray(confusion / confusion.sum(1, keepdims=True).clip(1))


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
