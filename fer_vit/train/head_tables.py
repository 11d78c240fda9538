"""Writes a table of the outputs and a picture for each head, in `validate` and `test`.

K outputs of a head, M faces, C expressions. Targets are NaN where they are unknown.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pil

from fer_vit.geometry import Array, IntArray
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.report.score_figures import draw_confusion, outputs_figure
from fer_vit.report.table import TableWriter, align_columns, share_formats
from fer_vit.stats.estimate import NO_RESULT
from fer_vit.stats.output_measures import measure

OUTPUT = "output"
FACES = "faces"


def output_rows(
    head: str, outputs: Sequence[str], preds: Array, target: Array
) -> list[dict[str, str | int | float | None]]:
    """Returns for each output the number of known faces and the measures, None where undefined.

    Predictions and targets are (M, K).
    """
    rows: list[dict[str, str | int | float | None]] = []
    for output, value, truth in zip(outputs, preds.T, target.T, strict=True):
        row: dict[str, str | int | float | None] = {OUTPUT: output}
        row[FACES] = int(np.isfinite(truth).sum())
        for name in HEADS[head].measures:
            measured = measure(name, value, truth)
            row[name] = measured if np.isfinite(measured) else None
        rows.append(row)
    return rows


def write_outputs(
    folder: Path, stage: str, head: str, outputs: Sequence[str], preds: Array, target: Array
) -> str:
    """Writes STAGE_HEAD.csv and STAGE_HEAD.png; returns the table as text.

    Predictions and targets are (M, K).
    """
    rows = output_rows(head, outputs, preds, target)
    columns: dict[str, type] = {OUTPUT: str, FACES: int}
    for name in HEADS[head].measures:
        if any(row[name] is not None for row in rows):
            columns[name] = float

    _write_table(folder / f"{stage}_{head}.csv", columns, rows)
    picture = outputs_figure(outputs, preds, target, HEADS[head].unit)
    Pil.fromarray(picture).save(folder / f"{stage}_{head}.png")

    lines = [[head, *list(columns)[1:]]]
    for row in rows:
        lines.append([_text(row[column]) for column in columns])
    return align_columns(lines)


def write_expression(
    folder: Path, stage: str, labels: Sequence[str], confusion: IntArray, recall: Array
) -> str:
    """Writes STAGE_expression.csv and STAGE_expression.png; returns the table as text.

    The table has the number of faces and the `recall` (C,) of each label; the picture shows the
    `confusion` (C, C).
    """
    rows: list[dict[str, str | int | float | None]] = []
    for label, counts, share in zip(labels, confusion, recall, strict=True):
        cell = float(share) if np.isfinite(share) else None
        rows.append({"label": label, FACES: int(counts.sum()), "recall": cell})

    columns: dict[str, type] = {"label": str, FACES: int, "recall": float}
    _write_table(folder / f"{stage}_{EXPRESSION}.csv", columns, rows)
    Pil.fromarray(draw_confusion(confusion, labels)).save(folder / f"{stage}_{EXPRESSION}.png")

    lines = [[EXPRESSION, FACES, "recall"]]
    for row in rows:
        lines.append([_text(row[column]) for column in columns])
    return align_columns(lines)


def _write_table(
    path: Path, columns: dict[str, type], rows: Sequence[dict[str, str | int | float | None]]
) -> None:
    with TableWriter(path, columns, formats=share_formats(columns), overwrite=True) as file:
        file.write(rows)


def _text(cell: str | int | float | None) -> str:
    if cell is None:
        return NO_RESULT
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
