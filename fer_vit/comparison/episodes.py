"""Episodes: the uninterrupted expressions of persons in clips, and their measures in a study."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fer_vit.comparison.kinds import MeasureKind
from fer_vit.evaluation.checks import CLIP_COLUMNS
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.fields import SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray
from fer_vit.predict.people import MIN_VIDEO_SECONDS, Episode, People

# Shorter clips, in seconds, have no measures: a clip of one frame has no length.
SHORTEST_CLIP = 1e-3


class ObservedEpisode(NamedTuple):
    """An uninterrupted expression in a clip."""

    observation: int  # index of the observation
    episode: Episode


def find_episodes(faces: EvaluatedFaces, observations: IntArray) -> list[ObservedEpisode]:
    """Returns the episodes of all clips, person by person.

    `observations` (N,) has the index of each face's observation. Episodes of faces without an
    observation, -1, are left out.
    """
    # An episode must not continue in another observation, so that each pair of an observation and a
    # track becomes a separate track.
    track = [track or 0 for track in faces.columns["track"]]
    pairs = np.column_stack([observations, track])  # (N, 2)
    owners, index = np.unique(pairs, axis=0, return_inverse=True)
    columns = faces.columns | {"track": index}
    names = ["path", *CLIP_COLUMNS, SMOOTHED_LABEL]
    names += [SMOOTHED + label for label in faces.labels]

    people = People()
    for _, frame in groupby(_rows(columns, names), itemgetter("path", "frame")):
        people.add_rows(list(frame))

    episodes = []
    for episode in people.episodes():
        observation = int(owners[episode.track, 0])
        if observation >= 0:
            episodes.append(ObservedEpisode(observation, episode))
    return episodes


def _rows(columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the cells of the columns `names` (N,), row by row."""
    for cells in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, cells, strict=True))


class EpisodeTotals(NamedTuple):
    """Sums over the episodes of each observation (O,)."""

    seconds: dict[str, Array]  # total duration by label
    episodes: dict[str, Array]  # number of episodes by label
    transitions: dict[str, Array]  # number of transitions by "LABEL to LABEL"


def add_episodes(
    episodes: Sequence[ObservedEpisode], labels: Sequence[str], num_observations: int
) -> EpisodeTotals:
    """Returns the totals of the episodes of each of O observations."""
    seconds = {label: np.zeros(num_observations) for label in labels}
    counts = {label: np.zeros(num_observations) for label in labels}
    transitions: dict[str, Array] = {}
    for before in labels:
        for after in labels:
            transitions[f"{before} to {after}"] = np.zeros(num_observations)

    for index, (observation, episode) in enumerate(episodes):
        counts[episode.label][observation] += 1
        seconds[episode.label][observation] += episode.end - episode.start
        if index + 1 < len(episodes):
            following = episodes[index + 1].episode
            if _touch(episode, following):
                transitions[f"{episode.label} to {following.label}"][observation] += 1
    return EpisodeTotals(seconds, counts, transitions)


def clip_kinds(
    episodes: Sequence[ObservedEpisode], labels: Sequence[str], num_observations: int
) -> list[MeasureKind]:
    """Returns the measures of episodes for each of O observations."""
    totals = add_episodes(episodes, labels, num_observations)
    clip_seconds = np.sum([*totals.seconds.values()], axis=0)  # (O,)
    too_short = clip_seconds < SHORTEST_CLIP
    clip_minutes = np.where(too_short, np.nan, clip_seconds) / 60

    durations = {}
    rates = {}
    for label in labels:
        with np.errstate(invalid="ignore"):  # an observation without episodes of the label
            mean = totals.seconds[label] / totals.episodes[label]
        durations[label] = np.where(too_short, np.nan, mean)
        rates[label] = totals.episodes[label] / clip_minutes
    transition_rates = {}
    for transition, count in totals.transitions.items():
        if count.any():
            transition_rates[transition] = count / clip_minutes

    kinds = [duration_kind(durations), rate_kind(rates)]
    if transition_rates:
        kinds.append(transition_kind(transition_rates))
    return kinds


def duration_kind(values: dict[str, Array]) -> MeasureKind:
    """Returns the mean durations of episodes (O,), by label, as a kind of measures."""
    return MeasureKind(
        title="Seconds per episode",
        phrase="the mean duration of an episode (seconds)",
        subject="the mean duration of an episode of",
        prefix="seconds_",
        form=".2f",
        unit=" s",
        values=values,
    )


def rate_kind(values: dict[str, Array]) -> MeasureKind:
    """Returns the rates of episodes (O,), by label, as a kind of measures."""
    return MeasureKind(
        title="Episodes per minute",
        phrase="the number of episodes per minute",
        subject="the number of episodes of",
        prefix="episodes_",
        form=".2f",
        unit=" per minute",
        values=values,
    )


def transition_kind(values: dict[str, Array]) -> MeasureKind:
    """Returns the rates of transitions (O,), by "LABEL to LABEL", as a kind of measures."""
    return MeasureKind(
        title="Transitions per minute",
        phrase="the number of transitions per minute",
        subject="the number of transitions from",
        prefix="transitions_",
        form=".2f",
        unit=" per minute",
        values=values,
    )


def _touch(episode: Episode, following: Episode) -> bool:
    """Returns whether `following` is by the same person and begins where `episode` ends."""
    if episode.path != following.path or episode.track != following.track:
        return False
    return abs(following.start - episode.end) < MIN_VIDEO_SECONDS
