"""Numbers and names in sentences."""

from collections import Counter
from collections.abc import Iterable

from fer_vit.errors import short

MOST_COUNTS = 6
"""Counts that `list_counts` names."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun: "1 face", "1,200 faces"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or noun + 's'}"


def format_counts(counts: Counter[str], limit: int | None = None) -> str:
    """Formats counts on one line, the largest first; None: all of them."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(limit))


def list_counts(counts: Counter[str]) -> str:
    """Returns the largest counts with their names, and how many there are of others."""
    named = counts.most_common(MOST_COUNTS)
    parts = [f"{number:,} {short(escaped(name))}" for name, number in named]
    rest = counts.total() - sum(number for _, number in named)
    if rest:
        parts.append(f"{rest:,} others")
    return ", ".join(parts)


def list_names(names: Iterable[object], most: int = 3) -> str:
    """Returns the first names, and how many there are of others."""
    texts = [escaped(str(name)) for name in names]
    text = ", ".join(texts[:most])
    if len(texts) > most:
        text += f" and {len(texts) - most:,} more"
    return text


def escaped(name: str) -> str:
    """Returns a name without characters that a terminal could act on."""
    letters = []
    for letter in name:
        if letter.isprintable():
            letters.append(letter)
        else:
            letters.append(letter.encode("unicode_escape", "surrogatepass").decode())
    return "".join(letters)
