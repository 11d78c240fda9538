"""Measures of a study: their kinds, with words for pages, tables and sentences, and their values.

This file has the measures of faces: probabilities, shares of labels and outputs of further heads.
`comparison/episodes.py` has the measures of clips.

N faces, C expressions, O observations.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fer_vit.fields import SMOOTHED_LABEL
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, MOVEMENTS, WEAK, HeadOutputs, marked, output_titles
from fer_vit.stats.series import Rest
from fer_vit.tables.cells import is_missing
from fer_vit.tables.labelled import Labelled

CHANGE = "change_"  # the start of the columns of changes from rest in measures.csv


@dataclass(frozen=True)
class Kind:
    """A kind of measures, such as the mean probability of each expression.

    Attributes:
        title: The title of a section of the page, and the key of results.json.
        phrase: The quantity that was measured, with its scale.
        subject: The beginning of a sentence about what is higher or lower; the name of the measure
            follows.
        prefix: The prefix of an outcome's name, such as `p_` of `p_happiness`.
        form: The format of the values, such as ".3f"; "+.3f" for changes.
        unit: The unit of a difference in a sentence, with a space before it; empty without a unit.
        low: The lowest possible value.
        high: The highest possible value.
        period: The period of the values, such as 360 degrees; None: values are not periodic.
        head: The further head whose outputs, or means of outputs, are measured; else empty.
        by_area: Whether the name of each measure begins with an area of the face.
        from_rest: Whether an interval of rest is subtracted from the values.
        is_change: Whether the values are changes from rest.
    """

    title: str
    phrase: str
    subject: str
    prefix: str
    form: str
    unit: str = ""
    low: float = 0.0
    high: float = np.inf
    period: float | None = None
    head: str = ""
    by_area: bool = False
    from_rest: bool = True
    is_change: bool = False

    @property
    def is_share(self) -> bool:
        """Whether the values are shares, which people read in percent."""
        return self.form.endswith("%")

    @property
    def step(self) -> float:
        """The last digit of the values in their format, below which differences are noise."""
        digits = int(self.form.strip("+.f%"))
        return 10.0 ** -(digits + 2 * self.is_share)

    def column(self, name: str) -> str:
        """Returns the column of a measure in measures.csv."""
        return f"{CHANGE if self.is_change else ''}{self.prefix}{name}"


PROBABILITIES = Kind(
    title="Mean probability",
    phrase="the mean probability (0 to 1)",
    subject="the mean probability of",
    prefix="p_",
    form=".3f",
    high=1,
)
PROBABILITY_CHANGES = Kind(
    title="Change of the probability from rest",
    phrase="the change of the probability (0 to 1) from rest",
    subject="the change from rest of the probability of",
    prefix="p_",
    form="+.3f",
    low=-1,
    high=1,
    is_change=True,
)
SHARES = Kind(
    title="Share of faces with the label",
    phrase="the share of faces with this label",
    subject="the share of faces with the label",
    prefix="share_",
    form=".1%",
    unit=" percentage points",
    high=1,
    from_rest=False,
)


def head_kind(name: str) -> Kind:
    """Returns the kind of the outputs of a head."""
    head = HEADS[name]
    low = head.low
    high = head.high
    if head.period is not None:  # unwrapped values have no bounds: -179 degrees may be 181
        low = -np.inf
        high = np.inf
    return Kind(
        title=head.title,
        phrase=head.phrase,
        subject=head.subject,
        prefix=head.prefix,
        form=head.form,
        unit=f" {head.unit}" if head.unit else "",
        low=low,
        high=high,
        period=head.period,
        head=name,
        by_area=name == MOVEMENTS,
    )


def change_from_rest(kind: Kind, rest: Rest) -> Kind:
    """Returns the kind for values that are changes from rest."""
    if kind == PROBABILITIES:
        return replace(PROBABILITY_CHANGES, phrase=f"{PROBABILITY_CHANGES.phrase} ({rest} s)")
    span = kind.high - kind.low
    return replace(
        kind,
        title=f"{kind.title} (change from rest)",
        phrase=f"{kind.phrase}, as the change from rest ({rest} s)",
        subject=f"the change from rest of {kind.subject}",
        form=f"+{kind.form}",
        low=-span,
        high=span,
        is_change=True,
    )


def probability_kind(rest: Rest | None) -> Kind:
    """Returns the kind of probabilities, or of their changes from an interval of rest."""
    return PROBABILITIES if rest is None else change_from_rest(PROBABILITIES, rest)


BOTH_SIDES = replace(
    head_kind(MOVEMENTS),
    by_area=False,
    title="Movements of both sides",
    phrase="the mean intensity of both sides (0 to 1)",
    prefix="",
)


@dataclass(frozen=True, eq=False)
class Measure:
    """A measure of a study.

    Attributes:
        kind: The kind.
        name: The name in results.json.
        title: The name on pages. A weak measure has the mark `WEAK`.
        values: The value of each photo or clip (O,); NaN where there is none.
        weak: Whether the output agrees too little with its targets; see
            `HeadOutputs.weak_columns`.
    """

    kind: Kind
    name: str
    title: str
    values: Array
    weak: bool

    @property
    def column(self) -> str:
        """The column of measures.csv."""
        return self.kind.column(self.name)

    @property
    def outcome(self) -> str:
        """The name for `--outcomes`: the column of predictions, if they have the measure."""
        return self.kind.prefix + self.name


def make_measures(kind: Kind, values: Mapping[str, Array], weak: Collection[str]) -> list[Measure]:
    """Returns the measures of a kind.

    Args:
        kind: The kind.
        values: The values (O,) by name.
        weak: The outcomes that agree too little with their targets.
    """
    titles = output_titles(values) if kind.head else {name: name for name in values}
    measures = []
    for name, title in titles.items():
        is_weak = kind.prefix + name in weak
        title = marked(title, WEAK if is_weak else "")
        measures.append(Measure(kind, name, title, values[name], is_weak))
    return measures


def values_by_kind(faces: Labelled) -> Iterator[tuple[Kind, dict[str, Array]]]:
    """Yields each kind, and the values of faces (N,) by name. A kind is added here alone."""
    yield PROBABILITIES, dict(zip(faces.labels, faces.probabilities.T, strict=True))
    yield SHARES, label_shares(faces)
    for head, of_head in HeadOutputs.among(faces.columns).by_head.items():
        by_column = {column: faces.columns[column].astype(float) for column in of_head.columns}
        if head == MOVEMENTS:
            yield BOTH_SIDES, {mean.name: mean.of(by_column) for mean in of_head.means}
        yield head_kind(head), dict(zip(of_head.names, by_column.values(), strict=True))


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
