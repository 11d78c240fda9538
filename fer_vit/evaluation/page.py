"""The parts of a page of results, of `evaluate` and `compare`, and the files with them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil

from fer_vit.errors import printable
from fer_vit.evaluation.scores import occurring
from fer_vit.files import atomic_write
from fer_vit.geometry import IntArray
from fer_vit.report.html import render
from fer_vit.report.intervals import IntervalChart
from fer_vit.report.plots import Plot
from fer_vit.report.table import TableWriter, markdown
from fer_vit.texts import json_text

EVALUATION_FILES = ("results.json", "results.md", "index.html")  # the page is written last
CARD_KINDS = {  # why a face is worth a look
    "mistake": "mistakes",
    "label": "likely wrong labels",
    "differ": "faces where the two differ",
}


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


class ResultsPage(NamedTuple):
    """What a page and its Markdown contain."""

    title: str
    heading: str  # of the Markdown
    generator: str  # the command
    facts: Mapping[str, str]
    sections: Sequence[Section]
    note: str = ""
    labels: Sequence[str] = ()  # of the confusion matrix
    confusion: IntArray | None = None  # the faces by label and prediction (C, C); None: no labels
    cards: Sequence[Card] = ()  # the faces to look at
    left_out: int = 0  # number of such faces without a card


def write_files(
    folder: Path,
    page: ResultsPage,
    results: Mapping[str, Any],
    tables: Mapping[str, PageTable] | None = None,
    overwrite: bool = True,
) -> tuple[str, str]:
    """Writes Markdown, JSON and a page to a folder atomically.

    Args:
        folder: The folder.
        page: The content of the page and of the Markdown.
        results: The content of the JSON.
        tables: Further files, by name.
        overwrite: Whether results may be replaced that another process has written meanwhile.

    Returns:
        The Markdown, and a line with the names of the files.
    """
    counts: Counter[str] = Counter()
    for card in page.cards:
        counts.update(card.kinds)
    kinds = {}
    for kind, name in CARD_KINDS.items():
        if counts[kind] or kind == "mistake":  # 0 mistakes are shown, too
            kinds[kind] = name

    # The page draws the matrix; Markdown has its table.
    sections = list(page.sections)
    shown: list[int] = []  # the labels that occur
    if page.confusion is not None:
        sections.append(confusion_section(page.confusion, page.labels))
        shown = occurring(page.confusion)
    text = _page_as_markdown(page.heading, page.facts, page.note, sections)
    tables = tables or {}
    with atomic_write(folder, overwrite=overwrite) as new:
        new.mkdir()
        (new / "results.md").write_text(text, encoding="utf-8")
        (new / "results.json").write_text(json_text(results, indent=2) + "\n", encoding="utf-8")
        for name, table in tables.items():
            with TableWriter(new / name, table.columns) as file:
                file.write(table.rows)
        render(
            new / "index.html",
            "evaluation",
            title=page.title,
            generator=page.generator,
            facts=page.facts,
            note=page.note,
            sections=page.sections,
            labels=page.labels,
            confusion=page.confusion,
            occurring=shown,
            cards=page.cards,
            counts=counts,
            kinds=kinds,
            left_out=page.left_out,
        )
    return text, f"Written to {folder}: {', '.join([*EVALUATION_FILES, *tables])}"


def _page_as_markdown(
    heading: str, facts: Mapping[str, str], note: str, sections: Sequence[Section]
) -> str:
    """Returns facts, a note and sections as Markdown."""
    lines = [f"{name}: {printable(fact)}  " for name, fact in facts.items()]
    blocks = [f"# {heading}", "\n".join(lines), note]
    for section in sections:
        blocks += _section_blocks(section, "##")
        for further in section.more:
            blocks += _section_blocks(further, "###")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section_blocks(section: Section, level: str) -> list[str]:
    """Returns the blocks of a section as Markdown, of which some may be empty."""
    blocks = [f"{level} {section.title}", section.text]
    blocks.append("\n".join(f"- {printable(line)}" for line in section.lines))
    if section.rows:
        blocks.append(markdown(section.rows).rstrip())
    return blocks


def confusion_section(confusion: IntArray, labels: Sequence[str]) -> Section:
    """Returns the table of a confusion matrix (C, C), without labels that do not occur."""
    shown = occurring(confusion)
    names = [labels[index] for index in shown]
    cells = confusion[np.ix_(shown, shown)].astype(str).tolist()
    table = [["", *names]]
    for name, row in zip(names, cells, strict=True):
        table.append([name, *row])
    return Section("Confusion", "Rows: the label. Columns: the prediction.", table)
