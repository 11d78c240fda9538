"""The training loss: cross-entropy against hard labels and shares of votes alike."""

import torch
import torch.nn.functional as F
from torch import Tensor


def expression_loss(
    logits: Tensor, target: Tensor, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy, in float32, between logits (B, C) and shares of the classes (B, C), with class weights (C,).

    A hard label is a one-hot row; smoothing spreads a share of the target evenly over the classes.
    """
    return F.cross_entropy(logits.float(), target.float(), weight=weight, label_smoothing=label_smoothing)


def balanced_weights(counts: Tensor) -> Tensor:
    """Class weights (C,) by inverse frequency, n / (C count), as scikit-learn's "balanced"; 0 for an empty class.

    With votes a class may have less than one image; it counts as one.
    """
    weights = counts.sum() / (len(counts) * counts.clamp(min=1))
    return torch.where(counts > 0, weights, 0.0).float()


def log_prior(counts: Tensor) -> Tensor:
    """Log shares (C,) of the classes among the faces; one with less than one image counts as one."""
    counts = counts.clamp(min=1).float()
    return (counts / counts.sum()).log()
