from dataclasses import replace

import numpy as np

from fer_vit.evaluation.results import (
    AlteredMean,
    ComparedError,
    Evaluation,
    Gap,
    Group,
    Grouping,
    HeadResults,
    HeadRobustness,
    LabelResults,
    ModelComparison,
    OtherModel,
    WrongLabel,
)
from fer_vit.evaluation.results_json import evaluation_json, head_entries
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.tests import GroupTest

ESTIMATE = Estimate(mean=0.5, low=0.25, high=0.75, n=8)
JSON = {"mean": 0.5, "low": 0.25, "high": 0.75, "faces": 8}
OTHER = OtherModel(mean=ESTIMATE, difference=ESTIMATE, p=0.5)
SCORES = {"accuracy": ESTIMATE}
MEASURED = {"yaw": {"r": ESTIMATE}}


def test_evaluation_json_has_the_keys_of_all_results_in_order() -> None:
    group = Group(num_faces=8, scores=SCORES, test=GroupTest(ESTIMATE, p=0.5))
    gap = Gap(worst="old", best="young", size=0.5, num_faces=9)
    grouping = Grouping(groups={"old": group}, small_groups={"baby": 1}, num_unknown=2, gap=gap)
    altered = AlteredMean(ESTIMATE, change=ESTIMATE, other_model=OTHER)
    head = HeadResults(
        measured=MEASURED,
        by={"age": {"old": MEASURED}},
        robustness=HeadRobustness(errors={"blurred": altered}, outputs={"blurred": MEASURED}),
    )
    evaluation = Evaluation(
        scores=SCORES,
        num_near_duplicates=3,
        without_near_duplicates=SCORES,
        by={"age": grouping},
        comparison=ModelComparison(8, SCORES, SCORES, num_only_first=1, num_only_second=2, p=0.25),
        labelled=LabelResults(
            labels=["a", "b"],
            confusion=np.array([[5, 0], [1, 2]]),
            likely_wrong=[WrongLabel(5, "x.png", label="b", better="a")],
            by_votes={"8": Group(num_faces=8, scores=SCORES)},
        ),
        folds={"0": Group(num_faces=8, scores=SCORES)},
        heads={"pose": head},
        compared_heads={"pose": {"yaw": ComparedError(ESTIMATE, OTHER)}},
        notes=["a note"],
        robustness={"blurred": altered},
    )
    results = evaluation_json(evaluation)
    plain_group = {"faces": 8, "accuracy": JSON}
    of_altered = {
        "difference": JSON,
        "the other model": JSON,
        "difference from it": JSON,
        "p": 0.5,
    }
    measured = {"yaw": {"r": JSON}}
    expected = {
        "all": {"accuracy": JSON},
        "near-duplicates of train": 3,
        "without near-duplicates": {"accuracy": JSON},
        "by": {
            "age": {
                "groups": {"old": plain_group | {"difference": JSON, "p": 0.5}},
                "few": {"baby": 1},
                "unknown": 2,
                "worst": "old",
                "best": "young",
                "gap": {"mean": 0.5, "low": None, "high": None, "faces": 9},
            }
        },
        "comparison": {
            "faces": 8,
            "other": {"accuracy": JSON},
            "difference": {"accuracy": JSON},
            "McNemar": {"first": 1, "second": 2, "p": 0.25},
        },
        "by votes": {"8": plain_group},
        "labels": ["a", "b"],
        "confusion": [[5, 0], [1, 2]],
        "likely wrong labels": [{"path": "x.png", "label": "b", "better": "a"}],
        "by_fold": {"0": plain_group},
        "heads": {"pose": measured},
        "heads by": {"age": {"pose": {"old": measured}}},
        "heads compared": {
            "pose": {
                "yaw": {"faces": 8, "error": JSON, "other": JSON, "difference": JSON, "p": 0.5}
            }
        },
        "notes": ["a note"],
        "robustness": {"blurred": {"faces": 8, "accuracy": JSON} | of_altered},
        "heads robustness": {
            "pose": {
                "errors": {"blurred": {"faces": 8, "error": JSON} | of_altered},
                "outputs": {"blurred": measured},
            }
        },
    }
    assert results == expected
    assert list(results) == list(expected)
    assert list(results["by"]["age"]) == list(expected["by"]["age"])
    row = results["robustness"]["blurred"]
    assert list(row) == ["faces", "accuracy", *of_altered]


NO_LABELS = Evaluation(
    scores=SCORES,
    num_near_duplicates=0,
    without_near_duplicates=None,
    by={},
    comparison=None,
    labelled=None,
)


def test_evaluation_json_leaves_out_what_was_not_requested() -> None:
    assert list(evaluation_json(NO_LABELS)) == ["all"]


def test_head_entries_have_an_empty_comparison_with_a_model_without_these_heads() -> None:
    evaluation = replace(NO_LABELS, heads={"pose": HeadResults(MEASURED)})
    assert list(head_entries(evaluation)) == ["heads"]
    assert head_entries(replace(evaluation, compared_heads={}))["heads compared"] == {}
