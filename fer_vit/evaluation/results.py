"""The results of an evaluation: rows, and what is not a number with an interval.

C classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fer_vit.evaluation.page import evaluation_page
from fer_vit.evaluation.sets import ALL, FACES, keys, value
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import EXPRESSION
from fer_vit.report.results_page import write_files
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.results import Results, nest
from fer_vit.tables.labelled import Labelled


@dataclass(frozen=True)
class WrongLabel:
    """A face whose label is likely wrong."""

    row: int  # index among the faces with a prediction
    path: str
    label: str
    better: str  # a more likely label


@dataclass(frozen=True, eq=False)
class Evaluation(Results):
    """All results of an evaluation. Without labels there is no confusion."""

    faces: Labelled  # the faces with a prediction; with labels, the labelled faces alone
    against: Array | None = None  # another model's probabilities (N, C), NaN without a face
    confusion: IntArray | None = None  # number of faces by label and prediction (C, C)
    likely_wrong: tuple[WrongLabel, ...] = ()  # sorted, the most likely first

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

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of faces, of persons, and of photos of faces whose person is unknown."""
        return {FACES: len(self.faces.paths)} | self.faces.count_units()

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of results.json; keys without results are left out."""
        content: dict[str, Any] = dict(self.facts)
        content |= self.counts
        content |= nest((keys(row), value(row)) for row in self.rows)
        if self.confusion is not None:
            content["labels"] = list(self.faces.labels)
            content["confusion"] = self.confusion.tolist()
            content["likely wrong labels"] = [
                {"path": wrong.path, "label": wrong.label, "better": wrong.better}
                for wrong in self.likely_wrong
            ]
        if self.notes:
            content["notes"] = list(self.notes)
        return content

    def write(self, folder: str | Path, overwrite: bool = True) -> str:
        """Writes index.html, results.md and results.json, and returns text to print.

        `overwrite` is whether to replace results that another process has written meanwhile.
        """
        page = evaluation_page(self)
        text, written = write_files(Path(folder), page, self.to_dict(), overwrite=overwrite)
        return f"{text}\n{written}"
