"""What a study measures of faces: probabilities, shares of labels, and outputs of further heads.

N faces, C expressions, O observations.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fer_vit.comparison.averages import average, average_directions, find_directions
from fer_vit.comparison.series import Rest, RestInClips
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.fields import SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import HEADS, output_titles, outputs_of, target_column, values_near
from fer_vit.tables.cells import is_missing

CHANGE_TITLE = "Change of the probability from rest"
SHARE_TITLE = "Share of faces with the label"
"""Titles of what is compared."""


class Kind(NamedTuple):
    """Measures of one kind, such as the mean probability of each expression."""

    title: str
    phrase: str  # what was measured, with its scale
    subject: str  # of a sentence, before the name of a measure: what is higher or lower
    prefix: str  # of the columns of `measures.csv`
    form: str  # the format of the values
    unit: str  # of a difference, in a sentence
    values: dict[str, Array]  # by measure: (O,), of each photo or clip; NaN where there is none
    lowest: float = 0.0  # no value is smaller
    highest: float = np.inf  # no value is larger
    period: float | None = None  # difference of values that mean the same, such as 360 degrees
    of_head: bool = False  # whether the measures are outputs of a further head

    @property
    def titles(self) -> dict[str, str]:
        """How pages name the measures."""
        return output_titles(self.values) if self.of_head else {name: name for name in self.values}


def clip_seconds(faces: EvaluatedFaces) -> Array:
    """Returns the time of each face in its clip (N,); NaN in a photo."""
    cells = faces.columns.get("seconds", np.full(len(faces.paths), None))
    return np.asarray(cells.astype(float))


def average_kind(kind: Kind, observation: IntArray, number: int) -> Kind:
    """Returns measures of N faces as their means in each of a `number` O of observations.

    `observation` (N,) is the observation of each face.
    """
    means = {}
    for name, values in kind.values.items():
        if kind.period is None:
            means[name] = average(values, observation, number)  # (O,)
        else:
            means[name] = average_directions(values, observation, number, kind.period)  # (O,)
    return kind._replace(values=means)


def probability_kind(labels: Sequence[str], probabilities: Array) -> Kind:
    """Returns the probabilities (N, C) as measures of faces."""
    values = dict(zip(labels, probabilities.T, strict=True))
    return Kind(
        title="Mean probability",
        phrase="the mean probability (0 to 1)",
        subject="the mean probability of",
        prefix="p_",
        form=".3f",
        unit="",
        values=values,
        highest=1,
    )


def change_kind(labels: Sequence[str], changes: Array, rest: Rest) -> Kind:
    """Returns the changes of the probabilities from rest (N, C) as measures of faces."""
    values = dict(zip(labels, changes.T, strict=True))
    return Kind(
        title=CHANGE_TITLE,
        phrase=f"the change of the probability (0 to 1) from rest ({rest} s)",
        subject="the change from rest of the probability of",
        prefix="change_p_",
        form="+.3f",
        unit="",
        values=values,
        lowest=-1,
        highest=1,
    )


def share_kind(values: dict[str, Array]) -> Kind:
    """Returns whether faces have each label, see `label_shares`, as measures of faces."""
    return Kind(
        title=SHARE_TITLE,
        phrase="the share of faces with this label",
        subject="the share of faces with the label",
        prefix="share_",
        form=".1%",
        unit=" percentage points",
        values=values,
        highest=1,
    )


def read_heads(faces: EvaluatedFaces, resting: RestInClips | None) -> dict[str, dict[str, Array]]:
    """Returns the outputs of further heads by head and name (N,), or their change from rest."""
    heads: dict[str, dict[str, Array]] = {}
    for head, names in outputs_of([*faces.columns]).items():
        heads[head] = {}
        for name in names:
            values = faces.columns[target_column(head, name)].astype(float)
            if resting:
                values = _output_change(values, HEADS[head].period, resting)
            heads[head][name] = values
    return heads


def _output_change(values: Array, period: float | None, resting: RestInClips) -> Array:
    """Returns the change of an output (N,), perhaps with a period, from rest."""
    if period is None:
        return resting.change(values[:, None])[:, 0]
    groups = resting.clip + 1  # 0: no clip
    directions = find_directions(values, groups, int(groups.max(initial=0)) + 1, period)
    near = values_near(values, directions[groups], period)
    changes = resting.change(near[:, None])[:, 0]
    return values_near(changes, np.zeros(len(changes)), period)


def head_kinds(
    heads: Mapping[str, Mapping[str, Array]], used: Mask, rest: Rest | None
) -> list[Kind]:
    """Returns the outputs of heads as measures of the `used` faces (N,), where any has a value."""
    kinds = []
    for head, outputs in heads.items():
        measured = {}
        for name, values in outputs.items():
            if np.isfinite(values[used]).any():
                measured[name] = values[used]
        if not measured:
            continue
        entry = HEADS[head]
        title = entry.title
        phrase = entry.phrase
        subject = entry.subject
        prefix = entry.prefix
        form = entry.form
        unit = f" {entry.unit}" if entry.unit else ""
        lowest = entry.low
        highest = entry.high
        if rest:
            title = f"{title} (change from rest)"
            phrase = f"{phrase}, as the change from rest ({rest} s)"
            subject = f"the change from rest of {subject}"
            prefix = f"change_{prefix}"
            form = f"+{form}"
            largest = highest - lowest
            lowest = -largest
            highest = largest
        if entry.period is not None:  # beside 179 degrees, -179 is 181
            lowest = -np.inf
            highest = np.inf
        kind = Kind(
            title=title,
            phrase=phrase,
            subject=subject,
            prefix=prefix,
            form=form,
            unit=unit,
            values=measured,
            lowest=lowest,
            highest=highest,
            period=entry.period,
            of_head=True,
        )
        kinds.append(kind)
    return kinds


def label_shares(faces: EvaluatedFaces) -> dict[str, Array]:
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
