"""Options of commands: frozen dataclasses, whose types are the checks, and whose texts the help.

`@takes(CompareOptions)` makes a command of a function of such a class. Python passes the fields as
arguments: `compare("faces.csv", by="mood", grid=0.5)`. The command line has an option for each
field, and passes words, which `Options` converts: `fer-vit compare faces.csv --by mood --grid 0.5`.
The text below a field is its help. Rules between options are in `__post_init__`.

Pydantic has the same checks, but its import would take a tenth of the time for one photo.
"""

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import cache, wraps
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fer_vit.errors import (
    WHOLE_BITS,
    FerVitError,
    check_number,
    check_positive,
    check_whole,
    short,
)

Arguments = ParamSpec("Arguments")
Chosen = TypeVar("Chosen", bound="Options")
Result = TypeVar("Result")

# An option that may be repeated, and has one value each time: `Annotated[Sequence[str], REPEATED]`.
# Other sequences have one or more values: `--by age gender`.
REPEATED = "repeated"


class Interval(NamedTuple):
    """The bounds of a number: `ge` and `le` are allowed; with `gt` 0, only numbers above 0."""

    ge: float = -math.inf
    le: float = math.inf
    gt: float | None = None


Share = Annotated[float, Interval(ge=0, le=1)]
NotNegative = Annotated[float, Interval(ge=0)]
Positive = Annotated[float, Interval(gt=0)]
Count = Annotated[int, Interval(ge=1)]
Number = Annotated[int, Interval(ge=0)]
Port = Annotated[int, Interval(ge=0, le=65535)]


@dataclass(frozen=True)
class Options:
    """The options of a command, or of a part of it. Values are converted and checked.

    Raises:
        FerVitError: A value has another type than the field, or is out of its bounds.
    """

    # What the texts below the fields contain as {NAME}, such as the names in a table.
    TEXTS: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name, kind in option_types(type(self)).items():
            value = read_value(name, kind, getattr(self, name))
            object.__setattr__(self, name, value)


def takes(
    options: Callable[Arguments, Chosen],
) -> Callable[[Callable[[Chosen], Result]], Callable[Arguments, Result]]:
    """Returns a decorator for a function of `Options`, which then takes the fields as arguments.

    The attribute `options` of the function has the class, and the docstring gets the texts.
    """

    def decorate(function: Callable[[Chosen], Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*args: Arguments.args, **values: Arguments.kwargs) -> Result:
            return function(options(*args, **values))

        result = inspect.signature(function).return_annotation
        signature = inspect.signature(options).replace(return_annotation=result)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.options = options  # type: ignore[attr-defined]
        if function.__doc__:
            call.__doc__ = add_arguments(function.__doc__, option_texts(options))
        return call

    return decorate


def add_arguments(docstring: str, texts: Mapping[str, str]) -> str:
    """Returns a docstring with a section of arguments, before the section of what is returned."""
    lines = ["Args:"]
    for name, text in texts.items():
        line = f"{name}: {text}"
        lines.append(fill(line, initial_indent="    ", subsequent_indent="        ", width=96))
    summary, returns, result = inspect.cleandoc(docstring).partition("\n\nReturns:")
    return summary + "\n\n" + "\n".join(lines) + returns + result


def option_fields(options: type[Options]) -> list[Field[Any]]:
    """Returns the fields of a class in the order of its help: those of its bases come last."""
    by_name = {field.name: field for field in fields(options)}
    ordered = []
    for base in options.__mro__:
        ordered += [name for name in inspect.get_annotations(base) if name in by_name]
    return [by_name[name] for name in dict.fromkeys(ordered)]


def option_types(options: type[Options]) -> dict[str, Any]:
    """Returns the types of the fields of a class, with their bounds, by name."""
    types = get_type_hints(options, include_extras=True)
    return {field.name: types[field.name] for field in fields(options)}


@cache
def option_texts(options: type[Options]) -> dict[str, str]:
    """Returns the texts below the fields of a class by name; empty without its source."""
    import docstring_parser  # not at the top: only the help needs it

    texts = {}
    for base in reversed(options.__mro__):
        if not issubclass(base, Options):
            continue
        for parameter in docstring_parser.parse_from_object(base).params:
            text = parameter.description or ""
            for name, content in options.TEXTS.items():
                text = text.replace(f"{{{name}}}", content)
            texts[parameter.arg_name] = " ".join(text.split())
    return {field.name: texts.get(field.name, "") for field in option_fields(options)}


def split_type(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the type of an option without None, and its bounds."""
    bounds: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *metadata = get_args(kind)
        bounds = tuple(metadata)
    if get_origin(kind) in (Union, UnionType):
        others = [member for member in get_args(kind) if member is not NoneType]
        if len(others) == 1 and len(others) < len(get_args(kind)):
            kind, inner = split_type(others[0])
            bounds += inner
    return kind, bounds


def read_value(name: str, kind: Any, value: Any) -> Any:
    """Returns the value of an option in its type. A word of a command line is converted.

    A value of a type with several members, such as `str | float`, stays: its class checks it.

    Raises:
        FerVitError: The value has another type, or is out of its bounds.
    """
    plain, bounds = split_type(kind)
    if value is None and plain is not kind:
        return None
    try:
        if get_origin(plain) is Sequence:
            (item_kind,) = get_args(plain)
            return tuple(read_value(name, item_kind, item) for item in list_items(value))
        converted = convert(plain, value)
    except (OverflowError, TypeError, ValueError) as error:
        expected = describe_type(plain)
        raise FerVitError(
            f"Expected `--{name}` to be {expected}, but got {short(value)}."
        ) from error
    for bound in bounds:
        if bound.gt is not None:
            check_positive(name, converted)
        else:
            check_number(name, converted, bound.ge, bound.le)
    if plain is int:
        check_whole(name, converted, -(2**WHOLE_BITS))
    return converted


def list_items(value: Any) -> list[Any]:
    """Returns the items of a list, or one value as a list. Raises TypeError for another type."""
    if isinstance(value, str | float | int | os.PathLike):
        return [value]
    if isinstance(value, bytes | Mapping):
        raise TypeError
    return list(value)


def convert(kind: Any, value: Any) -> Any:
    """Returns a value in a type. Raises TypeError or ValueError when it has another type."""
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if str(value) not in choices:
            raise ValueError
        return choices[str(value)]
    if get_origin(kind) is dict:
        return convert_names(value)
    if kind is bool and not isinstance(value, bool):
        raise TypeError
    if kind is str and not isinstance(value, bytes):
        return os.fspath(value)
    if kind in (int, float) and not isinstance(value, bool):
        number = kind(value)
        if (not isinstance(value, str) and number != value) or math.isnan(number):
            raise ValueError
        return number
    if kind in (str, int, float):
        raise TypeError
    return Path(value) if kind is Path else value


def convert_names(value: Any) -> dict[str, str | None]:
    """Returns new names by old names. Raises TypeError or ValueError for other values."""
    names: dict[str, str | None] = {}
    for old, new in read_pairs(value):
        if old in names:
            raise ValueError
        names[convert(str, old)] = None if new is None else convert(str, new)
    return names


def read_pairs(value: Any) -> list[tuple[Any, Any]]:
    """Returns the names and values of a dict, or of its text in YAML; names may be repeated.

    Raises TypeError or ValueError for other values.
    """
    if not isinstance(value, str):
        return list(dict(value).items())
    import yaml  # not at the top: few commands need it

    try:
        loader = yaml.SafeLoader(value)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise TypeError
        return [
            (loader.construct_object(old), loader.construct_object(new)) for old, new in node.value
        ]
    except yaml.YAMLError as error:
        raise ValueError from error


def describe_type(kind: Any) -> str:
    """Returns in words which values a type has."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return TYPE_WORDS[get_origin(kind) or kind]


TYPE_WORDS: dict[Any, str] = {
    bool: "true or false",
    dict: "names with values, such as {old: new}, each name once, yes, no and numbers in quotes",
    Sequence: "a list",
    float: "a number",
    int: "a whole number",
    str: "text",
    Path: "a path",
}
