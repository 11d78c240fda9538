"""Calibration: a temperature that makes confidence as often right as it says."""

import math

import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """Finds what to divide logits by so that confidence is right as often as it says (Guo et al. 2017).

    Args:
        logits: (N, C).
        target: Class indices (N,).

    Returns:
        The temperature with the least cross-entropy, between 0.05 and 20.
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), target))

    return math.exp(minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded").x)
