"""The content of results.json.

Its keys are written here, in `names`, or in `numbers` of an estimate.
"""

from collections.abc import Mapping
from typing import Any

from fer_vit.evaluation.names import altered_rows, group_rows
from fer_vit.evaluation.results import (
    ComparedError,
    Evaluation,
    Grouping,
    HeadResults,
    LabelResults,
    ModelComparison,
)
from fer_vit.stats.estimate import Estimate, plain_estimates


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the content of results.json; keys without results are left out.

    In this file, functions `..._entries` return several keys with their values, and functions
    `..._json` return the value of one key.
    """
    results = score_entries(evaluation)
    if evaluation.labelled is not None:
        results |= label_entries(evaluation.labelled)
    if evaluation.folds:
        # with `_`, since scripts of users read this key
        results["by_fold"] = group_rows(evaluation.folds)
    results |= head_entries(evaluation)
    if evaluation.notes:
        results["notes"] = list(evaluation.notes)
    if evaluation.robustness:
        results["robustness"] = altered_rows(evaluation.robustness, "accuracy")
    robust_heads = robust_heads_json(evaluation.heads)
    if robust_heads:
        results["heads robustness"] = robust_heads
    return plain_estimates(results)


def score_entries(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the scores of all faces, of groups, and of two models."""
    results: dict[str, Any] = {"all": evaluation.scores}
    if evaluation.num_near_duplicates:
        results["near-duplicates of train"] = evaluation.num_near_duplicates
    if evaluation.without_near_duplicates is not None:
        results["without near-duplicates"] = evaluation.without_near_duplicates
    if evaluation.by:
        results["by"] = {name: grouping_json(column) for name, column in evaluation.by.items()}
    if evaluation.comparison is not None:
        results["comparison"] = comparison_json(evaluation.comparison)
    return results


def label_entries(labelled: LabelResults) -> dict[str, Any]:
    """Returns the results that need labels, besides the scores."""
    results: dict[str, Any] = {}
    if labelled.by_votes:
        results["by votes"] = group_rows(labelled.by_votes)
    results["labels"] = list(labelled.labels)
    results["confusion"] = labelled.confusion.tolist()
    results["likely wrong labels"] = [
        {"path": wrong.path, "label": wrong.label, "better": wrong.better}
        for wrong in labelled.likely_wrong
    ]
    return results


def head_entries(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the results of further heads on unaltered images."""
    results: dict[str, Any] = {}
    if evaluation.heads:
        results["heads"] = {head: value.measured for head, value in evaluation.heads.items()}
    by_column = heads_by_json(evaluation.heads)
    if by_column:
        results["heads by"] = by_column
    if evaluation.compared_heads is not None:
        compared = {}
        for head, errors in evaluation.compared_heads.items():
            compared[head] = errors_json(errors)
        results["heads compared"] = compared
    return results


def grouping_json(grouping: Grouping) -> dict[str, Any]:
    """Returns the results of the groups of a column."""
    results: dict[str, Any] = {
        "groups": group_rows(grouping.groups),
        "few": grouping.small_groups,
        "unknown": grouping.num_unknown,
    }
    gap = grouping.gap
    if gap is not None:
        results["worst"] = gap.worst
        results["best"] = gap.best
        results["gap"] = Estimate(gap.size, n=gap.num_faces)
    return results


def comparison_json(comparison: ModelComparison) -> dict[str, Any]:
    """Returns the comparison with another model."""
    return {
        "faces": comparison.num_faces,
        "other": comparison.other_scores,
        "difference": comparison.differences,
        "McNemar": {
            "first": comparison.num_only_first,
            "second": comparison.num_only_second,
            "p": comparison.p,
        },
    }


def heads_by_json(heads: Mapping[str, HeadResults]) -> dict[str, dict[str, Any]]:
    """Returns the measures of further heads by column, head and group."""
    by_column: dict[str, dict[str, Any]] = {}
    for head, value in heads.items():
        for column, groups in value.by.items():
            by_column.setdefault(column, {})[head] = groups
    return by_column


def errors_json(errors: Mapping[str, ComparedError]) -> dict[str, Any]:
    """Returns the errors of two models by output."""
    outputs = {}
    for name, result in errors.items():
        outputs[name] = {
            "faces": result.error.n,
            "error": result.error,
            "other": result.other_model.mean,
            "difference": result.other_model.difference,
            "p": result.other_model.p,
        }
    return outputs


def robust_heads_json(heads: Mapping[str, HeadResults]) -> dict[str, Any]:
    """Returns the results of further heads on altered images; empty if none were requested."""
    results = {}
    for head, value in heads.items():
        if value.robustness is not None:
            results[head] = {
                "errors": altered_rows(value.robustness.errors, "error"),
                "outputs": value.robustness.outputs,
            }
    return results
