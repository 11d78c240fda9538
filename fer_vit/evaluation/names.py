"""The names of the results of groups and of altered images in tables and in results.json."""

from collections.abc import Mapping
from typing import TypeAlias

from fer_vit.evaluation.results import AlteredMean, Group
from fer_vit.stats.estimate import Estimate

# A result in a table: an estimate, a number of faces, a p-value or text.
Cell: TypeAlias = Estimate | float | str


def group_row(group: Group) -> dict[str, Cell]:
    """Returns the results of a group by name."""
    row: dict[str, Cell] = {"faces": group.num_faces}
    row.update(group.scores)
    if group.test is not None:
        row["difference"] = group.test.difference
        row["p"] = group.test.p
    return row


def altered_row(altered: AlteredMean, measure: str) -> dict[str, Cell]:
    """Returns the results of altered images by name; `measure` names the mean."""
    row: dict[str, Cell] = {"faces": altered.estimate.n, measure: altered.estimate}
    if altered.change is not None:
        row["difference"] = altered.change
    if altered.other_model is not None:
        row["the other model"] = altered.other_model.mean
        row["difference from it"] = altered.other_model.difference
        row["p"] = altered.other_model.p
    return row


def group_rows(groups: Mapping[str, Group]) -> dict[str, dict[str, Cell]]:
    """Returns the results of groups, by the name of the group, then of the result."""
    return {name: group_row(group) for name, group in groups.items()}


def altered_rows(altered: Mapping[str, AlteredMean], measure: str) -> dict[str, dict[str, Cell]]:
    """Returns the results of altered images, by the name of the alteration, then of the result."""
    return {name: altered_row(result, measure) for name, result in altered.items()}
