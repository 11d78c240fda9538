"""The results of an evaluation as values.

`results_json` writes the values, with the names in `names`. Shares and accuracies are from 0 to 1;
errors of further heads have the unit of the targets. C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fer_vit.geometry import IntArray
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.tests import GroupTest

# Scores by name, such as `accuracy` (see `scores.scores`). Without labels, these are how often a
# face was found, the confidence, and the share of each expression.
Scores: TypeAlias = Mapping[str, Estimate]

# Measures of a further head, by output, then by the name of the measure (`heads.HEADS`).
Measured: TypeAlias = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class Group:
    """The scores of a part of the faces."""

    num_faces: int  # number of faces with a prediction
    scores: Scores
    test: GroupTest | None = None  # None: there are no labels, or groups are not compared


@dataclass(frozen=True)
class Gap:
    """The groups with the lowest and the highest accuracy."""

    worst: str
    best: str
    size: float  # the difference of their accuracies
    num_faces: int  # number of faces in all groups, also in small groups


@dataclass(frozen=True)
class Grouping:
    """Results by the values of a column."""

    groups: Mapping[str, Group]  # results by value
    small_groups: Mapping[str, int]  # number of faces in each group that is too small to compare
    num_unknown: int  # number of faces without a value
    gap: Gap | None = None  # None: there are no labels, or fewer than two groups


@dataclass(frozen=True)
class ModelComparison:
    """A model compared with another model on the same faces."""

    num_faces: int  # number of faces that both models predict
    other_scores: Scores  # the scores of the other model
    differences: Scores  # the scores of the model minus the other model's
    num_only_first: int  # faces that only the model classifies correctly
    num_only_second: int  # faces that only the other model classifies correctly
    p: float  # p-value of equal accuracies


@dataclass(frozen=True)
class WrongLabel:
    """A face whose label is likely wrong."""

    row: int  # index among the faces with a prediction
    path: str
    label: str
    better: str  # a more likely label


@dataclass(frozen=True, eq=False)
class LabelResults:
    """Results that need labels, besides the scores."""

    labels: Sequence[str]  # the names of the classes (C)
    confusion: IntArray  # number of faces by label and prediction (C, C)
    likely_wrong: Sequence[WrongLabel]  # sorted, the most likely first
    by_votes: Mapping[str, Group]  # by votes for the label; empty: votes are unknown


@dataclass(frozen=True)
class OtherModel:
    """The mean of another model on the same faces, and the difference from this mean."""

    mean: Estimate
    difference: Estimate  # the mean of the model minus the other model's
    p: float  # p-value of no difference, corrected for the number of such tests


@dataclass(frozen=True)
class AlteredMean:
    """A mean over images that are altered in one way."""

    estimate: Estimate  # the accuracy, or the mean absolute error of a further head
    # the mean minus the mean of unaltered images; None: the images are unaltered
    change: Estimate | None
    other_model: OtherModel | None  # None: there is no other model


@dataclass(frozen=True)
class ComparedError:
    """The mean absolute error of an output, and another model's error."""

    error: Estimate
    other_model: OtherModel


# Errors of the outputs that two models share, by head, then by output.
ComparedHeads: TypeAlias = Mapping[str, Mapping[str, ComparedError]]


@dataclass(frozen=True)
class HeadRobustness:
    """The errors and measures of a further head, by the name of the alteration."""

    errors: Mapping[str, AlteredMean]
    outputs: Mapping[str, Measured]


@dataclass(frozen=True)
class HeadResults:
    """The results of a further head."""

    measured: Measured  # measures over all faces
    # measures by column, then by group
    by: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    robustness: HeadRobustness | None = None  # None: it was not requested


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All results of an evaluation.

    A result that was not requested, or has no faces, is empty or None.
    """

    scores: Scores  # scores of all faces
    num_near_duplicates: int  # number of faces with a near-duplicate in the original training split
    without_near_duplicates: Scores | None  # None: no face has a near-duplicate, or all have one
    by: Mapping[str, Grouping]  # results of groups, by column
    comparison: ModelComparison | None
    labelled: LabelResults | None  # None: there are no labels
    folds: Mapping[str, Group] = field(default_factory=dict)  # by fold of a cross-validation
    heads: Mapping[str, HeadResults] = field(default_factory=dict)  # further heads with targets
    compared_heads: ComparedHeads | None = None  # None: no heads, or no other model
    notes: Sequence[str] = ()  # assumptions and omissions
    robustness: Mapping[str, AlteredMean] = field(default_factory=dict)  # accuracy by alteration
