"""Cells of tables that people have edited: missing values, names and numbers.

All functions work on whole columns, Arrow arrays of N cells; null is a missing cell.
"""

import datetime
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any
from unicodedata import combining, normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fer_vit.geometry import Array, IntArray

_MISSING = (
    "",
    # R, pandas, SQL, Julia and people, in any case
    *(r"#?n/?a", r"n\. ?a\.", r"k\. ?a\.", r"#n/a n/a", "na_[a-z]+_", "nat", r"\\n"),
    *("[+-]?nan", "null", "missing", r"<(na|nan|null|missing)>", r"\((null|missing)\)"),
    r"[+-]?1\.#(ind|qnan|snan)[0-9]*",
    # spreadsheets in any language: #NV, #N/D, #REF!, #NAME?, #DIV/0, Err:502
    *("#nv", r"#n/[a-z]", r"#[^\s#]+[!?]", "#null", r"#div/0", "#getting_data", "err:[0-9]+"),
    # SAS and Stata
    r"\.[a-z_]",
    # points, dashes, question marks and other marks alone
    "[-.?_*/~\u2010-\u2015\u2026\u2212]+",
)
MISSING = rf"(?i:{'|'.join(_MISSING)})|None"
"""What programs and people write for a missing value, for a whole trimmed cell. Other spellings are
names: `none`, -99.

The pattern is one for Python's `re` and for Arrow.
"""
_MISSING_CELL = re.compile(MISSING)
SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace()) + "\u200b\u2060\ufeff"
WHOLE = re.compile(
    r"-?(0|[1-9]\d*)\.0+"
)  # a whole number as pandas writes it beside missing values
TRUTH = {
    True: ("true", "1", "wahr", "vrai", "vero", "verdadero", "verdadeiro", "waar", "prawda"),
    False: ("false", "0", "falsch", "faux", "falso", "onwaar", "fa\u0142sz"),
}
"""Truth values as R and spreadsheets of several languages write them, in lower case."""
SAFE = 2**53  # larger whole numbers have no exact float


class BadCellError(ValueError):
    """A cell that is not what its column needs."""

    def __init__(self, row: int, cell: object, expected: str) -> None:
        super().__init__(f"row {row}: {expected}")
        self.row = row
        self.cell = cell
        self.expected = expected


class AmbiguousMarkError(ValueError):
    """Numbers whose decimal mark is unclear, with an example or two."""

    def __init__(self, *cells: str) -> None:
        super().__init__(" and ".join(f"`{cell}`" for cell in cells))


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a column has text, encoded as a dictionary or not."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def cell_text(cell: Any) -> str | None:
    """Returns a typed cell as text: whole numbers without a fraction, days without a time;
    None for NaN.
    """
    if isinstance(cell, float):
        if cell != cell:
            return None
        return str(int(cell)) if cell.is_integer() else repr(cell)
    if isinstance(cell, datetime.datetime):
        midnight = cell.time() == datetime.time()
        return cell.date().isoformat() if midnight else cell.isoformat(" ")
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "backslashreplace")
    return None if cell is None else str(cell)


def text_column(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as text."""
    if is_text(cells.type):
        return cells
    return pa.chunked_array(
        [pa.array([cell_text(cell) for cell in cells.to_pylist()], pa.string())]
    )


def encode(cells: pa.ChunkedArray) -> tuple[list[str | None], IntArray]:
    """Returns the distinct cells of a column, the last of which is None,
    and their index for each cell (N,).
    """
    text = text_column(cells)
    if not pa.types.is_dictionary(text.type):
        text = pc.dictionary_encode(text)
    array = text.combine_chunks() if text.num_chunks != 1 else text.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # of no cells
        array = pa.array([], pa.dictionary(pa.int32(), pa.string()))
    distinct = array.dictionary.to_pylist()
    return [*distinct, None], np.asarray(array.indices.fill_null(len(distinct)), np.int64)


def read_names(cells: pa.ChunkedArray) -> tuple[NDArray[np.object_], Counter[str]]:
    """Returns a column of a user as names (N,): trimmed, accents composed, `1.0` as `1`, None where
    missing.

    Also returns how often each word for a missing value occurs; empty cells are not counted.
    """
    distinct, index = encode(cells)
    counts = np.bincount(index, minlength=len(distinct))
    names: list[str | None] = []
    words: Counter[str] = Counter()
    for cell, count in zip(distinct, counts.tolist(), strict=True):
        name = None if cell is None else normalize("NFC", cell).strip(SPACES)
        if name is None or _MISSING_CELL.fullmatch(name):
            if name:
                words[name] += count
            name = None
        if name and WHOLE.fullmatch(name):
            name = name.partition(".")[0]
        names.append(name)
    return objects(names)[index], words


def read_paths(cells: pa.ChunkedArray) -> NDArray[np.object_]:
    """Returns a column of paths (N,), unaltered: a file may be called NA or - as well;
    None where empty.
    """
    distinct, index = encode(cells)
    paths = [cell if cell and cell.strip(SPACES) else None for cell in distinct]
    return objects(paths)[index]


def normal_path(path: str) -> str:
    """Returns a path in the spelling by which paths are compared: slashes, composed accents, no
    spaces around.

    `./` and doubled slashes mean nothing; accents come apart on macOS.
    """
    text = normalize("NFC", path.replace("\\", "/")).strip(SPACES)
    return re.sub(r"(^|/)(\./)+", r"\1", re.sub("/+", "/", text))


def read_truth(cells: pa.ChunkedArray) -> NDArray[np.object_]:
    """Returns a column of truth values (N,), None where missing;
    raises BadCellError for another word.
    """
    names, _ = read_names(cells)
    values = {word: value for value, words in TRUTH.items() for word in words}
    truth = {name: values.get(name.lower()) for name in {*names} - {None}}
    for name, value in truth.items():
        if value is None:
            raise BadCellError(int((names == name).argmax()), name, "TRUE or FALSE")
    return objects([truth.get(name) for name in names])


def objects(values: Sequence[object]) -> NDArray[np.object_]:
    """Returns values as an array of objects (N,)."""
    return np.fromiter(values, object, len(values))


def plain_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns text trimmed, with null for the words of missing values."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    trimmed = pc.utf8_trim(cells, characters=SPACES)
    missing = pc.match_substring_regex(trimmed, f"^({MISSING})$")
    return pc.if_else(missing, None, trimmed)


def read_numbers(cells: pa.ChunkedArray, mark: str = ".") -> Array:
    """Returns a column of numbers (N,), NaN where missing;
    raises BadCellError for a cell that is no finite number.
    """
    kind = cells.type
    if is_text(kind):
        values = _parse(plain_text(cells), mark)
    elif pa.types.is_null(kind):
        values = np.full(len(cells), np.nan)
    elif pa.types.is_boolean(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        try:
            values = _floats(cells.cast(pa.float64(), safe=False))
        except pa.ArrowException as error:  # dates and times
            raise BadCellError(0, cells[0].as_py(), "a number") from error
    else:
        raise BadCellError(0, cells[0].as_py() if len(cells) else kind, "a number")
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise BadCellError(row, cells[row].as_py(), "a finite number")
    return values


def _floats(cells: pa.ChunkedArray) -> Array:
    return np.array(pc.fill_null(cells, np.nan).to_numpy(), float)  # a copy that may be changed


def _parse(cells: pa.ChunkedArray, mark: str) -> Array:
    """Parses trimmed text with a decimal mark; thousands need no ambiguity: `1.234,5` is read,
    `1.234` is not.
    """
    if mark == ".":
        try:
            return _floats(cells.cast(pa.float64()))
        except pa.ArrowException:
            pass  # thousands, or no number
    group = (
        r"[.\x{20}\x{A0}\x{202F}'\x{2019}]" if mark == "," else r"[,\x{20}\x{A0}\x{202F}'\x{2019}]"
    )
    tens = "." if mark == "," else ","
    exponent = r"([eE][+-]?\d+)?"
    decimal = re.escape(mark)
    # A single group after the other mark could be a fraction: 1.234.
    grouped = rf"\d{{1,3}}({group}\d{{3}})+{decimal}\d+|\d{{1,3}}({group}\d{{3}}){{2,}}"
    spaced = r"\d{1,3}([\x{20}\x{A0}\x{202F}'\x{2019}]\d{3})+"
    valid = rf"^[+-]?({grouped}|{spaced}|\d+({decimal}\d*)?|{decimal}\d+){exponent}$"
    correct = pc.fill_null(pc.match_substring_regex(cells, valid), True)
    if not pc.all(correct, min_count=0).as_py():
        row = pc.index(correct, False).as_py()
        raise BadCellError(row, cells[row].as_py(), "a number")
    bare = pc.replace_substring_regex(cells, rf"[\x{{20}}\x{{A0}}\x{{202F}}'\x{{2019}}{tens}]", "")
    return _floats(pc.replace_substring(bare, mark, ".").cast(pa.float64()))


def _proof(mark: str, group: str) -> str:
    """Returns the pattern of numbers in which only `mark` can be the decimal mark."""
    mark, group = re.escape(mark), re.escape(group)
    forms = (
        rf"0*{mark}\d+",
        rf"\d*{mark}(\d{{1,2}}|\d{{4,}})",
        rf"\d{{4,}}{mark}\d+",
        rf"\d*{mark}\d+[eE][+-]?\d+",
        rf"\d{{1,3}}({group}\d{{3}})+{mark}\d+",
        rf"\d{{1,3}}({group}\d{{3}}){{2,}}",
    )
    return rf"^[+-]?({'|'.join(forms)})([eE][+-]?\d+)?$"


PROOFS = {".": _proof(".", ","), ",": _proof(",", ".")}
UNCLEAR = r"^[+-]?[1-9]\d{0,2},\d{3}$"  # a thousand or a fraction


def find_mark(columns: Sequence[pa.ChunkedArray]) -> str:
    """Returns the decimal mark of columns of numbers;
    raises AmbiguousMarkError when it is unclear.
    """
    texts = [plain_text(cells) for cells in columns if is_text(cells.type)]
    try:
        for cells in texts:
            cells.cast(pa.float64())
    except pa.ArrowException:
        pass
    else:
        return "."
    proofs = {mark: _example(texts, proof) for mark, proof in PROOFS.items()}
    if proofs["."] and proofs[","]:
        raise AmbiguousMarkError(proofs["."], proofs[","])
    unclear = _example(texts, UNCLEAR)
    if unclear and not any(proofs.values()):
        raise AmbiguousMarkError(unclear)
    return "," if proofs[","] else "."


def _example(texts: Sequence[pa.ChunkedArray], pattern: str) -> str | None:
    """Returns a cell that matches a pattern."""
    for cells in texts:
        matches = pc.fill_null(pc.match_substring_regex(cells, pattern), False)
        if pc.any(matches, min_count=0).as_py():
            return str(cells[pc.index(matches, True).as_py()].as_py())
    return None


def check_whole(values: Array) -> None:
    """Raises BadCellError when a number (N,) is not whole; NaN is missing."""
    known = ~np.isnan(values)
    wrong = known & ((values != np.floor(values)) | (np.abs(values) > SAFE))
    if wrong.any():
        row = int(wrong.argmax())
        raise BadCellError(row, f"{values[row]:g}", "a whole number")


def check_size(values: Array, most: float) -> None:
    """Raises BadCellError when the size of a number (N,) is above `most`; NaN is missing."""
    wrong = np.abs(values) > most
    if wrong.any():
        row = int(wrong.argmax())
        raise BadCellError(row, f"{values[row]:g}", f"a number of at most {most:g}")


def distinct_rows(keys: Sequence[Array]) -> tuple[IntArray, tuple[int, int] | None]:
    """Returns the order of rows by their keys, the first key first, and two equal rows if there are
    any.

    Keys are (N,) each; NaN comes first and equals NaN.
    """
    filled = [np.where(np.isnan(key), -np.inf, key) for key in keys]
    order = np.lexsort(filled[::-1])
    same = [key[order[1:]] == key[order[:-1]] for key in filled]
    equal = reduce(np.logical_and, same)
    if not equal.any():
        return order, None
    place = int(equal.argmax())
    first, second = sorted((int(order[place]), int(order[place + 1])))
    return order, (first, second)


def look_alikes(names: Mapping[str, int]) -> list[list[str]]:
    """Returns groups of names that a reader takes for one: `P-01`, `p1` and `P_1`; `Rest` and
    `rest.`.

    They differ in case, accents, width, spaces, punctuation or leading zeros.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(_skeleton(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


# Words, whole numbers, fractions, a sign at the start, and symbols that are no separators.
_PARTS = re.compile(r"^[-+]|(?<=\d)[.,]\d+|\d+|[^\W\d_]+|[^\w\s.,:;()'\"-]")


def _skeleton(name: str) -> tuple[str, ...]:
    letters = "".join(char for char in normalize("NFKD", name) if not combining(char))
    parts = _PARTS.findall(letters.casefold())
    return tuple(part.lstrip("0") or "0" if part.isdigit() else part for part in parts) or (name,)
