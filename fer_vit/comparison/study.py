"""Shapes predictions into a study: averages by photo or clip, and these by person and condition."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fer_vit.comparison.series import Rest, change_from_rest
from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluation.checks import CLIP
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.join import describe_groups
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import HEADS, output_titles, outputs_of, target_column, values_near
from fer_vit.predict.people import SHORTEST, Episode, People

CHANGE = "Change of the probability from rest"
SHARE = "Share of faces with the label"
"""Titles of what is compared."""
NONE = np.array(None)  # compares with the cells of a column
MOST_CONDITIONS = 50  # they have 1,225 pairs
# seconds of clips below which nothing per minute is measured: a clip of one frame has no length
BRIEFEST = 1e-3
LATE = 0.5  # seconds; a clip whose times begin later is named where times matter


class Kind(NamedTuple):
    """Measures of one kind, such as the mean probability of each expression."""

    title: str
    phrase: str  # what is higher or lower, in a sentence
    form: str  # the format of the values
    unit: str  # of a difference, in a sentence
    values: dict[str, Array]  # by measure: (O,), of each photo or clip; NaN where there is none
    least: float = 0.0  # no value is smaller
    most: float = np.inf  # no value is larger
    period: float | None = None  # difference of values that mean the same, such as 360 degrees
    of_head: bool = False  # whether the measures are outputs of a further head

    @property
    def titles(self) -> dict[str, str]:
        """How pages name the measures."""
        return output_titles(self.values) if self.of_head else {name: name for name in self.values}


class Design(NamedTuple):
    """How two conditions are compared: within P persons, or between them."""

    paired: bool
    persons: Mask  # (P,), who takes part
    left_out: Mask  # (P,), who is in one of the conditions but takes no part


@dataclass(frozen=True, eq=False)
class Study:
    """P persons under C conditions, observed O times: in a photo or clip."""

    conditions: dict[str, Mask]  # the observations in each (O,), the baseline first
    pairs: list[tuple[str, str]]  # the conditions to compare, the second minus the first
    people: list[str]  # the names of the persons (P,)
    person: IntArray  # (O,), an index
    paths: list[str]  # (O,), the photo or clip
    faces: IntArray  # (O,), their number
    kinds: list[Kind]  # what was measured
    left_out: int  # number of faces without a condition or person
    labels: list[str]  # the expressions
    observation: IntArray  # (M,), of each face that was measured
    seconds: Array  # (M,), NaN in a photo
    # (M, C), smoothed where the table has them so; or their change from rest
    probabilities: Array
    rest: Rest | None = None  # the interval that was subtracted
    without_rest: tuple[str, ...] = ()  # the photos and clips that have no face in it
    notes: tuple[str, ...] = ()  # what was assumed and left out in reading
    late: dict[str, float] = field(default_factory=dict)  # by clip, see `find_late`

    @property
    def heads(self) -> list[str]:
        """The titles of the measures that are outputs of further heads."""
        return [kind.title for kind in self.kinds if kind.of_head]

    def cells(self, values: Array) -> dict[str, Array]:
        """Returns the mean of observed values (O,) of each person (P,) by condition; NaN: none."""
        means = {}
        for name, rows in self.conditions.items():
            means[name] = average(values[rows], self.person[rows], len(self.people))
        return means

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of persons, of photos or clips, and of faces in each condition."""
        counts = {}
        for name, rows in self.conditions.items():
            counts[name] = {
                "persons": len(np.unique(self.person[rows])),
                "photos or clips": int(rows.sum()),
                "faces": int(self.faces[rows].sum()),
            }
        return counts

    def design(self, first: str, second: str) -> Design:
        """Returns how two conditions are compared."""
        return choose_design(self._persons_in(first), self._persons_in(second))

    def _persons_in(self, condition: str) -> Mask:
        """Returns which persons (P,) are in a condition."""
        present = np.zeros(len(self.people), bool)
        present[self.person[self.conditions[condition]]] = True
        return present

    def names(self, persons: Mask) -> list[str]:
        """Returns the names of some of the persons (P,)."""
        return [self.people[index] for index in np.flatnonzero(persons)]


def choose_design(first: Mask, second: Mask) -> Design:
    """Returns how two conditions with the persons `first` and `second` (P,) are compared.

    Within persons if at least as many are in both conditions as only in one, counted in the
    condition that has fewer such persons; else between persons.
    """
    in_both = first & second
    in_one = first ^ second
    smaller = min((first & ~second).sum(), (second & ~first).sum())
    if in_both.any() and in_both.sum() >= smaller:
        return Design(paired=True, persons=in_both, left_out=in_one)
    return Design(paired=False, persons=in_one, left_out=in_both)


def average(values: Array, group: IntArray, groups: int) -> Array:
    """Returns the mean (G,) of the values (N,) in each group (N,), of which NaN do not count."""
    known = ~np.isnan(values)
    sums = np.bincount(group, np.where(known, values, 0), groups)
    counts = np.bincount(group, known, groups)
    with np.errstate(invalid="ignore"):  # a group without values
        return np.asarray(sums / counts)


def average_directions(values: Array, group: IntArray, groups: int, period: float) -> Array:
    """Returns the mean (G,) of values (N,) with a period in each group (N,), without NaN.

    -179 and 179 degrees have the mean 180. Means lie near their common direction, where -179 may be
    181, so that they can be averaged and compared like other numbers.
    """
    near = values_near(values, find_directions(values, group, groups, period)[group], period)
    means = average(near, group, groups)  # (G,)
    (common,) = find_directions(means, np.zeros(groups, int), 1, period)
    return values_near(means, common, period)


def find_directions(values: Array, group: IntArray, groups: int, period: float) -> Array:
    """Returns the mean direction (G,) of values (N,) with a period in each group (N,)."""
    angles = 2 * np.pi / period * values
    sine = average(np.sin(angles), group, groups)
    cosine = average(np.cos(angles), group, groups)
    return np.asarray(period / (2 * np.pi) * np.arctan2(sine, cosine))


def make_study(
    faces: EvaluatedFaces,
    by: str,
    person: str,
    baseline: str | None = None,
    rest: Rest | None = None,
) -> Study:
    """Averages faces by condition and person.

    Means, and their changes from rest, are of the values before smoothing: the mean of a clip needs
    none, and smoothed values beside rest contain some of it. `probabilities` for series are the
    smoothed ones where the table has them.

    With `rest`, probabilities are changes from the mean over this interval of the same clip and
    person; faces within it serve for nothing else. Raises FerVitError without two conditions, the
    baseline, or a face in the interval.
    """
    assigned = faces.predicted & (faces.columns[person] != NONE) & (faces.columns[by] != NONE)
    selected = _select_faces(faces, assigned, person, rest)
    observations = _observe(faces.take(selected.used), by, person, baseline)
    names = observations.conditions
    conditions = {}
    for place, name in enumerate(names):
        conditions[name] = observations.condition == place
    pairs = list(combinations(names, 2))
    if baseline is not None:
        pairs = [(first, second) for first, second in pairs if first == baseline]
    return Study(
        conditions=conditions,
        pairs=pairs,
        people=observations.people,
        person=observations.person,
        paths=observations.paths,
        faces=observations.faces,
        kinds=_measures(faces, selected, observations, rest),
        left_out=int((faces.predicted & ~assigned).sum()),
        labels=faces.labels,
        observation=observations.of_face,
        seconds=_seconds(faces)[selected.used],
        probabilities=selected.probabilities[selected.used],
        rest=rest,
        without_rest=selected.without_rest,
        notes=(*faces.notes, *describe_groups(faces, (by, person))),
        late=find_late(faces.paths, _seconds(faces)),
    )


def find_late(paths: NDArray[np.object_], seconds: Array) -> dict[str, float]:
    """Returns the first time of each clip that begins later than `LATE`.

    The times of recordings (.mts, .ts) often begin above 0, and the times of a part at its start.
    `paths` and `seconds` (N,) are of all rows, also without a face; NaN in a photo.
    """
    first: dict[str, float] = {}
    for path, time in zip(paths, seconds, strict=True):
        if np.isfinite(time):
            first[str(path)] = min(first.get(str(path), np.inf), float(time))
    return {path: time for path, time in first.items() if time > LATE}


class Selected(NamedTuple):
    """Which of N faces a study measures."""

    used: Mask  # (N,)
    probabilities: Array  # (N, C), smoothed in clips; or their change from rest
    clip: IntArray  # (N,), the index of the clip for the change from rest; -1: none
    without_rest: tuple[str, ...]  # the photos and clips that have no face in the interval


def _select_faces(
    faces: EvaluatedFaces, assigned: Mask, person: str, rest: Rest | None
) -> Selected:
    """Selects the faces to measure of those with a person and condition, `assigned` (N,)."""
    probabilities = _smoothed_probabilities(faces)
    if rest is None:
        no_clip = np.full(len(assigned), -1)
        return Selected(assigned, probabilities, no_clip, without_rest=())
    return _changes_from_rest(faces, assigned, probabilities, person, rest)


def _changes_from_rest(
    faces: EvaluatedFaces, assigned: Mask, probabilities: Array, person: str, rest: Rest
) -> Selected:
    """Selects the faces outside of rest whose clip has a face in it, and subtracts its mean.

    Faces without a condition count as rest, too. Raises FerVitError if no face is selected.
    """
    named = faces.predicted & (faces.columns[person] != NONE)  # (N,)
    clip = np.full(len(named), -1)
    clip[named] = _clips(faces.columns[person][named], faces.paths[named])
    seconds = _seconds(faces)
    changes = change_from_rest(probabilities, seconds, clip, rest)  # (N, C)

    has_rest = np.isfinite(changes).all(1)  # (N,)
    without_rest = sorted({str(path) for path in faces.paths[assigned & ~has_rest]})
    used = assigned & has_rest & ~rest.contains(seconds)
    if not used.any():
        raise FerVitError(
            f"Expected clips with faces within and outside of `--rest {rest}`, but no clip of "
            f"{len({*faces.paths})} has them. Is it in seconds from the start of each clip?"
        )
    return Selected(used, changes, clip, tuple(without_rest))


class Observations(NamedTuple):
    """M measured faces as O observations: each of a person, in a condition, in a photo or clip."""

    conditions: list[str]  # their names in order, the baseline first
    people: list[str]  # the names of the persons (P,)
    condition: IntArray  # (O,), an index
    person: IntArray  # (O,), an index
    paths: list[str]  # (O,), the photo or clip
    faces: IntArray  # (O,), their number
    of_face: IntArray  # (M,), the observation of each face


def _observe(measured: EvaluatedFaces, by: str, person: str, baseline: str | None) -> Observations:
    """Groups the faces to measure by person, condition, and photo or clip."""
    conditions = _condition_names(measured.columns[by], by, baseline)
    condition = np.array([conditions.index(str(cell)) for cell in measured.columns[by]])  # (M,)
    people, owner = np.unique(measured.columns[person].astype(str), return_inverse=True)
    images, image = np.unique(measured.paths.astype(str), return_inverse=True)

    keys = np.column_stack([owner, condition, image])  # (M, 3)
    observed, index, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return Observations(
        conditions=conditions,
        people=people.tolist(),
        condition=observed[:, 1],
        person=observed[:, 0],
        paths=images[observed[:, 2]].tolist(),
        faces=sizes,
        of_face=index,
    )


def _measures(
    faces: EvaluatedFaces, selected: Selected, observations: Observations, rest: Rest | None
) -> list[Kind]:
    """Returns what was measured of each observation: first of its faces, then of its episodes."""
    used = selected.used
    measured = faces.take(used)
    if rest:
        changes = change_from_rest(faces.probabilities, _seconds(faces), selected.clip, rest)
        probabilities = _change_kind(faces.labels, changes[used], rest)
    else:
        probabilities = _probability_kind(faces.labels, measured.probabilities)
    of_faces = [probabilities, _share_kind(label_shares(measured))]
    of_faces += head_kinds(read_heads(faces, selected.clip, rest), used, rest)

    number = len(observations.paths)
    kinds = [_average_kind(kind, observations.of_face, number) for kind in of_faces]
    if SMOOTHED_LABEL in faces.columns:
        observation = np.full(len(used), -1)  # (N,)
        observation[used] = observations.of_face
        kinds += clip_kinds(find_episodes(faces, observation), faces.labels, number)
    return kinds


def _condition_names(cells: Iterable[object], by: str, baseline: str | None) -> list[str]:
    """Returns the conditions in a column in order, the baseline first."""
    names = sorted({str(cell) for cell in cells}, key=lambda name: (name != baseline, name))
    if len(names) < 2 or baseline not in (None, names[0]):
        expected = "two or more conditions"
        hint = ""
        if baseline:
            expected = f"the baseline {baseline} and others"
            hint = suggest(baseline, names)
        came = short(", ".join(names)) or "none"
        raise FerVitError(f"Expected {expected} in `{by}`, but got {came}.{hint}")
    if len(names) > MOST_CONDITIONS:
        raise FerVitError(
            f"Expected at most {MOST_CONDITIONS} conditions in `{by}`, but got {len(names):,}. "
            "Is it the right column?"
        )
    return names


def _clips(persons: Array, paths: Array) -> IntArray:
    """Returns the index of each face's clip (N,): equal for one person in one file."""
    indices: dict[tuple[str, str], int] = {}
    clips = np.empty(len(paths), int)
    for row, (person, path) in enumerate(zip(persons, paths, strict=True)):
        clips[row] = indices.setdefault((str(person), str(path)), len(indices))
    return clips


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


def _average_kind(kind: Kind, observation: IntArray, number: int) -> Kind:
    """Returns measures of faces (N,) as their means over the observation (N,) of each face (O,)."""
    values = {}
    for name, cells in kind.values.items():
        if kind.period is None:
            values[name] = average(cells, observation, number)
        else:
            values[name] = average_directions(cells, observation, number, kind.period)
    return kind._replace(values=values)


def _probability_kind(labels: Sequence[str], probabilities: Array) -> Kind:
    values = dict(zip(labels, probabilities.T, strict=True))
    return Kind(
        title="Mean probability",
        phrase="the mean probability (0 to 1)",
        form=".3f",
        unit="",
        values=values,
        most=1,
    )


def _change_kind(labels: Sequence[str], changes: Array, rest: Rest) -> Kind:
    values = dict(zip(labels, changes.T, strict=True))
    return Kind(
        title=CHANGE,
        phrase=f"the change of the probability (0 to 1) from rest ({rest} s)",
        form="+.3f",
        unit="",
        values=values,
        least=-1,
        most=1,
    )


def _share_kind(values: dict[str, Array]) -> Kind:
    return Kind(
        title=SHARE,
        phrase="the share of faces with this label",
        form=".1%",
        unit=" percentage points",
        values=values,
        most=1,
    )


def read_heads(
    faces: EvaluatedFaces, clip: IntArray, rest: Rest | None
) -> dict[str, dict[str, Array]]:
    """Returns the outputs of further heads by head and name (N,), or their change from rest."""
    heads: dict[str, dict[str, Array]] = {}
    for head, names in outputs_of([*faces.columns]).items():
        heads[head] = {}
        for name in names:
            values = faces.columns[target_column(head, name)].astype(float)
            if rest:
                values = _output_change(values, HEADS[head].period, _seconds(faces), clip, rest)
            heads[head][name] = values
    return heads


def _output_change(
    values: Array, period: float | None, seconds: Array, clip: IntArray, rest: Rest
) -> Array:
    """Returns the change of an output (N,) from rest; arguments as for `change_from_rest`."""
    if period is None:
        return change_from_rest(values[:, None], seconds, clip, rest)[:, 0]
    groups = clip + 1  # 0: no clip
    directions = find_directions(values, groups, int(groups.max(initial=0)) + 1, period)
    near = values_near(values, directions[groups], period)
    changes = change_from_rest(near[:, None], seconds, clip, rest)[:, 0]
    return values_near(changes, np.zeros(len(changes)), period)


def head_kinds(
    heads: Mapping[str, Mapping[str, Array]], used: Mask, rest: Rest | None
) -> list[Kind]:
    """Returns the outputs of heads as measures of the `used` faces (N,), where any has a value."""
    kinds = []
    for head, outputs in heads.items():
        values = {}
        for name, cells in outputs.items():
            if np.isfinite(cells[used]).any():
                values[name] = cells[used]
        if not values:
            continue
        entry = HEADS[head]
        title = entry.title
        phrase = entry.phrase
        form = entry.form
        unit = f" {entry.unit}" if entry.unit else ""
        least = entry.low
        most = entry.high
        if rest:
            title = f"{title}, change from rest"
            phrase = f"{phrase}, as the change from rest ({rest} s),"
            form = f"+{form}"
            largest = most - least
            least = -largest
            most = largest
        if entry.period is not None:  # beside 179 degrees, -179 is 181
            least = -np.inf
            most = np.inf
        kind = Kind(
            title=title,
            phrase=phrase,
            form=form,
            unit=unit,
            values=values,
            least=least,
            most=most,
            period=entry.period,
            of_head=True,
        )
        kinds.append(kind)
    return kinds


def label_shares(faces: EvaluatedFaces) -> dict[str, Array]:
    """Returns by label whether each face has it (N,), in clips smoothed; NaN without a label."""
    most_likely = np.array(faces.labels, object)[faces.probabilities.argmax(1)]
    labels = faces.columns.get("label", most_likely)
    smoothed = faces.columns.get(SMOOTHED_LABEL, labels)
    labels = np.where(smoothed == NONE, labels, smoothed)  # (N,)

    shares = {}
    for name in faces.labels:
        shares[name] = np.where(labels == NONE, np.nan, labels == name).astype(float)
    return shares


class ObservedEpisode(NamedTuple):
    """An uninterrupted expression in a clip."""

    observation: int
    episode: Episode


def find_episodes(faces: EvaluatedFaces, observations: IntArray) -> list[ObservedEpisode]:
    """Returns the uninterrupted expressions in clips, person by person.

    `observations` (N,) are of the faces; -1: none, and its episodes are left out.
    """
    # An episode does not continue in another observation: each pair of observation and track counts
    # as a track.
    track = [track or 0 for track in faces.columns["track"]]
    pairs = np.column_stack([observations, track])  # (N, 2)
    owners, index = np.unique(pairs, axis=0, return_inverse=True)
    columns = faces.columns | {"track": index}
    names = ["path", *CLIP, SMOOTHED_LABEL]
    names += [SMOOTHED + label for label in faces.labels]

    people = People()
    for _, frame in groupby(_rows(columns, names), itemgetter("path", "frame")):
        people.add_rows(list(frame))

    episodes = []
    for episode in people.intervals():
        observation = int(owners[episode.track, 0])
        if observation >= 0:
            episodes.append(ObservedEpisode(observation, episode))
    return episodes


def _rows(columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the cells of some columns (N,) row by row."""
    for cells in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, cells, strict=True))


def clip_kinds(
    episodes: Sequence[ObservedEpisode], labels: Sequence[str], number: int
) -> list[Kind]:
    """Returns the measures of clips with episodes, for a number O of observations."""
    seconds = {label: np.zeros(number) for label in labels}
    count = {label: np.zeros(number) for label in labels}
    transitions: dict[str, Array] = {}
    for before in labels:
        for after in labels:
            transitions[f"{before} to {after}"] = np.zeros(number)

    for index, (observation, episode) in enumerate(episodes):
        count[episode.label][observation] += 1
        seconds[episode.label][observation] += episode.end - episode.start
        if index + 1 < len(episodes):
            following = episodes[index + 1].episode
            if _touch(episode, following):
                transitions[f"{episode.label} to {following.label}"][observation] += 1

    total = np.sum([*seconds.values()], axis=0)  # (O,)
    measured = np.where(total >= BRIEFEST, 1.0, np.nan)
    minutes = measured * total / 60
    with np.errstate(invalid="ignore"):  # a label without episodes
        duration = {label: measured * time / count[label] for label, time in seconds.items()}
    rate = {label: times / minutes for label, times in count.items()}
    changes = {name: times / minutes for name, times in transitions.items() if times.any()}
    durations = Kind(
        title="Seconds per episode",
        phrase="the mean duration of an episode",
        form=".2f",
        unit=" s",
        values=duration,
    )
    rates = Kind(
        title="Episodes per minute",
        phrase="the number of episodes",
        form=".2f",
        unit=" per minute",
        values=rate,
    )
    if not changes:
        return [durations, rates]
    rates_of_changes = Kind(
        title="Transitions per minute",
        phrase="the number of transitions",
        form=".2f",
        unit=" per minute",
        values=changes,
    )
    return [durations, rates, rates_of_changes]


def _touch(episode: Episode, following: Episode) -> bool:
    """Returns whether an episode of the same person begins where the first ends."""
    if episode.path != following.path or episode.track != following.track:
        return False
    return abs(following.start - episode.end) < SHORTEST
