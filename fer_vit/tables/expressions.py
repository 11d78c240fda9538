"""Finds the columns of a table of `predict` that are probabilities of expressions."""

from collections.abc import Sequence

import numpy as np

from fer_vit.errors import TableError, short
from fer_vit.fields import PROBABILITY, SMOOTHED, SMOOTHED_LABEL
from fer_vit.geometry import Array
from fer_vit.labels import EXPRESSIONS, SYNONYMS
from fer_vit.tables.cells import BadCellError, read_names, read_numbers
from fer_vit.tables.read import Table

SUM_TOLERANCE = 0.01  # most distance from 1 of the sum of rounded probabilities
EXACT_SUM = 0.002  # most distance from 1 of the sum of probabilities by `predict`


def find_labels(table: Table) -> list[str]:
    """Returns the expressions of a table.

    A user's column such as `p_id` is no probability. An expression has a common name, occurs in the
    table as a label, or is needed for a sum of 1.
    """
    candidates = []
    for name in table.names:
        if name.startswith(PROBABILITY):
            candidates.append(name.removeprefix(PROBABILITY))
    labels = _choose_labels(table, candidates)
    if len(labels) < 2:
        actual = short(", ".join(table.names))
        raise TableError(
            "Expected a table of `fer-vit predict` with path, confidence and, for each expression, "
            f"p_NAME, but {table.path} has {actual}."
        )
    return labels


def _choose_labels(table: Table, candidates: list[str]) -> list[str]:
    """Returns the candidates that are expressions."""
    known = {*EXPRESSIONS, *SYNONYMS} | _labels_in(table, candidates)
    for name in table.names:
        if name.startswith(SMOOTHED):
            known.add(name.removeprefix(SMOOTHED))
    sure = [label for label in candidates if label in known]  # certainly expressions
    if len(sure) == len(candidates):
        return candidates

    decimal_mark = table.decimal_mark([PROBABILITY + label for label in sure])
    confidence = _numbers_or_none(table, "confidence", decimal_mark)
    shares = {
        label: _numbers_or_none(table, PROBABILITY + label, decimal_mark) for label in candidates
    }
    error_of_all = _sum_error([shares[label] for label in candidates], confidence)
    error_of_sure = _sum_error([shares[label] for label in sure], confidence)
    # If only the sure candidates sum to 1, the other candidates are columns of the user.
    if error_of_all > EXACT_SUM and error_of_sure <= SUM_TOLERANCE:
        return sure
    # A column of zeros is not needed for a sum of 1.
    return [label for label in candidates if label in sure or _may_occur(shares[label])]


def _labels_in(table: Table, candidates: Sequence[str]) -> set[str]:
    """Returns the labels that faces have, spelled like the candidates."""
    labels: set[str] = set()
    for column in ("label", SMOOTHED_LABEL):
        if column in table.names:
            names, _ = read_names(table[column], candidates)
            labels.update(name for name in names if name is not None)
    return labels


def _numbers_or_none(table: Table, name: str, decimal_mark: str) -> Array | None:
    """Returns the numbers of a column (N,), NaN where missing; None if a cell is no number."""
    try:
        return read_numbers(table[name], decimal_mark)
    except BadCellError:
        return None


def _may_occur(shares: Array | None) -> bool:
    """Returns whether a probability (N,) is above zero in any row, or unknown (None)."""
    return shares is None or bool((shares > 0).any())


def _sum_error(columns: Sequence[Array | None], confidence: Array | None) -> float:
    """Returns the largest distance from 1 of any face's sum of probabilities.

    The distance is infinite if a probability is invalid. `columns` are (N,) each; rows without
    `confidence` (N,) have no face.
    """
    numbers = [column for column in columns if column is not None]
    if not columns or len(numbers) < len(columns) or confidence is None:
        return np.inf
    probabilities = np.column_stack(numbers)[~np.isnan(confidence)]
    if not len(probabilities):
        return 0.0
    if not (probabilities >= 0).all():
        return np.inf
    return float(np.abs(probabilities.sum(1) - 1).max())
