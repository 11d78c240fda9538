"""All JSON that the package writes is valid: no NaN and no infinity."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fer_vit.report.table import TableWriter
from fer_vit.texts import json_text

PACKAGE = Path(__file__).parents[1] / "fer_vit"
UNDEFINED = [math.nan, math.inf, -math.inf, np.float64("nan")]


def refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize("value", UNDEFINED)
def test_undefined_numbers_are_null(value: float) -> None:
    nested = {"a": [1.5, (value, {"b": value})], "c": value, "d": True, "e": "NaN", "f": None}
    expected = {"a": [1.5, [None, {"b": None}]], "c": None, "d": True, "e": "NaN", "f": None}
    assert json.loads(json_text(nested, indent=2), parse_constant=refuse) == expected


def test_one_function_writes_json() -> None:
    direct = re.compile(r"\bjson\.dumps?\(|import dumps?\b|JSONEncoder\(\)\.encode")
    files = [file for file in PACKAGE.rglob("*.py") if direct.search(file.read_text("utf-8"))]
    assert files == [PACKAGE / "texts.py"]


@pytest.mark.parametrize("value", UNDEFINED)
def test_tables_have_null(value: float, tmp_path: Path) -> None:
    with TableWriter(tmp_path / "table.jsonl", {"a": float}) as table:
        table.write([{"a": value}])
    text = (tmp_path / "table.jsonl").read_text()
    assert json.loads(text, parse_constant=refuse) == {"a": None}
