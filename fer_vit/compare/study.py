"""Shapes predictions into a study: averages by photo or clip, and these by person and condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise, product
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluate.faces import Faces
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.predict.people import Interval as Episode, People


class Kind(NamedTuple):
    """Measures of one kind, such as the mean probability of each expression."""

    title: str
    form: str  # the format of the values
    values: dict[str, Array]  # by measure: (O,), of each photo or clip; NaN where there is none
    most: float = np.inf  # no value is larger


@dataclass(frozen=True, eq=False)
class Study:
    """Persons under C conditions, observed O times: in a photo or clip of a person in a condition."""

    conditions: dict[str, Mask]  # the observations in each (O,), the baseline first
    pairs: list[tuple[str, str]]  # the conditions to compare, the second minus the first
    person: IntArray  # (O,), an index
    faces: IntArray  # (O,), their number
    kinds: list[Kind]  # what was measured
    left_out: int  # number of faces without a condition or person

    def cells(self, values: Array) -> dict[str, Array]:
        """Returns the mean of observed values (O,) of each person (P,) by condition; NaN where there is none."""
        persons = self.person.max() + 1
        return {
            one: average(values[rows], self.person[rows], persons)
            for one, rows in self.conditions.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of persons, of photos or clips, and of faces in each condition."""
        counts = {}
        for name, rows in self.conditions.items():
            persons, faces = len(np.unique(self.person[rows])), int(self.faces[rows].sum())
            counts[name] = {"persons": persons, "photos or clips": int(rows.sum()), "faces": faces}
        return counts


def average(values: Array, group: IntArray, groups: int) -> Array:
    """Returns the mean (G,) of the values (N,) in each group (N,), of which NaN do not count."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(group, np.where(known, values, 0), groups)
            / np.bincount(group, known, groups)
        )


def make_study(faces: Faces, by: str, person: str, baseline: str | None) -> Study:
    """Averages faces by condition and person; raises FerVitError without two conditions or the baseline."""
    none = np.array(None)
    used = faces.predicted & (faces.columns[by] != none) & (faces.columns[person] != none)
    known = faces.take(used)
    names = sorted({*map(str, known.columns[by])}, key=lambda name: (name != baseline, name))
    if len(names) < 2 or baseline not in (None, names[0]):
        expected = f"the baseline {baseline} and others" if baseline else "two or more conditions"
        hint = suggest(baseline, names) if baseline else ""
        raise FerVitError(
            f"Expected {expected} in `{by}`, but got {short(', '.join(names)) or 'none'}.{hint}"
        )
    condition = np.array([names.index(str(cell)) for cell in known.columns[by]])
    owner, image = (
        np.unique(x.astype(str), return_inverse=True)[1]
        for x in (known.columns[person], known.paths)
    )
    keys = np.column_stack([owner, condition, image])
    observed, index, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)

    def observe(measures: Mapping[str, Array]) -> dict[str, Array]:
        return {name: average(values, index, len(observed)) for name, values in measures.items()}

    probabilities = dict(zip(known.labels, known.probabilities.T, strict=True))
    kinds = [Kind("Mean probability", ".3f", observe(probabilities), 1)]
    kinds.append(Kind("Share of faces with the label", ".1%", observe(label_shares(known)), 1))
    if "label_smoothed" in faces.columns:
        observations = np.full(len(used), -1)
        observations[used] = index
        kinds += clip_kinds(find_episodes(faces, observations), faces.labels, len(observed))
    conditions = {name: observed[:, 1] == place for place, name in enumerate(names)}
    pairs = [pair for pair in combinations(names, 2) if baseline in (None, pair[0])]
    return Study(
        conditions, pairs, observed[:, 0], sizes, kinds, int((faces.predicted & ~used).sum())
    )


def label_shares(faces: Faces) -> dict[str, Array]:
    """Returns by label whether each face has it (N,), smoothed where it is of a clip; NaN without a label."""
    labels = faces.columns.get(
        "label", np.array(faces.labels, object)[faces.probabilities.argmax(1)]
    )
    smoothed = faces.columns.get("label_smoothed", labels)
    labels = np.where(smoothed == np.array(None), labels, smoothed)
    return {
        name: np.where(labels == np.array(None), np.nan, labels == name).astype(float)
        for name in faces.labels
    }


def find_episodes(faces: Faces, observations: IntArray) -> list[tuple[int, Episode]]:
    """Returns the uninterrupted expressions in clips, each with the observation (-1: none) of its rows."""
    people, track = People(), np.array([track or 0 for track in faces.columns["track"]])
    tracks = track.max() + 1
    columns = faces.columns | {"track": observations * tracks + track}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for _, frame in groupby(rows, itemgetter("path", "frame")):
        people.add([*frame])
    return [(one.track // tracks, one) for one in people.intervals() if one.track >= 0]


def clip_kinds(
    episodes: Sequence[tuple[int, Episode]], labels: Sequence[str], number: int
) -> list[Kind]:
    """Returns seconds per episode, and episodes and transitions per minute, of a number of observations."""
    seconds, count = (
        dict(zip(labels, np.zeros((len(labels), number)), strict=True)) for _ in range(2)
    )
    passed = {f"{one} to {other}": np.zeros(number) for one, other in product(labels, repeat=2)}
    for (observation, one), (_, after) in pairwise([*episodes, *episodes[:1]]):
        count[one.label][observation] += 1
        seconds[one.label][observation] += one.end - one.start
        if (one.path, one.track, one.end) == (after.path, after.track, after.start):
            passed[f"{one.label} to {after.label}"][observation] += 1
    with np.errstate(invalid="ignore"):
        minutes = sum(seconds.values()) / 60
        kinds = [
            Kind(
                "Seconds per episode",
                ".2f",
                {name: total / count[name] for name, total in seconds.items()},
            ),
            Kind(
                "Episodes per minute",
                ".2f",
                {name: times / minutes for name, times in count.items()},
            ),
            Kind(
                "Transitions per minute",
                ".2f",
                {name: n / minutes for name, n in passed.items() if n.any()},
            ),
        ]
    return [kind for kind in kinds if kind.values]
