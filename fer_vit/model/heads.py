"""Heads: what a model reads from a face. `HEADS` has an entry for each kind of head; a new one is an entry here.

A head is a name, its outputs, a layer, a loss, how raw outputs become values, and what mirroring does to them. The head
`expression` is timm's classifier behind a pooling; the layer of the others is `AdditiveHead`.

B images, T tokens, D width, R regions of k x k tokens, K outputs of a head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fer_vit.errors import FerVitError
from fer_vit.model.tokens import TokenLayout, Tokens

EXPRESSION = "expression"
POSE_UNIT = 20.0  # degrees per unit of the raw outputs of `pose`
POSE_BEND = 0.25  # raw error below which the loss of `pose` is quadratic: 5 degrees


class Terms(NamedTuple):
    """The parts that add up to the raw outputs of an additive head."""

    bias: Tensor  # (K,)
    face: Tensor  # of the mean of all tokens (B, K)
    regions: Tensor  # of each region (B, R, K); 0 for a missing one


class AdditiveHead(nn.Module):
    """Reads tokens additively: output k is b_k + p_k . mean of all tokens + the sum over regions r of w_rk . x_r.

    So each output is the sum of a bias, a term of the whole face and a term of each region. Tokens have exchanged
    information in the encoder: the term of a region is not what hiding the region would change.
    """

    def __init__(self, outputs: int, regions: Sequence[str], layout: TokenLayout, dim: int) -> None:
        super().__init__()
        self.layout = layout
        self.region_names = tuple(regions)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.by_face = nn.Parameter(0.01 * torch.randn(dim, outputs))
        weights = {
            name: 0.01 * torch.randn(layout.tokens_per_region, dim, outputs) for name in regions
        }
        self.by_region = nn.ParameterDict(weights)  # sorted by name

    def terms(self, tokens: Tokens) -> Terms:
        """Returns the terms of encoded tokens, of which hard attention may have removed patches."""
        located = tokens.x[:, self.layout.num_prefix :]  # (B, N' + R k^2, D)
        present = located.new_ones(located.shape[:2])  # (B, N' + R k^2)
        if tokens.valid is not None:
            present = tokens.valid[:, self.layout.num_prefix :].to(located.dtype)
        present = present[..., None]
        mean = (located * present).sum(1) / present.sum(1).clamp(min=1.0)  # (B, D)
        face = mean @ self.by_face  # (B, K)

        if not self.region_names:
            return Terms(self.bias, face, face.new_zeros(len(face), 0, face.shape[1]))
        number, each = len(self.region_names), self.layout.tokens_per_region
        region_tokens = (located * present)[:, -number * each :]  # (B, R k^2, D)
        region_tokens = region_tokens.reshape(len(located), number, each, -1)  # (B, R, k^2, D)
        weights = torch.stack([self.by_region[name] for name in self.region_names])
        regions = torch.einsum("brtd,rtdk->brk", region_tokens, weights)
        return Terms(self.bias, face, regions)

    def forward(self, tokens: Tokens) -> Tensor:
        """Returns the raw outputs (B, K) of encoded tokens."""
        terms = self.terms(tokens)
        return terms.bias + terms.face + terms.regions.sum(1)


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """Returns the mean of the values that are known; 0, with a gradient of 0, if there is none."""
    return values.masked_fill(~known, 0.0).sum() / known.sum().clamp(min=1)


def movement_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of raw outputs (B, K) with intensities in [0, 1] (B, K), soft or binary; NaN: unknown."""
    known = target.isfinite()
    losses = F.binary_cross_entropy_with_logits(
        preds.float(), target.float().nan_to_num(), reduction="none"
    )
    return masked_mean(losses, known)


def pose_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Smooth L1 (Girshick 2015) of raw outputs (B, 3) with angles in degrees (B, 3); NaN: unknown."""
    known = target.isfinite()
    wanted = target.float().nan_to_num() / POSE_UNIT
    losses = F.smooth_l1_loss(preds.float(), wanted, reduction="none", beta=POSE_BEND)
    return masked_mean(losses, known)


def affect_loss(preds: Tensor, target: Tensor) -> Tensor:
    """1 - CCC + mean squared error of raw outputs (B, K) with values in [-1, 1] (B, K), averaged; NaN: unknown.

    CCC is the concordance correlation coefficient (Lin 1989) over the batch. An output whose known targets in the batch
    are fewer than two, or all equal, has the mean squared error alone.
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
    """Returns Lin's concordance correlation coefficient of two series (M,), of which `y` is not constant."""
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
    """Returns the name of the same part on the other side of the face, for example `mouthSmileRight`, `left_eye`."""
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
        low: Smallest value of a target.
        high: Largest value of a target.
        prefix: Of the columns of a manifest and of a table.
        outputs: The names of the outputs; empty: any.
        unit: Of the values.
        weight: Of the loss beside the expression's.
        figures: Measures of a split, see `train.metrics`.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    mirror: Callable[[Sequence[str]], Mirror]
    low: float
    high: float
    prefix: str = ""
    outputs: tuple[str, ...] = ()
    unit: str = ""
    weight: float = 1.0
    figures: tuple[str, ...] = ("r", "mae")


HEADS: dict[str, Head] = {
    "movements": Head(
        movement_loss, torch.sigmoid, swap_sides, 0.0, 1.0, prefix="move_", weight=5.0
    ),
    "pose": Head(
        pose_loss,
        to_degrees,
        negate_turns,
        -180.0,
        180.0,
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
        figures=("ccc", "rmse", "sign_agreement"),
    ),
}
"""The heads beside `expression`, by name."""


def check_outputs(outputs: Mapping[str, Sequence[str]], name: object) -> None:
    """Raises FerVitError when a model or data set, called `name`, has an unknown head or output, or one twice."""
    for head, names in outputs.items():
        if head not in HEADS:
            raise FerVitError(f"{name}: expected a head of {', '.join(HEADS)}, but got {head}.")
        allowed = HEADS[head].outputs
        if allowed and not set(names) <= set(allowed):
            raise FerVitError(
                f"{name}: expected outputs of {head} among {', '.join(allowed)}, "
                f"but got {', '.join(names)}."
            )
        if not names or len(set(names)) < len(names):
            raise FerVitError(
                f"{name}: expected one or more distinct outputs of {head}, but got {', '.join(names)}."
            )
