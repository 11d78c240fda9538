import math

import numpy as np
import pytest

from fer_vit.conformal import COVERAGES, fit_thresholds, in_set


def drawn(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws probabilities of three classes, the last one rare and hard, and the truth,
    which follows others.
    """
    target = rng.choice(3, count, p=[0.6, 0.3, 0.1])
    logits = (
        rng.normal(size=(count, 3)) + np.array([2.0, 1.5, 0.3])[target][:, None] * np.eye(3)[target]
    )
    shares = np.exp(logits)
    return shares / shares.sum(1, keepdims=True), target


def by_loops(probabilities: np.ndarray, target: np.ndarray, coverage: int) -> list[float]:
    """The textbook: the (1 - alpha) (n + 1) smallest of the scores 1 - p, rounded up; infinite when
    there are fewer.
    """
    thresholds = []
    for label in (None, *range(probabilities.shape[1])):
        scores = [
            1 - row[t] for row, t in zip(probabilities, target, strict=True) if label in (None, t)
        ]
        rank = math.ceil((len(scores) + 1) * coverage / 100)
        if rank <= len(scores):
            thresholds.append(sorted(scores)[rank - 1])
        else:
            thresholds.append(math.inf)
    return thresholds


@pytest.mark.parametrize("count", [5, 40, 399])
def test_thresholds_are_the_textbooks(count: int) -> None:
    rng = np.random.default_rng(count)
    probabilities, target = drawn(count, rng)
    others, _ = drawn(100, rng)
    thresholds = fit_thresholds(probabilities, target)
    assert list(thresholds) == ["90", "95"]
    for coverage in COVERAGES:
        overall, *each = by_loops(probabilities, target, coverage)
        assert np.array_equal(in_set(others, thresholds, coverage), 1 - others <= overall)
        assert np.array_equal(
            in_set(others, thresholds, coverage, by_class=True), 1 - others <= np.array(each)
        )
    assert in_set(others[0], thresholds).shape == (3,)


def test_a_label_at_the_threshold_is_in_the_set() -> None:
    thresholds = {"90": [0.25, 0.25, 0.8], "95": [0.0, 0.0, 0.0]}
    assert in_set(np.array([0.25, 0.75]), thresholds).tolist() == [True, True]
    assert in_set(np.array([0.25, 0.75]), thresholds, by_class=True).tolist() == [True, False]
    assert in_set(np.array([0.24, 0.76]), thresholds).tolist() == [False, True]


@pytest.mark.parametrize(("count", "in_each"), [(0, (90, 95)), (8, (90, 95)), (9, (95,)), (19, ())])
def test_a_label_with_too_few_faces_is_in_each_set_by_class(
    count: int, in_each: tuple[int, ...]
) -> None:
    probabilities, target = drawn(1000, np.random.default_rng(0))
    kept = np.concatenate([np.flatnonzero(target < 2), np.flatnonzero(target == 2)[:count]])
    thresholds = fit_thresholds(probabilities[kept], target[kept])
    surely_first = np.array([1.0, 0.0, 0.0])
    for coverage in COVERAGES:
        member = in_set(surely_first, thresholds, coverage, by_class=True)
        assert member[2] == (coverage in in_each)
        assert not in_set(surely_first, thresholds, coverage)[2]


def test_each_label_is_covered_by_class_also_a_rare_one() -> None:
    """Five calibration faces of the rare label: its sets cover 90 % all the same."""
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(200):
        probabilities, target = drawn(50, rng)
        thresholds = fit_thresholds(probabilities, target)
        others, truth = drawn(200, rng)
        member = in_set(others, thresholds, 90, by_class=True)
        hits.append(member[truth == 2, 2].mean())
    assert np.mean(hits) > 0.9


@pytest.mark.parametrize("coverage", COVERAGES)
def test_sets_contain_the_truth_at_the_guaranteed_rate(coverage: int) -> None:
    rng = np.random.default_rng(0)
    rounds = 300
    hits = []
    rare = {False: [], True: []}
    for _ in range(rounds):
        thresholds = fit_thresholds(*drawn(300, rng))
        probabilities, target = drawn(300, rng)
        of_truth = np.arange(300), target
        hits.append(in_set(probabilities, thresholds, coverage)[of_truth].mean())
        for by_class, rates in rare.items():
            rates.append(
                in_set(probabilities, thresholds, coverage, by_class)[of_truth][target == 2].mean()
            )
    least = coverage / 100
    error = 4 * np.std(hits) / math.sqrt(rounds)
    assert least - error < np.mean(hits) < least + 1 / 301 + error
    assert np.mean(rare[False]) < least - 0.05  # not implied by the rate over all faces
    error = 4 * np.std(rare[True]) / math.sqrt(rounds)
    assert least - error < np.mean(rare[True]) < least + 1 / 20 + error
