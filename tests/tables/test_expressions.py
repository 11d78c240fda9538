"""Which columns of a table are probabilities of expressions."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fer_vit.errors import TableError
from fer_vit.tables.predicted import find_labels
from fer_vit.tables.table_reader import Table


def labels(*columns: str, record: list[str] | None = None, **values: Any) -> list[str]:
    cells: dict[str, list[Any]] = {"path": ["a"], "confidence": [1.0]}
    cells |= {name: [0.5] for name in columns}
    cells |= {name: [value] for name, value in values.items()}
    table = pa.table(cells)
    if record is not None:
        facts = {"labels": json.dumps(record)}
        table = table.replace_schema_metadata({"predictions": json.dumps(facts)})
    return find_labels(Table(Path("t.csv"), table), json.dumps(record) if record else None)


def test_expressions_have_common_names_or_occur_as_labels() -> None:
    assert labels("p_happy", "p_fear") == ["happy", "fear"]
    assert labels("p_calm", "p_bored", "p_fear", label="bored", smoothed_calm=0.5) == [
        "calm",
        "bored",
        "fear",
    ]
    assert labels("p_calm", "p_bored", label="calm", label_smoothed="bored") == ["calm", "bored"]


def test_a_probability_of_unknown_name_is_refused() -> None:
    for more in ({"p_id": 7}, {"p_bored": 0.0}):
        name = next(iter(more))
        message = rf"column `{name}` of t\.csv, but no face .* Rename .*\.parquet"
        with pytest.raises(TableError, match=message):
            labels("p_happiness", "p_anger", label="anger", **more)


def test_parquet_records_the_expressions() -> None:
    assert labels("p_calm", "p_id", "p_bored", record=["bored", "calm"]) == ["calm", "bored"]
    with pytest.raises(TableError, match=r"for each expression, p_NAME"):
        labels("p_calm", "p_id", record=["calm"])
