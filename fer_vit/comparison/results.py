"""The results of a comparison: rows, and what is not a number with an interval."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fer_vit.comparison.episodes import SECONDS
from fer_vit.comparison.measures import Measures, probability_kind
from fer_vit.comparison.page import comparison_page
from fer_vit.comparison.prose import describe_methods, describe_missing, describe_results
from fer_vit.comparison.rows import (
    CONDITIONS,
    DF,
    DIFFERENCES,
    EPISODES,
    FIRST,
    INTRACLASS,
    MEAN,
    MEANS,
    RANKS,
    ROOM,
    SD,
    SECOND,
    Contrast,
    G,
    T,
)
from fer_vit.comparison.study import Courses, Study
from fer_vit.comparison.tables import comparison_tables
from fer_vit.errors import printable
from fer_vit.report.draw import FigureKind
from fer_vit.report.results_page import write_files
from fer_vit.stats.results import Results, Row, nest


@dataclass(frozen=True, eq=False)
class Comparison(Results):
    """All results of a study."""

    study: Study
    courses: Courses | None = None  # None: not requested

    @cached_property
    def by_measure(self) -> dict[tuple[str, str, str], dict[str, Row]]:
        """The rows of each set, part and group, by measure."""
        found: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault((row.set, row.part, row.group), {})[row.measure] = row
        return found

    def contrasts(self, measures: Measures, names: Mapping[str, str]) -> list[Contrast]:
        """Returns the contrasts of some measures of a kind.

        `names` are the names of the contrasts, by name of the measure.
        """
        contrasts = []
        for measure, name in names.items():
            for pair in self.study.pairs:
                rows = self.by_measure[DIFFERENCES, measures.columns[measure], pair.name]
                contrasts.append(Contrast(name, pair, rows))
        return contrasts

    def main_contrasts(self, measures: Measures) -> list[Contrast]:
        """Returns the contrasts of a kind without those of weak measures that were not planned."""
        left_out = self.study.left_out(measures)
        titles = {name: title for name, title in measures.titles.items() if name not in left_out}
        return self.contrasts(measures, titles)

    def drawn_contrasts(self, measures: Measures) -> list[Contrast]:
        """Returns the main contrasts with a test, without differences below the last digit."""
        step = measures.kind.step
        main = self.main_contrasts(measures)
        return [each for each in main if each.is_tested and not each.is_negligible(step)]

    def family_size(self, measures: Measures) -> int:
        """Returns the number of tests for which p is corrected; 0 if the measures have no test."""
        tested = self._count_tested(measures)
        if not tested or not self.study.outcomes:
            return tested
        return sum(map(self._count_tested, self.study.measures))

    def _count_tested(self, measures: Measures) -> int:
        return sum(contrast.is_tested for contrast in self.main_contrasts(measures))

    @cached_property
    def methods(self) -> list[str]:
        """The methods for a paper, and a line for each kind of faces left out of all tests."""
        return describe_methods(self)

    @cached_property
    def sentences(self) -> dict[str, list[str]]:
        """The results in words, and the reasons of missing tests, by title of a kind."""
        sentences = {}
        for measures in self.study.measures:
            contrasts = self.main_contrasts(measures)
            lines = describe_results(measures.kind, contrasts)
            sentences[measures.kind.title] = [*lines, *describe_missing(measures.kind, contrasts)]
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of results.json."""
        study = self.study
        content: dict[str, Any] = dict(self.facts)
        content["methods"] = "\n".join(self.methods)
        content["sentences"] = self.sentences
        if study.outcomes:
            content["outcomes"] = [*study.outcomes]
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
        for measures in study.measures:
            content[measures.kind.title] = self._measured(measures)
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

    def _measured(self, measures: Measures) -> dict[str, Any]:
        """Returns the means and tests of the measures of a kind, for JSON."""
        means: dict[str, dict[str, Any]] = {}
        for name, part in measures.columns.items():
            means[name] = {}
            for condition in self.study.observations.conditions:
                rows = self.by_measure[MEANS, part, condition]
                numbers = rows[MEAN].estimate.numbers
                means[name][condition] = {**numbers, "sd": rows[SD].estimate.mean}

        differences: dict[str, dict[str, Any] | None] = {}
        missing = {}
        names = {name: name for name in measures.values}
        for contrast in self.contrasts(measures, names):
            if not contrast.is_tested:
                differences[contrast.name] = None
                missing[contrast.name] = contrast.difference.note
                continue
            differences[contrast.name] = {
                "difference": contrast.difference.estimate.numbers,
                "t": contrast.number(T),
                "df": contrast.number(DF),
                "p": contrast.rows[T].p,
                "p by ranks": contrast.rows[RANKS].p,
                "g": contrast.number(G),
                "persons": [int(contrast.number(FIRST)), int(contrast.number(SECOND))],
                "p corrected": contrast.difference.p,
            }
        measured = {"means": means, "differences": differences, "missing": missing}
        return measured | ({"weak": sorted(measures.weak)} if measures.weak else {})

    def write(
        self, folder: str | Path, overwrite: bool = True, figures: FigureKind | None = None
    ) -> str:
        """Writes the page, its Markdown, its JSON and tables, and returns text to print.

        Args:
            folder: The folder to write.
            overwrite: Whether to replace results that another process has written meanwhile.
            figures: The format of figures; None: no figures.
        """
        missing = []
        for measures in self.study.measures:
            missing += describe_missing(measures.kind, self.main_contrasts(measures))
        page = comparison_page(self)
        tables = comparison_tables(self.study, self.courses)
        draw = None
        if figures is not None:
            # not at the top: matplotlib takes a second to load
            from fer_vit.comparison.figures import save_figures

            draw = partial(save_figures, self, f".{figures}")
        _, written = write_files(Path(folder), page, self.to_dict(), tables, overwrite, draw)
        return "\n".join([*self.methods, *map(printable, missing), written])
