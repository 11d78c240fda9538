"""Results over all faces, over groups of them, and of one model against another."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from fer_vit.data.schema import VOTES
from fer_vit.errors import FerVitError
from fer_vit.evaluate.faces import Faces
from fer_vit.evaluate.scores import compare_scores, mcnemar, mean_intervals, normal_p, score_faces, score_intervals
from fer_vit.geometry import Array
from fer_vit.report.table import Interval

FEW = 30
"""Groups of fewer faces, or persons where these are known, are counted but not compared."""
FOUND = "face found"
LEAST_VOTES, MOST_VOTES = 6, 10
"""The range of the rows of the accuracy by votes; fewer and more votes are counted in the first and last row."""


def describe(faces: Faces) -> dict[str, Interval]:
    """Returns how often a face was found; with labels the scores, else confidence and frequencies of expressions."""
    photos = faces.take(np.unique(faces.paths.astype(str), return_index=True)[1])  # each counts once
    results = {FOUND: mean_intervals(photos.detected[:, None].astype(float), photos.units, binary=True)[0]}
    known = faces.take(faces.predicted)
    if not len(known.paths):
        return results
    results |= describe_ambiguity(known)
    if known.targets is not None:
        return results | score_faces(known.probabilities, known.targets, known.labels, known.units)
    guess = np.eye(len(known.labels))[known.probabilities.argmax(1)]
    (confidence,) = mean_intervals(known.probabilities.max(1)[:, None], known.units)
    named = dict(zip(known.labels, mean_intervals(guess, known.units, binary=True), strict=True))
    return results | {"confidence": confidence} | named


def describe_ambiguity(faces: Faces) -> dict[str, Interval]:
    """Returns how many faces are ambiguous and, with labels, the accuracy on the others; {} without prediction sets."""
    if np.isnan(faces.ambiguous).all():
        return {}
    values = {"ambiguous": faces.ambiguous}
    if faces.targets is not None:
        values["accuracy where unambiguous"] = np.where(faces.ambiguous == 0, faces.correct, np.nan)
    return dict(zip(values, mean_intervals(np.column_stack([*values.values()]), faces.units, binary=True), strict=True))


def evaluate_faces(
    faces: Faces, by: Sequence[str] = (), mix: Mapping[int, float] | None = None, other: Array | None = None
) -> dict[str, Any]:
    """Describes all faces, faces without a near-duplicate in train (column `near_duplicate`), and groups by column.

    `mix`: see `accuracy_by_votes`. `other`: a second model's probabilities (N, C), with which the model is compared.
    """
    results: dict[str, Any] = {"all": describe(faces)}
    marks = [str(value).lower() in ("true", "1") for value in faces.columns.get("near_duplicate", [])]
    if any(marks):
        results["without near-duplicates"] = describe(faces.take(~np.array(marks)))
    if by:
        results["by"] = {column: compare_groups(faces, column) for column in by}
    if other is not None:
        results["comparison"] = compare_models(faces, other)
    if faces.targets is not None and (votes := accuracy_by_votes(faces.take(faces.predicted), mix)):
        results["by votes"] = votes
    return results


def accuracy_by_votes(faces: Faces, mix: Mapping[int, float] | None = None) -> dict[str, Any]:
    """Returns faces and accuracy by the number of votes for the label (column `label_votes`), from 10 to 6 or fewer.

    Args:
        faces: Faces with labels and predictions.
        mix: Fraction of faces by votes, 6 for 6 or fewer; adds a reweighted accuracy. Votes that it lacks get the rest,
            in the proportions of these faces.

    Raises:
        FerVitError: No face has this column, or the mix has other votes or more than 1 in all.
    """
    counts = np.array([float(value) if str(value).isdigit() else np.nan for value in faces.columns.get(VOTES, ())])
    if not np.isfinite(counts).any():
        if mix:
            raise FerVitError(f"`--mix` needs a column {VOTES}. Prepare FERPlus again, or add it: `--columns`.")
        return {}
    rows = np.isfinite(counts)
    faces, counts = faces.take(rows), counts[rows].clip(LEAST_VOTES, MOST_VOTES)
    votes = [number for number in range(MOST_VOTES, LEAST_VOTES - 1, -1) if (counts == number).any()]
    member = np.column_stack([counts == number for number in votes]).astype(float)
    correct = np.where(member > 0, faces.correct[:, None].astype(float), np.nan)
    accuracies = mean_intervals(correct, faces.units, binary=True)
    results: dict[str, Any] = {
        f"{number}{' or fewer' * (number == LEAST_VOTES)}": {"faces": int(inside.sum()), "accuracy": accuracy}
        for number, inside, accuracy in zip(votes, member.T, accuracies, strict=True)
    }
    if not mix:
        return results
    if not set(mix) <= set(votes) or min(mix.values()) < 0 or sum(mix.values()) > 1 + 1e-6:
        raise FerVitError(
            f"Expected fractions by votes ({', '.join(map(str, votes))}) of at most 1 in all, but got {mix}."
        )
    rest = {number: inside.sum() for number, inside in zip(votes, member.T, strict=True) if number not in mix}
    scale = (1 - sum(mix.values())) / max(sum(rest.values()), 1)
    weights = np.array([mix.get(number, rest.get(number, 0) * scale) for number in votes])

    def reweighted(sums: Array) -> dict[str, Array]:
        hits, number = np.split(sums, 2, axis=-1)
        with np.errstate(invalid="ignore"):
            return {"accuracy": (hits / number) @ weights / weights.sum()}

    sums = np.hstack([member * faces.correct[:, None], member])
    return results | {"reweighted": {"faces": len(counts), **score_intervals(sums, reweighted, faces.units)}}


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
        "groups": {name: {"faces": sizes[name], **describe(faces.take(names == name))} for name in large},
        "few": {name: sizes[name] for name in sorted(sizes) if name not in large},
        "unknown": int((names == "").sum()),
    }
    if faces.targets is not None and len(large) > 1:
        ordered = sorted(large, key=lambda name: results["groups"][name]["accuracy"]["mean"])
        member = np.column_stack([values == name for name in ordered]).astype(float)
        differences, tests = group_tests(known, member)
        for name, difference, p in zip(ordered, differences, tests, strict=True):
            results["groups"][name] |= {"difference": difference, "p": p}
        worst, best = (results["groups"][name]["accuracy"]["mean"] for name in (ordered[0], ordered[-1]))
        # No interval: worst and best are chosen by the same data, which biases the gap upwards.
        gap = {"mean": best - worst, "low": None, "high": None, "faces": len(known.paths)}
        results |= {"worst": ordered[0], "best": ordered[-1], "gap": gap}
    return results


def group_tests(faces: Faces, member: Array) -> tuple[list[Interval], list[float]]:
    """Compares the accuracy of groups.

    Args:
        faces: N faces with labels and predictions, of two groups or more.
        member: Whether each is in each group (N, G), as 0 or 1.

    Returns:
        The difference of each group's accuracy from the accuracy of all others, and its p-value, corrected for several
        tests: Fisher's exact test, or, where several faces are of one person, a normal test with the error of the
        bootstrap over persons.
    """
    correct, groups = faces.correct[:, None].astype(float), member.shape[1]

    def differences(sums: Array) -> dict[str, Array]:
        hits, number, all_hits, all_faces = np.split(sums, np.cumsum([groups, groups, 1]), axis=-1)
        with np.errstate(invalid="ignore"):
            inside, outside = hits / number, (all_hits - hits) / (all_faces - number)
        return {str(group): (inside - outside)[..., group] for group in range(groups)}

    counts = np.hstack([correct * member, member, correct, np.ones_like(correct)])
    intervals = [*score_intervals(counts, differences, faces.units).values()]
    p = [*map(normal_p, intervals)] if faces.clustered else [fisher(correct[:, 0], group) for group in member.T]
    one_test = groups == 2 and member.any(1).all()  # the groups are complements
    return intervals, p if one_test else holm(p)


def fisher(correct: Array, member: Array) -> float:
    """Returns the p-value of Fisher's exact test for equal accuracy inside and outside a group (N,)."""
    inside, outside = correct[member > 0], correct[member == 0]
    return float(fisher_exact([[part.sum(), len(part) - part.sum()] for part in (inside, outside)]).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests: Holm, "A simple sequentially rejective multiple test procedure", 1979."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.arange(len(p), 0, -1) * np.asarray(p, float)[order]).clip(max=1)
    return corrected.tolist()


def compare_models(faces: Faces, other: Array) -> dict[str, Any]:
    """Compares a model with another one's probabilities (N, C), NaN where it found no face, on the same faces."""
    both = faces.predicted & np.isfinite(other[:, 0])
    faces, other = faces.take(both), other[both]
    assert faces.targets is not None
    truth = (faces.targets, faces.labels, faces.units)
    difference = compare_scores(faces.probabilities, other, *truth)
    test = mcnemar(faces.correct, other.argmax(1) == faces.targets.argmax(1))
    if faces.clustered:  # faces of one person are dependent, so McNemar's p alone would be too small
        test["p"] = max(test["p"], normal_p(difference["accuracy"]))
    return {
        "faces": int(both.sum()),
        "other": score_faces(other, *truth),
        "difference": difference,
        "McNemar": test,
    }
