"""The results of an evaluation as JSON and as files."""

from functools import cached_property
from pathlib import Path
from typing import Any

from fer_vit.evaluation.evaluation_page import evaluation_page
from fer_vit.evaluation.sets import EvaluationRows, keys, value
from fer_vit.report.results_page import Page, page_text, write_page
from fer_vit.stats.results import nest


class Evaluation(EvaluationRows):
    """All results of an evaluation. Without labels there is no confusion."""

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

    @cached_property
    def page(self) -> Page:
        """The content of index.html and results.md."""
        return evaluation_page(self)

    @property
    def text(self) -> str:
        """The content of results.md: Markdown."""
        return page_text(self.page)

    def write(self, folder: str | Path, overwrite: bool = True) -> list[Path]:
        """Writes index.html, results.md and results.json; returns their paths.

        `overwrite` is whether to replace results that another process has written meanwhile.
        """
        return write_page(Path(folder), self.page, self.to_dict(), overwrite=overwrite)
