"""The page of an evaluation: tables, a confusion matrix, and the faces behind its numbers; it opens from disk."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image as Pil

from fer_vit.files import atomic_write
from fer_vit.report.draw import printable
from fer_vit.report.html import render
from fer_vit.report.table import markdown

FILES = ("results.json", "results.md", "index.html")
"""The page is written last."""

KINDS = {"mistake": "mistakes", "label": "likely wrong labels", "differ": "where the two differ"}
"""Why a face is worth a look."""


class Section(NamedTuple):
    """A table, its head first, with a title, what explains it, and a chart."""

    title: str
    text: str
    rows: Sequence[Sequence[str]]
    picture: Pil.Image | None = None


class Card(NamedTuple):
    """A face: its picture, None when it cannot be read, indices of label and prediction, and which of `KINDS` it is."""

    picture: Pil.Image | None
    name: str
    truth: int
    guess: int
    confidence: float
    kinds: Sequence[str]
    lines: Sequence[str]  # further text


def write_files(
    folder: Path, text: str, results: Mapping[str, Any], facts: Mapping[str, str], parts: Sequence[Section], **page: Any
) -> str:
    """Writes `FILES` to a folder atomically; returns a line with their names. `page`: see `write_evaluation`."""
    with atomic_write(folder) as new:
        new.mkdir()
        (new / "results.md").write_text(text, encoding="utf-8")
        (new / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        write_evaluation(new / "index.html", facts, parts, **page)
    return f"Written to {folder}: {', '.join(FILES)}"


def markdown_page(title: str, facts: Mapping[str, str], parts: Sequence[Section]) -> str:
    """Returns the tables of a page as Markdown."""
    head = "\n".join(f"{name}: {printable(fact)}  " for name, fact in facts.items())
    blocks = [(f"## {part.title}", part.text, markdown(part.rows).rstrip()) for part in parts]
    return "\n\n".join(filter(None, [f"# {title}", head, *chain.from_iterable(blocks)])) + "\n"


def write_evaluation(
    path: Path,
    facts: Mapping[str, str],
    sections: Sequence[Section],
    labels: Sequence[str] = (),
    confusion: Sequence[Sequence[int]] = (),
    cards: Sequence[Card] = (),
    left_out: int = 0,
    title: str = "How good the predictions are",
    generator: str = "fer-vit evaluate",
) -> None:
    """Writes the page; without labelled faces there are only sections.

    `confusion` counts faces (C, C) by label and prediction, `left_out` those that have no card.
    """
    counts = Counter(kind for card in cards for kind in card.kinds)
    render(
        path,
        "evaluation",
        title=title,
        generator=generator,
        facts=facts,
        sections=sections,
        labels=labels,
        confusion=confusion,
        cards=cards,
        kinds={kind: name for kind, name in KINDS.items() if counts[kind] or kind == "mistake"},
        counts=counts,
        left_out=left_out,
    )
