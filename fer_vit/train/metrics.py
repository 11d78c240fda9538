"""Loss and metrics of a classifier, under the names that logs and tables use.

B faces, C classes.
"""

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from fer_vit.errors import FerVitError


def expression_loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy, in float32, between logits (B, C) and votes (B, C): shares, or one-hot rows.

    Smoothing spreads a share of the target evenly over the classes.
    """
    return F.cross_entropy(logits.float(), target.float(), label_smoothing=label_smoothing)


def log_prior(counts: Tensor) -> Tensor:
    """Returns the log shares (C,) of classes by their counts (C,); counts below 1 are 1."""
    counts = counts.clamp(min=1).float()
    return (counts / counts.sum()).log()


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
