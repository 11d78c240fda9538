"""Parquet tables with every type in every column: each is read, or is one line."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.errors import FerVitError
from fer_vit.tables.images import read_images, read_truth_table
from fer_vit.tables.labelled import Labelled
from fer_vit.tables.predicted import type_columns
from fer_vit.tables.table_reader import read_table

ROWS = 4
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(),
    ROWS,
    [None, pa.py_buffer(np.arange(ROWS + 1, dtype=np.int32)), pa.py_buffer(b"\xff" * ROWS)],
)
TEXTS = ["", "NA", "\x1b[2J\u202e", "a\0b", "9" * 400, "1e400", "٣", "0,8", "1_000", "=1+1"]
NUMBERS = {
    pa.int8(): 1,
    pa.uint64(): 2**64 - 1,
    pa.float16(): np.float16(0.5),
    pa.float32(): float("nan"),
    pa.float64(): float("inf"),
    pa.bool_(): True,
    pa.decimal256(60, 5): Decimal("1e30"),
    pa.timestamp("us"): 2**62,
    pa.timestamp("ns", "Europe/Berlin"): datetime.datetime(2020, 1, 1),
    pa.date32(): 2**31 - 1,
    pa.date64(): 2**40,
    pa.time64("us"): 1,
    pa.duration("s"): 2**62,
    pa.struct({"a": pa.int8()}): {"a": 1},
    pa.list_(pa.int8()): [1],
    pa.list_(pa.int8(), 2): [1, 2],
    pa.map_(pa.string(), pa.int8()): [("a", 1)],
    pa.binary(): b"\xff",
    pa.binary(2): b"ab",
    pa.string_view(): "x",
    pa.large_string(): "x" * 100_000,
}


def odd_columns() -> Iterator[pa.Array]:
    """A column of each type, with a value that is seldom tried."""
    for kind, value in NUMBERS.items():
        yield pa.array([value] * ROWS, kind)
    for text in TEXTS:
        yield pa.array([text] * ROWS)
        yield pa.array([text] * ROWS).dictionary_encode()
    yield pa.array([1] * ROWS).dictionary_encode()
    yield pa.nulls(ROWS)
    yield NOT_UTF8
    yield pa.DictionaryArray.from_arrays(pa.array([0] * ROWS), NOT_UTF8)


def read_rows(path: Path) -> Labelled:
    return type_columns(read_table(path))


TABLE = {
    "path": [f"a{row}.jpg" for row in range(ROWS)],
    "status": ["ok"] * ROWS,
    "face": [1] * ROWS,
    "label": ["neutral"] * ROWS,
    "confidence": [0.8] * ROWS,
    "p_neutral": [0.8] * ROWS,
    "p_happiness": [0.2] * ROWS,
    "yaw": [1.0] * ROWS,
    "move_jawOpen": [0.1] * ROWS,
    "ambiguous": [False] * ROWS,
    "condition": ["a", "b"] * (ROWS // 2),
}
READERS: tuple[Callable[[Path], object], ...] = (
    read_rows,
    read_images,
    lambda path: read_truth_table(path, ["neutral", "happiness"]),
)


@pytest.mark.parametrize("column", ["path", "label", "p_neutral", "yaw", "ambiguous", "condition"])
def test_any_type_in_a_column_is_read_or_is_one_line(column: str, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    read = 0
    for cells in odd_columns():
        pq.write_table(pa.table(TABLE | {column: cells}), path)
        for reader in READERS:
            with suppress(FerVitError):
                reader(path)
                read += 1
    assert read > len(READERS)  # some types fit each column


def test_a_column_of_a_user_may_have_any_type(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    refused = []
    for cells in odd_columns():
        pq.write_table(pa.table(TABLE | {"note": cells}), path)
        try:
            read = read_rows(path)
        except FerVitError as error:
            refused.append(str(error))
            continue
        assert read.paths.tolist() == TABLE["path"]
    # three with dates and times that Python does not have, two that are no UTF-8
    assert len(refused) == 5
    for line in refused:
        assert line.startswith(f"Expected a table in {path}, but it cannot be read (")
        assert "\n" not in line
