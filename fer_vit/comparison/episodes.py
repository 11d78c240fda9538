"""Episodes: the uninterrupted expressions of persons in clips, and their measures in a study.

An episode belongs to the face in the clip: it goes on where the condition changes, where no
condition is coded, and where the interval of rest ends. It counts in the observation in which it
begins, with its whole duration. An episode whose beginning is not seen counts nowhere, since a clip
or the sight of the face begins within it.

Where the sight of a face ends, it cuts long episodes more often than short ones. Whole episodes
alone would therefore be too short, above all in the last condition of a clip and in short clips. So
durations are of episodes that begin early enough, whether or not their end is seen.

N rows of a table, R of them of faces in clips, E episodes, O observations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from fer_vit.comparison.measures import Kind
from fer_vit.comparison.study import Observations
from fer_vit.fields import SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.predict.people import MIN_VIDEO_SECONDS
from fer_vit.stats.persons import EQUAL_WITHIN
from fer_vit.tables.cells import is_missing
from fer_vit.tables.labelled import Labelled

SHORTEST_CLIP = 1e-3  # an observation that is seen for a shorter time, in seconds, has no rates
MISSING_FRAMES = 2.0  # a step between frames above this multiple of the usual one is a gap
TIME_TOLERANCE = 1e-6  # seconds; sums of times are rounded
# Durations are of episodes that stay in sight for as long as this share of episodes lasts.
SHARE_IN_SIGHT = 0.9
UNLABELLED = -1  # the label of a face below `--min_confidence`

# The numbers of episodes of a condition, and of those that its measures leave out.
COUNTED = "counted"  # that begin in the condition, with their beginning in sight
LEAVING = "lasting beyond the condition"  # of those, into frames of others or of none
TOO_LATE = "too late for a duration"  # of those, see `find_least_room`
WITHOUT_BEGINNING = "beginning not seen"  # further episodes
BEGUN_ELSEWHERE = "beginning not compared"  # further episodes, that begin in other frames

SECONDS = Kind(
    title="Seconds per episode",
    phrase="the mean duration of an episode (seconds)",
    subject="the mean duration of an episode of",
    prefix="seconds_",
    form=".2f",
    unit=" s",
)
RATES = Kind(
    title="Episodes per minute",
    phrase="the number of episodes that begin per minute",
    subject="the number of episodes of",
    prefix="episodes_",
    form=".2f",
    unit=" per minute",
)
TRANSITIONS = Kind(
    title="Transitions per minute",
    phrase="the number of transitions per minute",
    subject="the number of transitions from",
    prefix="transitions_",
    form=".2f",
    unit=" per minute",
)


@dataclass(frozen=True, eq=False)
class Sightings:
    """Faces in clips: each face of R rows, in the order of its frames.

    Attributes:
        rows: The index of the row in the table (R,).
        label: The index of the smoothed label (R,), or `UNLABELLED`.
        seconds: The time in the clip (R,).
        followed: Whether the same face is seen in the frame before (R,).
    """

    rows: IntArray
    label: IntArray
    seconds: Array
    followed: Mask

    @property
    def step(self) -> Array:
        """The time since the frame before (R,), in seconds; 0 if the face is not seen in it."""
        steps = np.diff(self.seconds, prepend=np.nan)
        return np.where(self.followed, np.maximum(steps, MIN_VIDEO_SECONDS), 0.0)

    @property
    def remaining(self) -> Array:
        """The time (R,) for which the face stays in sight, in seconds."""
        firsts = np.flatnonzero(~self.followed)
        lasts = np.append(firsts, len(self.rows))[1:] - 1
        sight = np.cumsum(~self.followed) - 1  # (R,)
        return np.asarray(self.seconds[lasts][sight] - self.seconds)


def find_sightings(faces: Labelled, person: str) -> Sightings:
    """Returns the faces in clips; `person` is a column.

    A face is the same in adjacent frames if its track is the same and its person does not change.
    Rows without a person belong to the person of their track.
    """
    seconds = faces.numbers("seconds")  # (N,), NaN for a photo
    in_clip = np.flatnonzero(np.isfinite(seconds))
    frame = number_frames(faces, in_clip)  # (N,)
    rows = in_clip[faces.predicted[in_clip]]
    track = faces.columns["track"][rows].astype(float)
    clip = np.unique(faces.paths[rows].astype(str), return_inverse=True)[1]
    order = np.lexsort([frame[rows], track, clip])
    rows = rows[order]

    named = ~is_missing(faces.columns[person][rows])
    name = faces.columns[person][rows].astype(str)
    followed = np.zeros(len(rows), bool)
    followed[1:] = (
        (clip[order][1:] == clip[order][:-1])
        & (track[order][1:] == track[order][:-1])
        & (np.diff(frame[rows]) == 1)
        & ((name[1:] == name[:-1]) | ~named[1:] | ~named[:-1])
    )
    index = {label: number for number, label in enumerate(faces.labels)}
    labels = [index.get(label, UNLABELLED) for label in faces.columns[SMOOTHED_LABEL][rows]]
    return Sightings(rows, np.array(labels, int), seconds[rows], followed)


def number_frames(faces: Labelled, in_clip: IntArray) -> IntArray:
    """Returns the number of each row's frame among the frames of its clip (N,); 0 for a photo.

    Adjacent frames have adjacent numbers, also if the faces of `--every` or `--fps` skip frames of
    the video. A number is left out where rows of frames are missing from the table. `in_clip` are
    the rows of clips, by path and frame.
    """
    numbers = np.zeros(len(faces.paths), int)
    paths = faces.paths[in_clip]
    starts = np.flatnonzero(paths[1:] != paths[:-1]) + 1
    for rows in np.split(in_clip, starts):
        frames, index = np.unique(faces.columns["frame"][rows].astype(float), return_inverse=True)
        steps = np.diff(frames)
        usual = np.median(steps) if len(steps) else 0.0
        missing = steps > MISSING_FRAMES * usual
        numbers[rows] = np.cumsum(np.append(1, 1 + missing))[index]
    return numbers


@dataclass(frozen=True, eq=False)
class Episodes:
    """E episodes that last into frames of an observation.

    Attributes:
        observation: The observation of its first compared frame (E,).
        label: The index of its label (E,).
        before: The label of the same face before the episode (E,), or `UNLABELLED`.
        seconds: The duration, as far as the episode is in sight (E,).
        room: The time from its beginning to the end of the sight of the face (E,).
        is_first: Whether its first frame is compared (E,), so that the episode begins in the
            observation.
        begins: Whether its beginning is seen (E,).
        ends: Whether its end is seen (E,).
        leaves: Whether it lasts into frames that are not of the observation (E,).
    """

    observation: IntArray
    label: IntArray
    before: IntArray
    seconds: Array
    room: Array
    is_first: Mask
    begins: Mask
    ends: Mask
    leaves: Mask

    @property
    def counted(self) -> Mask:
        """Whether the episode counts in its observation (E,): it is seen to begin there."""
        return self.begins & self.is_first

    def timed(self, least_room: Array) -> Mask:
        """Whether the duration of the episode counts (E,); `least_room` (C,) is by label."""
        return self.counted & (self.room > least_room[self.label] - TIME_TOLERANCE)


def find_episodes(seen: Sightings, observation: IntArray) -> Episodes:
    """Returns the episodes of all faces.

    `observation` (R,) is the index of the observation of each sighting, or -1: the frame is not
    compared.
    """
    changed = np.diff(seen.label, prepend=UNLABELLED) != 0
    firsts = np.flatnonzero(~seen.followed | changed)
    nexts = np.append(firsts, len(seen.rows))[1:]  # the sightings after each run of a label

    kept = []
    of_run = []
    leaves = []
    for number, (first, following) in enumerate(zip(firsts, nexts, strict=True)):
        inside = observation[first:following]
        compared = inside[inside >= 0]
        if seen.label[first] != UNLABELLED and len(compared):
            kept.append(number)
            of_run.append(compared[0])
            leaves.append((inside != compared[0]).any())

    first = firsts[np.array(kept, int)]
    following = nexts[np.array(kept, int)]
    room = seen.remaining[first]
    ends = np.append(seen.followed, False)[following]
    end = np.append(seen.seconds, np.nan)[following]
    return Episodes(
        observation=np.array(of_run, int),
        label=seen.label[first],
        before=np.where(seen.followed[first], seen.label[first - 1], UNLABELLED),
        seconds=np.where(ends, end - seen.seconds[first], room),
        room=room,
        is_first=observation[first] >= 0,
        begins=seen.followed[first],
        ends=ends,
        leaves=np.array(leaves, bool),
    )


def find_least_room(episodes: Episodes, num_labels: int) -> Array:
    """Returns the time within which `SHARE_IN_SIGHT` of the episodes of each label end (C,).

    It is estimated from all episodes, whether or not their end is seen (Kaplan & Meier 1958). It is
    infinite if fewer are seen to end.
    """
    least = np.full(num_labels, np.inf)
    for label in range(num_labels):
        chosen = episodes.counted & (episodes.label == label)
        if (chosen & episodes.ends).any():
            sample = stats.CensoredData.right_censored(
                episodes.seconds[chosen], ~episodes.ends[chosen]
            )
            lasting = stats.ecdf(sample).sf
            ended = lasting.probabilities <= 1 - SHARE_IN_SIGHT + EQUAL_WITHIN
            least[label] = min(lasting.quantiles[ended], default=np.inf)
    return least


def count_episodes(episodes: Episodes, least_room: Array, members: Mask) -> dict[str, int]:
    """Returns the numbers of episodes in the observations of the mask `members` (O,), by name.

    The names are those of results.json.
    """
    inside = members[episodes.observation]  # (E,)
    counted = inside & episodes.counted
    numbers = {
        COUNTED: counted,
        LEAVING: counted & episodes.leaves,
        TOO_LATE: counted & ~episodes.timed(least_room),
        WITHOUT_BEGINNING: inside & ~episodes.begins,
        BEGUN_ELSEWHERE: inside & episodes.begins & ~episodes.is_first,
    }
    return {name: int(chosen.sum()) for name, chosen in numbers.items()}


def measure_episodes(
    seen: Sightings,
    observation: IntArray,
    episodes: Episodes,
    least_room: Array,
    labels: Sequence[str],
    num_observations: int,
) -> dict[Kind, dict[str, Array]]:
    """Returns the measures of episodes for each of O observations, by kind and name.

    Rates are per minute in which the face is seen in the frame before as well, since only there the
    beginning of an episode can be seen.
    """

    def totals(values: Array) -> Array:
        """Returns the sum of values of episodes (E,) in each observation (O,)."""
        return np.bincount(episodes.observation, values, num_observations).astype(float)

    compared = observation >= 0
    in_sight = np.bincount(observation[compared], seen.step[compared], num_observations)
    minutes = np.where(in_sight < SHORTEST_CLIP, np.nan, in_sight) / 60  # (O,)
    counted = episodes.counted
    timed = episodes.timed(least_room)
    durations = {}
    rates = {}
    transitions = {}
    for index, label in enumerate(labels):
        of_label = episodes.label == index  # (E,)
        rates[label] = totals(counted & of_label) / minutes
        with np.errstate(invalid="ignore"):  # an observation without such an episode
            mean = totals(episodes.seconds * (timed & of_label)) / totals(timed & of_label)
        durations[label] = mean
    for before, name in enumerate(labels):
        for after, name_after in enumerate(labels):
            changes = counted & (episodes.before == before) & (episodes.label == after)
            if changes.any():
                transitions[f"{name} to {name_after}"] = totals(changes) / minutes
    measures = {SECONDS: durations, RATES: rates}
    if transitions:
        measures[TRANSITIONS] = transitions
    return measures


class Followed(NamedTuple):
    """What the episodes of faces add to a study; see `Study`."""

    measures: dict[Kind, dict[str, Array]]  # values (O,) by name
    counts: dict[str, dict[str, int]]
    rooms: dict[str, float]


def follow_faces(
    faces: Labelled, person: str, of_row: IntArray, observations: Observations
) -> Followed:
    """Finds, counts and measures the episodes of a table with smoothed labels.

    `person` is a column; `of_row` (N,) is the observation of each row, or -1: it is not compared.
    """
    seen = find_sightings(faces, person)
    of_sighting = of_row[seen.rows]
    episodes = find_episodes(seen, of_sighting)
    least_room = find_least_room(episodes, len(faces.labels))
    measures = measure_episodes(
        seen, of_sighting, episodes, least_room, faces.labels, len(observations.paths)
    )
    counts = {}
    for index, name in enumerate(observations.conditions):
        counts[name] = count_episodes(episodes, least_room, observations.condition == index)
    rooms = {}
    for index in np.unique(episodes.label[episodes.counted]).tolist():
        rooms[faces.labels[index]] = float(least_room[index])
    return Followed(measures, counts, rooms)
