"""Which columns of a table are probabilities of expressions."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from fer_vit.tables.expressions import find_labels
from fer_vit.tables.read import Table
from fer_vit.tables.source import Source


def test_expressions_with_other_names(tmp_path: Path) -> None:
    def labels(*columns: str, **values: Any) -> list[str]:
        cells = {"path": ["a"], "confidence": [1.0]}
        cells |= dict(zip(columns, [[0.5], [0.4], [0.1]], strict=False))
        cells |= {name: [value] for name, value in values.items()}
        return find_labels(Table(Source(tmp_path), pa.table(cells)))

    assert labels("p_happy", "p_bored", "p_calm") == ["happy", "bored", "calm"]
    assert labels("p_bored", "p_calm", "p_x") == ["bored", "calm", "x"]
    # the cell is named where it is read
    assert labels("p_bored", "p_calm", "p_x", p_id="7", smoothed_bored=1) == [
        "bored",
        "calm",
        "x",
        "id",
    ]
    assert labels("p_bored", "p_calm", "p_fear", p_id=7, label="bored", label_smoothed="calm") == [
        "bored",
        "calm",
        "fear",
    ]
