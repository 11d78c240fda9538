"""What a study is: measures of photos or clips, by person and condition."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fer_vit.comparison.averages import average
from fer_vit.comparison.kinds import MeasureKind
from fer_vit.comparison.series import Rest
from fer_vit.geometry import Array, IntArray, Mask


class Design(NamedTuple):
    """How two conditions are compared: within P persons, or between them."""

    paired: bool
    persons: Mask  # (P,), who takes part
    excluded: Mask  # (P,), who is in one of the conditions but takes no part


class ConditionCounts(NamedTuple):
    """How much was observed in a condition."""

    persons: int
    observations: int  # photos or clips of a person
    faces: int
    without_face: int  # photos and frames in which no face was found


@dataclass(frozen=True, eq=False)
class Study:
    """P persons under C conditions, observed O times: in a photo or clip.

    Attributes:
        conditions: The observations in each condition (O,) by name, the baseline first.
        pairs: The names of the conditions to compare, the second minus the first.
        person_names: The names of the persons (P,).
        labels: The L expressions.

        person: The index of the person of each observation (O,).
        paths: The photo or clip of each observation (O,).
        face_counts: The number of faces in each observation (O,).
        kinds: What was measured of each observation: the probabilities of expressions first.

        observation_of_face: The index of the observation of each of the M faces that were measured
            (M,).
        seconds: Their times in clips (M,), NaN in a photo.
        probabilities: Their probabilities (M, L), smoothed where the table has them so; or their
            change from rest.

        rest: The interval that was subtracted; None: none was.
        without_rest: The photos and clips that have no face in it.
        unassigned_faces: The number of faces without a condition or person.
        without_face: By condition, the number of photos and frames in which no face was found.
        late_clips: The first time of each clip that begins late, see `find_late`.
        smoothed: Whether labels of clips are of smoothed probabilities.
        notes: What was assumed and left out in reading.
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
    late_clips: dict[str, float] = field(default_factory=dict)
    smoothed: bool = False
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

    def person_means(self, values: Array) -> dict[str, Array]:
        """Returns the mean of observed values (O,) of each person (P,) by condition; NaN: none."""
        means = {}
        for name, rows in self.conditions.items():
            means[name] = average(values[rows], self.person[rows], len(self.person_names))
        return means

    def counts(self) -> dict[str, ConditionCounts]:
        """Returns how much was observed in each condition."""
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
        """Returns which persons (P,) are in a condition."""
        present = np.zeros(len(self.person_names), bool)
        present[self.person[self.conditions[condition]]] = True
        return present

    def names_of(self, persons: Mask) -> list[str]:
        """Returns the names of some of the persons (P,)."""
        return [self.person_names[index] for index in np.flatnonzero(persons)]


def choose_design(first: Mask, second: Mask) -> Design:
    """Returns how two conditions with the persons `first` and `second` (P,) are compared.

    Within persons if `n_both >= min(n_only_first, n_only_second)` and anyone is in both; else
    between persons.
    """
    both = first & second
    only_first = first & ~second
    only_second = second & ~first
    n_both = both.sum()
    if n_both > 0 and n_both >= min(only_first.sum(), only_second.sum()):
        return Design(paired=True, persons=both, excluded=only_first | only_second)
    return Design(paired=False, persons=only_first | only_second, excluded=both)
