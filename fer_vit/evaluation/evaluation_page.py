"""The page of an evaluation: sections from rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fer_vit.errors import printable
from fer_vit.evaluation.cards import choose_cards
from fer_vit.evaluation.evaluation_rows import (
    ALL,
    ALTERED,
    COMPARED,
    COUNTS,
    DIFFERENCE,
    FACES,
    FOLDS,
    FOUND,
    GAP,
    GROUPS,
    MEANINGS,
    MEANS,
    MIN_GROUP,
    NEAR_DUPLICATES,
    OTHER,
    TOO_FEW,
    UNKNOWN,
    VOTES,
    WITHOUT_NEAR_DUPLICATES,
    count_row,
)
from fer_vit.geometry import IntArray
from fer_vit.heads import EXPRESSION, HEADS, HeadOutputs, output_titles
from fer_vit.report.plots import ChartRow, IntervalChart, calibration_plot, interval_chart
from fer_vit.report.prose import Prose
from fer_vit.report.results_page import Page, Section
from fer_vit.stats.bootstrap import MIN_UNITS
from fer_vit.stats.estimate import NO_RESULT, estimate_text
from fer_vit.stats.output_measures import MEASURES
from fer_vit.stats.results import Results, Row
from fer_vit.stats.scores import SCORES, confusion_matrix, is_recall, occurring
from fer_vit.tables.labelled import Labelled

PROSE = Prose("evaluation")
LABELS_NOTE = (
    "A label is the word that annotators chose for a face. Accuracy is agreement with this word, "
    "not with a feeling."
)
SET_TITLES = {  # the rows of the table of scores
    ALL: "all faces",
    WITHOUT_NEAR_DUPLICATES: WITHOUT_NEAR_DUPLICATES,
    OTHER: OTHER,
    DIFFERENCE: "difference",
}


def evaluation_page(results: Results, faces: Labelled) -> Page:
    """Returns the page; with labels, it has the faces to look at.

    Args:
        results: The rows.
        faces: The faces with a prediction; with labels, the labelled faces alone.
    """
    counts = {FACES: len(faces.paths)} | faces.count_units()
    page = Page(
        title="How good the predictions are",
        heading="Evaluation",
        generator="fer-vit evaluate",
        facts={**results.facts, **{name: f"{count:,}" for name, count in counts.items()}},
        sections=evaluation_sections(results, faces),
    )
    if faces.targets is None:
        return page
    cards, without_card = choose_cards(faces, faces.targets)
    return page._replace(
        note=LABELS_NOTE,
        labels=faces.labels,
        confusion=confusion_matrix(faces.probabilities, faces.targets),
        cards=cards,
        without_card=without_card,
    )


def evaluation_sections(results: Results, faces: Labelled) -> list[Section]:
    """Returns the sections of the page, in their order."""
    sections = [scores_section(results, faces)]
    drawn = FOUND if faces.targets is None else "accuracy"
    if faces.targets is not None:
        confusion = confusion_matrix(faces.probabilities, faces.targets)
        plot = calibration_plot(faces.probabilities.max(1), faces.correct)
        sections = [
            Section("Result", lines=result_lines(results, faces.labels, confusion)),
            *sections,
            class_section(results, faces.labels, confusion),
            Section("Calibration", PROSE.text("calibration"), plots=[plot]),
        ]
    sections += head_sections(results)
    folds = results.select(EXPRESSION, FOLDS)
    if folds:
        sections.append(
            Section(
                "By fold",
                PROSE.text("folds"),
                rows_table("fold", folds),
                intervals=rows_chart(folds, drawn),
            )
        )
    for set in sets_of(results):
        if set.startswith(GROUPS):
            sections.append(group_section(results, set))
    votes = results.select(EXPRESSION, VOTES)
    if votes:
        table = Section("Table", rows=rows_table("votes", votes))
        chart = rows_chart(votes, "accuracy")
        text = PROSE.text("votes")
        sections.append(Section("By votes for the label", text, intervals=chart, more=[table]))
    altered = results.select(EXPRESSION, ALTERED)
    if altered:
        sections.append(altered_section("Robustness", altered, "accuracy"))
    return sections


def sets_of(results: Results) -> list[str]:
    """Returns the sets of the expression, in order."""
    return list(dict.fromkeys(row.set for row in results.select(EXPRESSION)))


# ----------------------------------------------------------------------------- tables and charts


def rows_table(
    head: str,
    rows: Iterable[Row],
    form: str = ".1%",
    title: Callable[[Row], str] = lambda row: row.group,
) -> list[list[str]]:
    """Returns a table with a line for each title, and a column for each measure with a number.

    Args:
        head: The name of the first column.
        rows: The rows; recalls are left out, since they have their own table.
        form: The format of measures that have none in `SCORES` or `MEANS`.
        title: Returns the title of the line with a row's number.
    """
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        if is_recall(row.measure):
            continue
        line = lines.setdefault(title(row), {})
        line[row.measure] = number_text(row, form)
        if row.p is not None and row.measure.startswith("difference"):
            line["p"] = f"{row.p:.2g}"
    measures = dict.fromkeys(
        name for line in lines.values() for name, text in line.items() if text != NO_RESULT
    )
    table = [[head, *measures]]
    for name, line in lines.items():
        table.append([name, *(line.get(measure, NO_RESULT) for measure in measures)])
    return table


def number_text(row: Row, form: str = ".1%") -> str:
    """Returns a row's number as text; `form` is as for `rows_table`."""
    if row.measure in COUNTS:
        return f"{row.estimate.n:,}"
    if row.measure in SCORES:
        form = SCORES[row.measure].form
    elif row.measure in MEANS:
        form = MEANS[row.measure].form
    if row.set == DIFFERENCE or row.measure.startswith("difference"):
        form = f"+{form}"
    return estimate_text(row.estimate, form)


def rows_chart(rows: Sequence[Row], measure: str, form: str = ".1%") -> IntervalChart | None:
    """Returns the chart of a measure of groups."""
    sizes = {row.group: row.estimate.n for row in rows if row.measure == FACES}
    drawn = []
    for row in rows:
        if row.measure == measure:
            name = printable(row.group)
            drawn.append(ChartRow(name, row.estimate, faces=sizes.get(row.group)))
    return interval_chart(drawn, form, measure)


# ------------------------------------------------------------------------------------- expression


def result_lines(results: Results, labels: Sequence[str], confusion: IntArray) -> list[str]:
    """Returns the main results in words."""
    sizes = confusion.sum(1)  # (C,)
    (accuracy,) = results.select(EXPRESSION, ALL, "", "accuracy")
    differences = results.select(EXPRESSION, DIFFERENCE, "", "accuracy")
    compared = results.select(EXPRESSION, COMPARED)
    return PROSE.lines(
        "result",
        accuracy=accuracy.estimate,
        frequent=labels[sizes.argmax()],
        share=sizes.max() / sizes.sum(),
        difference=differences[0] if differences else None,
        counts={row.measure: row.estimate.n for row in compared},
    )


def scores_section(results: Results, faces: Labelled) -> Section:
    """Returns the table of scores, with their meanings."""
    rows = []
    for set in SET_TITLES:
        rows += [row for row in results.select(EXPRESSION, set) if row.measure not in COUNTS]
    table = rows_table("", rows, title=lambda row: SET_TITLES[row.set])
    lines = [f"{name}: {meaning}." for name, meaning in MEANINGS.items() if name in table[0]]
    text = PROSE.text(
        "scores",
        units={"persons": 0, "photos": 0} | faces.count_units(),
        min_units=MIN_UNITS,
        min_group=MIN_GROUP,
        sets=sets_of(results),
        all_repeated=bool(results.select(EXPRESSION, ALL, "", NEAR_DUPLICATES)),
    )
    unmeasured = []
    without_targets = [head for head in heads_of(results) if not has_targets(results, head)]
    if without_targets:
        names = ", ".join(without_targets)
        unmeasured.append(f"Not measured, since no face has a target: {names}.")
    meanings = Section("What the scores mean", lines=lines)
    return Section("Scores", text, table, lines=unmeasured, more=[meanings])


def class_section(results: Results, labels: Sequence[str], confusion: IntArray) -> Section:
    """Returns faces, recall and precision of each expression that occurs."""
    recalls = [row for row in results.select(EXPRESSION, ALL) if is_recall(row.measure)]
    table = class_table(recalls, confusion, labels)
    rows = []
    for index in occurring(confusion):
        name = printable(labels[index])
        size = int(confusion[index].sum())
        rows.append(ChartRow(name, recalls[index].estimate, faces=size))
    return Section(
        "By expression",
        PROSE.text("by_expression"),
        intervals=interval_chart(rows, ".1%", "recall"),
        more=[Section("Faces, recall and precision", rows=table)],
    )


def class_table(
    recalls: Sequence[Row], confusion: IntArray, labels: Sequence[str]
) -> list[list[str]]:
    """Returns the table of faces, recall and precision of each expression that occurs."""
    table = [["expression", "faces", "recall", "precision"]]
    for index in occurring(confusion):
        guesses = confusion[:, index].sum()
        precision = f"{confusion[index, index] / guesses:.1%}" if guesses else "never predicted"
        size = f"{confusion[index].sum():,}"
        table.append([labels[index], size, number_text(recalls[index]), precision])
    return table


def group_section(results: Results, set: str) -> Section:
    """Returns the chart and the table of the groups of a column."""
    column = set.removeprefix(GROUPS)
    groups = []
    few = []
    for row in results.select(EXPRESSION, set):
        if row.note == TOO_FEW:
            few.append(row)
        elif row.group:
            groups.append(row)
    (unknown,) = results.select(EXPRESSION, set, "", UNKNOWN)
    gaps = results.select(EXPRESSION, set, "", GAP)
    accuracies = [row for row in groups if row.measure == "accuracy"]
    ranking = [row.group for row in sorted(accuracies, key=lambda row: row.estimate.mean or 0)]
    text = PROSE.text(
        "groups",
        gap=gaps[0] if gaps else None,
        few=few,
        unknown=unknown.estimate.n,
        min_group=MIN_GROUP,
        worst=ranking[0] if ranking else "",
        best=ranking[-1] if ranking else "",
        accuracy=bool(accuracies),
    )
    tests = PROSE.text("group_tests") if gaps else ""
    title = f"By {column}"
    if not groups:
        return Section(title, text)
    table = rows_table(column, groups)
    chart = rows_chart(groups, "accuracy" if accuracies else FOUND)
    if chart is None:
        return Section(title, f"{text} {tests}".strip(), table)
    return Section(title, text, intervals=chart, more=[Section("All scores", tests, table)])


def altered_section(title: str, rows: Sequence[Row], measure: str, form: str = ".1%") -> Section:
    """Returns the table and the chart of altered images; `measure` names their mean."""
    return Section(
        title,
        PROSE.text("altered", error=measure == "error"),
        rows_table("images", rows, form),
        intervals=rows_chart(rows, measure, form),
    )


# -------------------------------------------------------------------------------- further outputs


def heads_of(results: Results) -> dict[str, HeadOutputs]:
    """Returns the outputs that have rows, by head."""
    parts = dict.fromkeys(row.part for row in results.rows if row.set == ALL)
    return HeadOutputs.among(parts).by_head


def has_targets(results: Results, head: str) -> bool:
    """Returns whether any face has a target for an output of a head."""
    columns = heads_of(results)[head].columns
    return any(row.estimate.n for row in results.rows if row.part in columns)


def head_sections(results: Results) -> list[Section]:
    """Returns the sections about further heads: measures, groups, two models, altered images."""
    sections = []
    for head, outputs in heads_of(results).items():
        if not has_targets(results, head):
            continue
        titles = outputs.by_column(output_titles(outputs.names).values())
        by_set: dict[str, list[Row]] = {}
        for row in results.rows:
            if row.part in titles:
                by_set.setdefault(row.set, []).append(row)
        sections.append(head_section(head, by_set[ALL], titles))
        for set, rows in by_set.items():
            if set.startswith(GROUPS):
                sections.append(head_groups_section(head, set, rows, titles))
        if COMPARED in by_set:
            sections.append(compared_section(head, by_set[COMPARED], titles))
        altered = results.select(head, ALTERED)
        if altered:
            title = f"{HEADS[head].title}: robustness"
            sections.append(altered_section(title, altered, "error", ".3f"))
    return sections


def head_section(head: str, rows: Sequence[Row], titles: Mapping[str, str]) -> Section:
    """Returns the chart of the first measure of a head's outputs, and the table of all measures.

    `titles` has the name of each output on pages, by column.
    """
    entry = HEADS[head]
    first = entry.measures[0]
    drawn = []
    counted_rows = []
    for row in rows:
        if row.measure == first:
            name = printable(titles[row.part])
            drawn.append(ChartRow(name, row.estimate, faces=row.estimate.n))
            counted_rows.append(count_row(row.part, ALL, "", FACES, row.estimate.n))
        counted_rows.append(row)
    table = rows_table("output", counted_rows, ".3f", title=lambda row: titles[row.part])
    chart = interval_chart(drawn, ".3f", first)
    text = PROSE.text(
        "head",
        measures={name: MEASURES[name].meaning for name in table[0][2:]},
        low=entry.low,
        high=entry.high,
        unit=entry.unit,
        charted=first if chart else "",
    )
    if chart is None:
        return Section(entry.title, text, table)
    more = [Section("All measures", rows=table)]
    return Section(entry.title, text, intervals=chart, more=more)


def head_groups_section(
    head: str, set: str, rows: Sequence[Row], titles: Mapping[str, str]
) -> Section:
    """Returns the table of a head's outputs by group, with two measures of each output."""
    first, second = HEADS[head].measures[:2]
    names = list(dict.fromkeys(row.group for row in rows))
    table = [["output"]]
    for name in names:
        table[0] += [f"{printable(name)}: {first}", second]
    means = {(row.part, row.group, row.measure): row.estimate.mean for row in rows}
    for column, title in titles.items():
        cells = [title]
        for name in names:
            for measure in (first, second):
                mean = means[column, name, measure]
                cells.append(NO_RESULT if mean is None else f"{mean:.3f}")
        table.append(cells)
    text = PROSE.text("head_groups", min_group=MIN_GROUP)
    return Section(f"{HEADS[head].title} {set}", text, table)


def compared_section(head: str, rows: Sequence[Row], titles: Mapping[str, str]) -> Section:
    """Returns the table of the errors of two models for the outputs of a head."""
    table = rows_table("output", rows, ".3f", title=lambda row: titles[row.part])
    return Section(f"{HEADS[head].title}: the two models", PROSE.text("two_models"), table)
