"""Cells against Python's own parser, and the words of pandas for a missing value."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pandas._libs.parsers import STR_NA_VALUES

from fer_vit.tables.cells import (
    AmbiguousMarkError,
    BadCellError,
    check_whole_cells,
    find_mark,
    read_booleans,
    read_names,
    read_numbers,
    read_paths,
)


def column(*cells: Any, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(cells, kind)])


NAMES = """
    none -99 Nana 0 no n NA2 -1 .5 a. #1 + - . ... ? _ na k.A. missing NaT #REF! #WERT! Err:502 .a
"""


@pytest.mark.parametrize("word", ["", *sorted(STR_NA_VALUES)])
def test_what_pandas_reads_as_missing_is_missing_in_every_kind_of_column(word: str) -> None:
    padded = f"\u00a0{word} \t"
    names, words = read_names(column("a", padded, None, kind=pa.string()))
    assert names.tolist() == ["a", None, None]
    assert words == ({word: 1} if word else {})
    assert np.isnan(read_numbers(column("1", padded, None))).tolist() == [False, True, True]
    assert read_booleans(column("TRUE", padded, None)).tolist() == [True, None, None]


def test_words_that_are_names_stay() -> None:
    names = ["missing data", *NAMES.split()]
    assert read_names(column(*names))[0].tolist() == names


def test_known_names_are_read_as_they_are_spelled() -> None:
    known = ["NA", "-", "1.0", "de\u0301gou\u0302t", " calm"]
    cells = column("NA ", "-", "1.0", "d\u00e9go\u00fbt", "calm", "n/a", "2.0", "", None)
    names, words = read_names(cells, known)
    assert names.tolist() == [*known, None, "2", None, None]
    assert words == {"n/a": 1}


def test_a_path_may_be_any_word() -> None:
    paths = ["NA", "-", "None", " a.png", " ", "", None]
    assert read_paths(column(*paths)).tolist() == [*paths[:4], None, None, None]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "1.0", "1.00", "-2.0"], ["1", "1", "1", "-2"]),
        (["01", "007.0", "1.5", "0.0"], ["01", "007.0", "1.5", "0"]),
        (["1", "1.000", "-20.000"], ["1", "1.000", "-20.000"]),  # thousands in half of Europe
        (["0.000", "1.0000", "1234.000"], ["0", "1", "1234"]),
        ([1.0, 2.0, None], ["1", "2", None]),
        ([1.5, math.nan], ["1.5", None]),
        ([1, 2], ["1", "2"]),
        ([True, None], ["True", None]),
        ([b"a"], ["a"]),
        (["ge\u0301ne", "g\xe9ne "], ["g\xe9ne", "g\xe9ne"]),
        ([float(2**52)], [str(2**52)]),
        ([2.0**60], ["1.1529215046068470e+18"]),  # more digits than a float has
        ([[1]], ["[1]"]),
        ([{"a": 1}], ["{'a': 1}"]),
    ],
)
def test_names_are_equal_in_all_types(cells: list[Any], expected: list[Any]) -> None:
    assert read_names(column(*cells))[0].tolist() == expected


def test_names_of_a_dictionary_and_of_an_empty_column() -> None:
    cells = pa.chunked_array([pa.array(["a", None, "a"]).dictionary_encode()])
    assert read_names(cells)[0].tolist() == ["a", None, "a"]
    assert read_names(pa.chunked_array([], pa.string()))[0].tolist() == []
    assert read_names(pa.chunked_array([pa.nulls(2)]))[0].tolist() == [None, None]


@pytest.mark.parametrize(
    ("cells", "mark", "expected"),
    [
        (["0.5", "1e-3", "-2", ".5", "3."], ".", [0.5, 0.001, -2, 0.5, 3]),
        (["0,5", "1,5E-3", "12"], ",", [0.5, 0.0015, 12]),
        (["0,123", "1,234"], ",", [0.123, 1.234]),
        (["1.234", "2"], ".", [1.234, 2]),
        (["86400,123"], ",", [86400.123]),
    ],
)
def test_numbers_with_either_decimal_mark(
    cells: list[str], mark: str, expected: list[float]
) -> None:
    assert find_mark([column(*cells)]) == mark
    assert read_numbers(column(*cells), mark).tolist() == expected


@pytest.mark.parametrize(
    "cells",
    [["0.5", "0,5"], ["1.234,5"], ["1,234.5"], ["1,234"], ["1,234", "2,345"], ["1,234,567"]],
)
def test_an_unclear_mark_is_refused(cells: list[str]) -> None:
    with pytest.raises(AmbiguousMarkError):
        find_mark([column(*cells)])
    with pytest.raises(AmbiguousMarkError):
        find_mark([column(cell) for cell in cells])


@pytest.mark.parametrize(
    ("cell", "mark"),
    [
        *((cell, ".") for cell in ("much", "1e999", "inf", "-inf", "1,234", "1,23", "86%", "0x10")),
        *((cell, ".") for cell in ("1 2", "1.2.3", "1_000", "\uff11", "²", "1e", "--1")),
        *((cell, ",") for cell in ("1.234", "1.23", "0.5", "1,2,3", "12.34,5")),
    ],
)
def test_what_is_no_number_is_named(cell: str, mark: str) -> None:
    with pytest.raises(BadCellError) as error:
        read_numbers(column("1", cell, "2"), mark)
    assert error.value.row == 1
    assert error.value.cell == cell


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_any_float_is_read_as_python_writes_it(values: list[float]) -> None:
    text = [repr(value) for value in values]
    assert read_numbers(column(*text)).tolist() == values
    comma = [cell.replace(".", ",") for cell in text]
    assert read_numbers(column(*comma), ",").tolist() == values


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_named(text: str) -> None:
    for mark in (".", ","):
        with suppress(BadCellError):
            assert not np.isinf(read_numbers(column(text), mark)).any()


@pytest.mark.parametrize(
    "cells",
    [column(math.inf), column([1]), column(pa.scalar(1, pa.timestamp("ns"))), column({"a": 1})],
)
def test_columns_of_other_types_are_no_numbers(cells: pa.ChunkedArray) -> None:
    with pytest.raises(BadCellError):
        read_numbers(cells)


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.date32(), pa.duration("s"), pa.binary()])
def test_an_empty_column_of_another_type_is_named(kind: pa.DataType) -> None:
    with pytest.raises(BadCellError) as error:
        read_numbers(pa.chunked_array([], kind))
    assert error.value.cell == kind


def test_whole_numbers() -> None:
    check_whole_cells(np.array([0, -1, math.nan, 2.0**53]))
    for wrong in (0.5, 2.0**60):
        with pytest.raises(BadCellError) as error:
            check_whole_cells(np.array([1, wrong]))
        assert error.value.row == 1


def test_truth_in_any_case() -> None:
    assert read_booleans(column("TRUE", "true", "1")).tolist() == [True] * 3
    assert read_booleans(column("False", "false", "0")).tolist() == [False] * 3
    assert read_booleans(column(True, None, False)).tolist() == [True, None, False]
    assert read_booleans(column(1.0, 0.0)).tolist() == [True, False]
    for word in ("2", "WAHR", "yes"):
        with pytest.raises(BadCellError) as error:
            read_booleans(column("TRUE", word))
        assert error.value.row == 1
