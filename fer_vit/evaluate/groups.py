"""What can be said of some faces, and whether groups of them differ."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from fer_vit.evaluate.faces import Faces
from fer_vit.evaluate.scores import normal, scored
from fer_vit.geometry import Array
from fer_vit.intervals import Interval, mean_intervals, score_intervals

FEW = 30
"""Groups of fewer faces, or persons where these are known, are counted but not judged."""
FOUND = "face found"


def described(faces: Faces) -> dict[str, Interval]:
    """Returns how often a face was found, and: with labels the scores, else confidence and shares of expressions."""
    photos = faces.take(np.unique(faces.paths.astype(str), return_index=True)[1])  # each counts once
    found = {FOUND: mean_intervals(photos.found[:, None].astype(float), photos.units, shares=True)[0]}
    known = faces.take(faces.predicted)
    if not len(known.paths):
        return found
    found |= abstentions(known)
    if known.shares is not None:
        return found | scored(known.probabilities, known.shares, known.labels, known.units)
    guess = np.eye(len(known.labels))[known.probabilities.argmax(1)]
    (confidence,) = mean_intervals(known.probabilities.max(1)[:, None], known.units)
    named = dict(zip(known.labels, mean_intervals(guess, known.units, shares=True), strict=True))
    return found | {"confidence": confidence} | named


def abstentions(faces: Faces) -> dict[str, Interval]:
    """Returns how many faces are unsure and, with labels, the accuracy on the others; nothing where that is unknown."""
    if np.isnan(faces.unsure).all():
        return {}
    values = {"unsure": faces.unsure}
    if faces.shares is not None:
        values["accuracy where sure"] = np.where(faces.unsure == 0, faces.right, np.nan)
    return dict(zip(values, mean_intervals(np.column_stack([*values.values()]), faces.units, shares=True), strict=True))


def overview(faces: Faces, by: Sequence[str] = ()) -> dict[str, Any]:
    """Describes all faces, those without a twin among the trained ones (column `twin`), and groups by some columns."""
    found: dict[str, Any] = {"all": described(faces)}
    twin = np.array([str(value).lower() in ("true", "1") for value in faces.columns.get("twin", [])])
    if twin.any():
        found["without twins"] = described(faces.take(~twin))
    return found | ({"by": {column: by_group(faces, column) for column in by}} if by else {})


def by_group(faces: Faces, column: str) -> dict[str, Any]:
    """Describes the groups that a column makes, and compares their accuracy where there are labels.

    Returns:
        `groups`: the number of faces and what `described` says, by name; with labels the `difference` and `p` of
        `group_tests`. `few`: the sizes of groups that are too small to judge. `unknown`: the number of faces without a
        value. With labels also `worst` and `best` by accuracy, and the `gap` between them.
    """
    names = np.array(["" if value is None else str(value) for value in faces.columns[column]])
    known = faces.take((names != "") & faces.predicted)
    values = names[(names != "") & faces.predicted]
    sizes = Counter(names[names != ""].tolist())
    judged = [name for name in sorted(sizes) if len(np.unique(known.units[values == name])) >= FEW]
    found: dict[str, Any] = {
        "groups": {name: {"faces": sizes[name], **described(faces.take(names == name))} for name in judged},
        "few": {name: sizes[name] for name in sorted(sizes) if name not in judged},
        "unknown": int((names == "").sum()),
    }
    if faces.shares is not None and len(sizes) > 1 and judged:
        ranked = sorted(judged, key=lambda name: found["groups"][name]["accuracy"]["mean"])
        member = np.column_stack([values == name for name in ranked]).astype(float)
        differences, tests = group_tests(known, member)
        for name, difference, p in zip(ranked, differences, tests, strict=True):
            found["groups"][name] |= {"difference": difference, "p": p}
        worst, best = (found["groups"][name]["accuracy"]["mean"] for name in (ranked[0], ranked[-1]))
        # No interval: chance alone makes a worst and a best group, and moves them apart.
        gap = {"mean": best - worst, "low": None, "high": None, "faces": len(known.paths)}
        found |= {"worst": ranked[0], "best": ranked[-1], "gap": gap}
    return found


def group_tests(faces: Faces, member: Array) -> tuple[list[Interval], list[float]]:
    """Compares the accuracy of groups.

    Args:
        faces: N faces with labels and predictions, of two groups or more.
        member: Whether each is in each of the groups to judge (N, G), as 0 or 1.

    Returns:
        The difference of each group's accuracy from that of all others; and its p-value, corrected for the number of
        tests: Fisher's exact test, or, where several faces are of one person and no independent trials, a normal test
        with the error of the bootstrap over persons.
    """
    right, groups = faces.right[:, None].astype(float), member.shape[1]

    def differences(sums: Array) -> dict[str, Array]:
        hits, number, all_hits, all_faces = np.split(sums, np.cumsum([groups, groups, 1]), axis=-1)
        with np.errstate(invalid="ignore"):
            own, others = hits / number, (all_hits - hits) / (all_faces - number)
        return {str(group): (own - others)[..., group] for group in range(groups)}

    counts = np.hstack([right * member, member, right, np.ones_like(right)])
    found = [*score_intervals(counts, differences, faces.units).values()]
    p = [*map(normal, found)] if faces.clustered else [fisher(right[:, 0], group) for group in member.T]
    one_test = groups == 2 and member.any(1).all()  # each group is all others of the other
    return found, p if one_test else holm(p)


def fisher(right: Array, member: Array) -> float:
    """Returns the p-value of a group (N,) being named right as often as the others, by Fisher's exact test."""
    inside, outside = right[member > 0], right[member == 0]
    return float(fisher_exact([[part.sum(), len(part) - part.sum()] for part in (inside, outside)]).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Corrects the p-values of several tests: Holm, "A simple sequentially rejective multiple test procedure", 1979."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.arange(len(p), 0, -1) * np.asarray(p, float)[order]).clip(max=1)
    return corrected.tolist()
