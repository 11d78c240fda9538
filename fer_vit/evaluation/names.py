"""The names by which tables and results.json know the results of an evaluation."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from fer_vit.evaluation.results import (
    AlteredMean,
    ComparedError,
    Evaluation,
    FaceEstimate,
    Group,
    Grouping,
    HeadResults,
    ModelComparison,
)
from fer_vit.report.estimate import Estimate, plain_estimates

Cell: TypeAlias = Estimate | float | str
"""A result in a table: an estimate, a number of faces, a p-value or text."""


def group_row(group: Group) -> dict[str, Cell]:
    """Returns the results of a group by name."""
    row: dict[str, Cell] = {"faces": group.faces}
    row.update(group.scores)
    if group.test is not None:
        row["difference"] = group.test.difference
        row["p"] = group.test.p
    return row


def altered_row(altered: AlteredMean, measure: str) -> dict[str, Cell]:
    """Returns the results of altered images by name; `measure`: what the mean is of."""
    row: dict[str, Cell] = {"faces": altered.estimate.faces, measure: altered.estimate}
    if altered.change is not None:
        row["difference"] = altered.change
    if altered.against is not None:
        row["the other model"] = altered.against.other
        row["difference from it"] = altered.against.difference
        row["p"] = altered.against.p
    return row


def group_rows(groups: Mapping[str, Group]) -> dict[str, dict[str, Cell]]:
    """Returns the results of groups by name of the group and of the result."""
    return {name: group_row(group) for name, group in groups.items()}


def altered_rows(altered: Mapping[str, AlteredMean], measure: str) -> dict[str, dict[str, Cell]]:
    """Returns the results of altered images by name of the alteration and of the result."""
    return {name: altered_row(result, measure) for name, result in altered.items()}


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
    """Returns the results of further heads on unaltered images."""
    if not heads:
        return {}
    results: dict[str, Any] = {"heads": {head: value.measured for head, value in heads.items()}}

    by_column: dict[str, dict[str, Any]] = {}
    compared: dict[str, dict[str, Any]] = {}
    has_second = False
    for head, value in heads.items():
        for column, groups in value.by.items():
            by_column.setdefault(column, {})[head] = groups
        if value.compared is not None:
            has_second = True
        if value.compared:
            compared[head] = {name: compared_row(error) for name, error in value.compared.items()}
    if by_column:
        results["heads by"] = by_column
    if has_second:
        results["heads compared"] = compared
    return results


def compared_row(compared: ComparedError) -> dict[str, Cell]:
    """Returns the errors of two models for an output by name."""
    return {
        "faces": compared.error.faces,
        "error": compared.error,
        "other": compared.against.other,
        "difference": compared.against.difference,
        "p": compared.against.p,
    }


def head_robustness_json(heads: Mapping[str, HeadResults]) -> dict[str, Any]:
    """Returns the results of further heads on altered images."""
    results = {}
    for head, value in heads.items():
        if value.robustness is not None:
            results[head] = {
                "errors": altered_rows(value.robustness.errors, "error"),
                "outputs": value.robustness.outputs,
            }
    return {"heads robustness": results} if results else {}
