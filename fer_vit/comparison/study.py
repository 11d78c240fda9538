"""A study: measures of photos or clips, with their persons and conditions."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fer_vit.comparison.episodes import EpisodeCounts
from fer_vit.comparison.kinds import MeasureKind
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.stats.means import average, average_directions
from fer_vit.stats.series import Rest


class Design(NamedTuple):
    """How two conditions are compared: within P persons, or between them."""

    paired: bool  # whether conditions are compared within persons
    persons: Mask  # (P,), whether each person takes part
    excluded: Mask  # (P,), whether each person is in a condition but takes no part


class ConditionCounts(NamedTuple):
    """The numbers of persons, observations and faces in a condition."""

    persons: int
    observations: int  # photos or clips of a person
    faces: int
    without_face: int  # photos and frames in which no face was found


@dataclass(frozen=True, eq=False)
class Study:
    """P persons under C conditions, with O observations: photos or clips.

    Attributes:
        conditions: Whether each observation (O,) is in a condition, by name of the condition; the
            baseline first.
        pairs: The pairs of conditions to compare, by name: the second minus the first.
        person_names: The names of the persons (P,).
        labels: The L expressions.

        person: The index of the person of each observation (O,).
        paths: The photo or clip of each observation (O,).
        face_counts: The number of faces in each observation (O,).
        kinds: The measures of each observation; the probabilities of expressions first.

        observation_of_face: The index of the observation of each measured face (M,).
        seconds: The time of each measured face in its clip (M,); NaN for a photo.
        probabilities: The probabilities of the measured faces (M, L), smoothed if the table has
            smoothed values; or their changes from rest.

        rest: The interval whose mean was subtracted; None: nothing was subtracted.
        without_rest: The photos and clips without a face in this interval.
        unassigned_faces: The number of faces without a condition or person.
        without_face: The number of photos and frames without a face, by condition.
        episodes: The numbers of episodes, by condition; empty without smoothed labels of clips.
        rooms: The time in sight, in seconds, that an episode needs for a duration, by label of
            counted episodes; see `find_least_room`.
        notes: Assumptions and omissions of reading.
    """

    conditions: dict[str, Mask]
    pairs: list[tuple[str, str]]
    person_names: list[str]
    labels: list[str]

    person: IntArray
    paths: list[str]
    face_counts: IntArray
    kinds: list[MeasureKind]

    observation_of_face: IntArray
    seconds: Array
    probabilities: Array

    rest: Rest | None = None
    without_rest: tuple[str, ...] = ()
    unassigned_faces: int = 0
    without_face: dict[str, int] = field(default_factory=dict)
    episodes: dict[str, EpisodeCounts] = field(default_factory=dict)
    rooms: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def condition(self) -> IntArray:
        """The index of the condition of each observation (O,)."""
        members = np.array([*self.conditions.values()])  # (C, O)
        return np.asarray(members.argmax(0))

    @property
    def heads(self) -> list[str]:
        """The titles of the measures that are outputs of further heads."""
        return [kind.title for kind in self.kinds if kind.of_head]

    def person_means(self, values: Array, period: float | None = None) -> dict[str, Array]:
        """Returns the mean of values (O,) over each person (P,), by condition; NaN if missing.

        Values with a period are averaged as directions.
        """
        persons = len(self.person_names)
        group = self.condition * persons + self.person  # (O,)
        groups = len(self.conditions) * persons
        if period is None:
            means = average(values, group, groups)
        else:
            means = average_directions(values, group, groups, period)
        return dict(zip(self.conditions, means.reshape(-1, persons), strict=True))

    def counts(self) -> dict[str, ConditionCounts]:
        """Returns the numbers of persons, observations and faces by condition."""
        counts = {}
        for name, rows in self.conditions.items():
            counts[name] = ConditionCounts(
                persons=len(np.unique(self.person[rows])),
                observations=int(rows.sum()),
                faces=int(self.face_counts[rows].sum()),
                without_face=self.without_face.get(name, 0),
            )
        return counts

    def design(self, first: str, second: str) -> Design:
        """Returns how two conditions are compared."""
        return choose_design(self._persons_in(first), self._persons_in(second))

    def _persons_in(self, condition: str) -> Mask:
        """Returns whether each person (P,) is in a condition."""
        present = np.zeros(len(self.person_names), bool)
        present[self.person[self.conditions[condition]]] = True
        return present

    def names_of(self, persons: Mask) -> list[str]:
        """Returns the names of the persons in a mask (P,)."""
        return [self.person_names[index] for index in np.flatnonzero(persons)]


def choose_design(first: Mask, second: Mask) -> Design:
    """Returns how two conditions are compared; `first` and `second` (P,) mask their persons.

    Conditions are compared within persons if `n_both >= min(n_only_first, n_only_second)` and any
    person is in both, else between persons.
    """
    both = first & second
    only_first = first & ~second
    only_second = second & ~first
    n_both = both.sum()
    if n_both > 0 and n_both >= min(only_first.sum(), only_second.sum()):
        return Design(paired=True, persons=both, excluded=only_first | only_second)
    return Design(paired=False, persons=only_first | only_second, excluded=both)
