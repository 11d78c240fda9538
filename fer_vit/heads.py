"""Heads: what a model predicts from a face besides the expression. A head is an entry of `HEADS`.

An entry contains the outputs of the head, their columns in manifests and tables, the scale of the
values, the effect of mirroring and rotating a face, and the words for reports. `losses` has a loss
for each scale. The layer of each head is `model.additive.AdditiveHead`.

M faces, K outputs of a head.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from fer_vit.angles import values_near
from fer_vit.errors import FerVitError
from fer_vit.geometry import Array

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


def nearest_to(head: str, values: Array, targets: Array) -> Array:
    """Returns the values of a head (M, K) nearest to targets (M, K).

    For a target of 179 degrees, the value -179 becomes 181.
    """
    period = HEADS[head].period
    if period is None:
        return values
    return values_near(values, targets, period)


def values_in_photo(head: str, outputs: Sequence[str], values: Array, degrees: Array) -> Array:
    """Converts the values of a head (M, K) relative to crops to values relative to the photo.

    The crops were rotated clockwise by `degrees` (M,).
    """
    return HEADS[head].rotate(values, outputs, -degrees)


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

    @property
    def columns(self) -> dict[str, str]:
        """The meanings of the columns by name. An asterisk stands for outputs of any name."""
        if not self.outputs:
            return {f"{self.prefix}*": self.meaning}
        return {self.prefix + output: meaning for output, meaning in self.outputs.items()}


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


def means_of(columns: Collection[str]) -> list[str]:
    """Returns the names of `MEANS` whose movements are all among the columns."""
    return [name for name, sides in MEANS.items() if {*sides} <= {*columns}]


def weak_columns(r: Mapping[str, Mapping[str, float | None]]) -> set[str]:
    """Returns the columns that get the mark `WEAK`.

    `r` is `ModelSettings.r`. A mean was not measured itself: it is weak if a side is.
    """
    weak = set()
    for head, measured in r.items():
        for output, value in measured.items():
            if value is not None and value < WEAK_R:
                weak.add(target_column(head, output))
    for name, sides in MEANS.items():
        if not weak.isdisjoint(sides):
            weak.add(name)
    return weak


def target_column(head: str, output: str) -> str:
    """Returns the column of an output in manifests and tables."""
    return HEADS[head].prefix + output


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


def column_periods(columns: Sequence[str]) -> dict[str, float]:
    """Returns the period of the values in each column that has one."""
    periods = {}
    for head, outputs in outputs_of(columns).items():
        period = HEADS[head].period
        if period is not None:
            for output in outputs:
                periods[target_column(head, output)] = period
    return periods


def outputs_of(columns: Sequence[str]) -> dict[str, list[str]]:
    """Returns the outputs in columns by head, in the order of `HEADS` and of the columns.

    Other columns are left out.
    """
    outputs: dict[str, list[str]] = {}
    for name, head in HEADS.items():
        of_head = [column for column in columns if column.startswith(head.prefix)]
        names = [column.removeprefix(head.prefix) for column in of_head]
        if head.outputs:  # a head without `outputs` accepts any name
            names = [output for output in names if output in head.outputs]
        if names:
            outputs[name] = names
    return outputs


def head_of(column: str) -> str:
    """Returns the head of the output in a column, such as `pose` for `yaw`.

    `fields.is_output` is True for the column.
    """
    (head,) = outputs_of([column])
    return head


def merge_outputs(*parts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns the union of the outputs of models or data sets, by head in the order of `HEADS`.

    Raises FerVitError when two spellings of an output differ in case.
    """
    merged: dict[str, list[str]] = {}
    for head in HEADS:
        spelled: dict[str, str] = {}  # spelling by name in lower case, in order
        for part in parts:
            for name in part.get(head, ()):
                first = spelled.setdefault(name.casefold(), name)
                if first != name:
                    raise FerVitError(
                        f"Expected one spelling of each output of {head}, but got {first} and "
                        f"{name}. Prepare the data set with the same spelling."
                    )
        if spelled:
            merged[head] = [*spelled.values()]
    return merged


def check_head_outputs(outputs: Mapping[str, Sequence[str]], name: object) -> None:
    """Raises FerVitError when a model or data set has an unknown head, or an output twice.

    Two spellings of an output that differ in case are the same output. `name` is the name of the
    model or data set in messages.
    """
    for head, of_head in outputs.items():
        if head not in HEADS:
            raise FerVitError(f"{name}: expected a head of {', '.join(HEADS)}, but got {head}.")
        allowed = HEADS[head].outputs
        if allowed and not set(of_head) <= set(allowed):
            raise FerVitError(
                f"{name}: expected outputs of {head} among {', '.join(allowed)}, "
                f"but got {', '.join(of_head)}."
            )
        if not of_head or len({name.casefold() for name in of_head}) < len(of_head):
            actual = ", ".join(of_head) or "none"
            raise FerVitError(
                f"{name}: expected one or more distinct outputs of {head}, but got {actual}."
            )
