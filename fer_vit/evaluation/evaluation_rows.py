"""The rows of an evaluation: their sets of faces, and their measures.

N faces.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fer_vit.geometry import Array
from fer_vit.stats.bootstrap import Scale
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.results import Row
from fer_vit.stats.scores import SCORES
from fer_vit.tables.labelled import Labelled

# Sets of faces.
ALL = "all"
WITHOUT_NEAR_DUPLICATES = "without near-duplicates"
OTHER = "the other model"
DIFFERENCE = "the model minus the other"
COMPARED = "two models"
VOTES = "votes for the label"
FOLDS = "folds"
ALTERED = "altered images"
GROUPS = "by "  # the column follows

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


# A column: 0 if the prediction set of a face has one expression, 1 if it has more or none.
AMBIGUOUS = "ambiguous"


class FaceMean(NamedTuple):
    """A measure that is a mean over faces; its name is its key in `MEANS`."""

    # (N,) of faces with a prediction; NaN: the face does not count
    values: Callable[[Labelled], Array]
    scale: Scale
    meaning: str
    form: str = ".1%"  # the format of the number


# A mean is added here alone. It has no row if no face counts.
MEANS = {
    "accuracy where unambiguous": FaceMean(
        lambda faces: np.where(faces.numbers(AMBIGUOUS) == 0, faces.hits, np.nan),
        "share",
        "the accuracy on the faces that are not ambiguous",
    ),
    "ambiguous": FaceMean(
        lambda faces: faces.numbers(AMBIGUOUS),
        "share",
        "faces for which several expressions, or none, are likely",
    ),
}
# The meanings of all measures of expressions that need one.
MEANINGS = {name: score.meaning for name, score in SCORES.items() if score.meaning}
MEANINGS |= {name: mean.meaning for name, mean in MEANS.items()}
MEANINGS[FOUND] = "photos in which a face was found"


def make_rows(part: str, set: str, group: str, estimates: Mapping[str, Estimate]) -> list[Row]:
    """Returns a row for each measure."""
    return [Row(part, set, group, measure, estimate) for measure, estimate in estimates.items()]


def count_row(part: str, set: str, group: str, measure: str, count: int, note: str = "") -> Row:
    """Returns the row of a number of faces."""
    return Row(part, set, group, measure, Estimate(float(count), n=count), note=note)
