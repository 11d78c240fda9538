"""Prediction sets: sets of labels that contain the true one at a guaranteed rate.

Split conformal prediction (Papadopoulos et al. 2002; Vovk, Gammerman and Shafer 2005) with one
minus the probability of the true label as score: "Least ambiguous set-valued classifiers with
bounded error levels" (Sadinle, Lei and Wasserman 2019, arXiv:1609.00451), by class as in their
section 3. Of the usual scores it gives the smallest sets. The guarantee holds for faces from the
distribution of the calibration faces.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fer_vit.geometry import Array, IntArray, Mask

COVERAGES = (90, 95)  # in percent
LEAST = 19  # calibration faces that a label needs for a threshold: fewer cannot cover 95 %
Thresholds = Mapping[str, Sequence[float | None]]
"""By coverage in percent: the least probability of a label in a set, for all faces and then for each label (1 + C).

None: the label has fewer than `LEAST` calibration faces.
"""


def fit_thresholds(probabilities: Array, target: IntArray) -> dict[str, list[float | None]]:
    """Returns the thresholds of N faces with their true labels: probabilities (N, C), class indices (N,)."""
    own = probabilities[np.arange(len(target)), target]
    groups = [own[target == label] for label in range(probabilities.shape[1])]

    def threshold(
        own: Array, coverage: int
    ) -> float:  # that `coverage` percent reach; 0 when there are too few
        rank = (len(own) + 1) * (100 - coverage) // 100
        return float(np.sort(own)[rank - 1]) if rank else 0.0

    large = [group if len(group) >= LEAST else None for group in groups]
    return {
        str(coverage): [
            None if group is None else threshold(group, coverage) for group in (own, *large)
        ]
        for coverage in COVERAGES
    }


def in_set(
    probabilities: Array, thresholds: Thresholds, coverage: int = 90, by_class: bool = False
) -> Mask:
    """Returns a mask (..., C) of the labels in the prediction set of each face, from probabilities (..., C).

    `by_class`: every label has this coverage (in percent), with larger sets. A label without a
    threshold is in none.
    """
    least = np.array(thresholds[str(coverage)], float)
    return np.asarray(probabilities >= (least[1:] if by_class else least[0]))
