"""The content of results.json: every key is written here, or in `names`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fer_vit.evaluation.names import altered_rows, group_rows
from fer_vit.evaluation.results import (
    ComparedError,
    Evaluation,
    FaceEstimate,
    Grouping,
    HeadResults,
    ModelComparison,
)
from fer_vit.report.estimate import plain_estimates


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the results as results.json has them; a key without results is left out."""
    results: dict[str, Any] = {"all": evaluation.scores}
    if evaluation.near_duplicates:
        results["near-duplicates of train"] = evaluation.near_duplicates
    if evaluation.without_near_duplicates is not None:
        results["without near-duplicates"] = evaluation.without_near_duplicates
    if evaluation.by:
        results["by"] = {name: grouping_json(column) for name, column in evaluation.by.items()}
    if evaluation.comparison is not None:
        results["comparison"] = comparison_json(evaluation.comparison)

    labelled = evaluation.labelled
    if labelled is not None:
        if labelled.by_votes:
            results["by votes"] = group_rows(labelled.by_votes)
        results["labels"] = list(labelled.labels)
        results["confusion"] = labelled.confusion.tolist()
        results["likely wrong labels"] = [asdict(label) for label in labelled.likely_wrong]
    if evaluation.folds:
        results["by_fold"] = group_rows(evaluation.folds)

    results |= heads_json(evaluation.heads)
    if evaluation.notes:
        results["notes"] = list(evaluation.notes)
    if evaluation.robustness:
        results["robustness"] = altered_rows(evaluation.robustness, "accuracy")
    results |= head_robustness_json(evaluation.heads)
    return plain_estimates(results)


def grouping_json(grouping: Grouping) -> dict[str, Any]:
    """Returns the results of the groups of a column."""
    results: dict[str, Any] = {
        "groups": group_rows(grouping.groups),
        "few": grouping.few,
        "unknown": grouping.unknown,
    }
    if grouping.gap is not None:
        results["worst"] = grouping.gap.worst
        results["best"] = grouping.gap.best
        results["gap"] = FaceEstimate(grouping.gap.size, None, None, grouping.gap.faces)
    return results


def comparison_json(comparison: ModelComparison) -> dict[str, Any]:
    """Returns the comparison with another model."""
    return {
        "faces": comparison.faces,
        "other": comparison.other,
        "difference": comparison.difference,
        "McNemar": {
            "first": comparison.only_first,
            "second": comparison.only_second,
            "p": comparison.p,
        },
    }


def heads_json(heads: Mapping[str, HeadResults]) -> dict[str, Any]:
    """Returns the results of further heads on unaltered images; empty without heads."""
    if not heads:
        return {}
    results: dict[str, Any] = {}
    results["heads"] = {head: value.measured for head, value in heads.items()}

    by_column: dict[str, dict[str, Any]] = {}
    for head, value in heads.items():
        for column, groups in value.by.items():
            by_column.setdefault(column, {})[head] = groups
    if by_column:
        results["heads by"] = by_column

    if any(value.compared is not None for value in heads.values()):
        compared: dict[str, Any] = {}
        for head, value in heads.items():
            if value.compared:
                compared[head] = compared_json(value.compared)
        results["heads compared"] = compared
    return results


def compared_json(compared: Mapping[str, ComparedError]) -> dict[str, Any]:
    """Returns the errors of two models by output."""
    outputs = {}
    for name, result in compared.items():
        outputs[name] = {
            "faces": result.error.faces,
            "error": result.error,
            "other": result.against.other,
            "difference": result.against.difference,
            "p": result.against.p,
        }
    return outputs


def head_robustness_json(heads: Mapping[str, HeadResults]) -> dict[str, Any]:
    """Returns the results of further heads on altered images; empty if none is requested."""
    results = {}
    for head, value in heads.items():
        if value.robustness is not None:
            results[head] = {
                "errors": altered_rows(value.robustness.errors, "error"),
                "outputs": value.robustness.outputs,
            }
    return {"heads robustness": results} if results else {}
