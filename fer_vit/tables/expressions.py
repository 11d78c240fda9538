"""Finds the columns of a table of `predict` that are probabilities of expressions."""

import json

from fer_vit.errors import TableError, short
from fer_vit.fields import PROBABILITY, SMOOTHED, SMOOTHED_LABEL
from fer_vit.labels import EXPRESSIONS, SYNONYMS
from fer_vit.report.table import LABELS_FACT
from fer_vit.tables.cells import read_names
from fer_vit.tables.read import Table


def find_labels(table: Table) -> list[str]:
    """Returns the expressions of a table.

    Parquet files record them. In other files, an expression has a common name, or a face has it as
    its label.

    Raises FerVitError for a column of another name, which may be a probability or a user's column.
    """
    candidates = []
    for name in table.names:
        if name.startswith(PROBABILITY):
            candidates.append(name.removeprefix(PROBABILITY))

    recorded = table.facts().get(LABELS_FACT)
    if recorded is not None:
        expressions = set(json.loads(recorded))
        labels = [label for label in candidates if label in expressions]
    else:
        labels = candidates
        _check_known(table, candidates)
    if len(labels) < 2:
        actual = short(", ".join(table.names))
        raise TableError(
            "Expected a table of `fer-vit predict` with path, confidence and, for each expression, "
            f"p_NAME, but {table.path} has {actual}."
        )
    return labels


def _check_known(table: Table, candidates: list[str]) -> None:
    """Raises FerVitError for a candidate that is no common name, and that no face has."""
    known = {*EXPRESSIONS, *SYNONYMS}
    for column in ("label", SMOOTHED_LABEL):
        if column in table.names:
            names, _ = read_names(table[column], candidates)
            known.update(names)
    for name in table.names:
        if name.startswith(SMOOTHED):
            known.add(name.removeprefix(SMOOTHED))
    for label in candidates:
        if label not in known:
            raise TableError(
                f"Expected the probability of an expression in the column "
                f"`{short(PROBABILITY + label)}` of {table.path}, but no face has this label. "
                "Rename a column of yours; for an expression, predict into a .parquet, which "
                "records the expressions."
            )
