"""Expressions that cannot be left out: sets of labels that hold the true one as often as promised.

Split conformal prediction (Papadopoulos et al. 2002; Vovk, Gammerman and Shafer 2005) with one minus the probability of
the true label as score: "Least ambiguous set-valued classifiers with bounded error levels" (Sadinle, Lei and Wasserman
2019, arXiv:1609.00451), by class as in their section 3. Of the usual scores it gives the smallest sets. The promise
holds for faces drawn like those of the calibration.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
COVERAGES = (90, 95)
"""In percent."""
Thresholds = Mapping[str, Sequence[float]]
"""By coverage in percent: the least probability of a label in a set, for all faces and then for each label (1 + C)."""


def fit_thresholds(probabilities: Array, target: NDArray[np.int64]) -> dict[str, list[float]]:
    """Returns the thresholds of N faces with their true labels: probabilities (N, C), class indices (N,)."""
    own = probabilities[np.arange(len(target)), target]
    groups = [own, *(own[target == label] for label in range(probabilities.shape[1]))]
    return {str(coverage): [_threshold(group, coverage) for group in groups] for coverage in COVERAGES}


def _threshold(own: Array, coverage: int) -> float:
    """Returns what the next true label's probability reaches in `coverage` percent; 0 when there are too few (N,)."""
    rank = (len(own) + 1) * (100 - coverage) // 100
    return float(np.sort(own)[rank - 1]) if rank else 0.0


def in_set(
    probabilities: Array, thresholds: Thresholds, coverage: int = 90, by_class: bool = False
) -> NDArray[np.bool_]:
    """Tells which labels (..., C) are in a face's set.

    Args:
        probabilities: Of every label (..., C).
        thresholds: As fitted.
        coverage: 90 or 95, in percent.
        by_class: Whether every label, however rare, is covered as often; sets are larger then.
    """
    least = np.array(thresholds[str(coverage)])
    found: NDArray[np.bool_] = np.asarray(probabilities) >= (least[1:] if by_class else least[0])
    return found
