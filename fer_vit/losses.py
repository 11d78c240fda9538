"""Losses of heads, and the conversion of raw outputs to values, in torch.

B images, K outputs of a head. An unknown target is NaN.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fer_vit.heads import HEADS

# The error of raw outputs below which `number_loss` is quadratic: 5 degrees for the pose.
SMOOTH_L1_BETA = 0.25


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """Returns the mean of the known values (B, K).

    Without known values, the mean and the gradient are 0.
    """
    return values.masked_fill(~known, 0.0).sum() / known.sum().clamp(min=1)


def movement_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Returns the binary cross-entropy of raw outputs (B, K) with intensities in [0, 1] (B, K).

    Targets may be soft or binary. NaN is an unknown target.
    """
    known = target.isfinite()
    losses = F.binary_cross_entropy_with_logits(
        preds.float(), target.float().nan_to_num(), reduction="none"
    )
    return masked_mean(losses, known)


def number_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Returns the smooth L1 loss (Girshick 2015) of raw outputs (B, K) with targets (B, K).

    NaN is an unknown target.
    """
    known = target.isfinite()
    losses = F.smooth_l1_loss(
        preds.float(), target.float().nan_to_num(), reduction="none", beta=SMOOTH_L1_BETA
    )
    return masked_mean(losses, known)


def affect_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Returns the mean over outputs of 1 - CCC + mean squared error.

    CCC is the concordance correlation coefficient (Lin 1989) over the batch. The values are the
    tanh of raw outputs (B, K); targets (B, K) are in [-1, 1]. NaN is an unknown target. If fewer
    than two targets of an output are known, or all known targets are equal, only the mean squared
    error counts.
    """
    values = preds.float().tanh()
    losses = []
    for output in range(target.shape[1]):
        known = target[:, output].isfinite()
        if not known.any():
            continue
        x = values[known, output]
        y = target[known, output].float()
        loss = (x - y).square().mean()
        if y.max() > y.min():  # the computed variance of equal targets may be above 0
            loss = loss + 1 - series_concordance(x, y)
        losses.append(loss)
    return torch.stack(losses).mean() if losses else 0.0 * values.sum()


def series_concordance(x: Tensor, y: Tensor) -> Tensor:
    """Returns the concordance correlation coefficient (Lin 1989) of two series (M,).

    `y` is not constant.
    """
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    spread = x.var(correction=0) + y.var(correction=0) + (x.mean() - y.mean()).square()
    return 2 * covariance / spread


def identity(raw: Tensor) -> Tensor:
    """Returns raw outputs (B, K), which are values already."""
    return raw


class Loss(NamedTuple):
    """How a head is trained, in units of the raw outputs."""

    # takes raw outputs and targets (B, K); computes in float32
    compute: Callable[[Tensor, Tensor], Tensor]
    activate: Callable[[Tensor], Tensor]  # converts raw outputs (B, K) to the scale of the targets


LOSSES = {  # the losses by the scale of values, see `heads.Head.scale`
    "intensity": Loss(movement_loss, torch.sigmoid),
    "number": Loss(number_loss, identity),
    "signed": Loss(affect_loss, torch.tanh),
}


def head_loss(head: str, preds: Tensor, target: Tensor) -> Tensor:
    """Returns the loss of the raw outputs of a head (B, K) with targets (B, K) in the head's unit.

    A target with a period is replaced by the equivalent value nearest to the prediction: 179
    degrees are 2 degrees from -179.
    """
    entry = HEADS[head]
    target = target.float()
    if entry.period is not None:
        turns = ((decode(head, preds.detach().float()) - target) / entry.period).round()
        # With a prediction that is not finite, the target stays known, so the loss is not finite.
        target = target + entry.period * turns.where(turns.isfinite(), 0.0)
    return LOSSES[entry.scale].compute(preds, (target - entry.middle) / entry.step)


def decode(head: str, raw: Tensor) -> Tensor:
    """Converts the raw outputs of a head (B, K) to values in the head's unit."""
    entry = HEADS[head]
    return entry.middle + entry.step * LOSSES[entry.scale].activate(raw)
