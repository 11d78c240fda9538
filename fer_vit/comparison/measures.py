"""Measures of a study: their kinds, with words for pages, tables and sentences, and their values.

This file has the measures of faces: probabilities, shares of labels and outputs of further heads.
`comparison/episodes.py` has the measures of clips.

N faces, C expressions, O observations.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fer_vit.fields import SMOOTHED_LABEL
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import HEADS, MOVEMENTS, WEAK, HeadOutputs, output_titles
from fer_vit.stats.means import average, average_directions
from fer_vit.stats.series import Rest, RestInClips
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

    def titles(self, names: Mapping[str, object]) -> dict[str, str]:
        """Returns the names of measures on pages, by name."""
        return output_titles(names) if self.head else {name: name for name in names}


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
)


def probability_kind(rest: Rest | None) -> Kind:
    """Returns the kind of probabilities, or of their changes from an interval of rest."""
    if rest is None:
        return PROBABILITIES
    return replace(PROBABILITY_CHANGES, phrase=f"{PROBABILITY_CHANGES.phrase} ({rest} s)")


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


BOTH_SIDES = replace(
    head_kind(MOVEMENTS),
    by_area=False,
    title="Movements of both sides",
    phrase="the mean intensity of both sides (0 to 1)",
    prefix="",
)


@dataclass(frozen=True, eq=False)
class Measures:
    """The measures of one kind.

    Attributes:
        kind: The kind.
        values: The values by name: one for each photo or clip (O,), NaN where there is none.
        weak: The names of the outputs that agree too little with their targets; see
            `HeadOutputs.weak_columns`.
    """

    kind: Kind
    values: dict[str, Array]
    weak: frozenset[str] = frozenset()

    @property
    def columns(self) -> dict[str, str]:
        """The columns of measures.csv by name."""
        return {name: self.kind.column(name) for name in self.values}

    @property
    def outcomes(self) -> dict[str, str]:
        """The names of outcomes by name: columns of predictions, where they have the measure."""
        return {name: self.kind.prefix + name for name in self.values}

    @property
    def titles(self) -> dict[str, str]:
        """The names on pages, by name."""
        titles = self.kind.titles(self.values)
        return {
            name: f"{title} ({WEAK})" if name in self.weak else title
            for name, title in titles.items()
        }

    def select(self, outcomes: Collection[str]) -> "Measures":
        """Returns the measures that are among some outcomes."""
        values = {}
        for name, outcome in self.outcomes.items():
            if outcome in outcomes:
                values[name] = self.values[name]
        return replace(self, values=values, weak=self.weak & {*values})


def measure_faces(
    faces: Labelled, measured: Labelled, used: Mask, resting: RestInClips | None
) -> list[tuple[Kind, dict[str, Array]]]:
    """Returns the measures of the `measured` faces: M values by kind and name.

    They are the faces (N) in the mask `used` (N,). With `resting`, changes from rest replace
    probabilities and outputs. An output without any value is left out.
    """
    rest = resting.rest if resting else None
    probabilities = faces.probabilities  # (N, C)
    if resting:
        probabilities = resting.change(probabilities)
    of_faces = [
        (probability_kind(rest), dict(zip(faces.labels, probabilities[used].T, strict=True))),
        (SHARES, label_shares(measured)),
    ]
    for kind, values in read_outputs(faces):
        known = {}
        for name, of_rows in values.items():
            if resting:
                of_rows = resting.change_output(of_rows, kind.period)
            if np.isfinite(of_rows[used]).any():
                known[name] = of_rows[used]
        if known:
            of_faces.append((change_from_rest(kind, rest) if rest else kind, known))
    return of_faces


def read_outputs(faces: Labelled) -> Iterator[tuple[Kind, dict[str, Array]]]:
    """Yields the outputs of further heads (N,) by name, and before movements their means."""
    for head, of_head in HeadOutputs.among(faces.columns).by_head.items():
        by_column = {column: faces.columns[column].astype(float) for column in of_head.columns}
        if head == MOVEMENTS:
            yield BOTH_SIDES, {mean.name: mean.of(by_column) for mean in of_head.means}
        yield head_kind(head), dict(zip(of_head.names, by_column.values(), strict=True))


def average_faces(
    kind: Kind, of_faces: Mapping[str, Array], observation: IntArray, num_observations: int
) -> Measures:
    """Returns the means (O,) of each observation over values of faces (M,).

    `observation` (M,) is the index of each face's observation, and `num_observations` is O.
    """
    means = {}
    for name, values in of_faces.items():
        if kind.period is None:
            mean = average(values, observation, num_observations)
        else:
            mean = average_directions(values, observation, num_observations, kind.period)
        means[name] = mean  # (O,)
    return Measures(kind, means)


def clip_seconds(faces: Labelled) -> Array:
    """Returns the time of each face in its clip (N,), in seconds; NaN for a photo."""
    cells = faces.columns.get("seconds", np.full(len(faces.paths), None))
    return np.asarray(cells.astype(float))


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
