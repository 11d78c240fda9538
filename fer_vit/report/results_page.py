"""The parts of the page that `evaluate` and `compare` write, and its files."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil

from fer_vit.errors import printable
from fer_vit.files import atomic_write
from fer_vit.geometry import IntArray
from fer_vit.report.html import render
from fer_vit.report.plots import IntervalChart, Plot
from fer_vit.report.table import TableWriter, markdown
from fer_vit.stats.scores import occurring, row_shares
from fer_vit.texts import json_text

RESULTS_FILES = ("results.json", "results.md", "index.html")  # the page is written last
FIGURES = "figures"  # the folder with figures for papers
CARD_KINDS = {  # why a face is shown, with the words of the page
    "mistake": "mistakes",
    "label": "likely wrong labels",
    "differ": "faces where the two differ",
}


class Section(NamedTuple):
    """A section of a page: a text, a table and charts."""

    title: str
    text: str = ""
    rows: Sequence[Sequence[str]] = ()  # the rows of the table, column names first; empty: no table
    lines: Sequence[str] = ()  # items of a list below the text
    intervals: IntervalChart | None = None
    plots: Sequence[Plot] = ()
    curves: Sequence[str] = ()  # the name of each curve in the plots
    more: Sequence["Section"] = ()  # sections that open on request


class PageTable(NamedTuple):
    """The content of a table file in the folder of the page."""

    columns: dict[str, type]  # the type of each column by name, in order
    rows: Iterable[Mapping[str, Any]]


class Card(NamedTuple):
    """A face on the page of an evaluation: a picture and the text below it."""

    picture: Pil.Image | None  # None when the image cannot be read
    name: str
    truth: int  # index of the label
    guess: int  # index of the prediction
    confidence: float
    kinds: Sequence[str]  # the keys of `CARD_KINDS` that apply
    lines: Sequence[str]  # further lines of text


class Page(NamedTuple):
    """The content of a page and of its Markdown file."""

    title: str
    heading: str  # the heading of the Markdown file
    generator: str  # the command that writes the page
    facts: Mapping[str, str]
    sections: Sequence[Section]
    note: str = ""
    labels: Sequence[str] = ()  # the classes of the confusion matrix (C)
    confusion: IntArray | None = None  # faces by label and prediction (C, C); None: no labels
    cards: Sequence[Card] = ()  # faces to look at
    without_card: int = 0  # number of faces to look at that have no card


def write_page(
    folder: Path,
    page: Page,
    results: Mapping[str, Any],
    tables: Mapping[str, PageTable] | None = None,
    overwrite: bool = True,
    draw: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Writes a page, its Markdown and its JSON to a folder, atomically; returns their paths.

    Args:
        folder: The folder.
        page: The content of the page and of its Markdown file.
        results: The content of the JSON file.
        tables: Further files, by file name.
        overwrite: Whether to replace results that another process has written in the meantime.
        draw: Writes figures into the folder that it is called with, `FIGURES`.
    """
    counts: Counter[str] = Counter()
    for card in page.cards:
        counts.update(card.kinds)
    kinds = {}
    for kind, name in CARD_KINDS.items():
        if counts[kind] or kind == "mistake":  # the page also shows that there are 0 mistakes
            kinds[kind] = name

    tables = tables or {}
    with atomic_write(folder, overwrite=overwrite) as new:
        new.mkdir()
        (new / "results.md").write_text(page_text(page), encoding="utf-8")
        (new / "results.json").write_text(json_text(results, indent=2) + "\n", encoding="utf-8")
        for name, table in tables.items():
            with TableWriter(new / name, table.columns) as file:
                for row in table.rows:
                    file.write([row])
        if draw is not None:
            (new / FIGURES).mkdir()
            draw(new / FIGURES)
        render(
            new / "index.html",
            "results",
            title=page.title,
            generator=page.generator,
            page=page,
            facts=titled_facts(page),
            occurring=[] if page.confusion is None else occurring(page.confusion),
            shares=None if page.confusion is None else row_shares(page.confusion),
            counts=counts,
            kinds=kinds,
        )
    names = [*RESULTS_FILES, *tables, *([FIGURES] if draw else [])]
    return [folder / name for name in names]


FACT_TITLES = {  # titles of facts whose names are columns or options
    "face": "way of finding faces",
    "fer_vit_version": "version of fer-vit",
    "pose_from": "source of the head pose",
    "predicted_on": "date of the predictions",
    "version": "version of fer-vit",
}


def fact_title(name: str) -> str:
    """Returns the title of a fact in words."""
    return FACT_TITLES.get(name, name.replace("_", " "))


def titled_facts(page: Page) -> dict[str, str]:
    """Returns the facts of a page by their titles in words."""
    facts = {}
    for name, fact in page.facts.items():
        facts[fact_title(name)] = fact
    return facts


def page_text(page: Page) -> str:
    """Returns a page as Markdown: its facts, note and sections, and a table of its confusion."""
    lines = [f"{name}: {printable(fact)}  " for name, fact in titled_facts(page).items()]
    blocks = [f"# {page.heading}", "\n".join(lines), page.note]
    for section in page.sections:
        blocks += _section_blocks(section, "##")
        for further in section.more:
            blocks += _section_blocks(further, "###")
    if page.confusion is not None:
        blocks += _section_blocks(confusion_section(page.confusion, page.labels), "##")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section_blocks(section: Section, level: str) -> list[str]:
    """Returns the Markdown blocks of a section; some may be empty."""
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
