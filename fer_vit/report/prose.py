"""Renders the sentences of a room from a template, such as its `prose.j2`, so that it reads as its
reader gets it: a macro is a paragraph, or a list with an item a line.
"""

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fer_vit.errors import printable
from fer_vit.stats.estimate import Estimate, estimate_text, p_text, size_text
from fer_vit.wording import counted, list_names

MAX_NAMES = 10  # most names in a line, such as persons or clips


def printable_text(value: Any) -> Any:
    """Returns printable text; returns numbers, and text that is marked as safe, unchanged."""
    return printable(value) if type(value) is str else value


def _named_estimate(estimate: Estimate, form: str) -> str:
    return estimate_text(estimate, form, named=True)


def _sentence_start(text: str) -> str:
    return text[:1].upper() + text[1:]


class Prose:
    """The sentences of a room, such as "evaluation", from one of its templates."""

    def __init__(self, room: str, template: str = "prose.j2") -> None:
        environment = Environment(  # noqa: S701 - plain text; the page escapes it
            loader=PackageLoader("fer_vit", room),
            finalize=printable_text,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        environment.filters |= {
            "estimate": _named_estimate,
            "counted": counted,
            "listed": lambda names: list_names(names, MAX_NAMES),
            "p": p_text,
            "sentence": _sentence_start,
            "size": size_text,
        }
        self._macros = environment.get_template(template).module

    def text(self, macro: str, **values: object) -> str:
        """Returns a paragraph. A line of the template is no line of the text."""
        return re.sub(r"\s*\n\s*", " ", str(getattr(self._macros, macro)(**values)).strip())

    def lines(self, macro: str, **values: object) -> list[str]:
        """Returns the lines of a list."""
        lines = str(getattr(self._macros, macro)(**values)).splitlines()
        return [line.strip() for line in lines if line.strip()]
