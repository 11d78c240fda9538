"""The results of an evaluation: rows, and the files that are rendered from them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fer_vit.evaluation.evaluation_page import evaluation_page
from fer_vit.evaluation.evaluation_rows import (
    ALL,
    ALTERED,
    COMPARED,
    COUNTS,
    DIFFERENCE,
    FACES,
    FOLDS,
    GROUPS,
    NEAR_DUPLICATES,
    OTHER,
    TOO_FEW,
    VOTES,
    WITHOUT_NEAR_DUPLICATES,
)
from fer_vit.geometry import Array
from fer_vit.heads import EXPRESSION, HeadOutputs
from fer_vit.report.results_page import Page, page_text, write_page
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.results import Results, Row, nest
from fer_vit.stats.scores import confusion_matrix, suspect_labels
from fer_vit.tables.labelled import Labelled

SETS = {  # the keys of each set in results.json
    ALL: ("all",),
    WITHOUT_NEAR_DUPLICATES: ("without near-duplicates",),
    OTHER: ("comparison", "other"),
    DIFFERENCE: ("comparison", "difference"),
    COMPARED: ("comparison",),
    VOTES: ("by votes",),
    FOLDS: ("by_fold",),
    ALTERED: ("robustness",),
}


@dataclass(frozen=True, eq=False)
class Evaluation(Results):
    """All results of an evaluation.

    Attributes:
        faces: The faces with a prediction; with labels, the labelled faces alone.
    """

    faces: Labelled

    def estimate(
        self, measure: str, set: str = ALL, group: str = "", part: str = EXPRESSION
    ) -> Estimate:
        """Returns a number, such as the accuracy of all faces.

        Raises KeyError if there is no such row.
        """
        rows = self.select(part, set, group, measure)
        if not rows:
            raise KeyError(f"{part}, {set}, {group}, {measure}")
        return rows[0].estimate

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of results.json; keys without results are left out."""
        content: dict[str, Any] = dict(self.facts)
        content |= {FACES: len(self.faces.paths)} | self.faces.count_units()
        content |= nest((keys(row), value(row)) for row in self.rows)
        if self.faces.targets is not None:
            content |= label_results(self.faces, self.faces.targets)
        if self.notes:
            content["notes"] = list(self.notes)
        return content

    @cached_property
    def page(self) -> Page:
        """The content of index.html and results.md."""
        return evaluation_page(self, self.faces)

    @property
    def text(self) -> str:
        """The content of results.md: Markdown."""
        return page_text(self.page)

    def write(self, folder: str | Path, overwrite: bool = True) -> list[Path]:
        """Writes index.html, results.md and results.json; returns their paths.

        `overwrite` is whether to replace results that another process has written meanwhile.
        """
        return write_page(Path(folder), self.page, self.to_dict(), overwrite=overwrite)


def label_results(faces: Labelled, targets: Array) -> dict[str, Any]:
    """Returns the confusion matrix and the labels that are likely wrong, for JSON.

    `targets` (N, C) are the fractions of the votes for the labels of the faces (N).
    """
    truth = targets.argmax(1)  # (N,)
    wrong = []
    for row, better in suspect_labels(faces.probabilities, targets).tolist():
        label = faces.labels[truth[row]]
        wrong.append({"path": faces.paths[row], "label": label, "better": faces.labels[better]})
    return {
        "labels": list(faces.labels),
        "confusion": confusion_matrix(faces.probabilities, targets).tolist(),
        "likely wrong labels": wrong,
    }


def keys(row: Row) -> tuple[str, ...]:
    """Returns the keys that lead to a row in results.json."""
    column = row.set.removeprefix(GROUPS)
    path: tuple[str, ...]
    if row.measure == NEAR_DUPLICATES:
        path = (row.measure,)
    elif row.part == EXPRESSION:
        if column == row.set:
            path = (*SETS[row.set], row.group, row.measure)
        elif row.note == TOO_FEW:
            path = ("by", column, "few", row.group)
        elif row.group:
            path = ("by", column, "groups", row.group, row.measure)
        else:
            path = ("by", column, row.measure)
    elif row.set == ALTERED:  # the part is a head
        path = ("heads robustness", row.part, row.group, row.measure)
    else:
        (output,) = HeadOutputs.among([row.part])
        if row.set == ALL:
            path = ("heads", output.head, output.name, row.measure)
        elif row.set == COMPARED:
            path = ("heads compared", output.head, output.name, row.measure)
        else:
            path = ("heads by", column, output.head, row.group, output.name, row.measure)
    return tuple(key for key in path if key)


def value(row: Row) -> Any:
    """Returns a row's number for JSON: a number of faces, or an estimate, with its p-value."""
    if row.measure in COUNTS:
        return row.estimate.n
    numbers: dict[str, Any] = dict(row.estimate.numbers)
    if row.p is not None:
        numbers["p"] = row.p
    if row.note:
        numbers["note"] = row.note
    return numbers
