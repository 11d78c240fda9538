"""A study: measures of photos or clips, with their persons and conditions.

P persons, C conditions, O photos or clips, T bins of time, L expressions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from fer_vit.comparison.measures import Kind, Measure
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import NO_OUTPUTS, HeadOutputs
from fer_vit.stats.means import average
from fer_vit.stats.series import Rest
from fer_vit.wording import counted


class Pair(NamedTuple):
    """Two conditions that are compared: the second minus the first."""

    first: str
    second: str

    @property
    def name(self) -> str:
        """The name in tables and JSON."""
        return f"{self.second} - {self.first}"


class Design(NamedTuple):
    """How two conditions are compared: within P persons, or between them."""

    paired: bool  # whether conditions are compared within persons
    persons: Mask  # (P,), whether each person takes part
    excluded: Mask  # (P,), whether each person is in a condition but takes no part


class Observations(NamedTuple):
    """O photos or clips: the faces of one person in one condition and one file."""

    conditions: list[str]  # the names of the C conditions, the baseline first
    persons: list[str]  # the names of the P persons
    condition: IntArray  # (O,), the index of the condition
    person: IntArray  # (O,), the index of the person
    paths: list[str]  # (O,), the photo or clip
    face_counts: IntArray  # (O,), the number of faces


class TableModel(NamedTuple):
    """What is known about the model that made a table."""

    outputs: HeadOutputs = NO_OUTPUTS  # with the r of those whose values are from this model
    datasets: tuple[str, ...] = ()  # the training data that the model's card names


class MeasuredFaces(NamedTuple):
    """The M faces that are averaged, for series."""

    observation: IntArray  # (M,), the index of the face's photo or clip
    seconds: Array  # (M,), the time in the clip; NaN for a photo
    probabilities: Array  # (M, L), smoothed if the table has smoothed values; or changes from rest


@dataclass(frozen=True, eq=False)
class Study:
    """Persons under conditions, with their photos or clips.

    Attributes:
        observations: The photos and clips.
        labels: The L expressions.
        pairs: The pairs of conditions to compare.
        measures: The measures by kind: those of planned outcomes, or all.
        faces: The measured faces.
        model: The model that made the table.
        planned: The planned outcomes, whose tests are corrected together; empty: none is planned,
            and the tests of each kind are corrected together.
        rest: The interval whose mean was subtracted; None: nothing was subtracted.
        without_rest: The photos and clips without a face in this interval.
        unassigned_faces: The number of faces without a condition or person.
        without_face: The number of photos and frames without a face, by condition.
        episodes: The numbers of episodes by condition, then as `count_episodes` names them; empty
            without smoothed labels of clips.
        rooms: The time in sight, in seconds, that an episode needs for a duration, by label of
            counted episodes; see `find_least_room`.
        facts: How the table was made, by name.
        notes: Assumptions and omissions of reading.
    """

    observations: Observations
    labels: list[str]
    pairs: list[Pair]
    measures: Mapping[Kind, list[Measure]]
    faces: MeasuredFaces
    model: TableModel
    planned: tuple[str, ...] = ()
    rest: Rest | None = None
    without_rest: tuple[str, ...] = ()
    unassigned_faces: int = 0
    without_face: Mapping[str, int] = field(default_factory=dict)
    episodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rooms: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def only_pair(self) -> Pair | None:
        """The pair of conditions; None if there are several pairs."""
        return self.pairs[0] if len(self.pairs) == 1 else None

    @property
    def noun(self) -> str:
        """The noun of an observation."""
        in_clip = np.isfinite(self.faces.seconds)  # (M,)
        if in_clip.all():
            return "clip"
        return "photo or clip" if in_clip.any() else "photo"

    def count_files(self, number: int) -> str:
        """Returns a number of observations with its noun."""
        plural = "photos and clips" if "or" in self.noun else None
        return counted(number, self.noun, plural)

    @property
    def members(self) -> dict[str, Mask]:
        """Whether each observation (O,) is in a condition, by name of the condition."""
        members = {}
        for index, name in enumerate(self.observations.conditions):
            members[name] = self.observations.condition == index
        return members

    @property
    def families(self) -> list[list[Measure]]:
        """The measures whose tests are corrected together: all if planned, or those of a kind."""
        families = [*self.measures.values()]
        return [list(chain.from_iterable(families))] if self.planned else families

    def is_aside(self, measure: Measure) -> bool:
        """Whether a measure has no corrected p and no sentence: it is weak and was not planned."""
        return measure.weak and not self.planned

    def count_aside(self, measures: Iterable[Measure]) -> int:
        """Returns the number of measures with `is_aside`."""
        return sum(map(self.is_aside, measures))

    def person_means(self, measure: Measure) -> dict[str, Array]:
        """Returns the mean of a measure over each person (P,), by condition; NaN if missing."""
        conditions = self.observations.conditions
        persons = len(self.observations.persons)
        group = self.observations.condition * persons + self.observations.person  # (O,)
        groups = len(conditions) * persons
        means = average(measure.values, group, groups, measure.kind.period)
        return dict(zip(conditions, means.reshape(-1, persons), strict=True))

    @cached_property
    def designs(self) -> dict[Pair, Design]:
        """Returns how each pair of conditions is compared."""
        present = {}  # (P,), whether each person is in a condition
        for name, member in self.members.items():
            present[name] = np.zeros(len(self.observations.persons), bool)
            present[name][self.observations.person[member]] = True
        designs = {}
        for pair in self.pairs:
            designs[pair] = choose_design(present[pair.first], present[pair.second])
        return designs

    def names_of(self, persons: Mask) -> list[str]:
        """Returns the names of the persons in a mask (P,)."""
        return [self.observations.persons[index] for index in np.flatnonzero(persons)]


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


@dataclass(frozen=True, eq=False)
class Courses:
    """Series of probabilities in bins of time.

    Attributes:
        bin_seconds: The length of a bin.
        of_clips: The series of each photo or clip (O, T, L), NaN in a bin without a face.
        of_persons: The series of each person (P, T, L) by condition; NaN for a person without
            values.
        averaged_persons: The number of persons with several clips, by condition. The series of
            their clips are averaged.
    """

    bin_seconds: float
    of_clips: Array
    of_persons: dict[str, Array]
    averaged_persons: dict[str, int]
