"""The parser of a command, made from the fields of its `Options`."""

import math
import os
import re
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field
from itertools import takewhile
from textwrap import fill
from typing import Any, Literal, NoReturn, get_args, get_origin

from fer_vit.errors import FerVitError, suggest_option
from fer_vit.options import REPEATED, Options, option_fields, option_texts, option_types, split_type

OF_TRAINING = re.compile(r"--(model|data|trainer|checkpoint)\.")

FIT_OPTIONS = "fit_options"  # the field with options of `fit`, which `cli` reads


class HelpFormatter(RawDescriptionHelpFormatter):
    """Wraps wide paragraphs of a description; examples stay as they are, since they are copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            lines = paragraph.splitlines()
            is_wide = any(len(line) > width for line in lines)
            has_examples = any(line.startswith(" ") for line in lines)
            if is_wide and not has_examples:
                paragraph = fill(" ".join(lines), width)
            paragraphs.append(paragraph)
        return "\n\n".join(paragraphs)


class OptionParser(ArgumentParser):
    """Reads the words of a command line: a dict of those options that are there.

    The values are words. `Options` converts them, and has the defaults.
    """

    def __init__(
        self,
        name: str,
        description: str,
        kinds: Iterable[type[Options]],
        skip: Iterable[str] = (FIT_OPTIONS,),
    ) -> None:
        super().__init__(
            prog=f"fer-vit {name}",
            description=description,
            formatter_class=HelpFormatter,
            argument_default=SUPPRESS,
            exit_on_error=False,
            add_help=False,
            allow_abbrev=False,
        )
        self.add_argument("-h", "--help", action="help", help="Show this help message and exit.")
        self.option_names = ["--help"]
        self.words: Sequence[str] = ()  # what is read
        self.notes: list[str] = []  # what is odd in the words
        added = {*skip}
        for kind in kinds:
            types = option_types(kind)
            texts = option_texts(kind)  # type: ignore[arg-type]
            for field in option_fields(kind):
                if field.name not in added:
                    self._add_field(field, types[field.name], texts[field.name])
                    added.add(field.name)

    def _add_field(self, field: Field[Any], kind: Any, text: str) -> None:
        """Adds the argument of a field: an input if the class takes it by position."""
        plain, details = split_type(kind)
        default = describe_default(field.default)
        if default:
            text += f" (default: {default})"
        settings: dict[str, Any] = {"help": text.replace("%", "%%"), "action": Once}
        if plain is bool:
            settings["action"] = "store_true"
        elif get_origin(plain) is Sequence:
            settings |= {"action": "extend", "nargs": "+"}
            if REPEATED in details:
                settings |= {"action": "append", "nargs": None}
        elif get_origin(plain) is Literal:
            settings["metavar"] = f"{{{','.join(map(str, get_args(plain)))}}}"

        if field.kw_only:
            name = f"--{field.name}"
            self.option_names.append(name)
            self.add_argument(name, required=field.default is MISSING, **settings)
        else:
            if field.default is not MISSING:
                settings["nargs"] = "?"
            self.add_argument(field.name, **settings)

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """Returns the values of the options in `words` by name.

        Names may have `-` or `_`: `--max-faces` is `--max_faces`.

        Raises:
            FerVitError: An option is unknown, lacks its value, or a required one is missing.
        """
        self.words = words
        spelled = []
        for word in takewhile(lambda word: word != "--", words):
            spelled.append(re.sub("(?<=^--)[^=]+", lambda name: name[0].replace("-", "_"), word))
        try:
            values, unknown = self.parse_known_args([*spelled, *words[len(spelled) :]])
        except ArgumentError as error:
            self.error(str(error))
        options = [*takewhile(lambda word: word != "--", unknown)]
        if any(word.startswith("-") for word in options):
            hint = suggest_option(options, self.option_names)
            if OF_TRAINING.match(options[0]):
                hint = (
                    ". This is an option of `fer-vit fit`, which trains as `finetune` does with "
                    "`--config finetune`."
                )
            self.error(f"unrecognized arguments: {' '.join(options)}{hint}")
        inputs = [word for word in unknown if word != "--"]
        if inputs:
            self.error(f"Expected no further input, but got {' '.join(inputs)}")
        return vars(values)

    def error(self, message: str) -> NoReturn:
        """Raises FerVitError for a message of argparse or of `read`."""
        message = describe_error(message)
        is_of_inputs = re.match("Expected (no further input|a value for `[^-])", message)
        hint = suggest_path(self.words)
        if is_of_inputs and not hint and any(word.startswith("--") for word in self.words):
            hint = ". Write all inputs before the options."
        raise FerVitError(f"{message}{hint} (`{self.prog} --help` lists the options)")


class Once(Action):
    """Stores the value of an option, and notes it if there is one already."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Stores the value: the last one counts."""
        if hasattr(namespace, self.dest) and isinstance(parser, OptionParser):
            parser.notes.append(f"`--{self.dest}` was given more than once: the last one counts.")
        setattr(namespace, self.dest, values)


def describe_default(default: Any) -> str:
    """Returns the default of a field as users type it; empty if there is none to type."""
    if default is MISSING or default in (None, (), False, math.inf):
        return ""
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def describe_error(message: str) -> str:
    """Returns a message of argparse in the form of other messages; others stay as they are."""
    if flag := re.fullmatch("argument (.+): ignored explicit argument '(.*)'", message):
        return f"`{flag[1]}` is a flag, which takes no value: remove `={flag[2]}`."
    if option := re.fullmatch("argument (.+): expected .*argument", message):
        return (
            f"Expected a value for `{option[1]}`, but got none. "
            f"A value that begins with a dash needs `=`: {option[1]}=-5."
        )
    if missing := re.fullmatch("the following arguments are required: (.+)", message):
        names = missing[1].replace(", ", "`, `")
        return f"Expected a value for `{names}`, but got none"
    return message


def suggest_path(words: Sequence[str]) -> str:
    """Returns a hint about a file whose name begins with a dash; empty without such a file."""
    for word in words:
        if word.startswith("-") and os.path.lexists(word):
            return f". To name the file {word}, type ./{word}."
    return ""
