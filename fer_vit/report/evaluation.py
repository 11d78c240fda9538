"""The page of an evaluation: tables, a confusion matrix, and the faces behind its numbers; it opens from disk."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image as Pil

from fer_vit.report.html import render

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
