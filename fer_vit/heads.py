"""Heads: what a model predicts from a face besides the expression. A head is an entry of `HEADS`.

An entry contains the outputs of the head, their columns in manifests and tables, the scale of the
values, the effect of mirroring and rotating a face, and the words for reports. `losses` has a loss
for each scale. The layer of each head is `model.additive.AdditiveHead`.

A model, a data set and a table have `HeadOutputs`: the outputs of all these heads, in order.

M faces, K outputs.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from fer_vit.angles import join_directions, values_near
from fer_vit.errors import FerVitError, short
from fer_vit.geometry import Array, Mask
from fer_vit.labels import check_labels

EXPRESSION = "expression"
MOVEMENTS = "movements"
POSE = "pose"
FULL_TURN = 360.0  # degrees

# Below this correlation with its targets on held-out faces, an output gets the mark `WEAK` wherever
# people read about it. An output that was not measured has no mark.
WEAK_R = 0.6
WEAK = "weak"
WEAK_MEANING = (
    f"“{WEAK}” marks an output whose correlation with its targets on held-out faces is below "
    f"{WEAK_R}. Don't rely on it."
)

SMILE_NOTE = "Slight smiles are often called neutral: prefer the movement."

Scale = Literal["intensity", "signed", "number"]


class Mirror(NamedTuple):
    """What mirroring a face does to the K outputs of a head."""

    source: list[int]  # the index of the output that each output takes its value from
    sign: list[float]  # the factor for each value; NaN: the value becomes unknown


def swap_sides(outputs: Sequence[str]) -> Mirror:
    """Returns the mirror that exchanges outputs for left and right.

    An output for one side whose partner is missing becomes unknown: the mirror image shows the
    other side of the face, and that side has no value.
    """
    source = []
    sign = []
    alone = one_sided(outputs)
    for index, output in enumerate(outputs):
        partner = other_side(output)
        source.append(outputs.index(partner) if partner in outputs else index)
        sign.append(math.nan if output in alone else 1.0)
    return Mirror(source, sign)


def one_sided(outputs: Sequence[str]) -> list[str]:
    """Returns the outputs for one side of the face whose partner for the other side is missing.

    The ending `_r` means a side only if there is a partner with `_l`: in OpenFace, `AU12_r` is an
    intensity.
    """
    alone = []
    for output in outputs:
        sided = SIDE.search(output) or output.endswith(("_L", "_R"))
        if sided and other_side(output) not in outputs:
            alone.append(output)
    return alone


def other_side(name: str) -> str:
    """Returns the name with left and right exchanged; the same name if it has no side.

    Names with a side look like `left_eye`, `mouthSmileLeft`, `MOUTH_LEFT` or `mouthSmile_L`. Each
    side in a name changes: the mirror image of `Eye_Left_Right`, the left eye that looks to the
    right, is `Eye_Right_Left`. In a name that contains `left` or `right` as a word, the ending
    `_r` is no side: `left_AU12_r` is an intensity.
    """
    swapped = SIDE.sub(lambda side: SIDES[side[0]], name)
    for ending, opposite in SIDE_ENDINGS.items():
        is_side = ending.isupper() or swapped == name
        if is_side and swapped.endswith(ending):
            return swapped.removesuffix(ending) + opposite
    return swapped


SIDES = {  # words in names that mirroring swaps
    "Left": "Right",
    "Right": "Left",
    "left": "right",
    "right": "left",
    "LEFT": "RIGHT",
    "RIGHT": "LEFT",
}

# Matches a key of `SIDES` as a word, but not within `upright` or `brightness`.
SIDE = re.compile(r"(?:(?<![A-Za-z])(?:left|right|LEFT|RIGHT)|Left|Right)(?![a-z])")

# Endings of names that mirroring swaps. Animation software uses such names.
SIDE_ENDINGS = {"_L": "_R", "_R": "_L", "_l": "_r", "_r": "_l"}


def negate(*sideways: str) -> Callable[[Sequence[str]], Mirror]:
    """Returns the mirror function of a head in which the named outputs change their sign."""

    def mirror(outputs: Sequence[str]) -> Mirror:
        signs = [-1.0 if output in sideways else 1.0 for output in outputs]
        return Mirror([*range(len(outputs))], signs)

    return mirror


def mirror_unchanged(outputs: Sequence[str]) -> Mirror:
    """Returns a mirror that changes no output."""
    return Mirror([*range(len(outputs))], [1.0] * len(outputs))


def rotate_unchanged(values: Array, outputs: Sequence[str], degrees: Array) -> Array:
    """Returns the values (M, K) unaltered: they do not depend on the rotation of a face."""
    return values


def turn_roll(values: Array, outputs: Sequence[str], degrees: Array) -> Array:
    """Returns the angles (M, K), from -180 to 180, after faces are rotated clockwise.

    `degrees` (M,) is added to the output `roll`.
    """
    rolls = np.array([name == "roll" for name in outputs])
    turned = values + degrees[:, None] * rolls
    return np.asarray(turned - FULL_TURN * np.round(turned / FULL_TURN))


@dataclass(frozen=True)
class Head:
    """A kind of head.

    Attributes:
        title: The heading in a comparison and a report.
        phrase: What a comparison measures, with the scale.
        subject: The start of a sentence of a comparison, before the name of an output, such as "the
            mean intensity of".
        scale: The range of the values: "intensity" from 0 to 1, "signed" from -1 to 1, or "number".
            `losses` has a loss for each scale.
        low: The smallest value of a target.
        high: The largest value of a target.
        mirror: A function that takes the names of the outputs and returns the effect of mirroring a
            face: `mirror_unchanged` if mirroring has no effect.
        rotate: A function that takes values (M, K), the names of the outputs, and clockwise degrees
            (M,), and returns the values of the rotated faces (M, K): `rotate_unchanged` if the
            values do not depend on the rotation.
        outputs: The meanings of the outputs by name. Empty: the data set names the outputs.
        meaning: The meaning of the outputs if the data set names them.
        prefix: The start of the names of the columns in manifests and tables. A head whose outputs
            the data set names needs a prefix.
        unit: The unit of the values in words; empty without a unit.
        column_unit: The unit of the columns, see `fields.NUMBER_FORMATS`; empty: `unit`.
        form: The format of a mean in a comparison.
        middle: The value of the raw output 0.
        step: The difference in the values for a difference of 1 in the raw outputs.
        period: The difference between two values that mean the same; None: no period.
        weight: The weight of the loss, relative to the loss of the expression.
        measures: The names of the outputs' measures in `measures.MEASURES`.
    """

    title: str
    phrase: str
    subject: str
    scale: Scale
    low: float
    high: float
    mirror: Callable[[Sequence[str]], Mirror]
    rotate: Callable[[Array, Sequence[str], Array], Array]
    outputs: Mapping[str, str] = field(default_factory=dict)
    meaning: str = ""
    prefix: str = ""
    unit: str = ""
    column_unit: str = ""
    form: str = ".3f"
    middle: float = 0.0
    step: float = 1.0
    period: float | None = None
    weight: float = 1.0
    measures: tuple[str, ...] = ("r", "MAE")

    def near(self, values: Array, targets: Array) -> Array:
        """Returns the values (...) nearest to targets (...).

        For a target of 179 degrees, the value -179 becomes 181.
        """
        if self.period is None:
            return values
        return values_near(values, targets, self.period)

    def comparable(self, values: Array, targets: Array) -> tuple[Array, Array]:
        """Returns values and targets (M, ...) that correlate: near the mean direction of targets.

        The targets 179 and -179 degrees become 179 and 181, and so the values near them.
        """
        if self.period is None:
            return values, targets
        targets = join_directions(targets, self.period)
        return values_near(values, targets, self.period), targets


HEADS: dict[str, Head] = {  # the heads beside `expression`, by name
    MOVEMENTS: Head(
        title="Movements",
        phrase="the mean intensity (0 to 1)",
        subject="the mean intensity of",
        scale="intensity",
        low=0.0,
        high=1.0,
        mirror=swap_sides,
        rotate=rotate_unchanged,
        meaning="each facial movement, from 0 (none) to 1 (strong)",
        prefix="move_",
        column_unit="intensity",
        weight=5.0,
        measures=("r", "MAE", "F1", "AUROC"),
    ),
    POSE: Head(
        title="Head pose",
        phrase="the mean angle in degrees",
        subject="the mean",
        scale="number",
        low=-180.0,
        high=180.0,
        mirror=negate("yaw", "roll"),
        rotate=turn_roll,
        outputs={
            "yaw": "turn of the head, positive to the right of the picture (the person's left)",
            "pitch": "turn of the head, positive upwards",
            "roll": "turn of the head, positive clockwise in the picture",
        },
        unit="degrees",
        form=".1f",
        step=20.0,
        period=FULL_TURN,
    ),
    "affect": Head(
        title="Valence and arousal",
        phrase="the mean value (-1 to 1)",
        subject="the mean",
        scale="signed",
        low=-1.0,
        high=1.0,
        mirror=mirror_unchanged,
        rotate=rotate_unchanged,
        outputs={
            "valence": "from unpleasant to pleasant; experimental in the shipped model",
            "arousal": "from calm to excited; experimental in the shipped model",
        },
        column_unit="[-1, 1]",
        measures=("CCC", "r", "RMSE", "sign agreement"),
    ),
}


# The means of movements of both sides, by name: the columns whose mean each one is. A table has the
# column of a mean if the model has its movements.
MEANS: dict[str, tuple[str, str]] = {
    "brow_raise": ("move_browOuterUpLeft", "move_browOuterUpRight"),
    "brow_lower": ("move_browDownLeft", "move_browDownRight"),
    "blink": ("move_eyeBlinkLeft", "move_eyeBlinkRight"),
    "squint": ("move_eyeSquintLeft", "move_eyeSquintRight"),
    "eye_wide": ("move_eyeWideLeft", "move_eyeWideRight"),
    "look_up": ("move_eyeLookUpLeft", "move_eyeLookUpRight"),
    "look_down": ("move_eyeLookDownLeft", "move_eyeLookDownRight"),
    "look_left": ("move_eyeLookOutLeft", "move_eyeLookInRight"),
    "look_right": ("move_eyeLookInLeft", "move_eyeLookOutRight"),
    "smile": ("move_mouthSmileLeft", "move_mouthSmileRight"),
    "dimple": ("move_mouthDimpleLeft", "move_mouthDimpleRight"),
    "mouth_frown": ("move_mouthFrownLeft", "move_mouthFrownRight"),
    "upper_lip_raise": ("move_mouthUpperUpLeft", "move_mouthUpperUpRight"),
    "lower_lip_drop": ("move_mouthLowerDownLeft", "move_mouthLowerDownRight"),
    "lip_stretch": ("move_mouthStretchLeft", "move_mouthStretchRight"),
    "lip_press": ("move_mouthPressLeft", "move_mouthPressRight"),
}


@dataclass(frozen=True)
class Output:
    """An output of a head.

    Attributes:
        head: The name of the head in `HEADS`.
        name: The name of the output in its head; an asterisk for outputs of any name.
        r: Pearson's r with targets of held-out faces; None: not measured. It has no effect on
            whether two outputs are equal.
    """

    head: str
    name: str
    r: float | None = field(default=None, compare=False)

    @property
    def kind(self) -> Head:
        """The head: range, period and words."""
        return HEADS[self.head]

    @property
    def column(self) -> str:
        """The column in manifests and tables."""
        return self.kind.prefix + self.name

    @property
    def meaning(self) -> str:
        """What the values mean, as a phrase."""
        return self.kind.outputs.get(self.name, self.kind.meaning)

    @property
    def is_weak(self) -> bool:
        """Whether the output gets the mark `WEAK`."""
        return self.r is not None and self.r < WEAK_R

    def out_of_range(self, targets: Array, scale: float = 1.0) -> Mask:
        """Returns which targets (...) are out of range. An unknown target, NaN, is not.

        `scale` is what the targets are multiplied by.
        """
        return np.asarray((targets < scale * self.kind.low) | (targets > scale * self.kind.high))

    def range_in_words(self, scale: float = 1.0) -> str:
        """Returns what a target must be, as `out_of_range` checks it."""
        return f"a number from {scale * self.kind.low:g} to {scale * self.kind.high:g}"


def _are_names(values: object) -> bool:
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(value, str) for value in values)


def find_output(column: str) -> Output | None:
    """Returns the output in a column; None for another column."""
    for name, head in HEADS.items():
        output = column.removeprefix(head.prefix)
        is_named = output in head.outputs if head.outputs else bool(output)
        if column.startswith(head.prefix) and is_named:
            return Output(name, output)
    return None


class Mean(NamedTuple):
    """The mean of a movement of both sides."""

    name: str  # a key of `MEANS`, and the name of the column
    left: Output
    right: Output

    def of(self, values: Mapping[str, Any]) -> Any:
        """Returns the mean, given numbers or arrays (...) by column."""
        return (values[self.left.column] + values[self.right.column]) / 2

    @property
    def is_weak(self) -> bool:
        """Whether the mean gets the mark `WEAK`: it was not measured itself, but a side is weak."""
        return self.left.is_weak or self.right.is_weak


@dataclass(frozen=True)
class HeadOutputs:
    """The outputs of a model, a data set or a table, in order.

    The outputs of one head follow each other, and differ in more than case. Otherwise, the
    constructor raises ValueError or FerVitError, respectively.

    As for `Output`, r has no effect on whether two are equal.
    """

    outputs: tuple[Output, ...] = ()

    def __post_init__(self) -> None:
        heads = [head for head, _ in groupby(output.head for output in self.outputs)]
        if len(set(heads)) < len(heads):
            raise ValueError("Expected the outputs of each head one after the other.")
        spellings: dict[tuple[str, str], str] = {}
        for output in self.outputs:
            key = (output.head, output.name.casefold())
            if key in spellings:
                raise FerVitError(
                    f"Expected one spelling of each output of {output.head}, but got "
                    f"{short(spellings[key])} and {short(output.name)}. Keep one of them, or give "
                    "both one spelling."
                )
            spellings[key] = output.name

    @classmethod
    def among(cls, columns: Iterable[str]) -> "HeadOutputs":
        """Returns the outputs among columns, in the order of `HEADS` and of the columns."""
        found = [find_output(column) for column in columns]
        return cls._by_heads(output for output in found if output is not None)

    @classmethod
    def of_names(cls, names: Mapping[str, Sequence[str]], owner: object) -> "HeadOutputs":
        """Returns the outputs with these names by head, which may be from a file of others.

        Two spellings of an output that differ in case are the same output. `owner` is the name of
        the model or data set in messages. Raises FerVitError when it has an unknown head, or an
        output twice.
        """
        if not isinstance(names, Mapping) or not all(map(_are_names, names.values())):
            raise FerVitError(
                f"{owner}: expected a list of names for each head, but got {short(names)}."
            )
        outputs = []
        for head, of_head in names.items():
            if head not in HEADS:
                raise FerVitError(
                    f"{owner}: expected a head of {', '.join(HEADS)}, but got {short(head)}."
                )
            check_labels(of_head, owner, f"outputs of {head}")
            allowed = HEADS[head].outputs
            if allowed and not set(of_head) <= set(allowed):
                raise FerVitError(
                    f"{owner}: expected outputs of {head} among {', '.join(allowed)}, "
                    f"but got {short(', '.join(of_head))}."
                )
            outputs += [Output(head, name) for name in of_head]
        try:
            return cls(tuple(outputs))
        except FerVitError as error:
            raise FerVitError(f"{owner}: {error}") from error

    @classmethod
    def _by_heads(cls, outputs: Iterable[Output]) -> "HeadOutputs":
        heads = [*HEADS]
        return cls(tuple(sorted(outputs, key=lambda output: heads.index(output.head))))

    def __iter__(self) -> Iterator[Output]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __hash__(self) -> int:
        return hash(self.columns)  # cached: each cell of a face looks its field up

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns (K,) in manifests and tables."""
        return tuple(output.column for output in self.outputs)

    @property
    def names(self) -> list[str]:
        """The names (K,) within their heads."""
        return [output.name for output in self.outputs]

    @cached_property
    def by_head(self) -> dict[str, "HeadOutputs"]:
        """The outputs of each head, by the name of the head."""
        heads = dict.fromkeys(output.head for output in self.outputs)
        return {head: self.of_head(head) for head in heads}

    def of_head(self, *heads: str) -> "HeadOutputs":
        """Returns the outputs of these heads."""
        return HeadOutputs(tuple(output for output in self.outputs if output.head in heads))

    @property
    def all_heads(self) -> list[str]:
        """The names of all heads of a model with these outputs.

        Each model has an expression and a pose; without a head `pose`, landmarks give the pose.
        """
        return [EXPRESSION, POSE, *(head for head in self.by_head if head != POSE)]

    @property
    def plain(self) -> dict[str, list[str]]:
        """The names of the outputs by head, as files have them."""
        return {head: of_head.names for head, of_head in self.by_head.items()}

    @property
    def plain_r(self) -> dict[str, dict[str, float]]:
        """The r of the measured outputs by head and name, as files have them."""
        plain: dict[str, dict[str, float]] = {}
        for output in self.outputs:
            if output.r is not None:
                plain.setdefault(output.head, {})[output.name] = output.r
        return plain

    def with_r(self, r: Mapping[str, Mapping[str, float | None]]) -> "HeadOutputs":
        """Returns the outputs with other r, by head and name; None for those that are not there."""
        outputs = []
        for output in self.outputs:
            outputs.append(replace(output, r=r.get(output.head, {}).get(output.name)))
        return HeadOutputs(tuple(outputs))

    @property
    def means(self) -> list[Mean]:
        """The means of both sides whose movements are all among the outputs."""
        by_column = self.by_column(self.outputs)
        means = []
        for name, (left, right) in MEANS.items():
            if left in by_column and right in by_column:
                means.append(Mean(name, by_column[left], by_column[right]))
        return means

    @property
    def weak_columns(self) -> set[str]:
        """The columns of outputs and means that get the mark `WEAK`."""
        weak = {output.column for output in self.outputs if output.is_weak}
        return weak | {mean.name for mean in self.means if mean.is_weak}

    def by_column(self, values: Iterable[Any]) -> dict[str, Any]:
        """Returns the values (K, ...) of the outputs by column."""
        return dict(zip(self.columns, values, strict=True))

    def in_photo(self, values: Array, degrees: Array) -> Array:
        """Converts values (M, K) relative to crops to values relative to the photo.

        The crops were rotated clockwise by `degrees` (M,).
        """
        turned = [values[:, :0]]  # the result without outputs
        start = 0
        for head, of_head in self.by_head.items():
            of_values = values[:, start : start + len(of_head)]
            turned.append(HEADS[head].rotate(of_values, of_head.names, -degrees))
            start += len(of_head)
        return np.concatenate(turned, axis=1)

    def shared(self, other: "HeadOutputs") -> "HeadOutputs":
        """Returns the outputs that another one has, too."""
        return HeadOutputs(tuple(output for output in self.outputs if output in other.outputs))

    def indices_in(self, other: "HeadOutputs") -> list[int]:
        """Returns the index (K,) of each output in another one, which has them all."""
        return [other.outputs.index(output) for output in self.outputs]

    def merged(self, other: "HeadOutputs") -> "HeadOutputs":
        """Returns the union of both, by head in the order of `HEADS`.

        Raises FerVitError when two spellings of an output differ in case.
        """
        return self._by_heads(dict.fromkeys((*self.outputs, *other.outputs)))


NO_OUTPUTS = HeadOutputs()


# Matches a word of a name that is a code, such as an action unit, or the letter of a side.
CODE = re.compile(r"[A-Z]+[0-9]+|[A-Z]")


def in_words(name: str) -> str:
    """Returns the name of an output in words: `mouthSmileLeft` becomes `mouth smile left`.

    Codes stay unaltered: `AU12Left` becomes `AU12 left`, `AU12_L` becomes `AU12 L`.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").split(" ")
    return " ".join(word if CODE.fullmatch(word) else word.lower() for word in words)


def output_titles(names: Iterable[str]) -> dict[str, str]:
    """Returns the titles of outputs on pages, by name.

    A title is the name in words, or the name itself if two outputs have the same words.
    """
    titles = {name: in_words(name) for name in names}
    counts = Counter(titles.values())
    return {name: title if counts[title] == 1 else name for name, title in titles.items()}


def marked(title: str, mark: str) -> str:
    """Returns a title with its mark, such as `jaw right (weak)`; without a mark, the title."""
    return f"{title} ({mark})" if mark else title
