"""Writes a comparison: results in words, the methods for a paper, tables and charts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pil

from fer_vit.comparison.prose import methods, sentences
from fer_vit.comparison.results import (
    Comparison,
    Courses,
    Means,
    Outcome,
    Results,
    as_json,
    course_tables,
)
from fer_vit.comparison.series import mean_course
from fer_vit.comparison.statistics import Missing
from fer_vit.comparison.study import Study
from fer_vit.errors import printable
from fer_vit.evaluation.writer import FILES as PAGE, Section, write_files
from fer_vit.report.charts import series_figure
from fer_vit.report.intervals import interval_chart
from fer_vit.report.table import NOTHING, interval_text

FILES = (*PAGE, "grid.csv", "grid_means.csv", "sync.csv")
DASH = "A dash: there is no test; Methods have the reasons."
TESTED = ("t", "df", "p", "p corrected", "p by ranks", "g")


def write_comparison(folder: Path, facts: Mapping[str, str], study: Study, results: Results) -> str:
    """Writes results.json, results.md and index.html, and tables of series;
    returns methods and warnings.
    """
    lines = methods(facts, study, results)
    tables = course_tables(study, results.courses) if results.courses else {}
    words = {
        outcome.kind.title: sentences(study, outcome.kind, outcome.comparisons)
        for outcome in results.outcomes
    }
    json = {**facts, "methods": "\n".join(lines), "sentences": words, **as_json(study, results)}
    _, written = write_files(
        folder,
        "Comparison",
        json,
        tables=tables,
        title="Expressions by condition",
        generator="fer-vit compare",
        facts=facts,
        sections=sections(study, results, words, lines),
    )
    return "\n".join([*lines, written])


def sections(
    study: Study, results: Results, words: Mapping[str, list[str]], lines: Sequence[str]
) -> list[Section]:
    """Returns the parts of the page: the results in words first, then differences,
    means and methods.
    """
    parts = [Section(f"{title}: results", "", [], lines=text) for title, text in words.items()]
    for outcome in results.outcomes:
        parts += outcome_sections(outcome)
    title, _, form, *_ = study.kinds[0]
    if any(mean["mean"] is not None for row in results.repeated.values() for mean in row.values()):
        parts.append(means_section(f"{title}: ICC(1)", results.repeated, ".2f"))
    if results.mixed is not None:
        parts.append(tests_section(f"{title}, mixed model", results.mixed, form))
    if results.courses:
        parts += course_sections(study, results.courses)
    parts.append(Section("Methods", lines[0], counts_table(study), lines=lines[1:]))
    return parts


def counts_table(study: Study) -> list[list[str]]:
    """Returns the numbers of persons, photos or clips, and faces by condition."""
    sizes = study.counts()
    rows = [["", *next(iter(sizes.values()))]]
    for name, row in sizes.items():
        rows.append([name, *map(str, row.values())])
    return rows


def outcome_sections(outcome: Outcome) -> list[Section]:
    """Returns the differences, then the means, of one kind of measures."""
    kind = outcome.kind
    return [
        tests_section(kind.title, outcome.comparisons, kind.form),
        means_section(kind.title, outcome.means, kind.form),
    ]


def means_section(title: str, means: Means, form: str, text: str = "") -> Section:
    """Returns the table and the chart of some results."""
    rows = [["", *next(iter(means.values()))]]
    lines = {}
    for name, row in means.items():
        rows.append([name, *(interval_text(mean, form) for mean in row.values())])
        for condition, mean in row.items():
            lines[printable(f"{name}, {condition}")] = mean
    return Section(title, text, rows, intervals=interval_chart(lines, form))


def tests_section(title: str, comparisons: Sequence[Comparison], form: str) -> Section:
    """Returns the table of some tests; a missing one has dashes."""
    known = [
        comparison.test for comparison in comparisons if not isinstance(comparison.test, Missing)
    ]
    columns = [name for name in TESTED if known and name in known[0]]
    rows = [["", "difference", *columns]]
    differences = {}
    for comparison in comparisons:
        test = comparison.test
        if isinstance(test, Missing):
            cells = [NOTHING] * (1 + len(columns))
        else:
            differences[printable(comparison.name)] = test["difference"]
            cells = [interval_text(test["difference"], _signed(form))]
            cells += [f"{test[column]:.2g}" for column in columns]
        rows.append([comparison.name, *cells])
    text = DASH if len(known) < len(comparisons) else ""
    chart = interval_chart(differences, _signed(form))
    return Section(f"{title}: differences", text, rows, intervals=chart)


def _signed(form: str) -> str:
    """Returns a format of differences."""
    return f"+{form.removeprefix('+')}"


def course_sections(study: Study, courses: Courses) -> list[Section]:
    """Returns the chart of the mean series, and the synchrony."""
    curves = {}
    for place, label in enumerate(study.labels):
        curves[printable(label)] = {
            printable(name): mean_course(cells[:, :, place])[:3]
            for name, cells in courses.persons.items()
        }
    times = courses.step * (np.arange(courses.series.shape[1], dtype=float) + 0.5)
    filled = np.isfinite(courses.series[:, :, 0])
    last = courses.series.shape[1] - np.argmax(filled[:, ::-1], axis=1)
    empty = 1 - filled.sum() / np.where(filled.any(1), last, 0).sum()
    text = (
        f"The mean over persons in bins of {courses.step:g} s, with its 95% t interval. "
        f"{empty:.1%} of the bins up to the last face of each clip are empty. grid.csv has the "
        "series of each clip, grid_means.csv the means."
    )
    picture = Pil.fromarray(series_figure(times, curves, study.kinds[0].title))
    several = [
        f"Persons with several clips in {name}, whose series are averaged: {number}."
        for name, number in courses.several.items()
        if number
    ]
    parts = [Section("Over time", text, [], picture, several)]
    if courses.synchrony:
        note = (
            "Leave-one-out inter-subject correlation: of each person with the mean of all others, "
            "averaged by Fisher's z; 95% percentile bootstrap over persons. sync.csv has the "
            "correlation of each person. All persons of a condition must have seen the same."
        )
        parts.append(means_section("Synchrony", courses.synchrony, ".2f", note))
    return parts
