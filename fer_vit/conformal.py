"""Prediction sets: sets of labels that contain the true label at a nominal rate.

The method is split conformal prediction (Papadopoulos et al. 2002; Vovk, Gammerman and Shafer 2005)
with the score 1 - p(true label): "Least ambiguous set-valued classifiers with bounded error levels"
(Sadinle, Lei and Wasserman 2019, arXiv:1609.00451). Sets by class are from section 3 of that paper.
Of the usual scores, this score gives the smallest sets.

The rate is guaranteed under two assumptions: faces come from the distribution of the calibration
faces, and nothing else in the model depends on the calibration faces. The validation faces also
chose the epoch of a model. So the rate is nominal: the true rate may be slightly lower.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fer_vit.geometry import Array, IntArray, Mask

COVERAGES = (90, 95)  # in percent

# The thresholds (1 + C) by coverage in percent: the smallest probability of a label in a set, first
# for all faces, then for the faces with each label. A label with too few calibration faces has the
# threshold 0, so the label is in every set: fewer than 9 faces cannot cover 90%, and fewer than 19
# faces cannot cover 95%.
Thresholds = Mapping[str, Sequence[float]]


def fit_thresholds(probabilities: Array, target: IntArray) -> dict[str, list[float]]:
    """Returns the thresholds by coverage from N faces with known labels.

    Args:
        probabilities: The probabilities from the model (N, C).
        target: The index of the true label (N,).
    """
    true_probabilities = probabilities[np.arange(len(target)), target]  # (N,)
    thresholds: dict[str, list[float]] = {}
    for coverage in COVERAGES:
        row = [_threshold(true_probabilities, coverage)]
        for label in range(probabilities.shape[1]):
            row.append(_threshold(true_probabilities[target == label], coverage))
        thresholds[str(coverage)] = row
    return thresholds


def _threshold(probabilities: Array, coverage: int) -> float:
    """Returns the value that `coverage` percent of probabilities (N,) reach.

    Returns 0 if there are too few probabilities.
    """
    rank = (len(probabilities) + 1) * (100 - coverage) // 100
    return float(np.sort(probabilities)[rank - 1]) if rank else 0.0


def in_set(
    probabilities: Array, thresholds: Thresholds, coverage: int = 90, by_class: bool = False
) -> Mask:
    """Returns which labels are in the prediction set of each face (..., C).

    Args:
        probabilities: The probabilities from the model (..., C).
        thresholds: The thresholds of the model.
        coverage: The coverage in percent.
        by_class: Whether the coverage holds for each label, with larger sets. A label with
            too few calibration faces is then in every set.
    """
    overall, *each = thresholds[str(coverage)]
    return np.asarray(probabilities >= np.array(each if by_class else overall))
