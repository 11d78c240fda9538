"""The rows of an evaluation: their sets of faces, their measures, and their keys in JSON.

N faces, C classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fer_vit.geometry import Array, IntArray
from fer_vit.heads import EXPRESSION, HeadOutputs
from fer_vit.stats.bootstrap import Scale
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.results import Results, Row
from fer_vit.stats.scores import SCORES
from fer_vit.tables.labelled import Labelled

ALL = "all"
WITHOUT_NEAR_DUPLICATES = "without near-duplicates"
OTHER = "the other model"
DIFFERENCE = "the model minus the other"
COMPARED = "two models"
VOTES = "votes for the label"
FOLDS = "folds"
ALTERED = "altered images"
GROUPS = "by "  # the column follows

SETS = {  # the keys of each set in results.json
    ALL: ("all",),
    WITHOUT_NEAR_DUPLICATES: ("without near-duplicates",),
    OTHER: ("comparison", "other"),
    DIFFERENCE: ("comparison", "difference"),
    COMPARED: ("comparison",),
    VOTES: ("by votes",),
    FOLDS: ("by_fold",),
    ALTERED: ("robustness",),
}

FOUND = "face found"  # a measure of photos
GAP = "gap"  # between the accuracies of the worst and the best group

# Measures that are numbers of faces.
FACES = "faces"
NEAR_DUPLICATES = "near-duplicates of train"
UNKNOWN = "unknown"  # faces without a value in the column of groups
ONLY_FIRST = "only the model is correct"
ONLY_SECOND = "only the other is correct"
COUNTS = (FACES, NEAR_DUPLICATES, UNKNOWN, ONLY_FIRST, ONLY_SECOND)

# A group of fewer persons (photos where persons are unknown) is counted, but not compared.
MIN_GROUP = 30
TOO_FEW = "too few persons or photos to compare"  # the note of a small group


class FaceMean(NamedTuple):
    """A measure that is a mean over faces; its name is its key in `MEANS`."""

    # (N,) of faces with a prediction; NaN: the face does not count
    values: Callable[[Labelled], Array]
    scale: Scale
    meaning: str


# A mean is added here alone. It has no row if no face counts.
MEANS = {
    "accuracy where unambiguous": FaceMean(
        lambda faces: np.where(faces.ambiguous == 0, faces.hits, np.nan),
        "share",
        "the accuracy on the faces that are not ambiguous",
    ),
    "ambiguous": FaceMean(
        lambda faces: faces.ambiguous,
        "share",
        "faces for which several expressions, or none, are likely",
    ),
}
# The meanings of all measures of expressions that need one.
MEANINGS = {name: score.meaning for name, score in SCORES.items() if score.meaning}
MEANINGS |= {name: mean.meaning for name, mean in MEANS.items()}
MEANINGS[FOUND] = "photos in which a face was found"


@dataclass(frozen=True)
class WrongLabel:
    """A face whose label is likely wrong."""

    row: int  # index among the faces with a prediction
    path: str
    label: str
    better: str  # a more likely label


@dataclass(frozen=True, eq=False)
class EvaluationRows(Results):
    """The results of an evaluation, without how they are written.

    Attributes:
        faces: The faces with a prediction (N); with labels, the labelled faces alone.
        against: Another model's probabilities (N, C), NaN without a face; None: no other model.
        confusion: The number of faces by label and prediction (C, C); None without labels.
        likely_wrong: The faces whose label is likely wrong, the most likely first.
    """

    faces: Labelled
    against: Array | None = None
    confusion: IntArray | None = None
    likely_wrong: tuple[WrongLabel, ...] = ()

    def estimate(
        self, measure: str, set: str = ALL, group: str = "", part: str = EXPRESSION
    ) -> Estimate:
        """Returns a number, such as the accuracy of all faces.

        Raises KeyError if there is no such row.
        """
        rows = self.select(part, set, group, measure)
        if not rows:
            raise KeyError(f"{part}, {set}, {group}, {measure}")
        return rows[0].estimate

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of faces, of persons, and of photos of faces whose person is unknown."""
        return {FACES: len(self.faces.paths)} | self.faces.count_units()


def keys(row: Row) -> tuple[str, ...]:
    """Returns the keys that lead to a row in results.json."""
    column = row.set.removeprefix(GROUPS)
    path: tuple[str, ...]
    if row.measure == NEAR_DUPLICATES:
        path = (row.measure,)
    elif row.part == EXPRESSION:
        if column == row.set:
            path = (*SETS[row.set], row.group, row.measure)
        elif row.note == TOO_FEW:
            path = ("by", column, "few", row.group)
        elif row.group:
            path = ("by", column, "groups", row.group, row.measure)
        else:
            path = ("by", column, row.measure)
    elif row.set == ALTERED:  # the part is a head
        path = ("heads robustness", row.part, row.group, row.measure)
    else:
        (output,) = HeadOutputs.among([row.part])
        if row.set == ALL:
            path = ("heads", output.head, output.name, row.measure)
        elif row.set == COMPARED:
            path = ("heads compared", output.head, output.name, row.measure)
        else:
            path = ("heads by", column, output.head, row.group, output.name, row.measure)
    return tuple(key for key in path if key)


def value(row: Row) -> Any:
    """Returns a row's number for JSON: a number of faces, or an estimate, with its p-value."""
    if row.measure in COUNTS:
        return row.estimate.n
    numbers: dict[str, Any] = dict(row.estimate.numbers)
    if row.p is not None:
        numbers["p"] = row.p
    if row.note:
        numbers["note"] = row.note
    return numbers


def make_rows(part: str, set: str, group: str, estimates: Mapping[str, Estimate]) -> list[Row]:
    """Returns a row for each measure."""
    return [Row(part, set, group, measure, estimate) for measure, estimate in estimates.items()]


def count_row(part: str, set: str, group: str, measure: str, count: int, note: str = "") -> Row:
    """Returns the row of a number of faces."""
    return Row(part, set, group, measure, Estimate(float(count), n=count), note=note)
