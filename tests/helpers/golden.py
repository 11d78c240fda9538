"""Golden files: what users and their scripts read, in `tests/golden`.

Texts, keys, their order and types are compared exactly. Numbers of a model differ between
processors and engines: `NUMBERS` has their tolerances.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fer_vit.version import __version__

FOLDER = Path(__file__).parents[1] / "golden"
MESSAGES = FOLDER / "messages.txt"
REWRITE = "python -m pytest -n 0 tests/test_golden.py --write-golden"
MAX_DIFFERENCES = 20  # differences in the message of a test that fails


class Kind(NamedTuple):
    """Numbers with one tolerance."""

    places: str  # a regular expression of their places, such as `[3].p_fear`
    tolerance: float
    reason: str


NUMBERS = (
    Kind(
        r"\.(p_\w+|confidence|move_\w+|probabilities\[\d+\])$",
        1e-3,
        "in [0, 1]; engines agree to 1e-4, and tables round to four digits",
    ),
    Kind(r"\.(entropy|cross-entropy\.\w+|calibration error\.\w+)$", 3e-3, "sums of probabilities"),
    Kind(r"\.(yaw|pitch|roll)$|\.pose\.(values|angles)", 0.3, "degrees, rounded to 0.1"),
    Kind(r"\.(box_\w+|\w+_x|\w+_y|size|boxes\[.+)$", 0.3, "pixels, rounded to 0.1"),
    Kind(r"\.(score|blur)$", 2e-3, "the detector's probability; a ratio, rounded to 0.001"),
    Kind(r"\.matrix\[\d+\]$", 0.3, "crop to photo; a photo of one face is drawn large"),
    Kind(r"\.box\[\d+\]$", 3e-3, "a fraction of the photo's side"),
    Kind(r"\.(shares|interactions)\[.+|\.charts\..+", 1e-2, "attributions: sums over a path"),
)
"""Numbers that a model computes. All others are the same on every processor up to `EXACT`."""
EXACT = 1e-9  # relative: float64, where processors add and take logarithms in another order
DOUBLE_DIGITS = 15
"""Digits of a number that is not rounded: the shortest text of a double has up to 17, and the last
bits decide how many.
"""


@dataclass(frozen=True)
class Golden:
    """The golden files, which are compared, or rewritten where they differ."""

    write: bool

    def check(self, name: str, text: str, numbers: Sequence[Kind] = ()) -> None:
        """Compares a text with the golden file `name`; versions and days may differ."""
        text = masked(text)
        file = FOLDER / name
        lines = ["There is no such file"]
        if file.is_file():
            lines = differences(file.read_text(encoding="utf-8"), text, file.suffix, numbers)
        if lines and self.write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
            return
        shown = "\n".join(lines[:MAX_DIFFERENCES])
        assert not lines, f"{name}: {len(lines)} differences. Wanted? {REWRITE}\n{shown}"

    def check_message(self, words: str, message: str) -> None:
        """Compares the error line of a call with the one in `messages.txt`."""
        expected = messages()
        if self.write:
            pairs = expected | {words: message}
            text = "\n".join(f"{words}\n{message}\n" for words, message in pairs.items())
            MESSAGES.write_text(text, encoding="utf-8", newline="\n")
            return
        assert message == expected[words]


def messages() -> dict[str, str]:
    """The message by the words of a call: pairs of lines, with an empty line after each."""
    pairs = MESSAGES.read_text(encoding="utf-8").strip().split("\n\n")
    return dict(pair.split("\n") for pair in pairs)


def masked(text: str) -> str:
    """A text without the version and the day."""
    text = text.replace(__version__, "VERSION")
    return re.sub(r"\b20\d\d-\d\d-\d\d\b", "DAY", text)


def differences(expected: str, text: str, suffix: str, numbers: Sequence[Kind] = ()) -> list[str]:
    """The places where a text differs from the expected one."""
    old = dict(leaves(READERS[suffix](expected)))
    new = dict(leaves(READERS[suffix](text)))
    lines = [f"{place} is gone" for place in old if place not in new]
    lines += [f"{place} is new" for place in new if place not in old]
    if not lines and [*old] != [*new]:
        lines = [f"another order: {[*new]}"]
    for place in old.keys() & new.keys():
        if not same(old[place], new[place], place, numbers):
            lines.append(f"{place}: expected {old[place]!r}, but got {new[place]!r}")
    return sorted(lines)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a tree by place; an empty dict or list is a value."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from leaves(part, f"{place}.{name}")
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from leaves(part, f"{place}[{index}]")
    else:
        yield place, value


def same(old: Any, new: Any, place: str, numbers: Sequence[Kind]) -> bool:
    """Whether two values are equal; numbers with a fraction up to their tolerance."""
    if type(old) is not type(new):
        return False
    if not isinstance(old, float):
        return bool(old == new)
    tolerance = EXACT * max(1, abs(old))
    for kind in numbers:
        if re.search(kind.places, place):
            tolerance = kind.tolerance
            break
    return abs(old - new) <= tolerance


def read_csv(text: str) -> Any:
    """The header, the digits and the rows of a table."""
    header, *rows = csv.reader(text.splitlines())
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    numbered = [{name: number(cell) for name, cell in row.items()} for row in cells]
    return [header, digits(cells), *numbered]


def read_lines(text: str) -> Any:
    """The header, the digits and the rows of a table; each line is a JSON value."""
    values = [json.loads(line) for line in text.splitlines()]
    return [[[*value] for value in values], digits(values), *values]


def digits(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The most digits of numbers with a fraction, by column, up to `DOUBLE_DIGITS`."""
    most: dict[str, int] = {}
    for row in rows:
        for name, cell in row.items():
            if isinstance(number(str(cell)), float):
                text = re.sub(r"e.*|\D", "", str(cell)).strip("0")
                most[name] = max(most.get(name, 0), min(len(text), DOUBLE_DIGITS))
    return most


def number(cell: str) -> str | float:
    """A cell with a fraction as a number, any other one as text."""
    has_fraction = re.fullmatch(r"-?\d+(\.\d+(e[-+]?\d+)?|e[-+]?\d+)", cell)
    return float(cell) if has_fraction else cell


READERS = {
    ".csv": read_csv,
    ".jsonl": read_lines,
    ".json": json.loads,
    ".txt": lambda text: [line.split() for line in text.split("\n\n")],
}
"""How files are read, by suffix. A text consists of words: Python's versions break lines of help
at other places.
"""


def pretty(value: Any) -> str:
    """A JSON value, one number in each line."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def json_lines(values: list[Any]) -> str:
    """JSON values, one in each line."""
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
