"""What trains and reads heads with torch: a loss, and how raw outputs become values.

B images, K outputs of a head. Targets are NaN where they are unknown.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fer_vit.heads import HEADS

# error of raw outputs below which `number_loss` is quadratic: 5 degrees of the pose
SMOOTH_L1_BETA = 0.25


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """Returns the mean of values (B, K) that are known; 0, with a gradient of 0, without any."""
    return values.masked_fill(~known, 0.0).sum() / known.sum().clamp(min=1)


def movement_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of raw outputs (B, K) with intensities in [0, 1] (B, K), soft or binary.

    NaN: unknown.
    """
    known = target.isfinite()
    losses = F.binary_cross_entropy_with_logits(
        preds.float(), target.float().nan_to_num(), reduction="none"
    )
    return masked_mean(losses, known)


def number_loss(preds: Tensor, target: Tensor) -> Tensor:
    """Smooth L1 (Girshick 2015) of raw outputs (B, K) with their targets (B, K); NaN: unknown."""
    known = target.isfinite()
    losses = F.smooth_l1_loss(
        preds.float(), target.float().nan_to_num(), reduction="none", beta=SMOOTH_L1_BETA
    )
    return masked_mean(losses, known)


def affect_loss(preds: Tensor, target: Tensor) -> Tensor:
    """1 - CCC + mean squared error of raw outputs (B, K) with values in [-1, 1] (B, K), averaged.

    NaN: unknown. CCC is the concordance correlation coefficient (Lin 1989) over the batch. An
    output whose known targets in the batch are fewer than two, or all equal, has the mean squared
    error alone.
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
        if y.max() > y.min():  # the variance of equal targets is not 0 in binary
            loss = loss + 1 - series_concordance(x, y)
        losses.append(loss)
    return torch.stack(losses).mean() if losses else 0.0 * values.sum()


def series_concordance(x: Tensor, y: Tensor) -> Tensor:
    """Returns the concordance correlation coefficient (Lin 1989) of series (M,).

    `y` is not constant.
    """
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    spread = x.var(correction=0) + y.var(correction=0) + (x.mean() - y.mean()).square()
    return 2 * covariance / spread


def identity(raw: Tensor) -> Tensor:
    """Returns raw outputs (B, K), which are values already."""
    return raw


class Loss(NamedTuple):
    """How a head is trained, in units of its raw outputs."""

    compute: Callable[[Tensor, Tensor], Tensor]  # of raw outputs and targets (B, K), in float32
    activate: Callable[[Tensor], Tensor]  # of raw outputs (B, K); the result is like the targets


LOSSES = {  # the losses by the scale of values, see `heads.Head.scale`
    "intensity": Loss(movement_loss, torch.sigmoid),
    "number": Loss(number_loss, identity),
    "signed": Loss(affect_loss, torch.tanh),
}


def head_loss(head: str, preds: Tensor, target: Tensor) -> Tensor:
    """Returns the loss of raw outputs (B, K) of a head with targets (B, K) in its unit.

    Of a target with a period, the equal value nearest to the prediction counts: 179 degrees are 2
    degrees from -179.
    """
    entry = HEADS[head]
    target = target.float()
    if entry.period is not None:
        turns = ((decode(head, preds.detach().float()) - target) / entry.period).round()
        # a prediction that is not finite leaves the target known, so that the loss is not finite
        target = target + entry.period * turns.where(turns.isfinite(), 0.0)
    return LOSSES[entry.scale].compute(preds, (target - entry.middle) / entry.step)


def decode(head: str, raw: Tensor) -> Tensor:
    """Converts raw outputs (B, K) of a head to values in its unit."""
    entry = HEADS[head]
    return entry.middle + entry.step * LOSSES[entry.scale].activate(raw)
