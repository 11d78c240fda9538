"""The page of a comparison: sections with sentences, charts and tables from rows."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fer_vit.comparison.comparison_rows import (
    ALPHA,
    CONDITIONS,
    INTRACLASS,
    MEAN,
    MEANS,
    SD,
    Contrast,
    drawn_contrasts,
    find_contrasts,
    main_contrasts,
)
from fer_vit.comparison.measures import SHARES, Kind, Measure, probability_kind
from fer_vit.comparison.sentences import PROSE
from fer_vit.comparison.study import Courses, Pair, Study
from fer_vit.errors import printable
from fer_vit.geometry import Array
from fer_vit.heads import SMILE_NOTE, WEAK_R
from fer_vit.report.plots import ChartRow, IntervalChart, interval_chart, series_plots
from fer_vit.report.results_page import Page, Section
from fer_vit.stats.estimate import (
    NO_RESULT,
    estimate_text,
    is_share_difference,
    p_text,
)
from fer_vit.stats.means import average
from fer_vit.stats.results import Results
from fer_vit.stats.series import MeanCourse, mean_course

MAX_DRAWN_BINS = 500  # most bins of a curve on the page
MAX_ROWS = 12  # most differences that a section shows at once
MAX_CHARTED = 10  # differences that a section with more than `MAX_ROWS` shows at once


def comparison_page(
    results: Results,
    study: Study,
    courses: Courses | None,
    sentences: Mapping[str, Sequence[str]],
    methods: Sequence[str],
) -> Page:
    """Returns the page.

    Args:
        results: The rows.
        study: The study that they are of.
        courses: The series; None: not requested.
        sentences: The results in words, by title of a kind of measures.
        methods: The methods, and lines about what is left out.
    """
    sections = []
    for kind in study.measures:
        sections.append(kind_section(results, study, kind, sentences[kind.title]))
    if courses is not None:
        sections.append(courses_section(study, courses))
    if any(row.estimate.mean is not None for row in results.select(set=INTRACLASS)):
        sections.append(intraclass_section(results, study))
    text, *left_out = methods
    sections.append(Section("Methods", text, counts_table(results, study), left_out))
    return Page(
        title="Expressions by condition",
        heading="Comparison",
        generator="fer-vit compare",
        facts=results.facts,
        note=PROSE.text("note", planned=study.planned),
        sections=sections,
    )


def counts_table(results: Results, study: Study) -> list[list[str]]:
    """Returns the numbers of persons, photos or clips, and faces by condition."""
    table: list[list[str]] = []
    for condition in study.observations.conditions:
        numbers = results.by_measure["", CONDITIONS, condition]
        if not table:
            table.append(["", *numbers])
        table.append([condition, *(str(row.estimate.n) for row in numbers.values())])
    return table


# ------------------------------------------------------------------------------ a kind of measures


def kind_section(results: Results, study: Study, kind: Kind, sentences: Sequence[str]) -> Section:
    """Returns the section about one kind of measures: words, differences, tests and means."""
    measures = study.measures[kind]
    pair = study.only_pair
    num_aside = study.count_aside(measures)
    main = main_contrasts(results, study, kind)
    drawn = drawn_contrasts(results, study, kind)
    charted = choose_charted(drawn)
    tests = Section(
        title="Tests",
        text=PROSE.text("dashes", contrasts=main, num_aside=num_aside),
        rows=tests_table(find_contrasts(results, study, kind), pair, kind),
    )
    smile_note = ""
    outcomes = {measure.outcome for of_kind in study.measures.values() for measure in of_kind}
    if kind == SHARES and {SHARES.prefix + "neutral", "smile"} <= outcomes:
        smile_note = SMILE_NOTE
    if len(charted) < len(drawn):
        tests = tests._replace(intervals=differences_chart(drawn, pair, kind.form))
    return Section(
        title=kind.title,
        text=PROSE.text(
            "measured",
            kind=kind,
            num_tests=family_size(results, study, kind),
            planned=study.planned,
            pair=pair,
            alpha=ALPHA,
            charted=len(charted) if len(charted) < len(drawn) else 0,
            num_aside=num_aside,
            weak_r=WEAK_R,
            smile_note=smile_note,
        ),
        lines=sentences,
        intervals=differences_chart(charted, pair, kind.form),
        more=[tests, means_section(results, study, kind)],
    )


def family_size(results: Results, study: Study, kind: Kind) -> int:
    """Returns the number of tests for which p is corrected; 0 if the kind has no test."""
    num_tests = {}
    for each in study.measures:
        main = main_contrasts(results, study, each)
        num_tests[each] = sum(contrast.is_tested for contrast in main)
    if study.planned and num_tests[kind]:
        return sum(num_tests.values())
    return num_tests[kind]


def choose_charted(drawn: Sequence[Contrast]) -> Sequence[Contrast]:
    """Returns the contrasts that a chart shows at once: of many, the clearest."""
    if len(drawn) <= MAX_ROWS:
        return drawn
    return sorted(drawn, key=clearness, reverse=True)[:MAX_CHARTED]


def row_name(contrast: Contrast, pair: Pair | None) -> str:
    """Returns the name of a contrast in a list; without its pair if all share this `pair`."""
    return printable(contrast.title if pair is None else contrast.measure.title)


def clearness(contrast: Contrast) -> float:
    """Returns the size of a difference, divided by the width of its interval."""
    difference = contrast.directed
    width = difference.high - difference.low
    return difference.mean / width if width else math.inf


def signed(form: str) -> str:
    """Returns the format of differences of measures; `form` is the format of the measures."""
    return f"+{form.removeprefix('+')}"


def difference_rows(contrasts: Iterable[Contrast], pair: Pair | None) -> list[ChartRow]:
    """Returns tested differences for a chart or figure; `pair` is as for `row_name`."""
    rows = []
    for contrast in contrasts:
        name = row_name(contrast, pair)
        rows.append(ChartRow(name, contrast.difference.estimate, is_clear=contrast.is_clear))
    return rows


def differences_chart(
    tested: Iterable[Contrast], pair: Pair | None, form: str
) -> IntervalChart | None:
    """Returns a chart of tested differences; `form` is the format of the measures."""
    higher = "the first-named"
    title = "difference"
    if pair is not None:
        higher = printable(pair.second)
        title = printable(pair.name)
    if is_share_difference(signed(form)):
        title += ", percentage points"
    rows = difference_rows(tested, pair)
    return interval_chart(rows, signed(form), title, f"lower in {higher}", f"higher in {higher}")


def tests_table(contrasts: Sequence[Contrast], pair: Pair | None, kind: Kind) -> list[list[str]]:
    """Returns a table of the numbers of tests of a kind of measures."""
    columns = ["p corrected", "g", "t", "df", "p", "p by ranks"]
    if not any(contrast.is_tested for contrast in contrasts):
        columns = []
    table = [["", pair.name if pair else "difference", *columns]]
    for contrast in contrasts:
        cells = [NO_RESULT] * len(columns)
        if contrast.is_tested:
            cells = [
                p_text(contrast.difference.p),
                f"{contrast.g:.2f}",
                f"{contrast.t:.2f}",
                f"{contrast.df:.2f}",
                p_text(contrast.p),
                p_text(contrast.p_by_ranks),
            ]
        difference = estimate_text(contrast.difference.estimate, signed(kind.form))
        if contrast.is_tested and contrast.is_negligible:
            difference = PROSE.text("negligible_cell", kind=kind)
        table.append([row_name(contrast, pair), difference, *cells])
    return table


def means_section(results: Results, study: Study, kind: Kind) -> Section:
    """Returns the section with the means of measures and the standard deviations of persons."""
    form = kind.form
    columns = [""]
    for condition in study.observations.conditions:
        columns += [condition, f"SD, {condition}"]
    table = [columns]
    for measure in study.measures[kind]:
        cells = [measure.title]
        for condition in study.observations.conditions:
            rows = results.by_measure[measure.column, MEANS, condition]
            cells.append(estimate_text(rows[MEAN].estimate, form))
            cells.append(estimate_text(rows[SD].estimate, form.removeprefix("+")))
        table.append(cells)
    rows_of_chart = mean_rows(results, study, study.measures[kind])
    return Section(
        title="Means by condition",
        text=PROSE.text("means"),
        rows=table,
        intervals=interval_chart(rows_of_chart, form, kind.phrase),
    )


def mean_rows(results: Results, study: Study, measures: Iterable[Measure]) -> list[ChartRow]:
    """Returns the means of measures by condition for a chart or figure."""
    rows = []
    for measure in measures:
        for condition in study.observations.conditions:
            mean = results.by_measure[measure.column, MEANS, condition][MEAN]
            rows.append(ChartRow(printable(condition), mean.estimate, printable(measure.title)))
    return rows


def intraclass_section(results: Results, study: Study) -> Section:
    """Returns the section with the ICC(1) of expressions."""
    form = ".2f"
    kind = probability_kind(study.rest)
    table = [["", *study.observations.conditions]]
    rows = []
    for measure in study.measures[kind]:
        cells = [measure.name]
        for row in results.select(part=measure.column, set=INTRACLASS):
            cells.append(estimate_text(row.estimate, form))
            rows.append(ChartRow(printable(row.group), row.estimate, printable(measure.name)))
        table.append(cells)
    return Section(
        title=f"{kind.title}: {INTRACLASS}",
        text=PROSE.text("intraclass"),
        intervals=interval_chart(rows, form, INTRACLASS),
        more=[Section("Table", rows=table)],
    )


# ------------------------------------------------------------------------------------- over time


def courses_section(study: Study, courses: Courses) -> Section:
    """Returns the section with the mean series as curves."""
    kind = probability_kind(study.rest)
    bins = courses.of_clips.shape[1]
    joined = math.ceil(bins / MAX_DRAWN_BINS)  # number of bins that are drawn as one
    step = joined * courses.bin_seconds
    times = step * (np.arange(math.ceil(bins / joined), dtype=float) + 0.5)  # middles of bins
    curves: dict[str, list[MeanCourse]] = {}  # by expression, one for each condition
    for index, label in enumerate(study.labels):
        curves[printable(label)] = [
            mean_course(join_bins(series[:, :, index], joined))
            for series in courses.of_persons.values()
        ]
    text = PROSE.text(
        "courses",
        title=kind.title,
        bin_seconds=courses.bin_seconds,
        empty=empty_share(courses.of_clips),
        rest=study.rest,
        drawn_seconds=step,
    )
    return Section(
        title="Over time",
        text=text,
        lines=PROSE.lines("averaged_clips", persons=courses.averaged_persons),
        plots=series_plots(times, curves, kind.form),
        curves=[printable(condition) for condition in courses.of_persons],
    )


def empty_share(series: Array) -> float:
    """Returns the share of empty bins in series (O, T, L), up to the last face of each."""
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
