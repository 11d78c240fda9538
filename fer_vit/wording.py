"""Text for messages and reports: counts with nouns, and lists of names."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from fer_vit.errors import short

Documented = TypeVar("Documented", bound=Callable[..., object])
MAX_COUNTS = 6  # counts that `list_counts` names
MAX_NAME = 200  # most characters of a name that `list_names` lists; most paths are shorter


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun: "1 face", "1,200 faces"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or noun + 's'}"


def format_counts(counts: Counter[str], limit: int | None = None) -> str:
    """Formats the `limit` largest counts on one line, the largest first; None: all counts."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(limit))


def list_counts(counts: Counter[str]) -> str:
    """Returns the `MAX_COUNTS` largest counts with their names, and the sum of the other counts."""
    named = counts.most_common(MAX_COUNTS)
    texts = [f"{number:,} {short(escaped(name))}" for name, number in named]
    remainder = counts.total() - sum(number for _, number in named)
    if remainder:
        texts.append(f"{remainder:,} others")
    return ", ".join(texts)


def list_names(names: Iterable[object], limit: int = 3) -> str:
    """Returns the first `limit` names, and the number of further names.

    A name of more than `MAX_NAME` characters keeps its start and its end.
    """
    texts = [escaped(str(name)) for name in names]
    shown = []
    for text in texts[:limit]:
        if len(text) > MAX_NAME:
            text = f"{text[: MAX_NAME // 2 - 3]}...{text[-MAX_NAME // 2 :]}"
        shown.append(text)
    text = ", ".join(shown)
    if len(texts) > limit:
        text += f" and {len(texts) - limit:,} more"
    return text


def join_names(names: Iterable[str], last: str = "or") -> str:
    """Returns all names with a word before the last one: "a, b or c"."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


def describe_entries(meanings: Mapping[str, str]) -> str:
    """Returns names with their meanings on one line, for the help of an option."""
    return "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())


def fill_docstring(**texts: str) -> Callable[[Documented], Documented]:
    """Returns a decorator that replaces `{NAME}` in a docstring with the text of NAME.

    The help of options comes from docstrings. With this decorator, a new entry of a table appears
    in the help, too.
    """

    def fill(documented: Documented) -> Documented:
        if documented.__doc__ is not None:  # `python -OO` removes docstrings
            for name, text in texts.items():
                assert f"{{{name}}}" in documented.__doc__, f"{documented} does not name {name}"
                documented.__doc__ = documented.__doc__.replace(f"{{{name}}}", text)
        return documented

    return fill


def escaped(name: str) -> str:
    """Returns a name in which characters that are not printable are escaped."""
    letters = []
    for letter in name:
        if letter.isprintable():
            letters.append(letter)
        else:
            letters.append(letter.encode("unicode_escape", "surrogatepass").decode())
    return "".join(letters)
