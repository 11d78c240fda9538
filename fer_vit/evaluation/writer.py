"""Writes an evaluation: JSON, Markdown, and one page with the faces behind the results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil

from fer_vit.errors import FerVitError, printable
from fer_vit.evaluation.altered import AlteredHead
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.outputs import Compared, Measured
from fer_vit.evaluation.scores import (
    FEW,
    FOUND,
    face_losses,
    is_recall,
    recall_name,
    suspect_labels,
)
from fer_vit.files import atomic_write, json_text
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import HEADS, output_titles
from fer_vit.measures import MEANINGS
from fer_vit.report.html import render
from fer_vit.report.intervals import IntervalChart, interval_chart
from fer_vit.report.plots import Plot, calibration_plot
from fer_vit.report.table import NOTHING, Interval, TableWriter, interval_text, markdown

EVALUATION_FILES = ("results.json", "results.md", "index.html")  # the page is written last
CARD_KINDS = {
    "mistake": "mistakes",
    "label": "likely wrong labels",
    "differ": "where the two differ",
}
"""Why a face is worth a look."""
MOST_CARDS = 500  # the largest number of faces on the page, so that it opens quickly
LOSS_FORM = ".3f"
LABELS_NOTE = (
    "A label is the word that annotators chose for a face. Accuracy is agreement with this word, "
    "not with a feeling."
)
PICTURE_SIDE = 96  # longer side of the pictures in pixels


class Section(NamedTuple):
    """A table with what explains it."""

    title: str
    text: str = ""
    rows: Sequence[Sequence[str]] = ()  # the head first; none: there is no table
    lines: Sequence[str] = ()  # a list below the text
    intervals: IntervalChart | None = None
    plots: Sequence[Plot] = ()
    curves: Sequence[str] = ()  # the names of the curves in each plot
    more: Sequence["Section"] = ()  # shown on request


class PageTable(NamedTuple):
    """A file beside the page."""

    columns: dict[str, type]  # name and type, in order
    rows: Sequence[Mapping[str, Any]]


class Card(NamedTuple):
    """A face of an evaluation as its page shows it: a picture, and what is written below it."""

    picture: Pil.Image | None  # None when it cannot be read
    name: str
    truth: int  # index of the label
    guess: int
    confidence: float
    kinds: Sequence[str]  # which of `CARD_KINDS` it is
    lines: Sequence[str]  # further text


def write_files(
    folder: Path,
    heading: str,
    results: Mapping[str, Any],
    cards: Sequence[Card] = (),
    confusion: IntArray | None = None,
    tables: Mapping[str, PageTable] | None = None,
    **page: Any,
) -> tuple[str, str]:
    """Writes Markdown, JSON and a page to a folder atomically.

    Args:
        folder: The folder.
        heading: The heading of the Markdown.
        results: The content of the JSON.
        cards: The faces to look at.
        confusion: The faces by label and prediction (C, C).
        tables: Further files, by name.
        **page: title, generator, facts, sections and perhaps a note; with `confusion`, also the
            labels and the number `left_out` of faces without a card.

    Returns:
        The Markdown, and a line with the names of the files.
    """
    counts: Counter[str] = Counter()
    for card in cards:
        counts.update(card.kinds)
    kinds = {}
    for kind, name in CARD_KINDS.items():
        if counts[kind] or kind == "mistake":
            kinds[kind] = name

    parts = [*page["sections"]]
    shown: list[int] = []
    if confusion is not None:
        parts.append(confusion_section(confusion, page["labels"]))
        shown = occurring(confusion)
    page.setdefault("note", "")
    text = _markdown(heading, page["facts"], page["note"], parts)
    tables = tables or {}
    with atomic_write(folder) as new:
        new.mkdir()
        (new / "results.md").write_text(text, encoding="utf-8")
        (new / "results.json").write_text(json_text(results, indent=2) + "\n", encoding="utf-8")
        for name, table in tables.items():
            with TableWriter(new / name, table.columns) as file:
                file.write(table.rows)
        render(
            new / "index.html",
            "evaluation",
            cards=cards,
            counts=counts,
            kinds=kinds,
            confusion=confusion,
            occurring=shown,
            **page,
        )
    return text, f"Written to {folder}: {', '.join([*EVALUATION_FILES, *tables])}"


def _markdown(heading: str, facts: Mapping[str, str], note: str, parts: Sequence[Section]) -> str:
    """Returns facts, a note and sections as Markdown."""
    lines = [f"{name}: {printable(fact)}  " for name, fact in facts.items()]
    blocks = [f"# {heading}", "\n".join(lines), note]
    for part in parts:
        blocks += _section_blocks(part, "##")
        for further in part.more:
            blocks += _section_blocks(further, "###")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section_blocks(part: Section, level: str) -> list[str]:
    """Returns the blocks of a section as Markdown, of which some may be empty."""
    blocks = [f"{level} {part.title}", part.text]
    blocks.append("\n".join(f"- {printable(line)}" for line in part.lines))
    if part.rows:
        blocks.append(markdown(part.rows).rstrip())
    return blocks


def write_results(
    folder: Path,
    facts: Mapping[str, str],
    results: Mapping[str, Any],
    faces: EvaluatedFaces,
    against: Array | None = None,
) -> str:
    """Writes `EVALUATION_FILES` and returns text to print.

    `against`: another model's probabilities (N, C), NaN without a face.
    """
    if against is None:
        against = np.full_like(faces.probabilities, np.nan)
    against = against[faces.predicted]
    faces = faces.take(faces.predicted)

    counts = {"faces": len(faces.paths)} | count_units(faces)
    shown_facts = dict(facts)
    for name, count in counts.items():
        shown_facts[name] = f"{count:,}"
    page: dict[str, Any] = {
        "title": "How good the predictions are",
        "generator": "fer-vit evaluate",
        "facts": shown_facts,
        "sections": sections(results, faces),
    }
    if faces.targets is not None:
        better = dict(suspect_labels(faces.probabilities, faces.targets).tolist())
        cards, left_out = choose_cards(faces, against, better)
        page["cards"] = cards
        page["left_out"] = left_out
        page["labels"] = faces.labels
        page["note"] = LABELS_NOTE
        page["confusion"] = np.array(results["confusion"])

    content: dict[str, Any] = dict(facts)
    content.update(counts)
    content.update(results)
    text, written = write_files(folder, "Evaluation", content, **page)
    return f"{text}\n{written}"


def count_units(faces: EvaluatedFaces) -> dict[str, int]:
    """Returns the number of persons, and of the photos of faces without a person."""
    persons = np.array(faces.columns.get("person", np.full(len(faces.paths), None)))
    known = np.array([person is not None for person in persons], bool)
    counts = {}
    if known.any():
        counts["persons"] = len(np.unique(faces.units[known]))
    if not known.all() or not len(known):
        counts["photos"] = len(np.unique(faces.units[~known]))
    return counts


def sections(results: Mapping[str, Any], faces: EvaluatedFaces) -> list[Section]:
    """Returns the parts of an evaluation: results in words, scores, and scores by group."""
    groups = [group_section(column, group) for column, group in results.get("by", {}).items()]
    rows, text = _score_rows(results, len(np.unique(faces.units)))
    table = score_table("", rows)
    meanings = meanings_section(table[0])
    heads = []
    unknown = []
    for head, measured in results.get("heads", {}).items():
        if has_targets(head, measured):
            heads += head_sections(results, head)
        else:
            unknown.append(head)
    if unknown:
        text = f"No face has a target of {' or '.join(unknown)}."
        heads.append(Section("Heads without targets", text))
    if faces.targets is None:
        return [Section("Scores", text, table, more=[meanings]), *heads, *groups]

    confusion = np.array(results["confusion"])  # (C, C)
    calibration = calibration_plot(faces.probabilities.max(1), faces.correct)
    parts = [
        Section("Result", lines=result_lines(results, confusion, faces.labels)),
        Section("Scores", text, table, more=[meanings]),
        class_section(results["all"], confusion, faces.labels),
        Section("Calibration", CALIBRATION_TEXT, plots=[calibration]),
        *heads,
        *groups,
    ]
    if votes := results.get("by votes"):
        numbers = Section("Table", rows=score_table("votes", votes))
        parts.append(
            Section("By votes for the label", VOTES_TEXT, intervals=chart(votes), more=[numbers])
        )
    if robustness := results.get("robustness"):
        table = score_table("images", robustness)
        parts.append(Section("Robustness", ROBUSTNESS_TEXT, table, intervals=chart(robustness)))
    return parts


def result_lines(
    results: Mapping[str, Any], confusion: IntArray, labels: Sequence[str]
) -> list[str]:
    """Returns the main results in words."""
    scores = results["all"]
    sizes = confusion.sum(1)  # (C,)
    frequent = labels[sizes.argmax()]
    share = sizes.max() / sizes.sum()
    lines = [
        f"The prediction equals the label for {_in_words(scores['accuracy'], '.1%')} of "
        f"{sizes.sum():,} faces. Predicting {frequent} for every face has an accuracy of "
        f"{share:.1%}."
    ]

    # The worst of the labels that have enough faces.
    recalls = {}
    for label, size in zip(labels, sizes.tolist(), strict=True):
        if size >= FEW:
            recalls[label] = scores[recall_name(label)]
    if len(recalls) > 1:
        worst = min(recalls, key=lambda label: recalls[label]["mean"])
        lines.append(
            f"Least often found, of the labels with {FEW} faces or more: {worst}, in "
            f"{_in_words(recalls[worst], '.1%')} of its faces."
        )
    if comparison := results.get("comparison"):
        test = comparison["McNemar"]
        lines.append(
            f"On the same {comparison['faces']:,} faces, the accuracy minus the other model's is "
            f"{_in_words(comparison['difference']['accuracy'], '+.1%')}. Only the model is correct "
            f"on {test['first']:,}, only the other on {test['second']:,}: p = {test['p']:.2g} "
            "(McNemar's exact test; where several faces are of one person, not below the p of a "
            "t test over persons)."
        )
    return lines


def _in_words(result: Interval, form: str) -> str:
    """Returns a result with its interval for a sentence."""
    text = f"{result['mean']:{form}}"
    if result["low"] is None:
        return text
    return f"{text} (95% interval {result['low']:{form}} to {result['high']:{form}})"


MEANINGS_OF_SCORES = {
    "macro F1": "the mean over the labels of F1, which combines recall and precision",
    "UAR": "the mean recall of the labels: each label counts the same, also a rare one",
    "calibration error": (
        "how far confidence is from accuracy, in the mean. With few faces it is biased upwards, "
        "and its interval may lie above it"
    ),
    "cross-entropy": "against the labels, or the fractions of the votes; lower is better",
    "agreement with an annotator": (
        "how often the prediction equals the label of one annotator, who is drawn at random from "
        "the votes. Where rare votes were dropped (FERPlus), people agree less than this"
    ),
    "agreement of two annotators": (
        "the same for two annotators. The second draw may be the same annotator, so that two "
        "different ones agree less"
    ),
    "accuracy where unambiguous": "the accuracy on the faces that are not ambiguous",
    "ambiguous": "faces for which several expressions, or none, are likely",
    "face found": "photos in which a face was found",
}
"""Of scores after accuracy, in the order of tables."""
VOTES_TEXT = "The accuracy by the number of annotators who chose the label of the face."
CALIBRATION_TEXT = (
    "On the dashed line, confidence equals accuracy. Below it, the model is too confident. The "
    "area of a dot grows with its number of faces; dots of few faces scatter."
)


def meanings_section(names: Sequence[str]) -> Section:
    """Returns what the scores of a table mean."""
    lines = [f"{name}: {text}." for name, text in MEANINGS_OF_SCORES.items() if name in names]
    return Section("What the scores mean", lines=lines)


def has_targets(head: str, measured: Measured) -> bool:
    """Returns whether any face has a target of an output of a head."""
    first = HEADS[head].figures[0]
    return any(row[first]["faces"] for row in measured.values())


def head_sections(results: Mapping[str, Any], head: str) -> list[Section]:
    """Returns the parts of a head: its measures, by group, of two models, on altered images."""
    parts = [head_section(head, results["heads"][head])]
    for column, by_head in results.get("heads by", {}).items():
        if by_head[head]:
            parts.append(head_groups_section(head, column, by_head[head]))
    compared = results.get("heads compared", {})
    if head in compared:
        parts.append(compared_section(head, compared[head]))
    altered = results.get("heads robustness", {})
    if head in altered:
        parts.append(altered_section(head, altered[head]))
    return parts


def head_section(head: str, measured: Measured) -> Section:
    """Returns a chart of the first measure of the outputs of a head, and the table of all."""
    entry = HEADS[head]
    names = entry.figures
    shown = [name for name in names if _is_measured(measured, name)]
    table = [["output", "faces", *shown]]
    chart_rows = {}
    titles = output_titles(measured)
    for output, row in measured.items():
        first = row[names[0]]
        cells = [titles[output], f"{first['faces']:,}"]
        for name in shown:
            cells.append(interval_text(row[name], ".3f"))
        table.append(cells)
        chart_rows[printable(titles[output])] = first
    unit = f" {entry.unit}" if entry.unit else ""
    sentences = [f"{name}: {MEANINGS[name]}." for name in shown]
    sentences.append(f"Targets are from {entry.low:g} to {entry.high:g}{unit}.")
    sentences.append("In brackets: 95% bootstrap intervals, as above.")
    text = " ".join(sentences)
    drawn = interval_chart(chart_rows, ".3f")
    if drawn is None:
        return Section(entry.title, text, table)
    text += f" The chart has {names[0]}."
    numbers = Section("All measures", rows=table)
    return Section(entry.title, text, intervals=drawn, more=[numbers])


def _is_measured(measured: Measured, name: str) -> bool:
    """Returns whether any output has a value of a measure."""
    return any(row[name]["mean"] is not None for row in measured.values())


def head_groups_section(head: str, column: str, groups: Mapping[str, Measured]) -> Section:
    """Returns the table of the outputs of a head by group: two measures of each."""
    first, second = HEADS[head].figures[:2]
    table = [["output"]]
    for name in groups:
        table[0] += [f"{printable(name)}: {first}", second]
    titles = output_titles(next(iter(groups.values())))
    for output, title in titles.items():
        cells = [title]
        for measured in groups.values():
            for figure in (first, second):
                mean = measured[output][figure]["mean"]
                cells.append(NOTHING if mean is None else f"{mean:.3f}")
        table.append(cells)
    text = f"Groups of fewer than {FEW} persons or photos are left out. results.json has intervals."
    return Section(f"{HEADS[head].title} by {column}", text, table)


def compared_section(head: str, compared: Mapping[str, Compared]) -> Section:
    """Returns the table of the errors of two models for the outputs of a head."""
    table = [["output", "faces", "error", "the other's error", "difference", "p"]]
    titles = output_titles(compared)
    for output, row in compared.items():
        cells = [titles[output], f"{row['faces']:,}"]
        cells.append(interval_text(row["error"], ".3f"))
        cells.append(interval_text(row["other"], ".3f"))
        cells.append(interval_text(row["difference"], "+.3f"))
        cells.append(f"{row['p']:.2g}")
        table.append(cells)
    text = (
        "Mean absolute errors on the same faces. Difference: the model minus the other; below 0, "
        "the model is better. p: by a t test over persons, or over photos where persons are "
        "unknown, with Holm's correction for the number of outputs."
    )
    return Section(f"{HEADS[head].title}: the two models", text, table)


def altered_section(head: str, altered: AlteredHead) -> Section:
    """Returns the table of the errors of a head by corruption, and of its outputs on request."""
    names = HEADS[head].figures[:2]
    further = []
    for name in names:
        table = altered_outputs_table(altered["outputs"], name)
        further.append(Section(f"{HEADS[head].title} on altered images: {name}", rows=table))
    text = (
        "Error: the mean absolute error over the outputs, in the unit of the targets. Turned "
        f"images have turned targets. {ROBUSTNESS_TEXT}"
    )
    errors = altered["errors"]
    return Section(
        f"{HEADS[head].title}: robustness",
        text,
        score_table("images", errors, ".3f"),
        intervals=chart(errors, "error", ".3f"),
        more=further,
    )


def altered_outputs_table(outputs: Mapping[str, Measured], name: str) -> list[list[str]]:
    """Returns a measure of each output, a row, on each kind of altered images, a column."""
    table = [["output", *outputs]]
    titles = output_titles(next(iter(outputs.values())))
    for output, title in titles.items():
        cells = [title]
        for measured in outputs.values():
            mean = measured[output][name]["mean"]
            cells.append(NOTHING if mean is None else f"{mean:.3f}")
        table.append(cells)
    return table


ROBUSTNESS_TEXT = (
    "Every image is corrupted, and its face and landmarks are detected again, unless the row names "
    "another change. Difference: from the unaltered faces. Turns are the mean of both directions. "
    "p: of the difference from the other model on the same faces, by a t test over persons or "
    "photos, with Holm's correction for the number of rows."
)


def _score_rows(results: Mapping[str, Any], units: int) -> tuple[dict[str, Mapping[str, Any]], str]:
    """Returns the rows of the table of scores, and the text above it.

    `units` is the number of persons or photos.
    """
    rows = {"all faces": results["all"]}
    text = (
        "In brackets: 95% bootstrap intervals over persons, "
        "or over photos where persons are unknown."
    )
    if units < FEW:
        text += f" With fewer than {FEW} of these, here {units}, they are too narrow."
    if "without near-duplicates" in results:
        rows["without near-duplicates"] = results["without near-duplicates"]
        text += " Near-duplicates are of faces in the original training split."
    elif results.get("near-duplicates of train"):
        text += (
            " Every face has a near-duplicate in the original training split: "
            "no score holds for new faces."
        )
    if comparison := results.get("comparison"):
        rows["the other model"] = comparison["other"]
        rows["difference"] = comparison["difference"]
        text += " Difference: the model minus the other, on the same faces."
    return rows, text


def confusion_section(confusion: IntArray, labels: Sequence[str]) -> Section:
    """Returns the table of a confusion matrix (C, C), without labels that do not occur."""
    shown = occurring(confusion)
    names = [labels[index] for index in shown]
    cells = confusion[np.ix_(shown, shown)].astype(str).tolist()
    table = [["", *names]]
    for name, row in zip(names, cells, strict=True):
        table.append([name, *row])
    return Section("Confusion", "Rows: the label. Columns: the prediction.", table)


def score_table(
    head: str, rows: Mapping[str, Mapping[str, Any]], form: str = ".1%"
) -> list[list[str]]:
    """Returns a row for each set of faces, a column for each result that a row has.

    The recalls have a separate table. Scores that are a detail come last. `form` is of the means,
    except for a cross-entropy.
    """
    known: list[str] = []
    for row in rows.values():
        for name, result in row.items():
            if name not in known and not is_recall(name) and cell(result, form) != NOTHING:
                known.append(name)
    names = [name for name in known if name not in MEANINGS_OF_SCORES]
    names += [name for name in MEANINGS_OF_SCORES if name in known]

    table = [[head, *names]]
    for title, row in rows.items():
        cells = [title]
        for name in names:
            signed = name.startswith("difference") or title == "difference"
            of_column = LOSS_FORM if name == "cross-entropy" else form
            cells.append(cell(row.get(name), of_column, signed))
        table.append(cells)
    return table


def cell(result: Interval | float | str | None, form: str = ".1%", signed: bool = False) -> str:
    """Formats a result in a format such as ".1%", or a number, a p-value or text."""
    if result is None or isinstance(result, str):
        return result or NOTHING
    if isinstance(result, int):
        return f"{result:,}"
    if isinstance(result, float):
        return f"{result:.2g}"
    return interval_text(result, f"+{form}" if signed else form)


def occurring(confusion: IntArray) -> list[int]:
    """Returns the indices of the classes that occur as label or as prediction."""
    return np.flatnonzero(confusion.sum(0) + confusion.sum(1)).tolist()


def class_section(
    scores: Mapping[str, Interval], confusion: IntArray, labels: Sequence[str]
) -> Section:
    """Returns the table of `class_table`, and a chart of the recalls."""
    recalls = {}
    for index in occurring(confusion):
        recalls[printable(labels[index])] = scores[recall_name(labels[index])]
    text = (
        "The chart has the recall: of the faces with this label, how many are predicted as it. "
        "Precision: of the faces predicted as it, how many have this label."
    )
    table = Section("Faces, recall and precision", rows=class_table(scores, confusion, labels))
    return Section("By expression", text, intervals=interval_chart(recalls, ".1%"), more=[table])


def class_table(
    scores: Mapping[str, Interval], confusion: IntArray, labels: Sequence[str]
) -> list[list[str]]:
    """Returns faces, recall and precision of each expression that is a label or a prediction."""
    rows: dict[str, dict[str, Any]] = {}
    for index in occurring(confusion):
        label = labels[index]
        guesses = confusion[:, index].sum()
        precision = f"{confusion[index, index] / guesses:.1%}" if guesses else "never predicted"
        rows[label] = {
            "faces": int(confusion[index].sum()),
            "recall": scores[recall_name(label)],
            "precision": precision,
        }
    return score_table("expression", rows)


def group_section(column: str, results: Mapping[str, Any]) -> Section:
    """Returns the table of the groups of a column."""
    groups = results["groups"]
    text = ""
    tests = ""
    if "gap" in results:
        text = (
            f"Worst: {results['worst']}, best: {results['best']}, gap in accuracy: "
            f"{cell(results['gap'])} (larger than 0 also by chance, since these faces choose best "
            "and worst). "
        )
        tests = (
            "Difference: from the accuracy of all other faces with a value. p: Fisher's exact test "
            "(where several faces are of one person, not below the p of the bootstrap over "
            "persons), with Holm's correction for the number of groups, unless two groups have "
            "all faces and are one test."
        )
    if results["few"]:
        few = ", ".join(f"{name} ({size:,})" for name, size in results["few"].items())
        text += f"Under {FEW} persons or photos, too few to compare (number of faces): {few}. "
    if results["unknown"]:
        text += f"Without a value: {results['unknown']:,} faces."
    scored = any("accuracy" in group for group in groups.values())
    if scored:
        text = f"{text.strip()} The chart has the accuracy."
    if not groups:
        return Section(f"By {column}", text.strip())
    drawn = chart(groups, "accuracy" if scored else FOUND)
    table = score_table(column, groups)
    if drawn is None:
        return Section(f"By {column}", f"{text.strip()} {tests}".strip(), table)
    numbers = Section("All scores", tests, table)
    return Section(f"By {column}", text.strip(), intervals=drawn, more=[numbers])


def chart(
    rows: Mapping[str, Mapping[str, Any]], measure: str = "accuracy", form: str = ".1%"
) -> IntervalChart | None:
    """Returns the chart of one measure of some sets of faces."""
    values = {printable(name): row[measure] for name, row in rows.items()}
    return interval_chart(values, form)


def choose_cards(
    faces: EvaluatedFaces, against: Array, better: Mapping[int, int]
) -> tuple[list[Card], int]:
    """Returns faces to look at, the greatest loss first, and how many are left out.

    Args:
        faces: Faces with labels and predictions.
        against: Another model's probabilities (N, C), NaN without a face.
        better: The better label of faces whose label is likely wrong, by row.
    """
    assert faces.targets is not None
    truth = faces.targets.argmax(1)  # (N,)
    guess = faces.probabilities.argmax(1)  # (N,)
    second = np.where(np.isnan(against[:, 0]), guess, np.nan_to_num(against).argmax(1))  # (N,)

    loss = face_losses(faces.probabilities, faces.targets)  # (N,)
    second_loss = face_losses(against, faces.targets)
    # where only the other model is wrong, its loss counts
    loss = np.where(guess == truth, np.fmax(loss, second_loss), loss)

    suspect = np.isin(np.arange(len(guess)), [*better])
    shown = np.flatnonzero((guess != truth) | (guess != second) | suspect)
    shown = shown[np.argsort(-loss[shown], kind="stable")]

    cards = []
    for row in shown[:MOST_CARDS].tolist():
        kinds = []
        lines = []
        if guess[row] != truth[row]:
            kinds.append("mistake")
        if row in better:
            kinds.append("label")
            lines.append(f"perhaps {faces.labels[better[row]]}")
        if guess[row] != second[row]:
            kinds.append("differ")
            lines.append(f"the other: {faces.labels[second[row]]}")
        card = Card(
            picture=face_thumbnail(faces, row),
            name=str(faces.paths[row]),
            truth=int(truth[row]),
            guess=int(guess[row]),
            confidence=float(faces.probabilities[row].max()),
            kinds=kinds,
            lines=lines,
        )
        cards.append(card)
    return cards, max(0, len(shown) - MOST_CARDS)


def face_thumbnail(faces: EvaluatedFaces, row: int) -> Pil.Image | None:
    """Returns a small picture of a face; None when its image cannot be read."""
    try:
        picture = Pil.fromarray(faces.picture(int(faces.rows[row])))
    except FerVitError:
        return None
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    return picture
