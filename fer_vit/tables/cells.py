"""Cells of tables that people have edited: missing values, names and numbers.

A column is an Arrow array of N cells, with null for a missing cell. Functions `read_...` convert a
column to a NumPy array.
"""

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fer_vit.faces import as_objects
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.report.table import csv_value

# What pandas reads as missing, with R's NA. `none`, -99, . and - are not in the list.
_EMPTY = ("", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None")
_NO_NUMBER = ("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")
MISSING = (*_EMPTY, *_NO_NUMBER)

_UNICODE_SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]
SPACES = "".join(_UNICODE_SPACES) + "\u200b\u2060\ufeff"
# A whole number as pandas writes it beside missing values: 3.0 or 1234.000. 1.000 does not match,
# since it may be a thousand.
WHOLE_NUMBER = re.compile(r"-?(0\.0+|[1-9]\d{0,2}\.(?!000$)0+|[1-9]\d{3,}\.0+)")
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}  # by lower-case word
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
# A number whose comma is no mark of thousands: 0,125 or 1,5, but not 1,234.
FRACTION = r"^[+-]?(0*,\d+|\d*,(\d{1,2}|\d{4,})|\d{4,},\d+|\d*,\d+[eE][+-]?\d+)$"
MAX_EXACT_INTEGER = 2**53  # larger whole numbers have no exact float
ROWS_AT_ONCE = 10_000  # rows of a workbook or JSON Lines that are Python objects at once


class BadCellError(ValueError):
    """A cell that does not fit its column."""

    def __init__(self, row: int, cell: object, expected: str) -> None:
        super().__init__(f"row {row}: {expected}")
        self.row = row
        self.cell = cell
        self.expected = expected


class AmbiguousMarkError(ValueError):
    """Numbers with an unclear decimal mark; `cells` are examples."""

    def __init__(self, *cells: str) -> None:
        super().__init__(" and ".join(f"`{cell}`" for cell in cells))


def is_missing(cells: NDArray[np.object_]) -> Mask:
    """Returns whether each cell (N,) of a column is None."""
    return np.asarray(cells == np.array(None), bool)


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type is text, with or without dictionary encoding."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def cell_text(cell: Any) -> str | None:
    """Returns a cell as text: whole numbers without fraction, days without time; NaN as None.

    A number too large for an exact float becomes text like 2.02e+17, which is refused as a name.
    """
    if cell is None:
        return None
    if isinstance(cell, float):
        if math.isnan(cell):
            return None
        if math.isfinite(cell) and abs(cell) > MAX_EXACT_INTEGER:
            return f"{cell:.16e}"
        return str(int(cell)) if cell.is_integer() else repr(cell)
    if isinstance(cell, datetime.datetime):
        midnight = cell.time() == datetime.time()
        return cell.date().isoformat() if midnight else cell.isoformat(" ")
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "backslashreplace")
    return str(cell)


def text_column(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as text."""
    if is_text(cells.type):
        return cells
    texts = [cell_text(cell) for cell in cells.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def encode_cells(cells: pa.ChunkedArray) -> tuple[list[str | None], IntArray]:
    """Returns the distinct cells of a column, with None at the end, and each cell's index (N,)."""
    text = text_column(cells)
    if not pa.types.is_dictionary(text.type):
        text = pc.dictionary_encode(text)
    array = text.combine_chunks() if text.num_chunks != 1 else text.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # a column without cells
        array = pa.array([], pa.dictionary(pa.int32(), pa.string()))
    distinct = array.dictionary.to_pylist()
    return [*distinct, None], np.asarray(array.indices.fill_null(len(distinct)), np.int64)


def read_names(
    cells: pa.ChunkedArray, known: Iterable[str] = ()
) -> tuple[NDArray[np.object_], Counter[str]]:
    """Returns a column as names (N,): trimmed, accents composed, `1.0` as `1`, None where missing.

    A cell that equals a name in `known` takes the spelling of this name, even if the cell looks
    like a number or a missing value. Also returns how often each word for a missing value occurs;
    empty cells do not count.
    """
    distinct, index = encode_cells(cells)
    counts = np.bincount(index, minlength=len(distinct))
    known_names = {normalize("NFC", name).strip(SPACES): name for name in known}
    names: list[str | None] = []
    words: Counter[str] = Counter()
    for cell, count in zip(distinct, counts.tolist(), strict=True):
        if cell is None:
            names.append(None)
            continue
        name = normalize("NFC", cell).strip(SPACES)
        if not name:
            names.append(None)
        elif name in known_names:
            names.append(known_names[name])
        elif name in MISSING:
            words[name] += count
            names.append(None)
        elif WHOLE_NUMBER.fullmatch(name):
            names.append(name.partition(".")[0])
        else:
            names.append(name)
    return as_objects(names)[index], words


def read_paths(cells: pa.ChunkedArray) -> NDArray[np.object_]:
    """Returns a column of paths (N,), None where empty; NA and - are valid file names."""
    distinct, index = encode_cells(cells)
    paths: list[str | None] = []
    for cell in distinct:
        empty = cell is None or not cell.strip(SPACES)
        paths.append(None if empty else cell)
    return as_objects(paths)[index]


def read_booleans(cells: pa.ChunkedArray) -> NDArray[np.object_]:
    """Returns a column of booleans (N,), None where missing.

    Raises BadCellError for a word that is no boolean.
    """
    names, _ = read_names(cells)
    booleans: dict[str | None, bool | None] = {None: None}
    for name in names:
        if name in booleans:
            continue
        if name.lower() not in BOOLEANS:
            raise BadCellError(int((names == name).argmax()), name, "TRUE or FALSE")
        booleans[name] = BOOLEANS[name.lower()]
    return as_objects([booleans[name] for name in names])


def plain_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of trimmed text, with null for the words of missing values."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    trimmed = pc.utf8_trim(cells, characters=SPACES)
    missing = pc.is_in(trimmed, pa.array(MISSING, trimmed.type))
    return pc.if_else(missing, None, trimmed)


def read_numbers(cells: pa.ChunkedArray, mark: str = ".") -> Array:
    """Returns a column of numbers (N,), NaN where missing; `mark` is the decimal mark.

    Raises BadCellError for a cell that is no finite number.
    """
    kind = cells.type
    example = cells[0].as_py() if len(cells) else kind
    if is_text(kind):
        values = _parse(plain_text(cells), mark)
    elif pa.types.is_null(kind):
        values = np.full(len(cells), np.nan)
    elif pa.types.is_boolean(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        try:
            values = _floats(cells.cast(pa.float64(), safe=False))
        except pa.ArrowException as error:  # dates and times
            raise BadCellError(0, example, "a number") from error
    else:
        raise BadCellError(0, example, "a number")
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise BadCellError(row, cells[row].as_py(), "a finite number")
    return values


def _floats(cells: pa.ChunkedArray) -> Array:
    return np.array(pc.fill_null(cells, np.nan).to_numpy(), float)  # a copy that may be changed


def _parse(cells: pa.ChunkedArray, mark: str) -> Array:
    """Parses trimmed text with a decimal mark; marks for thousands are errors."""
    pointed = cells
    if mark == ",":
        # with a comma as the mark, a point makes no number
        pointed = pc.replace_substring(pc.replace_substring(cells, ".", "x"), ",", ".")
    try:
        return _floats(pointed.cast(pa.float64()))
    except pa.ArrowException as error:
        is_number = pc.fill_null(pc.match_substring_regex(pointed, NUMBER), True)
        row = pc.index(is_number, False).as_py()
        raise BadCellError(row, cells[row].as_py(), "a number") from error


def find_mark(columns: Sequence[pa.ChunkedArray]) -> str:
    """Returns the decimal mark of columns of numbers.

    Raises AmbiguousMarkError when some cells have a point and others a comma, and when each comma
    could be the mark of thousands.
    """
    texts = [plain_text(cells) for cells in columns if is_text(cells.type)]
    comma = _example(texts, ",")
    if comma is None:
        return "."
    point = _example(texts, r"\.")
    if point is not None:
        raise AmbiguousMarkError(point, comma)
    if _example(texts, FRACTION) is None:
        raise AmbiguousMarkError(comma)
    return ","


def _example(texts: Sequence[pa.ChunkedArray], pattern: str) -> str | None:
    """Returns the first cell that matches a pattern; None without one."""
    for cells in texts:
        matches = pc.fill_null(pc.match_substring_regex(cells, pattern), False)
        if pc.any(matches, min_count=0).as_py():
            return str(cells[pc.index(matches, True).as_py()].as_py())
    return None


def check_whole_cells(values: Array) -> None:
    """Raises BadCellError for a number (N,) that is not whole; NaN is allowed."""
    known = ~np.isnan(values)
    wrong = known & ((values != np.floor(values)) | (np.abs(values) > MAX_EXACT_INTEGER))
    if wrong.any():
        row = int(wrong.argmax())
        raise BadCellError(row, f"{values[row]:g}", "a whole number")


def check_magnitude(values: Array, most: float) -> None:
    """Raises BadCellError for a number (N,) whose size is above `most`; NaN is allowed."""
    wrong = np.abs(values) > most
    if wrong.any():
        row = int(wrong.argmax())
        raise BadCellError(row, f"{values[row]:g}", f"a number of at most {most:g}")


def unescape_column(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of text without the escapes of `report.table.csv_text`."""
    quoted = pc.match_substring(cells, "'")
    if not pc.any(quoted, min_count=0).as_py():
        return cells
    return pa.chunked_array([pa.array(map(csv_value, cells.to_pylist()), pa.string())])


def count_changed(before: pa.ChunkedArray, after: pa.ChunkedArray) -> int:
    """Returns how many cells of a column of text are unequal."""
    if before is after:
        return 0
    return int(pc.sum(pc.not_equal(before, after)).as_py() or 0)


def typed_cells(cells: Sequence[Any]) -> pa.Array:
    """Returns cells as numbers or as booleans if all cells are, else as text."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds:
        return pa.nulls(len(cells))
    if kinds == {bool}:
        return pa.array(cells, pa.bool_())
    if kinds <= {int, float}:
        try:
            return pa.array(cells, pa.int64() if kinds == {int} else pa.float64())
        except (pa.ArrowException, OverflowError):  # integers too large for a column
            pass
    return pa.array(map(cell_text, cells), pa.string())


def join_chunks(chunks: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Joins the chunks of a column, as text if their types differ."""
    known = [chunk for chunk in chunks if not pa.types.is_null(chunk.type)]
    kinds = {chunk.type for chunk in known}
    if not kinds:
        return pa.chunked_array(chunks, pa.null())
    if kinds == {pa.int64(), pa.float64()}:
        kind = pa.float64()
    elif len(kinds) == 1:
        (kind,) = kinds
    else:
        kind = pa.string()
        known_text = [text_column(pa.chunked_array([chunk])) for chunk in chunks]
        chunks = [part for column in known_text for part in column.chunks]
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)
