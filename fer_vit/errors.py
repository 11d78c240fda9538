"""The exceptions for errors that users can fix, helpers for their messages,
and what a terminal may receive.
"""

import math
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, TextIO

CONTROL = re.compile(
    r"(?!\x1b\[A)"  # one line up, which tqdm uses
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # commands to terminals
    r"\u2028\u2029\u202a-\u202e\u2066-\u2069"  # other order, or new lines
    r"\ud800-\udfff]"  # bytes of names beyond Unicode
)
"""Characters that change more on a terminal than their place."""


def printable(text: str) -> str:
    """Returns untrusted text on one line; unprintable characters
    (control characters, lone surrogates) become `?`.
    """
    return "".join(" " if char.isspace() else char if char.isprintable() else "?" for char in text)


class PrintableStream:
    """A text stream that replaces control characters in everything printed to it by `?`.

    File names, labels and metadata come from anyone, and are printed by many commands and
    libraries.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes text."""
        return self.stream.write(CONTROL.sub("?", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_in_command = ContextVar("_in_command", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """Lets messages name options of the command line; elsewhere they name arguments of Python."""
    token = _in_command.set(True)
    try:
        yield
    finally:
        _in_command.reset(token)


def as_arguments(message: str) -> str:
    """Returns a message with arguments instead of options: `--face crop` becomes `face="crop"`."""
    return re.sub(r"`--([^`]+)`", _arguments, message)


def _arguments(options: re.Match[str]) -> str:
    arguments = []
    for option in options[1].split(" --"):
        name, _, value = option.partition(" ")
        literal = re.fullmatch(
            r"[A-Z]+|-?[\d.]+(e[-+]?\d+)?", value
        )  # FILE and the like, or a number
        arguments.append(f"{name}={value if literal else repr(value)}" if value else name)
    return f"`{', '.join(arguments)}`"


class FerVitError(Exception):
    """An error that the user can fix, in one line: expected, found, remedy; the command line prints
    no traceback.

    Messages are written with options (`--face crop`), which Python's users read as arguments.
    """

    def __init__(self, message: str) -> None:
        # An error from a worker begins with its traceback, and file names may contain line breaks.
        own = re.split(r"fer_vit\.errors\.\w+: ", message)[-1]
        super().__init__(printable(own))

    def __str__(self) -> str:
        message = super().__str__()
        return message if _in_command.get() else as_arguments(message)


class ImageError(FerVitError):
    """A photo or video that cannot be read."""


class ModelError(FerVitError):
    """A model or checkpoint that does not exist, is damaged, or is not fer-vit's."""


class TableError(FerVitError):
    """A table that cannot be read or written, or lacks what a command needs."""


def check_number(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raises FerVitError when a number is outside [low, high] or NaN."""
    if not low <= value <= high:
        allowed = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        raise FerVitError(f"Expected {name} to be {allowed}, but got {short(value)}.")


def short(value: object) -> str:
    """Returns a value as text for a message, truncated to 80 characters."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns a question with the nearest known name; empty if none is near."""
    close = get_close_matches(name, known, 1)
    return f" Did you mean `{close[0]}`?" if close else ""


def describe_option(error: str) -> str:
    """Returns an error of jsonargparse about the type of an option in plain words;
    other errors are returned unaltered.
    """
    pattern = (
        r'Parser key "(?P<option>[\w.]+)":.*?'
        r"Expected (?:an? )?(typing\.Literal\[(?P<choices>.*?)\]|<class '(?P<kind>\w+)'>)"
        r".*?value: (?P<value>.*)"
    )
    match = re.fullmatch(pattern, error, re.DOTALL)
    if match is None:
        return error
    choices = match["choices"]
    expected = choices.replace("'", "") if choices else KINDS.get(match["kind"], match["kind"])
    if choices:
        expected = f"one of {expected}"
    return f"Expected `--{match['option']}` to be {expected}, but got {short(match['value'])}"


KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
    "dict": "names with values, such as {old: new}",
    "list": "a list",
}
"""What an option expects, by the type of its values."""


def suggest_option(words: Sequence[str], parser: ArgumentParser) -> str:
    """Returns a question about the first misspelled option of a command line;
    empty if there is none.
    """
    known = [option for action in parser._actions for option in action.option_strings]
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next(
        (hint for name in names if name not in known and (hint := suggest(name, known))), ""
    )
