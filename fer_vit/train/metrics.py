"""Metrics on a split, for the expression and for the outputs of further heads, and their names.

M faces, K outputs of a head. Targets are NaN where they are unknown.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection, classification
from torchmetrics.utilities import dim_zero_cat

from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.geometry import Array
from fer_vit.heads import EXPRESSION, HEADS, Head
from fer_vit.stats.output_measures import measure
from fer_vit.train.trained_heads import TrainedHead

# Metrics of the head `expression` that are logged if a face of the split has a label.
EXPRESSION_METRICS = ("loss", "accuracy", "f1", "ece", "uar")


class OutputMetrics(Metric):
    """Collects predictions and targets of K outputs; `compute` returns measures (K,) by name."""

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, num_outputs: int, kind: Head) -> None:
        """Starts without values for K outputs of a head, with the measures of `kind`."""
        super().__init__()
        self.num_outputs = num_outputs
        self.kind = kind
        self.add_state("preds", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds predictions and targets (M, K), both in the unit of the targets."""
        self.preds.append(preds.float())
        self.target.append(target.float())

    def collected(self) -> tuple[Array, Array]:
        """Returns all predictions and targets (M, K), see `Head.comparable`."""
        if not len(self.preds):  # a list, or a tensor after the processes have shared states
            return np.zeros((0, self.num_outputs)), np.zeros((0, self.num_outputs))
        preds = dim_zero_cat(self.preds).double().cpu().numpy()
        target = dim_zero_cat(self.target).double().cpu().numpy()
        return self.kind.comparable(preds, target)

    def compute(self) -> dict[str, Tensor]:
        """Returns the measures (K,) by name; NaN for an output without known targets."""
        preds, target = self.collected()
        results = {}
        for name in self.kind.measures:
            values = [measure(name, x, y) for x, y in zip(preds.T, target.T, strict=True)]
            results[name] = torch.tensor(values, device=self.device)
        return results


def expression_metrics(num_classes: int) -> MetricCollection:
    """Returns the metrics of a split; they take probabilities (B, C) and class indices (B,).

    The metrics are `accuracy` over all samples, macro `f1`, expected calibration error `ece` in 15
    bins, and the `confusion` matrix with targets in rows. `class_recall` takes the recall of each
    class from this matrix; the mean is the unweighted average recall (UAR). Means over classes
    leave out classes that do not occur. Raises FerVitError when there is only one class.
    """
    if num_classes < 2:
        raise FerVitError(
            f"Expected at least two classes, but got {num_classes}. Add images of another class."
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
        metrics[head] = OutputMetrics(len(of_head.outputs), HEADS[head])
    return metrics


def check_monitored(manifest: Manifest, monitored: set[str], trained: Sequence[str]) -> None:
    """Raises FerVitError when the best epoch cannot be chosen.

    Args:
        manifest: The faces.
        monitored: The names of the metrics that callbacks compare to save checkpoints.
        trained: The further heads that are trained.
    """
    for name in monitored:
        head = str(name).removeprefix("val/").partition("_")[0]
        if head in HEADS and head not in trained:
            names = ", ".join((EXPRESSION, *trained))
            raise FerVitError(
                f"{name} is monitored, but {head} is not trained, only {names}. Choose another "
                "measure by `--checkpoint.monitor`, or add targets."
            )
    lacking = monitored & {f"val/{name}" for name in EXPRESSION_METRICS}
    if lacking and not manifest.split("val").has_labels:
        remedy = "Add labelled faces by `fer-vit prepare --add`."
        if trained:
            head = trained[0]
            measure = f"val/{log_name(head, HEADS[head].measures[0])}"
            remedy = (
                "Choose the best epoch by another measure, such as "
                f"`--checkpoint.monitor {measure}`."
            )
        raise FerVitError(
            f"{manifest.path} has no val face with a label, so {min(lacking)} does not "
            f"exist. {remedy}"
        )
