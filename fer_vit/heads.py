"""Heads: what a model reads from a face beside its expression. `HEADS` has an entry for each; a new
head is an entry.

A head is a name, its outputs, their columns in a manifest, a loss, how raw outputs become values,
and what mirroring or rotating a face does to them. The layer of all heads is
`model.additive.AdditiveHead`.

B images, M faces, K outputs of a head. Targets are NaN where they are unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fer_vit.errors import FerVitError
from fer_vit.geometry import Array

EXPRESSION = "expression"
POSE_UNIT = 20.0  # degrees per unit of the raw outputs of `pose`
POSE_BEND = 0.25  # raw error below which the loss of `pose` is quadratic: 5 degrees


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """Returns the mean of the values that are known; 0, with a gradient of 0, if there is none."""
    return values.masked_fill(~known, 0.0).sum() / known.sum().clamp(min=1)


def movement_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of raw outputs (B, K) with intensities in [0, 1] (B, K),
    soft or binary; NaN: unknown.
    """
    known = target.isfinite()
    losses = F.binary_cross_entropy_with_logits(
        preds.float(), target.float().nan_to_num(), reduction="none"
    )
    return masked_mean(losses, known)


def pose_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Smooth L1 (Girshick 2015) of raw outputs (B, 3) with angles
    in degrees (B, 3); NaN: unknown.
    """
    known = target.isfinite()
    wanted = target.float().nan_to_num() / POSE_UNIT
    losses = F.smooth_l1_loss(preds.float(), wanted, reduction="none", beta=POSE_BEND)
    return masked_mean(losses, known)


def affect_loss(preds: Tensor, target: Tensor) -> Tensor:
    """1 - CCC + mean squared error of raw outputs (B, K) with values in [-1, 1] (B, K), averaged;
    NaN: unknown.

    CCC is the concordance correlation coefficient (Lin 1989) over the batch. An output whose known
    targets in the batch are fewer than two, or all equal, has the mean squared error alone.
    """
    values = preds.float().tanh()
    losses = []
    for output in range(target.shape[1]):
        known = target[:, output].isfinite()
        if not known.any():
            continue
        x, y = values[known, output], target[known, output].float()
        loss = (x - y).square().mean()
        if len(y) > 1 and y.var() > 0:
            loss = loss + 1 - concordance(x, y)
        losses.append(loss)
    return torch.stack(losses).mean() if losses else 0.0 * values.sum()


def concordance(x: Tensor, y: Tensor) -> Tensor:
    """Returns Lin's concordance correlation coefficient of two series (M,),
    of which `y` is not constant.
    """
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    spread = x.var(correction=0) + y.var(correction=0) + (x.mean() - y.mean()).square()
    return 2 * covariance / spread


class Mirror(NamedTuple):
    """What mirroring a face does to the K outputs of a head."""

    source: list[int]  # the output whose value each output takes
    sign: list[float]  # by which it is multiplied


def swap_sides(names: Sequence[str]) -> Mirror:
    """Left and right swap in the names of outputs; an output without a partner stays."""
    partners = [other_side(name) for name in names]
    source = [
        names.index(partner) if partner in names else index
        for index, partner in enumerate(partners)
    ]
    return Mirror(source, [1.0] * len(names))


def other_side(name: str) -> str:
    """Returns the name of the same part on the other side of the face,
    for example `mouthSmileRight`, `left_eye`.
    """
    for side, other in SIDES.items():
        if side in name:
            return name.replace(side, other)
    return name


SIDES = {"Left": "Right", "Right": "Left", "left": "right", "right": "left"}
"""Parts of names that mirroring swaps."""


def negate_turns(names: Sequence[str]) -> Mirror:
    """Yaw and roll change their sign."""
    return Mirror(
        [*range(len(names))], [-1.0 if name in ("yaw", "roll") else 1.0 for name in names]
    )


def keep(names: Sequence[str]) -> Mirror:
    """Nothing changes."""
    return Mirror([*range(len(names))], [1.0] * len(names))


def stay(values: Array, names: Sequence[str], degrees: Array) -> Array:
    """Values (M, K) that a rotation of the face does not change."""
    return values


def turn_roll(values: Array, names: Sequence[str], degrees: Array) -> Array:
    """Angles (M, K) of faces that are rotated by `degrees` (M,), clockwise:
    roll changes by as much.
    """
    rolls = np.array([name == "roll" for name in names])
    return np.asarray(values + degrees[:, None] * rolls)


def in_picture(head: str, names: Sequence[str], values: Array, degrees: Array) -> Array:
    """Returns values of a head (M, K) in the picture, from those in crops that were rotated by
    `degrees` (M,), clockwise.
    """
    return HEADS[head].rotate(values, names, -degrees)


def to_degrees(raw: Tensor) -> Tensor:
    """Converts raw outputs of `pose` to degrees."""
    return POSE_UNIT * raw


@dataclass(frozen=True)
class Head:
    """A kind of head.

    Attributes:
        loss: Of raw outputs (B, K) and targets (B, K), NaN where unknown; in float32.
        decode: Converts raw outputs (B, K) to values in the unit of the targets.
        mirror: What mirroring a face does to outputs, by their names.
        rotate: Values (M, K) of faces that were rotated, by their values before, the names and
            degrees (M,).
        low: Smallest value of a target.
        high: Largest value of a target.
        prefix: Of the columns of a manifest and of a table; columns of a head with a prefix may
            have any name.
        outputs: The names of the outputs; empty: any that the data has.
        unit: Of the values.
        weight: Of the loss beside the expression's.
        figures: Names of `measures.MEASURES` for its outputs.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    mirror: Callable[[Sequence[str]], Mirror]
    low: float
    high: float
    rotate: Callable[[Array, Sequence[str], Array], Array] = stay
    prefix: str = ""
    outputs: tuple[str, ...] = ()
    unit: str = ""
    weight: float = 1.0
    figures: tuple[str, ...] = ("r", "MAE")


HEADS: dict[str, Head] = {
    "movements": Head(
        movement_loss,
        torch.sigmoid,
        swap_sides,
        0.0,
        1.0,
        prefix="move_",
        weight=5.0,
        figures=("r", "MAE", "F1", "AUROC"),
    ),
    "pose": Head(
        pose_loss,
        to_degrees,
        negate_turns,
        -180.0,
        180.0,
        rotate=turn_roll,
        outputs=("yaw", "pitch", "roll"),
        unit="degrees",
    ),
    "affect": Head(
        affect_loss,
        torch.tanh,
        keep,
        -1.0,
        1.0,
        outputs=("valence", "arousal"),
        figures=("CCC", "RMSE", "sign agreement"),
    ),
}
"""The heads beside `expression`, by name."""


def target_column(head: str, output: str) -> str:
    """Returns the column of an output in manifests and tables."""
    return HEADS[head].prefix + output


def outputs_of(columns: Sequence[str]) -> dict[str, list[str]]:
    """Returns the outputs by head that columns hold, in the order of `HEADS` and of the columns."""
    outputs: dict[str, list[str]] = {}
    for name, head in HEADS.items():
        if head.outputs:
            names = [column for column in columns if column in head.outputs]
        else:
            names = [
                column.removeprefix(head.prefix)
                for column in columns
                if column.startswith(head.prefix)
            ]
        if names:
            outputs[name] = names
    return outputs


def check_outputs(outputs: Mapping[str, Sequence[str]], name: object) -> None:
    """Raises FerVitError when a model or data set, called `name`, has an unknown head or output, or
    one twice.

    Two spellings of an output that differ in case are one.
    """
    for head, names in outputs.items():
        if head not in HEADS:
            raise FerVitError(f"{name}: expected a head of {', '.join(HEADS)}, but got {head}.")
        allowed = HEADS[head].outputs
        if allowed and not set(names) <= set(allowed):
            raise FerVitError(
                f"{name}: expected outputs of {head} among {', '.join(allowed)}, "
                f"but got {', '.join(names)}."
            )
        if not names or len({name.casefold() for name in names}) < len(names):
            came = ", ".join(names) or "none"
            raise FerVitError(
                f"{name}: expected one or more distinct outputs of {head}, but got {came}."
            )
