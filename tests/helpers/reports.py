"""A face and its explanation for the pages of reports."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fer_vit.listing import GENERATOR
from fer_vit.report.explained_face import Attention, Attributed, Evidence, FaceView
from fer_vit.report.html import render
from fer_vit.report.records import FaceRecord
from tests.helpers.faces import make_face

REGIONS = ("mouth", "nose", "chin")
LABELS = ("neutral", "happiness", '"><i>x')
ATTENTION = Attention(
    np.array(
        [
            [[0.6, 0.0, 0.4], [0.0, 0.0, 0.0], [0.3, 0.0, 0.7]],
            [[0.9, 0.0, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 0.9]],
        ]
    ),
    np.array([[0.8, 0.0, 0.2], [0.25, 0.0, 0.75]]),
    np.array([[[0.5, 0.0]], [[0.0, 0.5]]]),
    np.array([9.0]),
)
"""The whole encoder and one head; two patches."""
INTERACTIONS = np.array([[0.0, 0.0, -0.4], [0.0, 0.0, 0.0], [-0.4, 0.0, 0.0]])
"""Of mouth and chin, in logits."""
VIEWS = {"views": ("the whole encoder", "block 1, head 1: 9 px")}


def make_view(
    name: str, probabilities: tuple[float, ...] = (0.1, 0.7, 0.2), *, face: int = 2
) -> FaceView:
    return FaceView(
        face=make_face(dict(zip(LABELS, probabilities, strict=True)), face=face),
        name=name,
        photo=np.full((48, 48, 3), 90, np.uint8),
        box=None,
        to_crop=np.array([[0.5, 0.0, 4.0], [0.0, 0.5, 4.0]]),
        regions={
            "mouth": np.array([8.0, 16.0, 20.0, 28.0]),
            "chin": np.array([8.0, 24.0, 20.0, 32.0]),
        },
    )


def make_evidence(order: Sequence[int] = (1, 2, 0), labels: Sequence[str] = LABELS) -> Evidence:
    """Explains the labels in this order, and the first rather than the second."""
    heat = np.arange(1024.0).reshape(32, 32) / 1024
    shares = (0.1, 0.25, -0.4)  # of the mouth, by label
    targets = []
    for label in order:
        share = np.array([shares[label], 0.0, -0.5])
        targets.append(Attributed(labels[label], share, heat - shares[label]))
    name = f"{labels[order[0]]} rather than {labels[order[1]]}"
    targets.append(Attributed(name, np.array([0.9, 0.0, 0.1]), heat))
    return Evidence(order, targets, ATTENTION, INTERACTIONS)


def read_page(report: Path) -> dict[str, Any]:
    """Returns the data of a report's page, from which its script draws."""
    page = (report / "index.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    return data


def write_page(
    path: Path,
    facts: Mapping[str, str],
    labels: Sequence[str],
    records: Sequence[FaceRecord],
    **more: Any,
) -> None:
    """Renders the page of a report as `write_report` does."""
    values = {
        "title": "Title",
        "facts": facts,
        "labels": labels,
        "records": records,
        "regions": REGIONS,
    }
    values |= {
        "views": ["the whole encoder"],
        "attention": ATTENTION,
        "meaning": {},
        "notes": (),
        "averages": (),
        "min_faces": 30,
        "people": (),
    }
    values |= {
        "warnings": (),
        "charts": {},
        "left_out": (),
        "skipped": (),
        "generator": GENERATOR,
        "counts": Counter(record.label for record in records),
    }
    render(path, "page", **values | more)
