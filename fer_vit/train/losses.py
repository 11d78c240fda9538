"""The training loss: cross-entropy against hard labels and vote distributions alike."""

import torch
import torch.nn.functional as F
from torch import Tensor


def expression_loss(
    logits: Tensor, target: Tensor, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy between logits and shares of the classes.

    Args:
        logits: (B, C), of any floating type; computed in float32.
        target: Share of every class (B, C), rows summing to 1; a hard label is a row with a single 1.
        label_smoothing: Share of the target that is spread evenly over the classes.
        weight: Weight of every class (C,), or None.

    Returns:
        A scalar.
    """
    return F.cross_entropy(logits.float(), target.float(), weight=weight, label_smoothing=label_smoothing)


def balanced_weights(counts: Tensor) -> Tensor:
    """Class weights (C,) by inverse frequency, n / (C count), as scikit-learn's "balanced"; 0 for an empty class.

    Args:
        counts: Training images of every class (C,); with votes a class may have less than one image, and counts as one.
    """
    present = counts > 0
    weights = counts.sum() / (len(counts) * counts.clamp(min=1))
    return torch.where(present, weights, torch.zeros_like(weights)).float()
