"""Writes a comparison: results in words, the methods for a paper, tables and charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fer_vit.comparison.kinds import MeasureKind
from fer_vit.comparison.prose import methods, missing_lines, p_text, sentences
from fer_vit.comparison.results import (
    ALPHA,
    Comparison,
    Contrast,
    ContrastTest,
    ContrastWithoutTest,
    Courses,
    Estimates,
    Outcome,
    Results,
)
from fer_vit.comparison.results_json import results_json
from fer_vit.comparison.study import Study
from fer_vit.comparison.tables import COMPARISON_TABLES, comparison_tables
from fer_vit.errors import printable
from fer_vit.geometry import Array
from fer_vit.report.intervals import Direction, IntervalChart, difference_chart, grouped_chart
from fer_vit.report.plots import Course, series_plots
from fer_vit.report.results_page import RESULTS_FILES, ResultsPage, Section, write_files
from fer_vit.stats.estimate import NO_RESULT, Estimate, estimate_text, is_share_difference
from fer_vit.stats.means import average
from fer_vit.stats.series import mean_course
from fer_vit.wording import counted

COMPARISON_FILES = (*RESULTS_FILES, *COMPARISON_TABLES)
DASH = "A dash: there is no test, for a reason above."
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
MAX_DRAWN_BINS = 500  # most bins of a curve on the page
MAX_ROWS = 12  # most differences that a section shows at once
MAX_CHARTED = 10  # differences that a section with more than `MAX_ROWS` shows at once


def write_comparison(
    folder: Path,
    facts: Mapping[str, str],
    study: Study,
    results: Results,
    overwrite: bool = True,
) -> str:
    """Writes results.json, results.md, index.html and tables; returns text to print.

    The text has the methods, missing tests and the names of the files. `overwrite` is as for
    `write_files`.
    """
    method_lines = methods(facts, study, results)
    shown = replace(results, outcomes=[outcome.with_titles() for outcome in results.outcomes])
    words = {}
    missing = []
    for outcome in shown.outcomes:
        words[outcome.kind.title] = outcome_lines(outcome)
        missing += missing_lines(outcome.kind.title, outcome.comparisons)

    json = results_json(facts, method_lines, words, study, results)
    page = ResultsPage(
        title="Expressions by condition",
        heading="Comparison",
        generator="fer-vit compare",
        facts=facts,
        note=MEASURES_NOTE,
        sections=study_sections(study, shown, method_lines),
    )
    tables = comparison_tables(study, results.courses)
    _, written = write_files(folder, page, json, tables, overwrite)
    return "\n".join([*method_lines, *map(printable, missing), written])


def study_sections(study: Study, results: Results, method_lines: Sequence[str]) -> list[Section]:
    """Returns the sections of the page: one for each kind of measures, then further results."""
    expressions = study.kinds[0]
    sections = [outcome_section(outcome) for outcome in results.outcomes]
    if results.courses:
        sections.append(courses_section(study, results.courses))
    if has_means(results.intraclass):
        sections.append(intraclass_section(expressions, results.intraclass))
    methods_section = Section(
        title="Methods",
        text=method_lines[0],
        rows=counts_table(study),
        lines=method_lines[1:],
    )
    sections.append(methods_section)
    return sections


def counts_table(study: Study) -> list[list[str]]:
    """Returns the numbers of persons, photos or clips, and faces by condition."""
    rows = [["", "persons", "photos or clips", "faces", "without a face"]]
    for condition, counts in study.counts().items():
        rows.append(
            [
                condition,
                str(counts.persons),
                str(counts.observations),
                str(counts.faces),
                str(counts.without_face),
            ]
        )
    return rows


def outcome_lines(outcome: Outcome) -> list[str]:
    """Returns the results of an outcome in words, and the reasons of missing tests."""
    lines = sentences(outcome.kind, outcome.comparisons)
    lines += missing_lines(outcome.kind.title, outcome.comparisons)
    return lines


def outcome_section(outcome: Outcome) -> Section:
    """Returns the section about one kind of measures: words, differences, tests and means."""
    kind = outcome.kind
    tested = outcome.tested
    text = f"Measured: {kind.phrase}."
    if tested:
        pair = common_pair(outcome.comparisons)
        which = "each difference" if pair is None else f"each difference ({pair})"
        text += (
            f" Below, {which} with its 95% interval, which is not corrected; a filled dot has p < "
            f"{ALPHA} after Holm's correction for the {counted(len(tested), 'test')} of this "
            "section. g is the difference in standard deviations (Hedges' g)."
        )

    chart = differences_chart(outcome.comparisons, kind.form)
    tests = Section(
        "Tests", tests_note(outcome.comparisons), tests_table(outcome.comparisons, kind.form)
    )
    if len(tested) > MAX_ROWS:
        text += (
            f" The chart has the {MAX_CHARTED} differences that are largest for the width of their "
            "intervals; Tests has all."
        )
        tests = tests._replace(intervals=chart)
        clearest = sorted(tested, key=clearness, reverse=True)[:MAX_CHARTED]
        chart = differences_chart(clearest, kind.form)
    return Section(
        title=kind.title,
        text=text,
        lines=outcome_lines(outcome),
        intervals=chart,
        more=[tests, means_section(outcome)],
    )


def clearness(comparison: ContrastTest) -> float:
    """Returns the size of a difference, divided by the width of its interval."""
    difference = comparison.test.difference
    width = difference.high - difference.low
    return abs(difference.mean) / width if width else math.inf


def means_section(outcome: Outcome) -> Section:
    """Returns the section with the means of measures and the standard deviations of persons."""
    form = outcome.kind.form
    deviation_form = form.removeprefix("+")
    columns = [""]
    for condition in next(iter(outcome.means.values())):
        columns += [condition, f"SD, {condition}"]
    rows = [columns]
    for measure, by_condition in outcome.means.items():
        cells = [measure]
        for mean in by_condition.values():
            cells.append(estimate_text(mean, form))
            cells.append(NO_RESULT if mean.sd is None else f"{mean.sd:{deviation_form}}")
        rows.append(cells)
    return Section(
        title="Means by condition",
        text=MEANS,
        rows=rows,
        intervals=estimates_chart(outcome.means, form, outcome.kind.phrase),
    )


def intraclass_section(expressions: MeasureKind, intraclass: Estimates) -> Section:
    """Returns the section with the ICC(1) of expressions."""
    return Section(
        title=f"{expressions.title}: ICC(1)",
        text=ICC,
        intervals=estimates_chart(intraclass, ".2f", "ICC(1)"),
        more=[Section("Table", rows=estimates_table(intraclass, ".2f"))],
    )


def has_means(estimates: Estimates) -> bool:
    """Returns whether any result has a mean."""
    for by_condition in estimates.values():
        if any(estimate.mean is not None for estimate in by_condition.values()):
            return True
    return False


def estimates_table(estimates: Estimates, form: str) -> list[list[str]]:
    """Returns a table of results, with a row for each measure and a column for each condition."""
    conditions = next(iter(estimates.values()))
    rows = [["", *conditions]]
    for measure, by_condition in estimates.items():
        cells = [estimate_text(estimate, form) for estimate in by_condition.values()]
        rows.append([measure, *cells])
    return rows


def estimates_chart(
    estimates: Mapping[str, Mapping[str, Estimate]], form: str, title: str
) -> IntervalChart | None:
    """Returns a chart of results by measure and condition; `title` names the numbers."""
    groups: dict[str, dict[str, Estimate]] = {}
    for measure, by_condition in estimates.items():
        group = {printable(condition): estimate for condition, estimate in by_condition.items()}
        groups[printable(measure)] = group
    return grouped_chart(groups, form, title)


def common_pair(comparisons: Sequence[Contrast]) -> str | None:
    """Returns the pair of conditions of all comparisons; None if there are several pairs."""
    pairs = {comparison.pair for comparison in comparisons}
    return pairs.pop() if len(pairs) == 1 else None


def row_name(comparison: Contrast, pair: str | None) -> str:
    """Returns the name of a comparison in a list; without its pair if all share this `pair`."""
    return printable(comparison.name if pair is None else comparison.measure)


def tests_note(comparisons: Sequence[Comparison]) -> str:
    """Returns what dashes in `tests_table` mean; empty if the table has no dash."""
    has_dash = any(isinstance(comparison, ContrastWithoutTest) for comparison in comparisons)
    return DASH if has_dash else ""


def tests_table(comparisons: Sequence[Comparison], form: str) -> list[list[str]]:
    """Returns a table of the numbers of tests; `form` is the format of the measures."""
    pair = common_pair(comparisons)
    columns: list[str] = []
    for comparison in comparisons:
        if isinstance(comparison, ContrastTest):
            columns = list(tested_cells(comparison))  # all tests of a table have the same columns

    rows = [["", pair or "difference", *columns]]
    for comparison in comparisons:
        if isinstance(comparison, ContrastTest):
            difference = estimate_text(comparison.test.difference, signed(form))
            cells = list(tested_cells(comparison).values())
        else:
            difference = NO_RESULT
            cells = [NO_RESULT] * len(columns)
        rows.append([row_name(comparison, pair), difference, *cells])
    return rows


def tested_cells(comparison: ContrastTest) -> dict[str, str]:
    """Returns the numbers of a test, except for the difference, by column."""
    test = comparison.test
    return {
        "p corrected": p_text(comparison.p_corrected),
        "g": f"{test.g:.2f}",
        "t": f"{test.t:.2f}",
        "df": f"{test.df:.2f}",
        "p": p_text(test.p),
        "p by ranks": p_text(test.p_by_ranks),
    }


def differences_chart(comparisons: Sequence[Comparison], form: str) -> IntervalChart | None:
    """Returns a chart of tested differences; `form` is the format of the measures."""
    pair = common_pair(comparisons)
    direction = Direction("lower in the first-named", "higher in the first-named")
    if pair is not None:
        second = printable(comparisons[0].second)
        direction = Direction(f"lower in {second}", f"higher in {second}")

    differences = {}
    unclear = []
    for comparison in comparisons:
        if isinstance(comparison, ContrastTest):
            name = row_name(comparison, pair)
            differences[name] = comparison.test.difference
            if not comparison.is_clear:
                unclear.append(name)

    title = printable(pair or "difference")
    if is_share_difference(signed(form)):
        title += ", percentage points"
    return difference_chart(differences, signed(form), title, unclear, direction)


def signed(form: str) -> str:
    """Returns the format of differences of measures; `form` is the format of the measures."""
    return f"+{form.removeprefix('+')}"


def courses_section(study: Study, courses: Courses) -> Section:
    """Returns the section with the mean series as curves."""
    bins = courses.of_clips.shape[1]
    joined = math.ceil(bins / MAX_DRAWN_BINS)  # number of bins that are drawn as one
    step = joined * courses.bin_seconds
    times = step * (np.arange(math.ceil(bins / joined), dtype=float) + 0.5)  # middles of bins
    curves: dict[str, dict[str, Course]] = {}  # curves by expression, then by condition
    for index, label in enumerate(study.labels):
        by_condition: dict[str, Course] = {}
        for condition, series in courses.of_persons.items():
            course = mean_course(join_bins(series[:, :, index], joined))
            by_condition[printable(condition)] = Course(course.mean, course.low, course.high)
        curves[printable(label)] = by_condition

    resting = " or of rest" if study.rest else ""
    text = (
        f"{study.kinds[0].title}: the mean over persons in bins of {courses.bin_seconds:g} s, with "
        f"its 95% t interval at each time. {empty_share(courses.of_clips):.1%} of the bins up to "
        f"the last face of each clip are without a face{resting}. grid.csv has the series of each "
        "clip, grid_means.csv the means."
    )
    if joined > 1:
        text += f" The curves are drawn in bins of {step:g} s."
    lines = []
    for condition, persons in courses.averaged_persons.items():
        if persons:
            lines.append(
                f"Persons with several clips in {condition}, whose series are averaged: {persons}."
            )
    return Section(
        title="Over time",
        text=text,
        lines=lines,
        plots=series_plots(times, curves, study.kinds[0].form),
        curves=[printable(condition) for condition in courses.of_persons],
    )


def empty_share(series: Array) -> float:
    """Returns the share of empty bins in series (O, T, C), up to the last face of each."""
    has_face = np.isfinite(series[:, :, 0])  # (O, T)
    until_last = has_face.shape[1] - np.argmax(has_face[:, ::-1], axis=1)  # (O,), number of bins
    until_last[~has_face.any(1)] = 0
    return float(1 - has_face.sum() / until_last.sum())


def join_bins(series: Array, num_joined: int) -> Array:
    """Returns series (P, T) in longer bins: means over `num_joined` adjacent bins.

    NaN values do not count. The last bin may be shorter.
    """
    bins = np.arange(series.shape[1]) // num_joined
    return average(series.T, bins, int(bins[-1]) + 1).T
