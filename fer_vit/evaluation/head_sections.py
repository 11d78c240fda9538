"""The sections about a further head: measures, groups, two models, and altered images."""

from collections.abc import Mapping

from fer_vit.errors import printable
from fer_vit.evaluation.groups import MIN_GROUP
from fer_vit.evaluation.names import altered_rows
from fer_vit.evaluation.page import Section
from fer_vit.evaluation.results import ComparedError, HeadResults, HeadRobustness, Measured
from fer_vit.evaluation.score_table import ROBUSTNESS_TEXT, altered_chart, score_table
from fer_vit.heads import HEADS, output_titles
from fer_vit.report.intervals import interval_chart
from fer_vit.stats.estimate import NO_RESULT, estimate_text
from fer_vit.stats.measures import MEANINGS


def has_targets(head: str, measured: Measured) -> bool:
    """Returns whether any face has a target for an output of a head."""
    first = HEADS[head].measures[0]
    return any(row[first].n for row in measured.values())


def head_sections(
    head: str, results: HeadResults, errors: Mapping[str, ComparedError]
) -> list[Section]:
    """Returns the sections about a head: measures, groups, two models, and altered images.

    `errors` has the errors of two models by output; it is empty without another model.
    """
    titles = output_titles(results.measured)
    parts = [head_section(head, results.measured, titles)]
    for column, groups in results.by.items():
        if groups:
            parts.append(head_groups_section(head, column, groups, titles))
    if errors:
        parts.append(compared_section(head, errors, titles))
    if results.robustness is not None:
        parts.append(altered_section(head, results.robustness, titles))
    return parts


def head_section(head: str, measured: Measured, titles: Mapping[str, str]) -> Section:
    """Returns the chart of the first measure of a head's outputs, and the table of all measures.

    `titles` has the name of each output on pages.
    """
    entry = HEADS[head]
    names = entry.measures
    shown = [name for name in names if _is_measured(measured, name)]
    table = [["output", "faces", *shown]]
    chart_rows = {}
    num_faces = {}
    for output, row in measured.items():
        first = row[names[0]]
        cells = [titles[output], f"{first.n:,}"]
        for name in shown:
            cells.append(estimate_text(row[name], ".3f"))
        table.append(cells)
        chart_rows[printable(titles[output])] = first
        num_faces[printable(titles[output])] = first.n
    unit = f" {entry.unit}" if entry.unit else ""
    sentences = [f"{name}: {MEANINGS[name]}." for name in shown]
    sentences.append(f"Targets are from {entry.low:g} to {entry.high:g}{unit}.")
    sentences.append("In brackets: 95% bootstrap intervals, as above.")
    text = " ".join(sentences)
    drawn = interval_chart(chart_rows, ".3f", names[0], num_faces)
    if drawn is None:
        return Section(entry.title, text, table)
    text += f" The chart has {names[0]}."
    numbers = Section("All measures", rows=table)
    return Section(entry.title, text, intervals=drawn, more=[numbers])


def _is_measured(measured: Measured, name: str) -> bool:
    """Returns whether any output has a value of a measure."""
    return any(row[name].mean is not None for row in measured.values())


def head_groups_section(
    head: str, column: str, groups: Mapping[str, Measured], titles: Mapping[str, str]
) -> Section:
    """Returns the table of a head's outputs by group, with two measures of each output."""
    first, second = HEADS[head].measures[:2]
    table = [["output"]]
    for name in groups:
        table[0] += [f"{printable(name)}: {first}", second]
    for output, title in titles.items():
        cells = [title]
        for measured in groups.values():
            for figure in (first, second):
                mean = measured[output][figure].mean
                cells.append(NO_RESULT if mean is None else f"{mean:.3f}")
        table.append(cells)
    text = (
        f"Groups of fewer than {MIN_GROUP} persons or photos are left out. results.json has "
        "intervals."
    )
    return Section(f"{HEADS[head].title} by {column}", text, table)


def compared_section(
    head: str, errors: Mapping[str, ComparedError], titles: Mapping[str, str]
) -> Section:
    """Returns the table of the errors of two models for the outputs of a head."""
    table = [["output", "faces", "error", "the other's error", "difference", "p"]]
    for output, row in errors.items():
        cells = [titles[output], f"{row.error.n:,}"]
        cells.append(estimate_text(row.error, ".3f"))
        cells.append(estimate_text(row.other_model.mean, ".3f"))
        cells.append(estimate_text(row.other_model.difference, "+.3f"))
        cells.append(f"{row.other_model.p:.2g}")
        table.append(cells)
    text = (
        "Mean absolute errors on the same faces. Difference: the model minus the other; below 0, "
        "the model is better. p: by a t test over persons, or over photos where persons are "
        "unknown, with Holm's correction for the number of outputs."
    )
    return Section(f"{HEADS[head].title}: the two models", text, table)


def altered_section(head: str, altered: HeadRobustness, titles: Mapping[str, str]) -> Section:
    """Returns the table of a head's errors by corruption; tables of its outputs open on request."""
    names = HEADS[head].measures[:2]
    further = []
    for name in names:
        table = altered_outputs_table(altered.outputs, name, titles)
        further.append(Section(f"{HEADS[head].title} on altered images: {name}", rows=table))
    text = (
        "Error: the mean absolute error over the outputs, in the unit of the targets. Turned "
        f"images have turned targets. {ROBUSTNESS_TEXT}"
    )
    return Section(
        f"{HEADS[head].title}: robustness",
        text,
        score_table("images", altered_rows(altered.errors, "error"), ".3f"),
        intervals=altered_chart(altered.errors, "error", ".3f"),
        more=further,
    )


def altered_outputs_table(
    outputs: Mapping[str, Measured], name: str, titles: Mapping[str, str]
) -> list[list[str]]:
    """Returns the table of a measure: outputs are rows, kinds of altered images are columns."""
    table = [["output", *outputs]]
    for output, title in titles.items():
        cells = [title]
        for measured in outputs.values():
            mean = measured[output][name].mean
            cells.append(NO_RESULT if mean is None else f"{mean:.3f}")
        table.append(cells)
    return table
