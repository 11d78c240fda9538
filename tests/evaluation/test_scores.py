import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pingouin as pg
import pytest
import torch
from scipy.stats import binomtest, bootstrap, fisher_exact, norm, t as student, ttest_1samp
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix as reference_confusion,
    f1_score,
    log_loss,
    precision_score,
    recall_score,
)
from torchmetrics.functional.classification import multiclass_calibration_error

from fer_vit.evaluation.evaluation_results import Evaluation
from fer_vit.evaluation.score import score
from fer_vit.faces import as_objects
from fer_vit.stats.bootstrap import (
    MIN_UNITS,
    Scale,
    mean_intervals,
)
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.hypothesis_tests import (
    compare_means,
    group_tests,
    holm,
    mcnemar,
)
from fer_vit.stats.output_measures import measure_intervals
from fer_vit.stats.scores import (
    SCORES,
    confusion_matrix,
    score_faces,
    suspect_labels,
)
from fer_vit.tables.labelled import Labelled, pair_outputs

LABELS = ("a", "b", "c", "d")
REFERENCE = {
    "accuracy": accuracy_score,
    "macro F1": partial(f1_score, average="macro"),
    "UAR": balanced_accuracy_score,
}

MIN_GROUP = 30
"""Fewest faces of a group that is compared."""


def drawn(faces: int = 200, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, faces)
    logits = rng.normal(size=(faces, classes)) + 1.5 * np.eye(classes)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probabilities, np.eye(classes)[truth]


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (0, 2, 3), (1,)])
def test_scores_are_scikit_learns(classes: tuple[int, ...]) -> None:
    probabilities, shares = drawn()
    keep = np.isin(shares.argmax(1), classes)
    probabilities = probabilities[keep]
    shares = shares[keep]
    truth = shares.argmax(1)
    guess = probabilities.argmax(1)
    means = {
        name: interval.mean for name, interval in score_faces(probabilities, shares, LABELS).items()
    }
    assert {name: means[name] for name in REFERENCE} == pytest.approx(
        {name: score(truth, guess) for name, score in REFERENCE.items()}
    )
    assert means["cross-entropy"] == pytest.approx(log_loss(truth, probabilities, labels=range(4)))
    recalls = recall_score(truth, guess, labels=range(4), average=None, zero_division=0)
    for index, label in enumerate(LABELS):
        expected = pytest.approx(recalls[index]) if index in classes else None
        assert means[f"recall of {label}"] == expected
    assert (
        confusion_matrix(probabilities, shares)
        == reference_confusion(truth, guess, labels=range(4))
    ).all()


def test_calibration_error_equals_torchmetrics() -> None:
    probabilities, shares = drawn()
    given = torch.from_numpy(probabilities), torch.from_numpy(shares.argmax(1))
    expected = multiclass_calibration_error(*given, num_classes=4, n_bins=15).item()
    error = score_faces(probabilities, shares, LABELS)["calibration error"]
    assert error.mean == pytest.approx(expected, abs=1e-6)
    # all resamples of calibrated faces lie above the true error
    assert (error.low, error.high) == (None, None)


def test_annotators_are_drawn_by_the_votes() -> None:
    probabilities, _ = drawn()
    shares = np.random.default_rng(1).dirichlet(np.ones(4), 200)
    scores = score_faces(probabilities, shares, LABELS)
    rng = np.random.default_rng(2)
    annotators = np.array([rng.choice(4, 2000, p=share) for share in shares])
    agree = (annotators == probabilities.argmax(1)[:, None]).mean()
    among = (annotators[:, ::2] == annotators[:, 1::2]).mean()
    assert scores["agreement with an annotator"].mean == pytest.approx(agree, abs=0.005)
    assert scores["agreement of two annotators"].mean == pytest.approx(among, abs=0.005)
    entropy = -(shares * np.log(probabilities)).sum(1).mean()
    assert scores["cross-entropy"].mean == pytest.approx(entropy)
    labelled = score_faces(probabilities, np.eye(4)[shares.argmax(1)], LABELS)
    assert labelled["agreement with an annotator"].mean is None


def test_a_group_of_unanimous_votes_has_votes() -> None:
    probabilities, shares = drawn(60)
    shares[30:] = 0.5 * shares[30:] + 0.5 * np.eye(4)[0]
    votes = score_faces(probabilities[:30], shares[:30], LABELS, votes=True)
    assert votes["agreement of two annotators"].mean == 1
    made = faces(np.ones(60, bool), half=["a"] * 30 + ["b"] * 30)
    made.targets[30:] = [0.75, 0.25]
    groups = by_group(made, "half")
    assert groups["a"]["agreement of two annotators"]["mean"] == 1
    assert groups["b"]["agreement of two annotators"]["mean"] < 1


def test_intervals_are_those_of_a_slow_bootstrap() -> None:
    probabilities, shares = drawn()
    truth = shares.argmax(1)
    guess = probabilities.argmax(1)
    scores = score_faces(probabilities, shares, LABELS)
    rng = np.random.default_rng(3)
    draws = [rng.integers(0, len(truth), len(truth)) for _ in range(250)]
    for name, slow in REFERENCE.items():
        values = [slow(truth[draw], guess[draw]) for draw in draws]
        low, high = np.quantile(values, (0.025, 0.975))
        assert scores[name].low == pytest.approx(low, abs=0.02)
        assert scores[name].high == pytest.approx(high, abs=0.02)


@pytest.mark.parametrize("right", [True, False])
def test_a_class_of_few_faces_limits_what_a_mean_over_classes_shows(right: bool) -> None:
    truth = np.repeat([0, 1], [500, 2])
    shares = np.eye(2)[truth]
    probabilities = shares if right else shares[:, ::-1]
    scores = score_faces(probabilities, shares, LABELS[:2])
    for name in ("macro F1", "UAR"):
        assert scores["recall of b"].n == 2
        recalls = [scores["recall of a"], scores["recall of b"]]
        assert scores[name].low == pytest.approx(np.mean([recall.low for recall in recalls]))
        assert scores[name].high == pytest.approx(np.mean([recall.high for recall in recalls]))
        assert scores[name].n == 502
    width = scores["accuracy"].high - scores["accuracy"].low
    assert width < 0.01 < scores["UAR"].high - scores["UAR"].low


def test_faces_of_one_person_are_drawn_together() -> None:
    probabilities, shares = drawn(60)
    many = np.repeat(probabilities, 9, 0)
    persons = np.repeat(np.arange(60), 9)
    whole = score_faces(probabilities, shares, LABELS)
    apart = score_faces(many, np.repeat(shares, 9, 0), LABELS, persons)
    # nine copies of a face are no more evidence than one
    for name in (
        "accuracy",
        "UAR",
        "cross-entropy",
    ):
        assert apart[name].mean == pytest.approx(whole[name].mean)
        assert (apart[name].low, apart[name].high) == pytest.approx(
            (whole[name].low, whole[name].high)
        )
    assert (
        score_faces(many[:9], np.repeat(shares, 9, 0)[:9], LABELS, persons[:9])["accuracy"].low
        is None
    )


def test_the_difference_of_two_models_is_paired() -> None:
    first, shares = drawn(400)
    # they differ in a tenth of the faces
    second = np.where(np.arange(400)[:, None] < 40, np.roll(first, 1, 1), first)
    differences = score_faces(first, shares, LABELS, minus=second)
    right = first.argmax(1) == shares.argmax(1)
    also = second.argmax(1) == shares.argmax(1)
    gain = right.astype(float) - also
    assert differences["accuracy"].mean == pytest.approx(gain.mean())
    rng = np.random.default_rng(0)
    means = [gain[rng.integers(0, 400, 400)].mean() for _ in range(2000)]
    low, high = np.quantile(means, (0.025, 0.975))
    assert (differences["accuracy"].low, differences["accuracy"].high) == pytest.approx(
        (low, high), abs=0.004
    )
    same = score_faces(first, shares, LABELS, minus=first)
    sizes = np.bincount(shares.argmax(1))  # faces of each class
    unseen = np.mean([1 - binomtest(n, n).proportion_ci(method="exact").low for n in sizes])
    assert same["UAR"].mean == 0
    assert same["UAR"].n == 400
    assert same["UAR"].high == pytest.approx(unseen)
    assert same["UAR"].low == pytest.approx(-unseen)
    of_first, of_second = (
        score_faces(probabilities, shares, LABELS)["UAR"].mean for probabilities in (first, second)
    )
    assert differences["UAR"].mean == pytest.approx(of_first - of_second)


def test_suspected_is_the_confident_joint_of_the_paper() -> None:
    probabilities, shares = drawn(120)
    label = shares.argmax(1)
    threshold = [probabilities[label == k, k].mean() for k in range(4)]
    expected = set()
    for face in range(120):
        likely = [k for k in range(4) if probabilities[face, k] >= threshold[k]]
        if likely and (best := max(likely, key=lambda k: probabilities[face, k])) != label[face]:
            expected.add((face, best))
    suspects = suspect_labels(probabilities, shares)
    assert set(map(tuple, suspects.tolist())) == expected
    margins = [
        probabilities[face, label[face]] - probabilities[face, best]
        for face, best in suspects.tolist()
    ]
    assert margins == sorted(margins)  # the likeliest errors first
    assert len(suspect_labels(np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]]))) == 0


def test_a_class_without_mistakes_is_not_certain() -> None:
    shares = np.eye(2)[[0] * 6 + [1] * 10]
    guess = np.array([0] * 6 + [1] * 9 + [0])
    scores = score_faces(np.eye(2)[guess] * 0.8 + 0.1, shares, ("a", "b"))
    assert [scores[f"recall of {label}"].n for label in "ab"] == [6, 10]
    assert scores["recall of a"].low == pytest.approx(
        binomtest(6, 6).proportion_ci(method="exact").low
    )
    perfect = score_faces(shares, shares, ("a", "b"))
    of_all, of_a, of_b = (binomtest(n, n).proportion_ci(method="exact").low for n in (16, 6, 10))
    lows = [perfect[name].low for name in ("accuracy", "macro F1", "UAR")]
    assert lows == pytest.approx([of_all, (of_a + of_b) / 2, (of_a + of_b) / 2])


def test_a_model_that_predicts_one_class_has_the_bounds_of_its_recalls() -> None:
    shares = np.eye(2)[[0] * 4 + [1] * 12]
    scores = score_faces(np.tile([0.1, 0.9], (16, 1)), shares, ("a", "b"))
    assert scores["UAR"].mean == 0.5
    never = binomtest(0, 4).proportion_ci(method="exact").high
    always = binomtest(12, 12).proportion_ci(method="exact").low
    assert scores["UAR"].low == pytest.approx(always / 2)
    assert scores["UAR"].high == pytest.approx((never + 1) / 2)
    assert scores["macro F1"].mean == pytest.approx(3 / 7)
    assert scores["macro F1"].low is None  # its resamples know no exception


def test_one_persons_faces_of_a_class_have_no_interval() -> None:
    persons = np.repeat(np.arange(7), [3, 3, 2, 3, 3, 2, 8])  # the last one is bored
    shares = np.eye(2)[np.repeat([0, 1], [16, 8])]
    guess = np.eye(2)[[0] * 7 + [1] + [0] * 5 + [1] * 3 + [1] * 6 + [0] * 2] * 0.8 + 0.1
    scores = score_faces(guess, shares, ("calm", "bored"), persons)
    apart = score_faces(guess, shares, ("calm", "bored"), persons, minus=np.full_like(guess, 0.5))
    for result, of_calm in ((scores, 0.75), (apart, -0.25)):
        assert result["recall of calm"].mean == of_calm
        assert result["recall of calm"].low is not None
    assert scores["recall of bored"] == Estimate(0.75, None, None, n=8)
    assert apart["recall of bored"].mean == 0.75
    assert apart["recall of bored"].low is None
    perfect = score_faces(shares, shares, ("calm", "bored"), persons)
    assert [perfect[f"recall of {label}"].low is None for label in ("calm", "bored")] == [
        False,
        True,
    ]
    (seen,) = mean_intervals(np.where(shares[:, 1:] > 0, guess[:, 1:], np.nan), persons)
    assert seen.low is None


def test_means_and_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(1).gamma(1.0, size=(60, 3))
    values[40:, 2] = np.nan  # faces without a value do not count
    for column, interval in zip(values.T, mean_intervals(values), strict=True):
        column = column[np.isfinite(column)]
        number = len(column)
        level = 1 - 2 * norm.sf(np.sqrt(number / (number - 1)) * student.isf(0.025, number - 1))
        expected = bootstrap(
            (column,),
            np.mean,
            n_resamples=20_000,
            method="percentile",
            confidence_level=level,
            rng=0,
        ).confidence_interval
        error = column.std() / len(column) ** 0.5
        assert interval.n == len(column)
        assert interval.mean == pytest.approx(column.mean())
        assert interval.low == pytest.approx(expected.low, abs=0.1 * error)
        assert interval.high == pytest.approx(expected.high, abs=0.1 * error)


@pytest.mark.parametrize("persons", [6, 12, 40])
def test_intervals_of_few_persons_contain_the_truth(persons: int) -> None:
    """Intervals are as wide as t intervals: percentiles 2.5 and 97.5 cover 84% with 6 persons."""
    rng = np.random.default_rng(persons)
    values = rng.normal(size=(persons, 300))  # as many studies
    hits = 0
    for column, result in zip(values.T, mean_intervals(values), strict=True):
        hits += result.low <= 0 <= result.high
        expected = ttest_1samp(column, 0).confidence_interval()
        width = expected.high - expected.low
        assert result.high - result.low == pytest.approx(width, rel=0.2)
    assert 0.88 * 300 < hits < 0.98 * 300


@pytest.mark.parametrize("persons", [6, 8, 12])
def test_few_persons_with_a_value_among_many_have_as_wide_intervals(persons: int) -> None:
    """An expression of few persons in a large data set has the interval of few persons."""
    rng = np.random.default_rng(persons)
    values = np.full((200, 150), np.nan)
    values[:persons] = rng.normal(size=(persons, 150))  # as many studies
    ratios = []
    for column, result in zip(values.T, mean_intervals(values), strict=True):
        expected = ttest_1samp(column[:persons], 0).confidence_interval()
        ratios.append((result.high - result.low) / (expected.high - expected.low))
    # about 0.85 with the percentiles of 200 persons; resamples also differ in how many of the few
    # they have
    assert 1.0 < np.mean(ratios) < 1.3


def test_errors_of_outputs_have_one_interval_with_and_without_another_model() -> None:
    """`evaluate` and `evaluate --against`, where few of many faces have a target."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(100, 1))
    targets = np.where(np.arange(100)[:, None] < 9, rng.normal(size=(100, 1)), np.nan)
    units = np.arange(100)
    error = measure_intervals(["MAE"], values[:, 0], targets[:, 0], units)["MAE"]
    (expected,) = mean_intervals(np.abs(values - targets), units)
    assert error.numbers == pytest.approx(expected.numbers)


def test_a_recall_has_the_interval_of_the_faces_of_its_label() -> None:
    """As the mean of whether these are recognized, among other faces or not."""
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1], [12, 188])
    guess = np.where(rng.random(200) < 0.7, label, 1 - label)
    results = score_faces(np.eye(2)[guess] * 0.8 + 0.1, np.eye(2)[label], ("calm", "bored"))
    for index, name in enumerate(("calm", "bored")):
        hits = np.where(label == index, guess == label, np.nan)
        (expected,) = mean_intervals(hits[:, None].astype(float), scale="share")
        assert results[f"recall of {name}"] == expected


def test_one_face_has_no_interval_and_none_no_mean() -> None:
    single, none = mean_intervals(np.array([[0.25, np.nan]]))
    assert single == Estimate(0.25, None, None, n=1)
    assert none == Estimate(None, None, None, n=0)
    (equal,) = mean_intervals(np.full((6, 1), 0.5))
    assert equal == Estimate(0.5, 0.5, 0.5, n=6)
    assert mean_intervals(np.empty((0, 1)))[0].mean is None


@pytest.mark.parametrize("units", [MIN_UNITS - 1, MIN_UNITS])
@pytest.mark.parametrize("scale", ["number", "share", "difference"])
@pytest.mark.parametrize("further", [0, 20])
def test_fewer_than_6_persons_have_no_bootstrap_interval(
    units: int, scale: Scale, further: int
) -> None:
    """Neither in a table of few nor in one of many persons of whom few have a value."""
    values = np.repeat(np.arange(units) % 2, 3).astype(float)  # three faces of each person
    values = np.append(values, np.full(further, np.nan))
    persons = np.append(np.repeat(np.arange(units), 3), units + np.arange(further))
    (mean,) = mean_intervals(values[:, None], persons, scale)
    assert mean.mean == pytest.approx(np.nanmean(values))
    assert (mean.low is None) == (mean.high is None) == (units < MIN_UNITS)


@pytest.mark.parametrize("persons", [2, 5, 6])
def test_scores_of_fewer_than_6_persons_have_no_interval(persons: int) -> None:
    probabilities, shares = drawn(8 * persons)
    unit = np.repeat(np.arange(persons), 8)
    for minus in (None, np.roll(probabilities, 1, 1)):
        results = score_faces(probabilities, shares, LABELS, unit, minus, votes=True)
        for name in {*SCORES} - {"calibration error"}:
            assert results[name].mean is not None
            assert (results[name].low is None) == (persons < MIN_UNITS), name

    # a line reports the persons
    right = np.arange(8 * persons) % 3 > 0
    made = faces(right, person=[str(person) for person in unit])
    text = score(made).text
    assert f"bootstrap intervals over {persons} persons. With fewer than 6" in text
    assert ("somewhat too narrow" in text) == (persons >= MIN_UNITS)


@pytest.mark.parametrize("hits", [0, 6])
def test_a_share_without_exceptions_has_the_bounds_of_scipys_binomial(hits: int) -> None:
    # six faces, and one without a value
    values = np.append(np.full(6, hits / 6), np.nan)[:, None]
    expected = binomtest(hits, 6).proportion_ci(method="exact")
    (share,) = mean_intervals(values, scale="share")
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high))

    # three persons with two faces each
    expected = binomtest(hits // 2, 3).proportion_ci(method="exact")
    (of_persons,) = mean_intervals(values, np.array([0, 0, 1, 1, 2, 2, 2]), scale="share")
    assert (of_persons.low, of_persons.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("change", [-1.0, 0.0, 1.0])
def test_a_difference_without_exceptions_is_not_certain(change: float) -> None:
    """As many faces may differ as there may be misses, if all of 20 are right."""
    misses = 1 - binomtest(20, 20).proportion_ci(method="exact").low
    (interval,) = mean_intervals(np.full((20, 1), change), scale="difference")
    assert interval.mean == change
    assert interval.low == pytest.approx(max(change - misses, -1))
    assert interval.high == pytest.approx(min(change + misses, 1))


def paired_p(values: np.ndarray, units: np.ndarray | None = None) -> float:
    """The p-value of the differences of two models (N,)."""
    differences = values[:, None]
    (test,) = compare_means(differences, np.zeros_like(differences), units)
    return test.p


def test_the_p_of_two_models_is_the_t_tests_of_persons() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.3, 1, (12, 4))  # four faces of each person
    persons = np.repeat(np.arange(12), 4)
    expected = ttest_1samp(values.mean(1), 0).pvalue
    assert paired_p(values.ravel(), persons) == pytest.approx(expected)
    assert paired_p(values[:, 0]) == pytest.approx(ttest_1samp(values[:, 0], 0).pvalue)

    # persons without a value do not count
    padded = np.append(values.ravel(), [np.nan, np.nan])
    assert paired_p(padded, np.append(persons, [12, 13])) == pytest.approx(expected)


def test_interval_and_p_of_two_models_agree() -> None:
    """A difference has 0 in its interval exactly if its p is not below 0.05."""
    rng = np.random.default_rng(0)
    significant = 0
    counts = [(7, 1, 42), (6, 0, 0), (5, 0, 45), (0, 0, 9), *rng.integers(0, 12, (40, 3)).tolist()]
    for only_first, only_second, both in counts:
        first = np.repeat([True, False, True], [only_first, only_second, both])
        second = np.repeat([False, True, True], [only_first, only_second, both])
        for of_person in (1, 2):
            persons = rng.permutation(len(first)) // of_person
            difference, _, _, p = mcnemar(first, second, persons)
            if difference.low is None:
                assert len(set(persons)) < MIN_UNITS
                continue
            assert (difference.low <= 0 <= difference.high) == (p >= 0.05)
            significant += p < 0.05
    assert significant > 10


@pytest.mark.parametrize("only_second", [50, 51, 60])
def test_the_interval_of_models_that_hardly_differ_is_that_of_a_t_test(only_second: int) -> None:
    """McNemar's exact p is 1 for 51 faces against 50, which says nothing about the width."""
    first = np.repeat([True, False, True], [51, only_second, 9_000])
    second = np.repeat([False, True, True], [51, only_second, 9_000])
    difference, _, _, p = mcnemar(first, second, np.arange(len(first)))
    assert p > 0.3
    expected = ttest_1samp(first.astype(float) - second, 0).confidence_interval()
    assert (difference.low, difference.high) == pytest.approx([*expected], abs=1e-6)


@pytest.mark.parametrize("differing", [0, 1, 2, 5, 9])
def test_no_p_is_below_that_of_the_sign_test(differing: int) -> None:
    values = np.zeros(200)
    values[:differing] = 1
    expected = binomtest(differing, differing).pvalue if differing else 1
    assert paired_p(values) >= expected
    assert paired_p(values[:differing]) == pytest.approx(expected)
    assert paired_p(np.full(100, np.nan)) == 1


@pytest.mark.parametrize("alternate", [False, True])
def test_a_group_is_compared_over_persons_by_a_t_test_or_by_fishers(alternate: bool) -> None:
    """The larger p counts: persons in one group each, or with photos in both."""
    rng = np.random.default_rng(0)
    persons = np.repeat(np.arange(60), 4)
    group = (np.arange(240) if alternate else persons) % 2 == 1
    correct = rng.random(240) < 0.05 + 0.7 * rng.random(60)[persons] + 0.2 * group
    first, second = group_tests(correct, [group, ~group], persons)
    table = [[(correct & side).sum(), (~correct & side).sum()] for side in (group, ~group)]
    fisher = fisher_exact(table).pvalue
    differences = []
    for _ in range(2000):
        drawn_persons = rng.integers(0, 60, 60)
        rows = (4 * drawn_persons[:, None] + np.arange(4)).ravel()
        inside = group[rows]
        drawn_hits = correct[rows]
        differences.append(drawn_hits[inside].mean() - drawn_hits[~inside].mean())
    error = np.std(differences) * np.sqrt(60 / 59)
    t_test = 2 * student.sf(abs(first.difference.mean) / error, 59)
    assert first.p == pytest.approx(second.p)
    assert first.p == pytest.approx(max(fisher, t_test), rel=0.3)
    assert (t_test > fisher) == (not alternate)


def test_a_group_without_mistakes_does_not_differ_for_certain() -> None:
    """60 of 60 faces are right beside 97 of 100: with the bootstrap alone, p was 5e-8."""
    right = np.ones(1060, bool)
    right[60::34] = False
    groups = np.where(np.arange(1060) < 60, "perfect", "other").tolist()
    persons = np.repeat(np.arange(530), 2).tolist()
    compared = by_group(faces(right, group=groups, person=persons), "group")
    misses = int((~right).sum())
    fisher = fisher_exact([[60, 0], [1000 - misses, misses]]).pvalue
    assert compared["perfect"]["difference"]["p"] >= fisher
    assert compared["other"]["difference"]["p"] >= fisher

    difference = compared["perfect"]["difference"]
    inside = binomtest(30, 30).proportion_ci(method="exact")  # 30 persons
    (outside,) = mean_intervals(right[60:, None], np.repeat(np.arange(500), 2))
    below = np.hypot(1 - inside.low, outside.high - outside.mean)
    assert difference["mean"] == pytest.approx(misses / 1000)
    assert difference["low"] == pytest.approx(misses / 1000 - below, abs=1e-3)
    assert difference["low"] < 0 < difference["high"]


def test_few_persons_have_an_interval_where_all_answers_are_right() -> None:
    made = faces(np.ones(10, bool), person=["a"] * 5 + ["b"] * 5)
    results = score(made)
    accuracy = results.estimate("accuracy")
    assert accuracy.mean == accuracy.high == 1
    assert 0 < accuracy.low < 1
    text = results.text
    assert "over 2 persons." in text
    assert "no intervals" not in text


@pytest.mark.parametrize("share", [0, 1])
def test_a_group_without_exceptions_has_no_p_without_an_interval(share: int) -> None:
    """Four persons agree beside four who do not: the error over persons is unknown, and p was 0."""
    right = np.full(40, bool(share))
    right[20::2] = not share
    made = faces(right, person=np.repeat(np.arange(8), 5).tolist())
    group = np.arange(40) < 20
    tests = group_tests(made.correct, [group, ~group], made.units)
    assert fisher_exact([[20, 0], [10, 10]]).pvalue < 0.001
    assert [p for _, p in tests] == [1, 1]
    for difference, _ in tests:
        assert difference.mean is not None
        assert difference.low is None


def test_ties_of_votes_are_counted_and_faces_without_a_label_left_out() -> None:
    plain = faces(np.ones(5, bool))
    assert score(plain).notes == ()
    third = 1 / 3
    targets = np.array([[0.5, 0.5], [0.25, 0.75], [third, third], [1, 0], [np.nan, np.nan]])
    results = score(replace(plain, targets=targets))
    assert results.faces.rows.tolist() == [0, 1, 2, 3]
    lacking, tied = results.notes
    assert lacking.startswith("1 of 5 ")
    assert "2 of 4 " in tied
    assert "a, b" in tied
    assert results.faces.correct.tolist() == [True, False, True, True]  # the first label counts


def test_votes_may_be_numbers_of_any_size() -> None:
    cells = [10.0, 12, "8.0", 7, " 15", None, "many", 6.5]
    by_votes = score(faces(np.ones(8, bool), label_votes=cells)).to_dict()["by votes"]
    assert {name: group["faces"] for name, group in by_votes.items()} == {
        "10 or more": 3,
        "8": 1,
        "7": 1,
    }


def faces(right: np.ndarray, labelled: bool = True, **columns: Sequence[object]) -> Labelled:
    """Faces of two classes that a model is right about or not, all of class 0."""
    count = len(right)
    targets = np.tile([1.0, 0.0], (count, 1))
    return Labelled(
        labels=["a", "b"],
        paths=as_objects([f"{row}.png" for row in range(count)]),
        probabilities=np.where(right[:, None], [0.8, 0.2], [0.3, 0.7]),
        detected=np.ones(count, bool),
        targets=targets if labelled else None,
        columns={name: as_objects(list(values)) for name, values in columns.items()},
        rows=np.arange(count),
    )


def by_group(made: Labelled, column: str) -> dict[str, Any]:
    """The results of the groups of a column."""
    return score(made, [column]).to_dict()["by"][column].get("groups", {})


def test_groups_are_compared_with_all_others() -> None:
    rng = np.random.default_rng(0)
    age = np.repeat(["old", "young", "middle"], [100, 200, 150])
    right = rng.random(450) < np.where(age == "old", 0.6, 0.9)
    made = faces(right, age=[*age[:-3], None, "baby", ""])
    comparison = score(made, ["age"]).to_dict()["by"]["age"]
    groups = comparison["groups"]
    assert list(groups) == ["middle", "old", "young"]
    assert comparison["few"] == {"baby": 1}
    assert comparison["unknown"] == 2
    old = right[:100]
    assert groups["old"]["faces"] == 100
    assert groups["old"]["accuracy"]["mean"] == pytest.approx(old.mean())
    others = np.append(right[100:447], right[448])
    assert groups["old"]["difference"]["mean"] == pytest.approx(old.mean() - others.mean())
    p = []
    for name in groups:
        inside = np.append(age[:447] == name, False)
        part = np.append(right[:447], right[448])
        cells = [[(part & side).sum(), (~part & side).sum()] for side in (inside, ~inside)]
        p.append(fisher_exact(cells).pvalue)
    assert [group["difference"]["p"] for group in groups.values()] == pytest.approx(holm(p))
    means = {name: group["accuracy"]["mean"] for name, group in groups.items()}
    best = max(means, key=means.__getitem__)
    gap = comparison["gap"]
    assert gap["note"] == f"{best} - old"
    assert gap["mean"] == pytest.approx(means[best] - means["old"])
    assert (gap["low"], gap["faces"]) == (None, 448)


@pytest.mark.parametrize("labelled", [True, False])
def test_abstentions_by_group(labelled: bool) -> None:
    rng = np.random.default_rng(0)
    right = rng.random(200) < 0.8
    ambiguous = rng.random(200) < 0.3
    age = np.repeat(["old", "young"], 100)
    known = [None, *ambiguous[1:].tolist()]
    groups = by_group(faces(right, labelled, ambiguous=known, age=age), "age")
    for name, part in (("old", slice(1, 100)), ("young", slice(100, 200))):
        scores = groups[name]
        assert scores["ambiguous"]["mean"] == pytest.approx(ambiguous[part].mean())
        if labelled:
            assert scores["accuracy where unambiguous"]["mean"] == pytest.approx(
                right[part][~ambiguous[part]].mean()
            )
        else:
            assert "accuracy where unambiguous" not in scores
    assert "ambiguous" not in score(faces(right, labelled)).to_dict()["all"]


def test_photos_without_a_face_are_no_faces_of_a_group() -> None:
    made = faces(np.ones(80, bool), age=["old"] * 40 + ["young"] * 38 + [None] * 2)
    made.probabilities[[0, 1, 40, 79]] = np.nan
    made.detected[[0, 1, 40, 79]] = False
    comparison = score(made, ["age"]).to_dict()["by"]["age"]
    groups = comparison["groups"]
    assert {name: group["faces"] for name, group in groups.items()} == {"old": 38, "young": 37}
    assert groups["old"]["accuracy"]["faces"] == 38
    assert groups["old"]["face found"]["mean"] == pytest.approx(38 / 40)
    assert comparison["unknown"] == 1


def test_small_and_single_groups() -> None:
    right = np.ones(MIN_GROUP + 1, bool)
    who = ["a"] * MIN_GROUP + ["b"]
    comparison = score(faces(right, who=who), ["who"]).to_dict()["by"]["who"]
    assert list(comparison["groups"]) == ["a"]
    assert comparison["few"] == {"b": 1}
    assert "gap" not in comparison
    assert "difference" not in comparison["groups"]["a"]
    none = score(faces(right, who=[None] * (MIN_GROUP + 1)), ["who"]).to_dict()["by"]["who"]
    assert none == {"unknown": MIN_GROUP + 1}
    # As many faces, but of too few persons.
    person = [row % 5 for row in range(MIN_GROUP + 1)]
    assert by_group(faces(right, who=who, person=person), "who") == {}


@pytest.mark.slow
def test_faces_of_one_person_are_no_independent_trials() -> None:
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(80), 10)
    groups = [person < 40, person >= 40]
    first = []
    exact = []
    # no group is better, but the model is right about most faces of a person or about few
    for _ in range(60):
        right = rng.random(800) < np.repeat(rng.choice([0.4, 0.95], 80), 10)
        first.append(group_tests(right, groups, person)[0].p)
        exact.append(group_tests(right, groups, np.arange(800))[0].p)
    assert np.mean(np.array(exact) < 0.05) > 0.15
    assert np.mean(np.array(first) < 0.05) < 0.12


def test_holms_correction_equals_pingouin() -> None:
    p = np.random.default_rng(0).random(12) ** 3
    _, corrected = pg.multicomp(p, method="holm")
    assert holm(p.tolist()) == pytest.approx(corrected)
    assert holm([0.04]) == [0.04]


def test_without_labels_there_are_shares_of_expressions() -> None:
    right = np.arange(100) < 70
    unlabelled = faces(right, labelled=False, who=["x"] * 50 + ["y"] * 50)
    unlabelled.probabilities[0] = np.nan
    unlabelled.detected[0] = False
    group = by_group(unlabelled, "who")["x"]
    assert group["face found"]["mean"] == pytest.approx(0.98)
    assert group["share of a"]["mean"] == 1
    assert group["share of b"]["mean"] == 0
    assert group["confidence"]["mean"] == pytest.approx(0.8)
    assert group["confidence"]["faces"] == 49
    assert "difference" not in group


@pytest.mark.parametrize(
    "near_duplicate", [[True, False, None, False], ["True", "False", None, "false"]]
)
def test_faces_without_near_duplicates_are_scored_apart(near_duplicate: list[object]) -> None:
    made = faces(np.array([True, True, False, False]), near_duplicate=near_duplicate)
    results = score(made).to_dict()
    assert results["all"]["accuracy"]["mean"] == 0.5
    assert results["without near-duplicates"]["accuracy"]["mean"] == pytest.approx(1 / 3)
    assert "without near-duplicates" not in score(faces(np.ones(3, bool))).to_dict()


def test_all_faces_may_have_a_near_duplicate() -> None:
    evaluation = score(faces(np.array([True, False, True]), near_duplicate=[True] * 3))
    results = evaluation.to_dict()
    assert results["near-duplicates of train"] == 3
    assert "without near-duplicates" not in results
    assert "no score holds for new faces" in evaluation.text


def test_accuracy_by_votes() -> None:
    rng = np.random.default_rng(0)
    votes = rng.choice([4, 5, 6, 7, 8, 9, 10], 500)
    right = rng.random(500) < votes / 11
    cells = [*map(str, votes[:-1]), None]
    by_votes = score(faces(right, label_votes=cells)).to_dict()["by votes"]
    right = right[:-1]
    votes = votes[:-1]
    parts = {
        "10 or more": votes == 10,
        "9": votes == 9,
        "8": votes == 8,
        "7": votes == 7,
        "6 or fewer": votes <= 6,
    }
    assert list(by_votes) == [*parts]
    for name, part in parts.items():
        assert by_votes[name]["faces"] == part.sum()
        assert by_votes[name]["accuracy"]["mean"] == pytest.approx(right[part].mean())


def compare_correct(
    first: np.ndarray, second: np.ndarray, **columns: Sequence[object]
) -> Evaluation:
    """Compares two models that are right about some faces."""
    return score(faces(first, **columns), second=faces(second), against="second")


def p_of_difference(first: np.ndarray, second: np.ndarray, **columns: Sequence[object]) -> float:
    results = compare_correct(first, second, **columns).to_dict()
    return results["comparison"]["difference"]["accuracy"]["p"]


def test_mcnemar_is_the_sign_test_of_the_faces_on_which_they_differ() -> None:
    rng = np.random.default_rng(0)
    right = rng.random(300) < 0.8
    also = rng.random(300) < 0.7
    first = (right & ~also).sum()
    second = (also & ~right).sum()
    p = binomtest(first, first + second).pvalue
    compared = compare_correct(right, also).to_dict()["comparison"]
    assert compared["faces"] == 300
    assert compared["only the model is correct"] == first
    assert compared["only the other is correct"] == second
    assert compared["difference"]["accuracy"]["p"] == p
    assert compared["other"]["accuracy"]["mean"] == pytest.approx(also.mean())
    assert p_of_difference(right, right) == 1


def test_models_are_compared_by_person() -> None:
    # 25 equal faces each: all right or all wrong
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(40), 25)
    correct = [[rng.random(40)[people] < 0.7 for _ in range(2)] for _ in range(60)]
    p = np.array([mcnemar(first, second, people).p for first, second in correct])
    assert np.mean(p < 0.05) < 0.12
    assert np.mean(p < 0.5) > 0.3
    first = np.tile([True, True, False, False], 2)
    second = np.tile([True, False, False, False], 2)
    # two of two faces
    assert p_of_difference(first, second, person=np.repeat([0, 1], 4)) == 0.5
    right = np.ones(200, bool)  # 200 faces, but of two persons
    assert p_of_difference(right, ~right, person=np.repeat([0, 1], 100)) == 0.5


def test_results_are_complete_before_they_are_written(tmp_path: Path) -> None:
    results = score(faces(np.array([True, True, False])))
    content = results.to_dict()
    before = deepcopy(content)
    assert content["labels"] == ["a", "b"]
    assert content["confusion"] == [[2, 1], [0, 0]]
    assert content["likely wrong labels"] == []
    results.write(tmp_path / "page")
    assert results.to_dict() == before
    assert json.loads((tmp_path / "page" / "results.json").read_text()) == content


def test_persons_are_counted_apart_from_photos_without_a_person() -> None:
    persons = ["anna", "anna", "bert", None, None]
    written = score(faces(np.ones(5, bool), person=persons)).to_dict()
    assert written["faces"] == 5
    assert written["persons"] == 2
    assert written["photos"] == 2
    written = score(faces(np.ones(5, bool))).to_dict()
    assert written["photos"] == 5
    assert "persons" not in written


def test_groups_that_are_all_too_small_have_no_table() -> None:
    made = faces(np.ones(9, bool), age=["old"] * 4 + ["young"] * 5)
    _, _, section = score(made, ["age"]).text.partition("## By age")
    assert "old (4), young (5)." in section
    assert "| age |" not in section


@pytest.mark.parametrize(("count", "warned"), [(MIN_GROUP - 1, True), (MIN_GROUP, False)])
def test_intervals_of_few_photos_have_a_warning(count: int, warned: bool) -> None:
    text = score(faces(np.ones(count, bool))).text
    assert ("too narrow" in text) == warned


def test_a_head_without_targets_is_named_below_the_scores() -> None:
    made = faces(np.ones(9, bool))
    unknown = np.full(9, np.nan)
    with_head = replace(made, outputs=pair_outputs({"yaw": np.zeros(9)}, {"yaw": unknown}))
    plain = score(made).text
    text = score(with_head).text
    line = "- Not measured, since no face has a target: pose.\n\n"
    assert line not in plain
    assert text.replace(line, "") == plain


def test_a_further_output_without_targets_has_no_bar(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=9)
    values = {"yaw": target, "pitch": target}
    outputs = pair_outputs(values, {"yaw": target, "pitch": np.full(9, np.nan)})
    results = score(replace(faces(np.ones(9, bool)), outputs=outputs))
    results.write(tmp_path / "e")
    text = results.text
    assert "| pitch | 0 | - |" in text
    assert "| yaw | 9 | 1.000 (" in text
    page = (tmp_path / "e" / "index.html").read_text()
    chart = page.partition("<h2>Head pose</h2>")[2].partition("<details>")[0]
    assert "yaw" in chart
    assert "pitch" not in chart


def test_rows_are_a_table_for_data_frames() -> None:
    results = score(faces(np.arange(80) % 4 > 0, age=["old"] * 40 + ["young"] * 40), ["age"])
    table = pd.DataFrame(results.table())
    accuracy = table[(table["set"] == "by age") & (table["measure"] == "accuracy")]
    assert accuracy["group"].tolist() == ["old", "young"]
    assert accuracy["mean"].tolist() == [0.75, 0.75]
    assert not table.duplicated(["part", "set", "group", "measure"]).any()
    with pytest.raises(KeyError, match="accuracy of a star"):
        results.estimate("accuracy of a star")


def test_precision_is_that_of_scikit_learn_for_expressions_that_occur() -> None:
    truth = np.array([0, 0, 0, 0, 3])
    guess = np.array([0, 0, 2, 2, 0])
    precision = precision_score(truth, guess, labels=range(4), average=None, zero_division=0)
    made = faces(np.ones(5, bool))
    made = replace(made, labels=list(LABELS), probabilities=np.eye(4)[guess] * 0.6 + 0.1)
    text = score(replace(made, targets=np.eye(4)[truth])).text
    ends = dict(
        re.findall(r"^\| ([abcd]) \| .* \| ([\d.]+%|never predicted) \|$", text, re.MULTILINE)
    )
    assert ends == {"a": f"{precision[0]:.1%}", "c": "0.0%", "d": "never predicted"}
