"""Assembles the page of an evaluation: sections, faces to look at, and counts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fer_vit.evaluation.cards import choose_cards
from fer_vit.evaluation.evaluated import EvaluatedFaces
from fer_vit.evaluation.page import ResultsPage, write_files
from fer_vit.evaluation.results import Evaluation
from fer_vit.evaluation.results_json import evaluation_json
from fer_vit.evaluation.sections import evaluation_sections
from fer_vit.geometry import Array

LABELS_NOTE = (
    "A label is the word that annotators chose for a face. Accuracy is agreement with this word, "
    "not with a feeling."
)


def write_results(
    folder: Path,
    facts: Mapping[str, str],
    evaluation: Evaluation,
    faces: EvaluatedFaces,
    against: Array | None = None,
    overwrite: bool = True,
) -> str:
    """Writes `EVALUATION_FILES` and returns text to print.

    `against` has another model's probabilities (N, C), NaN for an image without a face.
    `overwrite` is as for `write_files`.
    """
    if against is None:
        against = np.full_like(faces.probabilities, np.nan)
    against = against[faces.predicted]
    faces = faces.take(faces.predicted)

    counts = {"faces": len(faces.paths)} | count_persons_and_photos(faces)
    shown_facts = dict(facts)
    for name, count in counts.items():
        shown_facts[name] = f"{count:,}"
    page = ResultsPage(
        title="How good the predictions are",
        heading="Evaluation",
        generator="fer-vit evaluate",
        facts=shown_facts,
        sections=evaluation_sections(evaluation, faces),
    )
    labelled = evaluation.labelled
    if labelled is not None:
        cards, left_out = choose_cards(faces, against, labelled.likely_wrong)
        page = page._replace(
            note=LABELS_NOTE,
            labels=labelled.labels,
            confusion=labelled.confusion,
            cards=cards,
            left_out=left_out,
        )

    content: dict[str, Any] = dict(facts)
    content.update(counts)
    content.update(evaluation_json(evaluation))
    text, written = write_files(folder, page, content, overwrite=overwrite)
    return f"{text}\n{written}"


def count_persons_and_photos(faces: EvaluatedFaces) -> dict[str, int]:
    """Returns the number of persons, and of photos of faces whose person is unknown."""
    persons = np.array(faces.columns.get("person", np.full(len(faces.paths), None)))
    known = np.array([person is not None for person in persons], bool)
    counts = {}
    if known.any():
        counts["persons"] = len(np.unique(faces.units[known]))
    if not known.all() or not len(known):
        counts["photos"] = len(np.unique(faces.units[~known]))
    return counts
