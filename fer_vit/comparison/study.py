"""Shapes predictions into a study: averages by photo or clip, and these by person and condition."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, product, zip_longest
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from fer_vit.comparison.series import Rest, change_from_rest
from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.join import describe_groups
from fer_vit.evaluation.predictions import CLIP
from fer_vit.fields import SMOOTHED
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import HEADS, outputs_of, target_column
from fer_vit.predict.people import Interval as Episode, People

NONE = np.array(None)  # compares with the cells of a column
MOST_CONDITIONS = 50  # they have 1,225 pairs
# seconds of clips below which nothing per minute is measured: a clip of one frame has no length
BRIEFEST = 1e-3


class Kind(NamedTuple):
    """Measures of one kind, such as the mean probability of each expression."""

    title: str
    phrase: str  # what is higher or lower, in a sentence
    form: str  # the format of the values
    unit: str  # of a difference, in a sentence
    values: dict[str, Array]  # by measure: (O,), of each photo or clip; NaN where there is none
    least: float = 0.0  # no value is smaller
    most: float = np.inf  # no value is larger


class Design(NamedTuple):
    """How two conditions are compared: within P persons, or between them."""

    paired: bool
    persons: Mask  # (P,), who takes part
    left_out: Mask  # (P,), who is in one of the conditions but takes no part


@dataclass(frozen=True, eq=False)
class Study:
    """P persons under C conditions, observed O times:
    in a photo or clip of a person in a condition.
    """

    conditions: dict[str, Mask]  # the observations in each (O,), the baseline first
    pairs: list[tuple[str, str]]  # the conditions to compare, the second minus the first
    people: list[str]  # the names of the persons (P,)
    person: IntArray  # (O,), an index
    paths: list[str]  # (O,), the photo or clip
    faces: IntArray  # (O,), their number
    kinds: list[Kind]  # what was measured
    left_out: int  # number of faces without a condition or person
    labels: list[str]  # the expressions
    observation: IntArray  # (N,), of each face that was measured
    seconds: Array  # (N,), NaN in a photo
    probabilities: Array  # (N, C), or their change from rest; of clips smoothed
    rest: Rest | None = None  # the interval that was subtracted
    without_rest: tuple[str, ...] = ()  # the photos and clips that have no face in it
    notes: tuple[str, ...] = ()  # what was assumed and left out in reading

    @property
    def heads(self) -> list[str]:
        """The titles of the measures that are outputs of further heads."""
        titles = {words.title for words in HEAD_WORDS.values()}
        return [kind.title for kind in self.kinds if kind.title.split(", ")[0] in titles]

    def cells(self, values: Array) -> dict[str, Array]:
        """Returns the mean of observed values (O,) of each person (P,) by condition;
        NaN where there is none.
        """
        return {
            name: average(values[rows], self.person[rows], len(self.people))
            for name, rows in self.conditions.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of persons, of photos or clips, and of faces in each condition."""
        counts = {}
        for name, rows in self.conditions.items():
            persons, faces = len(np.unique(self.person[rows])), int(self.faces[rows].sum())
            counts[name] = {"persons": persons, "photos or clips": int(rows.sum()), "faces": faces}
        return counts

    def design(self, first: str, second: str) -> Design:
        """Returns how two conditions are compared."""
        present = np.zeros((2, len(self.people)), bool)
        present[0, self.person[self.conditions[first]]] = True
        present[1, self.person[self.conditions[second]]] = True
        return choose_design(*present)

    def names(self, persons: Mask) -> list[str]:
        """Returns the names of some of the persons (P,)."""
        return [self.people[index] for index in np.flatnonzero(persons)]


def choose_design(first: Mask, second: Mask) -> Design:
    """Returns how two conditions with the persons `first` and `second` (P,) are compared.

    Within persons if at least as many are in both conditions as only in one, counted in the
    condition that has fewer such persons; else between persons.
    """
    both = first & second
    only_one = first ^ second
    smaller = min((first & ~second).sum(), (second & ~first).sum())
    if both.any() and both.sum() >= smaller:
        return Design(True, both, only_one)
    return Design(False, only_one, both)


def average(values: Array, group: IntArray, groups: int) -> Array:
    """Returns the mean (G,) of the values (N,) in each group (N,), of which NaN do not count."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(group, np.where(known, values, 0), groups)
            / np.bincount(group, known, groups)
        )


def make_study(
    faces: EvaluatedFaces,
    by: str,
    person: str,
    baseline: str | None = None,
    rest: Rest | None = None,
) -> Study:
    """Averages faces by condition and person.

    With `rest`, probabilities are changes from the mean over this interval of the same clip and
    person; faces within it serve for nothing else. Raises FerVitError without two conditions, the
    baseline, or a face in the interval.
    """
    used = faces.predicted & (faces.columns[by] != NONE) & (faces.columns[person] != NONE)
    left_out = int((faces.predicted & ~used).sum())
    seconds = _seconds(faces)
    probabilities = _smoothed_probabilities(faces)
    without_rest: tuple[str, ...] = ()
    clip = np.full(len(used), -1)
    if rest:
        named = faces.predicted & (faces.columns[person] != NONE)
        clip[named] = _indices(_text(faces.columns[person][named], faces.paths[named]))
        probabilities = change_from_rest(probabilities, seconds, clip, rest)
        rested = np.isfinite(probabilities).all(1)
        without_rest = tuple(sorted({*map(str, faces.paths[used & ~rested])}))
        used &= rested & ~rest.contains(seconds)
        if not used.any():
            raise FerVitError(
                f"Expected clips with faces within and outside of `--rest {rest}`, but no clip of "
                f"{len({*faces.paths})} has them. Is it in seconds from the start of each clip?"
            )

    known = faces.take(used)
    names = _condition_names(known.columns[by], by, baseline)
    condition = np.array([names.index(str(cell)) for cell in known.columns[by]])
    people, owner = np.unique(known.columns[person].astype(str), return_inverse=True)
    images, image = np.unique(known.paths.astype(str), return_inverse=True)
    keys = np.column_stack([owner, condition, image])  # (N, 3)
    observed, index, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)

    if rest:
        kinds = [_change_kind(faces.labels, probabilities[used], rest)]
    else:
        kinds = [_probability_kind(faces.labels, known.probabilities)]
    kinds.append(_share_kind(label_shares(known)))
    kinds += head_kinds(read_heads(faces, clip, rest), used, rest)
    kinds = [_observed(kind, index, len(observed)) for kind in kinds]
    if "label_smoothed" in faces.columns:
        observations = np.full(len(used), -1)
        observations[used] = index
        kinds += clip_kinds(find_episodes(faces, observations), faces.labels, len(observed))

    return Study(
        conditions={name: observed[:, 1] == place for place, name in enumerate(names)},
        pairs=[pair for pair in combinations(names, 2) if baseline in (None, pair[0])],
        people=people.tolist(),
        person=observed[:, 0],
        paths=images[observed[:, 2]].tolist(),
        faces=sizes,
        kinds=kinds,
        left_out=left_out,
        labels=faces.labels,
        observation=index,
        seconds=seconds[used],
        probabilities=probabilities[used],
        rest=rest,
        without_rest=without_rest,
        notes=(*faces.notes, *describe_groups(faces, (by, person))),
    )


def _condition_names(cells: Iterable[object], by: str, baseline: str | None) -> list[str]:
    """Returns the conditions in a column in order, the baseline first."""
    names = sorted({*map(str, cells)}, key=lambda name: (name != baseline, name))
    if len(names) < 2 or baseline not in (None, names[0]):
        expected = f"the baseline {baseline} and others" if baseline else "two or more conditions"
        hint = suggest(baseline, names) if baseline else ""
        raise FerVitError(
            f"Expected {expected} in `{by}`, but got {short(', '.join(names)) or 'none'}.{hint}"
        )
    if len(names) > MOST_CONDITIONS:
        raise FerVitError(
            f"Expected at most {MOST_CONDITIONS} conditions in `{by}`, but got {len(names):,}. "
            "Is it the right column?"
        )
    return names


def _text(*columns: Array) -> list[tuple[str, ...]]:
    """Returns the cells of some columns (N,) as text, row by row."""
    return [tuple(map(str, cells)) for cells in zip(*columns, strict=True)]


def _indices(keys: Sequence[tuple[str, ...]]) -> IntArray:
    """Returns an index from 0 for each key (N,), equal for equal keys."""
    places: dict[tuple[str, ...], int] = {}
    return np.array([places.setdefault(key, len(places)) for key in keys], int)


def _seconds(faces: EvaluatedFaces) -> Array:
    """Returns the time of each face in its clip (N,); NaN in a photo."""
    cells = faces.columns.get("seconds", np.full(len(faces.paths), None))
    return np.asarray(cells.astype(float))


def _smoothed_probabilities(faces: EvaluatedFaces) -> Array:
    """Returns the probabilities (N, C), in clips smoothed where the table has them smoothed."""
    probabilities = faces.probabilities.copy()
    for place, label in enumerate(faces.labels):
        cells = faces.columns.get(SMOOTHED + label)
        if cells is not None:
            smoothed = cells.astype(float)
            known = np.isfinite(smoothed) & faces.predicted
            probabilities[known, place] = smoothed[known]
    return probabilities


def _observed(kind: Kind, observation: IntArray, number: int) -> Kind:
    """Returns measures of faces (N,) as their means over the observation (N,) of each face (O,)."""
    values = {name: average(cells, observation, number) for name, cells in kind.values.items()}
    return kind._replace(values=values)


def _probability_kind(labels: Sequence[str], probabilities: Array) -> Kind:
    values = dict(zip(labels, probabilities.T, strict=True))
    return Kind("Mean probability", "the mean probability (0 to 1)", ".3f", "", values, most=1)


def _change_kind(labels: Sequence[str], changes: Array, rest: Rest) -> Kind:
    values = dict(zip(labels, changes.T, strict=True))
    title = "Change of the probability from rest"
    phrase = f"the change of the probability (0 to 1) from rest ({rest} s)"
    return Kind(title, phrase, "+.3f", "", values, least=-1, most=1)


def _share_kind(values: dict[str, Array]) -> Kind:
    phrase = "the share of faces with this label"
    return Kind(
        "Share of faces with the label", phrase, ".1%", " percentage points", values, most=1
    )


def read_heads(
    faces: EvaluatedFaces, clip: IntArray, rest: Rest | None
) -> dict[str, dict[str, Array]]:
    """Returns the outputs of further heads of all faces by head and name (N,),
    or their change from rest.
    """
    heads: dict[str, dict[str, Array]] = {}
    for head, names in outputs_of([*faces.columns]).items():
        heads[head] = {}
        for name in names:
            values = faces.columns[target_column(head, name)].astype(float)
            if rest:
                values = change_from_rest(values[:, None], _seconds(faces), clip, rest)[:, 0]
            heads[head][name] = values
    return heads


class Words(NamedTuple):
    """How a comparison describes a head."""

    title: str
    phrase: str
    form: str
    unit: str = ""


HEAD_WORDS = {
    "movements": Words("Movements", "the mean intensity (0 to 1)", ".3f"),
    "pose": Words("Head pose", "the mean angle in degrees", ".1f", " degrees"),
    "affect": Words("Valence and arousal", "the mean value (-1 to 1)", ".3f"),
}


def head_kinds(
    heads: Mapping[str, Mapping[str, Array]], used: Mask, rest: Rest | None
) -> list[Kind]:
    """Returns the outputs of each head that any of the `used` faces (N,) has,
    as measures of these faces.
    """
    kinds = []
    for head, outputs in heads.items():
        values = {name: cells[used] for name, cells in outputs.items()}
        known = {name: cells for name, cells in values.items() if np.isfinite(cells).any()}
        if not known:
            continue
        title, phrase, form, unit = HEAD_WORDS[head]
        least, most = HEADS[head].low, HEADS[head].high
        if rest:
            title = f"{title}, change from rest"
            phrase = f"{phrase}, as the change from rest ({rest} s),"
            form = f"+{form}"
            least, most = least - most, most - least
        kinds.append(Kind(title, phrase, form, unit, known, least, most))
    return kinds


def label_shares(faces: EvaluatedFaces) -> dict[str, Array]:
    """Returns by label whether each face has it (N,), smoothed where it is of a clip;
    NaN without a label.
    """
    labels = faces.columns.get(
        "label", np.array(faces.labels, object)[faces.probabilities.argmax(1)]
    )
    smoothed = faces.columns.get("label_smoothed", labels)
    labels = np.where(smoothed == NONE, labels, smoothed)
    return {
        name: np.where(labels == NONE, np.nan, labels == name).astype(float)
        for name in faces.labels
    }


def find_episodes(faces: EvaluatedFaces, observations: IntArray) -> list[tuple[int, Episode]]:
    """Returns the uninterrupted expressions in clips,
    each with the observation (-1: none) of its rows.
    """
    people = People()
    track = np.array([track or 0 for track in faces.columns["track"]])
    tracks = track.max() + 1
    columns = faces.columns | {"track": observations * tracks + track}
    names = ["path", *CLIP, "label_smoothed", *(SMOOTHED + label for label in faces.labels)]
    cells = zip(*(columns[name] for name in names), strict=True)
    rows = (dict(zip(names, row, strict=True)) for row in cells)
    for _, frame in groupby(rows, itemgetter("path", "frame")):
        people.add_rows([*frame])
    return [
        (episode.track // tracks, episode) for episode in people.intervals() if episode.track >= 0
    ]


def clip_kinds(
    episodes: Sequence[tuple[int, Episode]], labels: Sequence[str], number: int
) -> list[Kind]:
    """Returns seconds per episode, and episodes and transitions per minute,
    of a number of observations.
    """
    seconds = {label: np.zeros(number) for label in labels}
    count = {label: np.zeros(number) for label in labels}
    passed = {
        f"{before} to {after}": np.zeros(number) for before, after in product(labels, repeat=2)
    }
    for (observation, episode), following in zip_longest(episodes, episodes[1:]):
        count[episode.label][observation] += 1
        seconds[episode.label][observation] += episode.end - episode.start
        if following and _touch(episode, following[1]):
            passed[f"{episode.label} to {following[1].label}"][observation] += 1

    total = np.sum([*seconds.values()], axis=0)  # (O,)
    measured = np.where(total >= BRIEFEST, 1.0, np.nan)
    minutes = measured * total / 60
    with np.errstate(invalid="ignore"):
        duration = {label: measured * time / count[label] for label, time in seconds.items()}
        rate = {label: times / minutes for label, times in count.items()}
        changes = {name: times / minutes for name, times in passed.items() if times.any()}
    kinds = [
        Kind("Seconds per episode", "the mean duration of an episode", ".2f", " s", duration),
        Kind("Episodes per minute", "the number of episodes", ".2f", " per minute", rate),
        Kind("Transitions per minute", "the number of transitions", ".2f", " per minute", changes),
    ]
    return [kind for kind in kinds if kind.values]


def _touch(episode: Episode, following: Episode) -> bool:
    """Returns whether the second of two episodes begins where the first ends,
    of the same person.
    """
    same = (episode.path, episode.track) == (following.path, following.track)
    return same and episode.end == following.start
