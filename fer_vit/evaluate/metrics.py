"""Metrics of a classifier, from torchmetrics, under the names that logs and tables use."""

from collections.abc import Sequence

from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from fer_vit.errors import FerVitError
from fer_vit.report.table import markdown


def expression_metrics(num_classes: int) -> MetricCollection:
    """Returns the metrics of a split; they take probabilities (B, C) and class indices (B,).

    `accuracy` over all samples, macro `f1`, expected calibration error `ece` in 15 bins, and the `confusion` matrix
    (rows: target), from which `class_recall` takes the recall of every class; its mean is the UAR. Macro means
    leave out classes that do not occur. Raises FerVitError when there is only one class.
    """
    if num_classes < 2:
        raise FerVitError(f"Expected at least two classes, but got {num_classes}. Add images of others.")
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(num_classes, average="micro"),
            "f1": MulticlassF1Score(num_classes, average="macro"),
            "ece": MulticlassCalibrationError(num_classes, n_bins=15),
            "confusion": MulticlassConfusionMatrix(num_classes),
        }
    )


def class_recall(confusion: Tensor) -> Tensor:
    """Recall of every class (C,) from a confusion matrix (C, C) with targets in rows; NaN for one without samples."""
    return confusion.diagonal() / confusion.sum(1)


def metrics_table(scalars: dict[str, float], confusion: Tensor, labels: Sequence[str]) -> str:
    """Formats results as Markdown: one table of the scalars, one of recall by class."""
    classes = zip(labels, confusion.sum(1).tolist(), class_recall(confusion).tolist(), strict=True)
    scores = [["metric", "value"], *([name, f"{value:.4f}"] for name, value in scalars.items())]
    recalls = [
        ["expression", "images", "recall"],
        *([name, f"{n:.0f}", f"{recall:.4f}"] for name, n, recall in classes),
    ]
    return f"{markdown(scores)}\n{markdown(recalls)}"
