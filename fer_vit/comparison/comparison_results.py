"""The results of a comparison: its rows and words, as JSON and as files."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fer_vit.comparison.comparison_page import comparison_page
from fer_vit.comparison.comparison_rows import (
    CONDITIONS,
    EPISODES,
    INTRACLASS,
    MEAN,
    MEANS,
    ROOM,
    SD,
    find_contrasts,
)
from fer_vit.comparison.episodes import SECONDS
from fer_vit.comparison.measures import Kind, probability_kind
from fer_vit.comparison.sentences import describe_methods, describe_missing, describe_results
from fer_vit.comparison.study import Courses, Study
from fer_vit.comparison.study_tables import comparison_tables
from fer_vit.report.draw import FigureKind
from fer_vit.report.results_page import write_page
from fer_vit.stats.results import Results, nest


@dataclass(frozen=True, eq=False)
class Comparison(Results):
    """All results of a study.

    Attributes:
        study: The study.
        courses: The series over time; None: not requested.
    """

    study: Study
    courses: Courses | None = None

    @cached_property
    def methods(self) -> list[str]:
        """The methods for a paper, and a line for each kind of faces left out of all tests."""
        grid = self.courses.bin_seconds if self.courses else None
        return describe_methods(self, self.study, grid)

    @cached_property
    def sentences(self) -> dict[str, list[str]]:
        """The results in words, and the reasons of missing tests, by title of a kind."""
        return describe_results(self, self.study)

    @property
    def missing(self) -> list[str]:
        """The reasons of missing tests."""
        lines = []
        for kind in self.study.measures:
            lines += describe_missing(self, self.study, kind)
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of results.json."""
        study = self.study
        content: dict[str, Any] = dict(self.facts)
        content["methods"] = "\n".join(self.methods)
        content["sentences"] = self.sentences
        if study.planned:
            content["outcomes"] = [*study.planned]
        content["conditions"] = nest(
            ((row.group, row.measure), row.estimate.n) for row in self.select(set=CONDITIONS)
        )
        content["designs"] = self._designs()
        if study.episodes:
            counts = [row for row in self.select(set=EPISODES) if row.group]
            content["episodes"] = nest(((row.group, row.measure), row.estimate.n) for row in counts)
            content[ROOM] = {}
            for row in self.select(set=EPISODES, measure=ROOM):
                content[ROOM][row.part.removeprefix(SECONDS.prefix)] = row.estimate.mean
        for kind in study.measures:
            content[kind.title] = self._measured(kind)
        prefix = probability_kind(study.rest).column("")
        content[INTRACLASS] = nest(
            ((row.part.removeprefix(prefix), row.group), row.estimate.numbers)
            for row in self.select(set=INTRACLASS)
        )
        if study.rest:
            content["without rest"] = [*study.without_rest]
        return content

    def _designs(self) -> dict[str, Any]:
        """Returns how each pair of conditions is compared, for JSON."""
        designs = {}
        for pair, design in self.study.designs.items():
            designs[pair.name] = {
                "paired": design.paired,
                "persons": int(design.persons.sum()),
                "left out": self.study.names_of(design.excluded),
            }
        return designs

    def _measured(self, kind: Kind) -> dict[str, Any]:
        """Returns the means and tests of the measures of a kind, for JSON."""
        means: dict[str, dict[str, Any]] = {}
        for measure in self.study.measures[kind]:
            means[measure.name] = {}
            for condition in self.study.observations.conditions:
                rows = self.by_measure[measure.column, MEANS, condition]
                numbers = rows[MEAN].estimate.numbers
                means[measure.name][condition] = {**numbers, "sd": rows[SD].estimate.mean}

        differences: dict[str, dict[str, Any] | None] = {}
        missing = {}
        for contrast in find_contrasts(self, self.study, kind):
            if not contrast.is_tested:
                differences[contrast.name] = None
                missing[contrast.name] = contrast.difference.note
                continue
            differences[contrast.name] = {
                "difference": contrast.difference.estimate.numbers,
                "t": contrast.t,
                "df": contrast.df,
                "p": contrast.p,
                "p by ranks": contrast.p_by_ranks,
                "g": contrast.g,
                "persons": [contrast.num_first, contrast.num_second],
                "p corrected": contrast.difference.p,
            }
        measured = {"means": means, "differences": differences, "missing": missing}
        weak = sorted(measure.name for measure in self.study.measures[kind] if measure.weak)
        return measured | ({"weak": weak} if weak else {})

    def write(
        self, folder: str | Path, overwrite: bool = True, figures: FigureKind | None = None
    ) -> list[Path]:
        """Writes the page, its Markdown, its JSON, tables and figures; returns their paths.

        Args:
            folder: The folder to write.
            overwrite: Whether to replace results that another process has written meanwhile.
            figures: The format of figures; None: no figures.
        """
        tables = comparison_tables(self.study, self.courses)
        draw = None
        if figures is not None:
            # not at the top: matplotlib takes a second to load
            from fer_vit.comparison.paper_figures import save_figures

            draw = partial(save_figures, self, self.study, figures)
        page = comparison_page(self, self.study, self.courses, self.sentences, self.methods)
        return write_page(Path(folder), page, self.to_dict(), tables, overwrite, draw)
