"""The results of an evaluation as values.

`results_json` writes them, by the names in `names`. Shares and accuracies are from 0 to 1; errors
of further heads have the unit of their targets. C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fer_vit.geometry import IntArray
from fer_vit.report.estimate import Estimate


@dataclass(frozen=True)
class FaceEstimate(Estimate):
    """A result over faces with its 95% interval."""

    num_faces: int  # with a value

    @property
    def numbers(self) -> dict[str, float | int | None]:
        """The numbers by their key in JSON."""
        return super().numbers | {"faces": self.num_faces}


# The scores of some faces by name, such as `accuracy` (see `scores.scores`); without labels how
# often a face was found, the confidence, and the share of each expression.
Scores: TypeAlias = Mapping[str, FaceEstimate]

# The measures of a further head by output and name of the measure (`heads.HEADS`).
Measured: TypeAlias = Mapping[str, Mapping[str, FaceEstimate]]


@dataclass(frozen=True)
class GroupTest:
    """The accuracy in a group less the one of all other faces."""

    difference: FaceEstimate
    # chance of a difference as large if there is none, corrected for the number of groups
    p: float


@dataclass(frozen=True)
class Group:
    """The scores of a part of the faces."""

    num_faces: int  # with a prediction
    scores: Scores
    test: GroupTest | None = None  # None: without labels, or not a group to compare


@dataclass(frozen=True)
class Gap:
    """The groups with the lowest and the highest accuracy."""

    worst: str
    best: str
    size: float  # the difference of their accuracies
    num_faces: int  # in all groups, also in small ones


@dataclass(frozen=True)
class Grouping:
    """The faces by the values of a column."""

    groups: Mapping[str, Group]  # by value
    small_groups: Mapping[str, int]  # number of faces of each group that is too small to compare
    num_unknown: int  # faces without a value
    gap: Gap | None = None  # None: there are no labels, or fewer than two groups


@dataclass(frozen=True)
class ModelComparison:
    """A model and another one on the same faces."""

    num_faces: int  # that both predict
    other_scores: Scores  # of the other model
    differences: Scores  # the scores of the model less the other's
    num_only_first: int  # faces that only the model classifies correctly
    num_only_second: int  # faces that only the other model classifies correctly
    p: float  # chance of accuracies as different if both models are equally accurate


@dataclass(frozen=True)
class WrongLabel:
    """A face whose label is likely wrong."""

    row: int  # among the faces with a prediction
    path: str
    label: str
    better: str  # a likelier label


@dataclass(frozen=True, eq=False)
class LabelResults:
    """What labels show besides scores."""

    labels: Sequence[str]  # the names of the classes (C,)
    confusion: IntArray  # number of faces by label and prediction (C, C)
    likely_wrong: Sequence[WrongLabel]  # the likeliest first
    by_votes: Mapping[str, Group]  # by the number of votes for the label; empty: it is unknown


@dataclass(frozen=True)
class OtherModel:
    """A mean of another model on the same faces, and how a model differs from it."""

    mean: FaceEstimate
    difference: FaceEstimate  # the mean of the model less the other's
    # chance of a difference as large if there is none, corrected for the number of such tests
    p: float


@dataclass(frozen=True)
class AlteredMean:
    """A mean over images that are altered in one way."""

    estimate: FaceEstimate  # the accuracy, or the mean absolute error of a further head
    change: FaceEstimate | None  # from the unaltered images; None: these are all unaltered
    other_model: OtherModel | None  # None: there is no other model


@dataclass(frozen=True)
class ComparedError:
    """The mean absolute error of an output, and another model's."""

    error: FaceEstimate
    other_model: OtherModel


# The errors of the outputs that two models have, by head and output.
ComparedHeads: TypeAlias = Mapping[str, Mapping[str, ComparedError]]


@dataclass(frozen=True)
class HeadRobustness:
    """How well a further head is read from altered images, by the name of the alteration."""

    errors: Mapping[str, AlteredMean]
    outputs: Mapping[str, Measured]


@dataclass(frozen=True)
class HeadResults:
    """The results of a further head."""

    measured: Measured  # of all faces
    by: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)  # by column and group
    robustness: HeadRobustness | None = None  # None: it was not requested


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All results of an evaluation. What was not requested, or has no faces, is empty or None."""

    scores: Scores  # of all faces
    num_near_duplicates: int  # faces with a near-duplicate in the original training split
    without_near_duplicates: Scores | None  # None: no face has one, or all faces have
    by: Mapping[str, Grouping]  # by column
    comparison: ModelComparison | None
    labelled: LabelResults | None  # None: there are no labels
    folds: Mapping[str, Group] = field(default_factory=dict)  # of a cross-validation
    heads: Mapping[str, HeadResults] = field(default_factory=dict)  # further heads with targets
    compared_heads: ComparedHeads | None = None  # None: there are no heads, or no other model
    notes: Sequence[str] = ()  # what was assumed and left out
    robustness: Mapping[str, AlteredMean] = field(default_factory=dict)  # accuracy by alteration
