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
LEAST_FACES = 19  # calibration faces that a label needs for a threshold: fewer cannot cover 95 %
Thresholds = Mapping[str, Sequence[float | None]]
"""By coverage in percent: the least probability of a label in a set.

It is given for all faces and then for each label (1 + C).
None: the label has fewer than `LEAST_FACES` calibration faces.
"""


def fit_thresholds(probabilities: Array, target: IntArray) -> dict[str, list[float | None]]:
    """Returns the thresholds that N faces with known labels give.

    Args:
        probabilities: Of the model (N, C).
        target: The index of the true label (N,).
    """
    of_truth = probabilities[np.arange(len(target)), target]  # (N,)
    thresholds: dict[str, list[float | None]] = {}
    for coverage in COVERAGES:
        row: list[float | None] = [_threshold(of_truth, coverage)]
        for label in range(probabilities.shape[1]):
            of_label = of_truth[target == label]
            row.append(_threshold(of_label, coverage) if len(of_label) >= LEAST_FACES else None)
        thresholds[str(coverage)] = row
    return thresholds


def _threshold(probabilities: Array, coverage: int) -> float:
    """Returns what `coverage` percent of probabilities (N,) reach; 0 if they are too few."""
    rank = (len(probabilities) + 1) * (100 - coverage) // 100
    return float(np.sort(probabilities)[rank - 1]) if rank else 0.0


def in_set(
    probabilities: Array, thresholds: Thresholds, coverage: int = 90, by_class: bool = False
) -> Mask:
    """Returns which labels are in the prediction set of each face (..., C).

    `probabilities` (..., C) are of the model.
    `by_class`: every label has this coverage (in percent), with larger sets. A label without a
    threshold is in none.
    """
    least = np.array(thresholds[str(coverage)], float)
    return np.asarray(probabilities >= (least[1:] if by_class else least[0]))
