"""Measures of a split for the outputs of other heads than the expression.

M faces, K outputs of a head. Targets are NaN where they are unknown.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from fer_vit.geometry import Array
from fer_vit.heads import join_directions, values_near
from fer_vit.measures import measure


class OutputMetrics(Metric):
    """Collects predictions and targets of K outputs; `compute` returns measures (K,) by name."""

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, outputs: int, figures: Sequence[str], period: float | None = None) -> None:
        """Starts without values.

        Args:
            outputs: The number K of outputs.
            figures: The names of the measures.
            period: Difference of values that mean the same, such as 360 degrees.
        """
        super().__init__()
        self.outputs = outputs
        self.figures = tuple(figures)
        self.period = period
        self.add_state("preds", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds predictions and targets (M, K), both in the unit of the targets."""
        self.preds.append(preds.float())
        self.target.append(target.float())

    def collected(self) -> tuple[Array, Array]:
        """Returns all predictions and targets (M, K); with a period, near one another."""
        if not len(self.preds):  # a list, or a tensor after the processes have shared states
            return _empty(self.outputs), _empty(self.outputs)
        preds = dim_zero_cat(self.preds)
        target = dim_zero_cat(self.target)
        values = preds.double().cpu().numpy()
        truth = target.double().cpu().numpy()
        if self.period is not None:
            truth = join_directions(truth, self.period)
            values = values_near(values, truth, self.period)
        return values, truth

    def compute(self) -> dict[str, Tensor]:
        """Returns the measures (K,) by name; NaN for an output without known targets."""
        preds, target = self.collected()
        figures = {}
        for name in self.figures:
            values = [measure(name, x, y) for x, y in zip(preds.T, target.T, strict=True)]
            figures[name] = torch.tensor(values, device=self.device)
        return figures


def _empty(outputs: int) -> Array:
    return torch.zeros(0, outputs, dtype=torch.float64).numpy()
