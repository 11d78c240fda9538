"""Errors that users can fix, and their messages."""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from numbers import Integral, Real


def printable(text: str) -> str:
    """Returns untrusted text on one line.

    Characters that are not printable (control characters, lone surrogates) become `?`.
    """
    letters = []
    for letter in text:
        if letter.isspace():
            letters.append(" ")
        elif letter.isprintable():
            letters.append(letter)
        else:
            letters.append("?")
    return "".join(letters)


_in_command = ContextVar("_in_command", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """Makes messages within the block name options; other messages name arguments of Python."""
    token = _in_command.set(True)
    try:
        yield
    finally:
        _in_command.reset(token)


def for_reader(message: str) -> str:
    """Returns a message with options in `command_line`, and otherwise with arguments of Python."""
    return message if _in_command.get() else as_arguments(message)


def as_arguments(message: str, with_groups: bool = False) -> str:
    """Returns a message with arguments instead of options: `--face crop` becomes `face='crop'`.

    Args:
        message: The message. Options are in backquotes.
        with_groups: Whether `--model.lr` becomes `model.lr`, the spelling in a config of `fit`.
            Otherwise it becomes `lr`, the argument of the class.
    """

    def translate(options: re.Match[str]) -> str:
        words = options[1].split(" --")
        return f"`{', '.join(_argument(option, with_groups) for option in words)}`"

    return re.sub(r"`--([^`]+)`", translate, message)


def _argument(option: str, with_groups: bool) -> str:
    """Returns an option without its dashes, such as `face crop`, as an argument."""
    name, _, value = option.partition(" ")
    if not with_groups:
        name = name.rpartition(".")[2]
    if not value:
        return name
    value = value.strip("'")  # quotes are for the shell
    is_literal = re.fullmatch(r"[A-Z]+|-?[\d.]+(e[-+]?\d+)?", value)  # such as FILE, or a number
    return f"{name}={value if is_literal else repr(value)}"


def translate_record(record: logging.LogRecord) -> bool:
    """Replaces options by arguments in a record of the log, as `for_reader` does."""
    record.msg = for_reader(record.getMessage())
    record.args = ()
    return True


logging.getLogger("fer_vit").addFilter(translate_record)


class FerVitError(Exception):
    """An error that the user can fix, in one line: expected, found, remedy.

    The command line prints the message without a traceback. Messages are written with options in
    backquotes (`--face crop`). In Python, the text of the error has arguments instead.
    """

    with_groups = False  # see `as_arguments`; `fit` sets it

    def __init__(self, message: str) -> None:
        # An error from a worker begins with its traceback, and file names may contain line breaks.
        without_traceback = re.split(r"fer_vit\.errors\.\w+: ", message)[-1]
        super().__init__(printable(without_traceback))

    def __str__(self) -> str:
        message = super().__str__()
        return message if _in_command.get() else as_arguments(message, self.with_groups)


class ImageError(FerVitError):
    """A photo or video that cannot be read."""


class ModelError(FerVitError):
    """A model or checkpoint that does not exist, is damaged, or is not fer-vit's."""


class MarkedCopyError(FerVitError):
    """The marked copy of a video cannot be written; the table of its faces is complete."""


class TableError(FerVitError):
    """A table that cannot be read or written, or lacks what a command needs."""


WHOLE_BITS = 63  # a whole number of an option has at most this many bits, as a signed int64


def check_number(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raises FerVitError when the value of an option is no number, NaN, or outside [low, high].

    `name` is the option without dashes, such as `workers` or `data.batch_size`.
    """
    if not isinstance(value, Real):
        raise FerVitError(f"Expected `--{name}` to be a number, but got {short(value)}.")
    if not low <= value <= high:
        allowed = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        raise FerVitError(f"Expected `--{name}` to be {allowed}, but got {short(value)}.")


def check_positive(name: str, value: float) -> None:
    """Raises FerVitError when the value of an option is no finite number above 0."""
    if not isinstance(value, Real):
        raise FerVitError(f"Expected `--{name}` to be a number, but got {short(value)}.")
    if not 0 < value < math.inf:
        raise FerVitError(f"Expected `--{name}` to be a number above 0, but got {short(value)}.")


def check_whole(name: str, value: int, low: int) -> None:
    """Raises FerVitError when the value of an option is no whole number in [low, 2**63)."""
    if not isinstance(value, Integral):
        raise FerVitError(f"Expected `--{name}` to be a whole number, but got {short(value)}.")
    check_number(name, value, low)
    if value >= 2**WHOLE_BITS:
        raise FerVitError(
            f"Expected `--{name}` to be below 2**{WHOLE_BITS}, but got {short(value)}."
        )


def short(value: object) -> str:
    """Returns a value as text for a message, truncated to 80 characters."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def suggest(name: str, choices: Iterable[str]) -> str:
    """Returns a space and a question with the nearest allowed name; empty if no name is near."""
    nearest = get_close_matches(name, choices, 1)
    return f" Did you mean `{nearest[0]}`?" if nearest else ""


# How similar an option is to its suggestion, from 0 to 1: `--out` to `--output`, but not `--method`
# to `--model`.
OPTION_CUTOFF = 0.7


def suggest_option(words: Sequence[str], names: Sequence[str]) -> str:
    """Returns a full stop and a question about the first misspelled option of a command line.

    `names` has all options. Returns an empty text if no option is misspelled.
    """
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--") or name in names:
            continue
        if ".init_args." in name:  # an argument of a class, which the parser does not list
            continue
        nearest = get_close_matches(name, names, 1, OPTION_CUTOFF)
        if nearest:
            return f". Did you mean `{nearest[0]}`?"
    return ""


MAX_KNOWN_NAMES = 16  # most names that a message lists in full
NEAREST_NAMES = 5  # names that a message lists if there are more


def known_names(name: str, choices: Iterable[str]) -> str:
    """Returns the allowed names for a message about an unknown name.

    If there are many names, returns the nearest names and the number of the other names.
    """
    names = list(choices)
    if len(names) <= MAX_KNOWN_NAMES:
        return ", ".join(names)
    nearest = get_close_matches(name, names, NEAREST_NAMES, cutoff=0.3) or names[:NEAREST_NAMES]
    return f"{', '.join(nearest)} and {len(names) - len(nearest):,} others"
