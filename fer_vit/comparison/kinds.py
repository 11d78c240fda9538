"""Kinds of measures of a study: their values, and their names in pages, tables and sentences.

This file has the measures of faces: probabilities, shares of labels and outputs of further heads.
`comparison/episodes.py` has the measures of clips.

N faces, C expressions, O observations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fer_vit.evaluation.labelled import Labelled
from fer_vit.fields import SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import HEADS, Head, output_titles, outputs_of, target_column
from fer_vit.stats.means import average, average_directions
from fer_vit.stats.series import Rest, RestInClips
from fer_vit.tables.cells import is_missing

# Titles of kinds of measures.
CHANGE_TITLE = "Change of the probability from rest"
SHARE_TITLE = "Share of faces with the label"


@dataclass(frozen=True, eq=False)
class MeasureKind:
    """Measures of one kind, such as the mean probability of each expression.

    Attributes:
        title: The title of a section of the page, and the key of results.json.
        phrase: The quantity that was measured, with its scale.
        subject: The beginning of a sentence about what is higher or lower; the name of the measure
            follows.
        prefix: The prefix of the columns of measures.csv.
        form: The format of the values, such as ".3f"; "+.3f" for changes.
        unit: The unit of a difference in a sentence, with a space before it; empty without a unit.
        values: The values by measure: one for each photo or clip (O,), NaN where there is none.
            Before `average_kind`, one for each face (N,).
        low: The lowest possible value.
        high: The highest possible value.
        period: The period of the values, such as 360 degrees; None: values are not periodic.
        of_head: Whether the measures are outputs of a further head.
    """

    title: str
    phrase: str
    subject: str
    prefix: str
    form: str
    unit: str
    values: dict[str, Array]
    low: float = 0.0
    high: float = np.inf
    period: float | None = None
    of_head: bool = False

    @property
    def titles(self) -> dict[str, str]:
        """The name of each measure on pages."""
        return output_titles(self.values) if self.of_head else {name: name for name in self.values}


def clip_seconds(faces: Labelled) -> Array:
    """Returns the time of each face in its clip (N,), in seconds; NaN for a photo."""
    cells = faces.columns.get("seconds", np.full(len(faces.paths), None))
    return np.asarray(cells.astype(float))


def average_kind(kind: MeasureKind, observation: IntArray, num_observations: int) -> MeasureKind:
    """Returns the kind with the means (O,) of each observation instead of values of faces (N,).

    `observation` (N,) is the index of each face's observation, and `num_observations` is O.
    """
    means = {}
    for name, values in kind.values.items():
        if kind.period is None:
            mean = average(values, observation, num_observations)
        else:
            mean = average_directions(values, observation, num_observations, kind.period)
        means[name] = mean  # (O,)
    return replace(kind, values=means)


def probability_kind(labels: Sequence[str], probabilities: Array) -> MeasureKind:
    """Returns the probabilities (N, C) as measures of faces."""
    values = dict(zip(labels, probabilities.T, strict=True))
    return MeasureKind(
        title="Mean probability",
        phrase="the mean probability (0 to 1)",
        subject="the mean probability of",
        prefix="p_",
        form=".3f",
        unit="",
        values=values,
        high=1,
    )


def probability_change_kind(labels: Sequence[str], changes: Array, rest: Rest) -> MeasureKind:
    """Returns the changes (N, C) of the probabilities from rest as measures of faces."""
    values = dict(zip(labels, changes.T, strict=True))
    return MeasureKind(
        title=CHANGE_TITLE,
        phrase=f"the change of the probability (0 to 1) from rest ({rest} s)",
        subject="the change from rest of the probability of",
        prefix="change_p_",
        form="+.3f",
        unit="",
        values=values,
        low=-1,
        high=1,
    )


def share_kind(values: dict[str, Array]) -> MeasureKind:
    """Returns the values of `label_shares` as measures of faces."""
    return MeasureKind(
        title=SHARE_TITLE,
        phrase="the share of faces with this label",
        subject="the share of faces with the label",
        prefix="share_",
        form=".1%",
        unit=" percentage points",
        values=values,
        high=1,
    )


def read_heads(faces: Labelled, resting: RestInClips | None) -> dict[str, dict[str, Array]]:
    """Returns the outputs (N,) of further heads, by head, then by name.

    With `resting`, changes from rest replace the outputs.
    """
    heads: dict[str, dict[str, Array]] = {}
    for head, names in outputs_of([*faces.columns]).items():
        heads[head] = {}
        for name in names:
            values = faces.columns[target_column(head, name)].astype(float)
            if resting:
                values = resting.change_output(values, HEADS[head].period)
            heads[head][name] = values
    return heads


def head_kinds(
    heads: Mapping[str, Mapping[str, Array]], used: Mask, rest: Rest | None
) -> list[MeasureKind]:
    """Returns the outputs of heads as measures of the faces in the mask `used` (N,).

    An output without any value is left out. `heads` is as `read_heads` returns it; with `rest`, it
    has changes from rest.
    """
    kinds = []
    for head, outputs in heads.items():
        measured = {}
        for output, values in outputs.items():
            if np.isfinite(values[used]).any():
                measured[output] = values[used]
        if not measured:
            continue
        kind = head_kind(HEADS[head], measured)
        if rest:
            kind = change_from_rest(kind, rest)
        kinds.append(kind)
    return kinds


def head_kind(head: Head, values: dict[str, Array]) -> MeasureKind:
    """Returns the outputs of a head as measures of faces."""
    low = head.low
    high = head.high
    if head.period is not None:  # unwrapped values have no bounds: -179 degrees may be 181
        low = -np.inf
        high = np.inf
    return MeasureKind(
        title=head.title,
        phrase=head.phrase,
        subject=head.subject,
        prefix=head.prefix,
        form=head.form,
        unit=f" {head.unit}" if head.unit else "",
        values=values,
        low=low,
        high=high,
        period=head.period,
        of_head=True,
    )


def change_from_rest(kind: MeasureKind, rest: Rest) -> MeasureKind:
    """Returns the kind for values that are changes from rest."""
    span = kind.high - kind.low
    return replace(
        kind,
        title=f"{kind.title} (change from rest)",
        phrase=f"{kind.phrase}, as the change from rest ({rest} s)",
        subject=f"the change from rest of {kind.subject}",
        prefix=f"change_{kind.prefix}",
        form=f"+{kind.form}",
        low=-span,
        high=span,
    )


def label_shares(faces: Labelled) -> dict[str, Array]:
    """Returns by label whether each face has it (N,), in clips smoothed; NaN without a label."""
    most_likely = np.array(faces.labels, object)[faces.probabilities.argmax(1)]
    labels = faces.columns.get("label", most_likely)  # (N,)
    if SMOOTHED_LABEL in faces.columns:
        in_clip = ~is_missing(faces.columns["seconds"])  # (N,)
        labels = np.where(in_clip, faces.columns[SMOOTHED_LABEL], labels)

    shares = {}
    for name in faces.labels:
        shares[name] = np.where(is_missing(labels), np.nan, labels == name).astype(float)
    return shares
