"""The commands of the command line: one typed function each."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


def accept_text(command: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a command for Python: it takes text for a path, and a single value for a list."""

    @wraps(command)
    def call(*args: Any, **options: Any) -> Result:
        given = signature(command).bind(*args, **options)
        for name, value in given.arguments.items():
            kind = command.__annotations__.get(name)
            if isinstance(value, str) and kind in (Path, Path | None):
                given.arguments[name] = Path(value)
            elif isinstance(value, str) and kind in (Sequence[str], list[str] | None):
                given.arguments[name] = [value]
            elif kind == list[Path]:
                paths = [value] if isinstance(value, str | Path) else value
                given.arguments[name] = [Path(path) for path in paths]
        return command(*given.args, **given.kwargs)

    return call
