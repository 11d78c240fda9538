"""Prediction sets: sets of labels that contain the true one at a nominal rate.

Split conformal prediction (Papadopoulos et al. 2002; Vovk, Gammerman and Shafer 2005) with one
minus the probability of the true label as score: "Least ambiguous set-valued classifiers with
bounded error levels" (Sadinle, Lei and Wasserman 2019, arXiv:1609.00451), by class as in their
section 3. Of the usual scores it gives the smallest sets.

The rate is guaranteed for faces from the distribution of the calibration faces, if nothing else of
the model depends on these. The validation faces of a model also chose its epoch, so that its rate
is nominal: the true one may be lower by the little that this choice fits.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fer_vit.geometry import Array, IntArray, Mask

COVERAGES = (90, 95)  # in percent

# By coverage in percent: the least probability of a label in a set, for all faces and then for each
# label (1 + C). 0 for a label with too few calibration faces, which is in every set: fewer than 9
# cannot cover 90%, and fewer than 19 not 95%. Files of earlier versions have None for a label with
# fewer than 19.
Thresholds = Mapping[str, Sequence[float | None]]


def fit_thresholds(probabilities: Array, target: IntArray) -> dict[str, list[float]]:
    """Returns the thresholds that N faces with known labels give.

    Args:
        probabilities: Of the model (N, C).
        target: The index of the true label (N,).
    """
    of_truth = probabilities[np.arange(len(target)), target]  # (N,)
    thresholds: dict[str, list[float]] = {}
    for coverage in COVERAGES:
        row = [_threshold(of_truth, coverage)]
        for label in range(probabilities.shape[1]):
            row.append(_threshold(of_truth[target == label], coverage))
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
    threshold is in each: nothing is known of its coverage.
    """
    overall, *of_labels = thresholds[str(coverage)]
    if not by_class:
        return np.asarray(probabilities >= np.array(overall, float))
    least = [0.0 if threshold is None else threshold for threshold in of_labels]
    return np.asarray(probabilities >= np.array(least))
