"""Writes an evaluation: the results as JSON, as Markdown, and as one page with the faces behind them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil

from fer_vit.errors import FerVitError, printable
from fer_vit.evaluate.faces import Faces
from fer_vit.evaluate.scores import FEW, FOUND, face_losses, suspect_labels
from fer_vit.files import atomic_write, json_text
from fer_vit.geometry import Array, IntArray
from fer_vit.report.charts import calibration_figure, intervals_figure
from fer_vit.report.html import render
from fer_vit.report.table import NOTHING, Interval, TableWriter, interval_text, markdown

FILES = ("results.json", "results.md", "index.html")  # the page is written last
KINDS = {"mistake": "mistakes", "label": "likely wrong labels", "differ": "where the two differ"}
"""Why a face is worth a look."""
PICTURES = 500  # the largest number of faces on the page, so that it opens quickly
SIDE = 96  # longer side of the pictures in pixels


class Section(NamedTuple):
    """A table with what explains it."""

    title: str
    text: str
    rows: Sequence[Sequence[str]]  # the head first; none: there is no table
    picture: Pil.Image | None = None  # a chart
    lines: Sequence[str] = ()  # a list below the text


class Table(NamedTuple):
    """A file beside the page."""

    columns: dict[str, type]  # name and type, in order
    rows: Sequence[Mapping[str, Any]]


class Card(NamedTuple):
    """A face to look at."""

    picture: Pil.Image | None  # None when it cannot be read
    name: str
    truth: int  # index of the label
    guess: int
    confidence: float
    kinds: Sequence[str]  # which of `KINDS` it is
    lines: Sequence[str]  # further text


def write_files(
    folder: Path,
    heading: str,
    results: Mapping[str, Any],
    cards: Sequence[Card] = (),
    confusion: IntArray | None = None,
    tables: Mapping[str, Table] | None = None,
    **page: Any,
) -> tuple[str, str]:
    """Writes Markdown, JSON and a page to a folder atomically; returns the Markdown, and a line with their names.

    `tables`: further files, by name. `page`: title, generator, facts and sections; with `confusion`, the faces by label
    and prediction (C, C), also their labels and the number `left_out` of faces without a card.
    """
    counts = Counter(kind for card in cards for kind in card.kinds)
    page["kinds"] = {
        kind: name for kind, name in KINDS.items() if counts[kind] or kind == "mistake"
    }
    page |= {"confusion": confusion, "occurring": [] if confusion is None else occurring(confusion)}
    parts = [*page["sections"]]
    if confusion is not None:
        parts.append(confusion_section(confusion, page["labels"]))
    text = _markdown(heading, page["facts"], parts)
    tables = tables or {}
    with atomic_write(folder) as new:
        new.mkdir()
        (new / "results.md").write_text(text, encoding="utf-8")
        (new / "results.json").write_text(json_text(results, indent=2) + "\n", encoding="utf-8")
        for name, table in tables.items():
            with TableWriter(new / name, table.columns) as file:
                file.write(table.rows)
        render(new / "index.html", "evaluation", cards=cards, counts=counts, **page)
    return text, f"Written to {folder}: {', '.join([*FILES, *tables])}"


def _markdown(heading: str, facts: Mapping[str, str], parts: Sequence[Section]) -> str:
    """Returns facts and sections as Markdown."""
    blocks = [f"# {heading}"]
    blocks.append("\n".join(f"{name}: {printable(fact)}  " for name, fact in facts.items()))
    for part in parts:
        blocks += [f"## {part.title}", part.text]
        blocks.append("\n".join(f"- {printable(line)}" for line in part.lines))
        if part.rows:
            blocks.append(markdown(part.rows).rstrip())
    return "\n\n".join(filter(None, blocks)) + "\n"


def write_results(
    folder: Path,
    facts: Mapping[str, str],
    results: Mapping[str, Any],
    faces: Faces,
    other: Array | None = None,
) -> str:
    """Writes `FILES` and returns text to print; `other`: a second model's probabilities (N, C), NaN without a face."""
    other = (np.full_like(faces.probabilities, np.nan) if other is None else other)[faces.predicted]
    faces = faces.take(faces.predicted)
    counts = {
        "faces": len(faces.paths),
        "persons" if "person" in faces.columns else "photos": len(set(faces.units)),
    }
    page: dict[str, Any] = {
        "facts": {**facts, **{name: f"{count:,}" for name, count in counts.items()}}
    }
    if faces.targets is not None:
        better = dict(suspect_labels(faces.probabilities, faces.targets).tolist())
        page["cards"], page["left_out"] = choose_cards(faces, other, better)
        page["labels"] = faces.labels
        page["confusion"] = np.array(results["confusion"])
    page["sections"] = sections(results, faces)
    page |= {"title": "How good the predictions are", "generator": "fer-vit evaluate"}
    return "\n".join(write_files(folder, "Evaluation", {**facts, **counts, **results}, **page))


def sections(results: Mapping[str, Any], faces: Faces) -> list[Section]:
    """Returns the tables of an evaluation."""
    rows = {"all faces": results["all"]}
    text = "In brackets: 95% bootstrap intervals over persons, or over photos where persons are unknown."
    if "without near-duplicates" in results:
        rows["without near-duplicates"] = results["without near-duplicates"]
        text += " Near-duplicates are of faces in the original training split."
    elif results.get("near-duplicates of train"):
        text += " Every face has a near-duplicate in the original training split: no score holds for new faces."
    if comparison := results.get("comparison"):
        rows |= {"the other model": comparison["other"], "difference": comparison["difference"]}
        test = comparison["McNemar"]
        text += (
            f" Difference: the model minus the other, on the same {comparison['faces']:,} faces. Only the model is "
            f"correct on {test['first']:,}, only the other on {test['second']:,}; McNemar's exact test (where several "
            f"faces are of one person, by the bootstrap over persons): p = {test['p']:.2g}."
        )
    groups = [group_section(column, one) for column, one in results.get("by", {}).items()]
    if faces.targets is None:
        return [Section("Scores", text, score_table("", rows)), *groups]
    if results["all"]["agreement with an annotator"]["mean"] is not None:
        text += (
            " One annotator is drawn at random from the votes. Where rare votes were dropped (FERPlus), people agree "
            "less than this."
        )
    text += " UAR is the mean recall."
    text += " With few faces, calibration errors are biased upwards, and their intervals may lie above them."
    confusion = np.array(results["confusion"])
    frequent, share = (
        faces.labels[confusion.sum(1).argmax()],
        confusion.sum(1).max() / confusion.sum(),
    )
    text += f" Predicting {printable(frequent)} for every face has an accuracy of {share:.1%}."
    calibration = Pil.fromarray(calibration_figure(faces.probabilities.max(1), faces.correct))
    parts = [Section("Scores", text, score_table("", rows), calibration)]
    parts += [
        Section("By expression", "", class_table(results["all"], confusion, faces.labels)),
        *groups,
    ]
    how = (
        "Every image is corrupted, and its face and landmarks are detected again, unless the row names another change. "
        "Difference: from the unaltered faces. Turns are the mean of both directions."
    )
    tables = {
        "by votes": ("By votes for the label", "", "votes"),
        "robustness": ("Robustness", how, "images"),
    }
    for key, (title, note, head) in tables.items():
        if found := results.get(key):
            parts.append(Section(title, note, score_table(head, found), chart(found, "accuracy")))
    return parts


def confusion_section(confusion: IntArray, labels: Sequence[str]) -> Section:
    """Returns the table of a confusion matrix (C, C), without labels that do not occur."""
    shown = occurring(confusion)
    names = [labels[index] for index in shown]
    rows = [
        [name, *row]
        for name, row in zip(
            names, confusion[np.ix_(shown, shown)].astype(str).tolist(), strict=True
        )
    ]
    return Section("Confusion", "Rows: the label. Columns: the prediction.", [["", *names], *rows])


def score_table(head: str, rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Returns a row for each set of faces, a column for each result; recalls have a separate table."""
    known = dict.fromkeys(
        name for row in rows.values() for name, one in row.items() if cell(one) != NOTHING
    )
    names = [name for name in known if not name.startswith("recall of ")]
    cells = [
        [
            title,
            *(
                cell(row.get(name), name == "cross-entropy", "difference" in (name, title))
                for name in names
            ),
        ]
        for title, row in rows.items()
    ]
    return [[head, *names], *cells]


def cell(one: Interval | float | str | None, loss: bool = False, signed: bool = False) -> str:
    """Formats a result, a percentage unless it is a loss; a number of faces or a p-value; or text."""
    if isinstance(one, int | float):
        return f"{one:,}" if isinstance(one, int) else f"{one:.2g}"
    if one is None or isinstance(one, str):
        return one or NOTHING
    return interval_text(one, ("+" if signed else "") + (".3f" if loss else ".1%"))


def occurring(confusion: IntArray) -> list[int]:
    """Returns the indices of the classes that occur as label or as prediction."""
    return np.flatnonzero(confusion.sum(0) + confusion.sum(1)).tolist()


def class_table(
    scores: Mapping[str, Interval], confusion: IntArray, labels: Sequence[str]
) -> list[list[str]]:
    """Returns faces, recall and precision of each expression that occurs in the labels or the predictions."""
    rows: dict[str, dict[str, Any]] = {}
    for index in occurring(confusion):
        faces, guesses, label = (
            int(confusion[index].sum()),
            confusion[:, index].sum(),
            labels[index],
        )
        precision = f"{confusion[index, index] / guesses:.1%}" if guesses else "never predicted"
        rows[label] = {
            "faces": faces,
            "recall": scores[f"recall of {label}"],
            "precision": precision,
        }
    return score_table("expression", rows)


def group_section(column: str, results: Mapping[str, Any]) -> Section:
    """Returns the table of the groups of a column."""
    groups, text = results["groups"], ""
    if "gap" in results:
        text = (
            f"Worst: {results['worst']}, best: {results['best']}, gap in accuracy: {cell(results['gap'])}. Difference: "
            "from the accuracy of all other faces. p: Fisher's exact test (where several faces are of one person, the "
            "bootstrap over persons), with Holm's correction for the number of groups. "
        )
    if few := ", ".join(f"{name} ({size})" for name, size in results["few"].items()):
        text += f"Too few to compare, under {FEW}: {few}. "
    if results["unknown"]:
        text += f"Without a value: {results['unknown']:,} faces."
    measure = "accuracy" if any("accuracy" in one for one in groups.values()) else FOUND
    return Section(f"By {column}", text, score_table(column, groups), chart(groups, measure))


def chart(rows: Mapping[str, Mapping[str, Any]], measure: str) -> Pil.Image | None:
    """Draws one measure of some sets of faces."""
    values = {printable(name): one[measure] for name, one in rows.items()}
    return Pil.fromarray(intervals_figure(values, measure)) if values else None


def choose_cards(faces: Faces, other: Array, better: Mapping[int, int]) -> tuple[list[Card], int]:
    """Returns faces to look at, the greatest loss first, and how many are left out; `other` (N, C) is another model."""
    assert faces.targets is not None
    guess, truth = faces.probabilities.argmax(1), faces.targets.argmax(1)
    other_guess = np.where(np.isnan(other[:, 0]), guess, np.nan_to_num(other).argmax(1))
    loss, other_loss = (
        face_losses(faces.probabilities, faces.targets),
        face_losses(other, faces.targets),
    )
    loss = np.where(
        guess == truth, np.fmax(loss, other_loss), loss
    )  # include mistakes of the other model
    shown = np.flatnonzero(
        (guess != truth) | (guess != other_guess) | np.isin(np.arange(len(guess)), [*better])
    )
    shown = shown[np.argsort(-loss[shown], kind="stable")]
    cards = []
    for row in shown[:PICTURES].tolist():
        kinds = {
            "mistake": guess[row] != truth[row],
            "label": row in better,
            "differ": guess[row] != other_guess[row],
        }
        lines = [f"perhaps {faces.labels[better[row]]}"] if kinds["label"] else []
        lines += [f"the other: {faces.labels[other_guess[row]]}"] if kinds["differ"] else []
        present = [kind for kind, holds in kinds.items() if holds]
        confidence, name = float(faces.probabilities[row].max()), str(faces.paths[row])
        cards.append(
            Card(
                thumbnail(faces, row),
                name,
                int(truth[row]),
                int(guess[row]),
                confidence,
                present,
                lines,
            )
        )
    return cards, max(0, len(shown) - PICTURES)


def thumbnail(faces: Faces, row: int) -> Pil.Image | None:
    """Returns a small picture of a face; None when its image cannot be read."""
    try:
        picture = Pil.fromarray(faces.picture(int(faces.rows[row])))
    except FerVitError:
        return None
    picture.thumbnail((SIDE, SIDE))
    return picture
