"""Names of groups and persons that a reader takes for one name."""

import re
from collections.abc import Iterable
from unicodedata import combining, normalize


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Returns groups of names that a reader takes for one name, such as `P-01`, `p1` and `P_1`.

    Names of a group differ in case, accents, width, spaces, punctuation, leading zeros or a
    fraction of zeros.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(_skeleton(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


# A sign at the start, a fraction, a whole number, a word, or a symbol that is no separator:
# "-12.5 kg (%)" has the parts "-", "12", ".5", "kg" and "%".
_PARTS = re.compile(r"^[-+]|(?<=\d)[.,]\d+|\d+|[^\W\d_]+|[^\w\s.,:;()'\"-]")

_ZERO_FRACTION = re.compile("[.,]0+")
_DASHES = re.compile("[\u2010-\u2015\u2212]")
_QUOTES = re.compile("[\u2018-\u201f]")


def _skeleton(name: str) -> tuple[str, ...]:
    letters = "".join(char for char in normalize("NFKD", name) if not combining(char))
    letters = _QUOTES.sub("'", _DASHES.sub("-", letters))
    parts = []
    for part in _PARTS.findall(letters.casefold()):
        if _ZERO_FRACTION.fullmatch(part):
            continue
        if part.isdigit():
            part = part.lstrip("0") or "0"
        parts.append(part)
    return tuple(parts) or (name,)
