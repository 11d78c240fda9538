"""Measures of a split for the outputs of other heads than the expression.

M faces, K outputs of a head. Targets are NaN where they are unknown.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric


class Moments(NamedTuple):
    """Means over the known faces of each output (K,); `x` are predictions, `y` targets."""

    x: Tensor
    y: Tensor
    xx: Tensor
    yy: Tensor
    xy: Tensor
    error: Tensor  # absolute
    square: Tensor  # of the error
    same_sign: Tensor


def correlation(m: Moments) -> Tensor:
    """Pearson's r; NaN without variance."""
    covariance = m.xy - m.x * m.y
    return covariance / ((m.xx - m.x**2) * (m.yy - m.y**2)).clamp(min=0).sqrt()


def concordance(m: Moments) -> Tensor:
    """Lin's concordance correlation coefficient (1989); NaN without variance."""
    covariance = m.xy - m.x * m.y
    return 2 * covariance / (m.xx - m.x**2 + m.yy - m.y**2 + (m.x - m.y) ** 2)


FIGURES: dict[str, Callable[[Moments], Tensor]] = {
    "r": correlation,
    "mae": lambda m: m.error,
    "ccc": concordance,
    "rmse": lambda m: m.square.sqrt(),
    "sign_agreement": lambda m: m.same_sign,
}
"""Measures (K,) by name, as `heads.Head.figures` names them."""


class OutputMetrics(Metric):
    """Collects predictions and targets of K outputs; `compute` returns the measures (K,) by name."""

    count: Tensor
    sums: Tensor

    def __init__(self, outputs: int, figures: tuple[str, ...]) -> None:
        super().__init__()
        self.figures = figures
        parts = len(Moments._fields)
        zeros = torch.zeros(outputs, dtype=torch.float64)
        self.add_state("count", zeros, dist_reduce_fx="sum")
        self.add_state("sums", zeros.expand(parts, -1).clone(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds predictions and targets (M, K), both in the unit of the targets."""
        known = target.isfinite()
        x = preds.double().masked_fill(~known, 0.0)
        y = target.double().masked_fill(~known, 0.0)
        same_sign = (x.sign() == y.sign()) & known
        parts = (x, y, x * x, y * y, x * y, (x - y).abs(), (x - y) ** 2, same_sign.double())
        self.count += known.sum(0)
        self.sums += torch.stack([part.sum(0) for part in parts])

    def compute(self) -> dict[str, Tensor]:
        """Returns the measures (K,) by name; NaN for an output without known targets."""
        moments = Moments(*(self.sums / self.count))
        return {name: FIGURES[name](moments) for name in self.figures}
