"""Writes a comparison: results in words, the methods for a paper, tables and charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fer_vit.comparison.averages import average
from fer_vit.comparison.kinds import Kind
from fer_vit.comparison.prose import ALPHA, methods, missing_lines, p_text, sentences
from fer_vit.comparison.results import (
    Comparison,
    Courses,
    Means,
    Outcome,
    Results,
    as_json,
    course_tables,
    measure_rows,
)
from fer_vit.comparison.series import mean_course
from fer_vit.comparison.statistics import Missing
from fer_vit.comparison.study import Study
from fer_vit.errors import printable
from fer_vit.evaluation.page import EVALUATION_FILES, ResultsPage, Section, write_files
from fer_vit.geometry import Array
from fer_vit.report.estimate import NO_RESULT, Estimate, estimate_text, is_share_difference
from fer_vit.report.intervals import Direction, difference_chart, grouped_chart
from fer_vit.report.plots import Course, series_plots
from fer_vit.wording import counted

MEASURES_FILE = "measures.csv"
COMPARISON_FILES = (*EVALUATION_FILES, MEASURES_FILE, "grid.csv", "grid_means.csv", "sync.csv")
MIXED = "Mixed model"
DASH = "A dash: there is no test, for a reason above."
TESTED = ("p corrected", "g", "t", "df", "p", "p by ranks")
ICC = (
    "The share of the variance that lies between persons (Shrout & Fleiss 1979): near 1, repeated "
    "photos or clips agree; below 0, they differ more within persons than between them."
)
MEASURES_NOTE = (
    "A measure describes what the model sees in faces: the words that annotators would choose, not "
    "what persons felt. Each section corrects for its tests alone. Report the measure that you "
    "chose before the study: a single planned test has the p without correction. A difference that "
    "you found here needs new data."
)
MEANS = (
    "The mean over persons with its 95% interval, and the standard deviation (SD) of persons. "
    "Where the same persons are compared, these intervals do not show whether conditions differ; "
    "the interval of the difference does."
)
MIXED_NOTE = (
    "Differences from the first condition, estimated from all photos or clips, with 95% intervals. "
    "Persons in one condition only count as well."
)
MOST_DRAWN = 500  # bins of a curve on the page
MOST_ROWS = 12  # differences that a section shows at once
MAX_CHARTED = 10  # which it shows of more


def write_comparison(
    folder: Path,
    facts: Mapping[str, str],
    study: Study,
    results: Results,
    overwrite: bool = True,
) -> str:
    """Writes results.json, results.md, index.html and series; returns methods and warnings.

    `overwrite`: as for `write_files`.
    """
    lines = methods(facts, study, results)
    shown = replace(results, outcomes=[outcome.with_titles() for outcome in results.outcomes])
    words = {}
    missing = []
    for outcome in shown.outcomes:
        words[outcome.kind.title] = outcome_lines(study, outcome)
        missing += missing_lines(outcome.kind.title, outcome.comparisons)
    missing += missing_lines(MIXED, results.mixed or [])
    tables = {MEASURES_FILE: measure_rows(study)}
    if results.courses:
        tables |= course_tables(study, results.courses)

    json: dict[str, Any] = dict(facts)
    json["methods"] = "\n".join(lines)
    json["sentences"] = words
    json |= as_json(study, results)
    page = ResultsPage(
        title="Expressions by condition",
        heading="Comparison",
        generator="fer-vit compare",
        facts=facts,
        note=MEASURES_NOTE,
        sections=study_sections(study, shown, lines),
    )
    _, written = write_files(folder, page, json, tables, overwrite)
    return "\n".join([*lines, *map(printable, missing), written])


def study_sections(study: Study, results: Results, lines: Sequence[str]) -> list[Section]:
    """Returns the parts of the page: a section for each kind of measures, and the methods."""
    parts = [outcome_section(study, outcome) for outcome in results.outcomes]
    if results.courses:
        parts += course_sections(study, results.courses)
    expressions = study.kinds[0]
    if results.mixed is not None:
        tests = tests_section(f"{expressions.title}: mixed model", results.mixed, expressions.form)
        tests = tests._replace(text=MIXED_NOTE, lines=missing_lines(MIXED, results.mixed))
        parts.append(fold_table(tests))
    if _has_means(results.repeated):
        repeated = means_section(
            f"{expressions.title}: ICC(1)", results.repeated, ".2f", "ICC(1)", ICC
        )
        parts.append(fold_table(repeated))
    parts.append(Section("Methods", lines[0], counts_table(study), lines=lines[1:]))
    return parts


def _has_means(rows: Mapping[str, Mapping[str, Estimate]]) -> bool:
    """Returns whether any result of any row has a mean."""
    results = chain.from_iterable(row.values() for row in rows.values())
    return any(result.mean is not None for result in results)


def counts_table(study: Study) -> list[list[str]]:
    """Returns the numbers of persons, photos or clips, and faces by condition."""
    sizes = study.counts()
    columns = next(iter(sizes.values()))
    rows = [["", *columns]]
    for name, row in sizes.items():
        rows.append([name, *map(str, row.values())])
    return rows


def outcome_lines(study: Study, outcome: Outcome) -> list[str]:
    """Returns the results of an outcome in words, and why comparisons are missing."""
    missing = missing_lines(outcome.kind.title, outcome.comparisons)
    return [*sentences(study, outcome.kind, outcome.comparisons), *missing]


def outcome_section(study: Study, outcome: Outcome) -> Section:
    """Returns the results of one kind of measures: in words, as differences, then the rest."""
    kind = outcome.kind
    tested = sum(not isinstance(comparison.test, Missing) for comparison in outcome.comparisons)
    text = f"Measured: {kind.phrase}."
    if tested:
        pair = common_pair(outcome.comparisons)
        which = "each difference" if pair is None else f"each difference ({pair})"
        text += (
            f" Below, {which} with its 95% interval, which is not corrected; a filled dot has p < "
            f"{ALPHA} after Holm's correction for the {counted(tested, 'test')} of this section. "
            "g is the difference in standard deviations (Hedges' g)."
        )
    tests = tests_section("Tests", outcome.comparisons, kind.form)
    differences = tests.intervals
    if tested > MOST_ROWS:
        text += (
            f" The chart has the {MAX_CHARTED} differences that are largest for the width of their "
            "intervals; Tests has all."
        )
        clearest = sorted(outcome.comparisons, key=clearness, reverse=True)[:MAX_CHARTED]
        differences = tests_section("", clearest, kind.form).intervals
    else:
        tests = tests._replace(intervals=None)
    return Section(
        title=kind.title,
        text=text,
        lines=outcome_lines(study, outcome),
        intervals=differences,
        more=[tests, deviations_section(outcome.means, kind)],
    )


def clearness(comparison: Comparison) -> float:
    """Returns the size of a difference by the width of its interval; 0 without a test."""
    test = comparison.test
    if isinstance(test, Missing):
        return 0.0
    difference = test["difference"]
    width = difference.high - difference.low
    return abs(difference.mean) / width if width else math.inf


def fold_table(section: Section) -> Section:
    """Returns a section whose chart shows all numbers of its table, with the table on request."""
    table = Section("Table", rows=section.rows)
    return section._replace(rows=(), more=[table])


def means_section(
    title: str,
    means: Mapping[str, Mapping[str, Estimate]],
    form: str,
    unit: str,
    text: str = "",
) -> Section:
    """Returns the table and the chart of some results; `unit` is what the numbers are."""
    conditions = next(iter(means.values()))
    rows = [["", *conditions]]
    groups: dict[str, dict[str, Estimate]] = {}
    for name, row in means.items():
        rows.append([name, *(estimate_text(mean, form) for mean in row.values())])
        groups[printable(name)] = {printable(condition): mean for condition, mean in row.items()}
    return Section(title, text, rows, intervals=grouped_chart(groups, form, unit))


def deviations_section(means: Means, kind: Kind) -> Section:
    """Returns the means of a kind, whose table also has the standard deviation of persons."""
    form = kind.form
    section = means_section("Means by condition", means, form, kind.phrase, MEANS)
    columns = [""]
    for condition in next(iter(means.values())):
        columns += [condition, f"SD, {condition}"]
    plain = form.removeprefix("+")
    rows = [columns]
    for name, row in means.items():
        cells = [name]
        for mean in row.values():
            deviation = mean.sd
            cells.append(estimate_text(mean, form))
            cells.append(NO_RESULT if deviation is None else f"{deviation:{plain}}")
        rows.append(cells)
    return section._replace(rows=rows)


def common_pair(comparisons: Sequence[Comparison]) -> str | None:
    """Returns the two conditions of all comparisons; None: there are several pairs."""
    pairs = {comparison.pair for comparison in comparisons}
    return pairs.pop() if len(pairs) == 1 else None


def tests_section(title: str, comparisons: Sequence[Comparison], form: str) -> Section:
    """Returns the table and the chart of some tests; a missing one has dashes."""
    known = []
    for comparison in comparisons:
        if not isinstance(comparison.test, Missing):
            known.append(comparison.test)
    columns = []
    if known:
        columns = [name for name in TESTED if name in known[0]]

    pair = common_pair(comparisons)
    direction = Direction("lower in the first-named", "higher in the first-named")
    if pair is not None:
        second = printable(comparisons[0].second)
        direction = Direction(f"lower in {second}", f"higher in {second}")
    rows = [["", pair or "difference", *columns]]
    differences = {}
    unclear = []
    for comparison in comparisons:
        test = comparison.test
        name = printable(comparison.name if pair is None else comparison.measure)
        if isinstance(test, Missing):
            cells = [NO_RESULT] * (1 + len(columns))
        else:
            differences[name] = test["difference"]
            if test["p corrected"] >= ALPHA:
                unclear.append(name)
            cells = [estimate_text(test["difference"], _signed(form))]
            for column in columns:
                number = test[column]
                cells.append(p_text(number) if column.startswith("p") else f"{number:.2f}")
        rows.append([name, *cells])
    text = DASH if len(known) < len(comparisons) else ""
    form = _signed(form)
    unit = printable(pair or "difference")
    if is_share_difference(form):
        unit += ", percentage points"
    chart = difference_chart(differences, form, unit, unclear, direction)
    return Section(title, text, rows, intervals=chart)


def _signed(form: str) -> str:
    """Returns a format of differences."""
    return f"+{form.removeprefix('+')}"


def course_sections(study: Study, courses: Courses) -> list[Section]:
    """Returns the mean series as curves, and the synchrony."""
    bins = courses.series.shape[1]
    joined = math.ceil(bins / MOST_DRAWN)
    drawn: dict[str, dict[str, Course]] = {}
    for index, label in enumerate(study.labels):
        curves: dict[str, Course] = {}
        for name, cells in courses.persons.items():
            mean, low, high, _ = mean_course(join_bins(cells[:, :, index], joined))
            curves[printable(name)] = Course(mean, low, high)
        drawn[printable(label)] = curves
    step = joined * courses.step
    times = step * (np.arange(math.ceil(bins / joined), dtype=float) + 0.5)  # middles of bins

    filled = np.isfinite(courses.series[:, :, 0])  # (O, T)
    until_last = bins - np.argmax(filled[:, ::-1], axis=1)  # (O,)
    until_last[~filled.any(1)] = 0
    empty = 1 - filled.sum() / until_last.sum()
    resting = " or of rest" if study.rest else ""
    text = (
        f"{study.kinds[0].title}: the mean over persons in bins of {courses.step:g} s, with its "
        f"95% t interval at each time. {empty:.1%} of the bins up to the last face of each clip "
        f"are without a face{resting}. grid.csv has the series of each clip, grid_means.csv the "
        "means."
    )
    if joined > 1:
        text += f" The curves are drawn in bins of {step:g} s."
    several = []
    for name, number in courses.several.items():
        if number:
            several.append(
                f"Persons with several clips in {name}, whose series are averaged: {number}."
            )
    over_time = Section(
        title="Over time",
        text=text,
        lines=several,
        plots=series_plots(times, drawn, study.kinds[0].form),
        curves=[printable(name) for name in courses.persons],
    )
    parts = [over_time]
    if courses.synchrony:
        note = (
            "Inter-subject correlation: the mean over pairs of persons, by Fisher's z, with the "
            "95% interval of the jackknife over persons. sync.csv has the correlation of each "
            "person with the mean of all others, which is higher. All persons of a condition must "
            "have seen the same."
        )
        parts.append(
            fold_table(means_section("Synchrony", courses.synchrony, ".2f", "correlation", note))
        )
    return parts


def join_bins(series: Array, number: int) -> Array:
    """Returns the means of each `number` of neighbouring bins of series (P, T); NaN do not count.

    The last bin may be shorter.
    """
    bins = np.arange(series.shape[1]) // number
    return average(series.T, bins, int(bins[-1]) + 1).T
