"""Metrics on a split, for the expression and for the outputs of further heads.

M faces, K outputs of a head. Targets are NaN where they are unknown.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection, classification
from torchmetrics.utilities import dim_zero_cat

from fer_vit.angles import join_directions, values_near
from fer_vit.errors import FerVitError
from fer_vit.geometry import Array
from fer_vit.heads import HEADS
from fer_vit.stats.measures import measure
from fer_vit.train.outputs import TrainedHead

# Metrics of the head `expression` that are logged if a face of the split has a label.
EXPRESSION_METRICS = ("loss", "accuracy", "f1", "ece", "uar")


class OutputMetrics(Metric):
    """Collects predictions and targets of K outputs; `compute` returns measures (K,) by name."""

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(
        self, num_outputs: int, measures: Sequence[str], period: float | None = None
    ) -> None:
        """Starts without values.

        Args:
            num_outputs: The number K of outputs.
            measures: The names of the measures.
            period: Difference of values that mean the same, such as 360 degrees.
        """
        super().__init__()
        self.num_outputs = num_outputs
        self.measures = tuple(measures)
        self.period = period
        self.add_state("preds", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds predictions and targets (M, K), both in the unit of the targets."""
        self.preds.append(preds.float())
        self.target.append(target.float())

    def collected(self) -> tuple[Array, Array]:
        """Returns all predictions and targets (M, K).

        With a period, each prediction is near its target.
        """
        if not len(self.preds):  # a list, or a tensor after the processes have shared states
            return _empty(self.num_outputs), _empty(self.num_outputs)
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
        results = {}
        for name in self.measures:
            values = [measure(name, x, y) for x, y in zip(preds.T, target.T, strict=True)]
            results[name] = torch.tensor(values, device=self.device)
        return results


def _empty(num_outputs: int) -> Array:
    return torch.zeros(0, num_outputs, dtype=torch.float64).numpy()


def expression_metrics(num_classes: int) -> MetricCollection:
    """Returns the metrics of a split; they take probabilities (B, C) and class indices (B,).

    The metrics are `accuracy` over all samples, macro `f1`, expected calibration error `ece` in 15
    bins, and the `confusion` matrix with targets in rows. `class_recall` takes the recall of each
    class from this matrix; the mean is the unweighted average recall (UAR). Means over classes
    leave out classes that do not occur. Raises FerVitError when there is only one class.
    """
    if num_classes < 2:
        raise FerVitError(
            f"Expected at least two classes, but got {num_classes}. Add images of others."
        )
    return MetricCollection(
        {
            "accuracy": classification.MulticlassAccuracy(num_classes, average="micro"),
            "f1": classification.MulticlassF1Score(num_classes, average="macro"),
            "ece": classification.MulticlassCalibrationError(num_classes, n_bins=15),
            "confusion": classification.MulticlassConfusionMatrix(num_classes),
        }
    )


def class_recall(confusion: Tensor) -> Tensor:
    """Returns the recall of each class (C,) by a confusion matrix (C, C) with targets in rows.

    The recall of a class without samples is NaN.
    """
    return confusion.diagonal() / confusion.sum(1)


def log_name(head: str, measure_name: str) -> str:
    """Returns the name by which the mean of a measure over the outputs of a head is logged."""
    return f"{head}_{measure_name.lower().replace(' ', '_')}"


def output_metrics(trained: Mapping[str, TrainedHead]) -> nn.ModuleDict:
    """Returns the metrics of the trained heads, by head."""
    metrics = nn.ModuleDict()
    for head, of_head in trained.items():
        entry = HEADS[head]
        metrics[head] = OutputMetrics(len(of_head.outputs), entry.measures, entry.period)
    return metrics
