"""Options of commands: values are converted and checked, and texts are the help."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from fer_vit.cli import PLAIN_VERBS
from fer_vit.errors import FerVitError, command_line
from fer_vit.options import REPEATED, Count, Options, Positive, Share, option_texts, takes
from fer_vit.parsers import OptionParser


@dataclass(frozen=True, kw_only=True)
class Base(Options):
    """Options that several commands share."""

    share: Share = 0.5
    """A share; the default is {HALF}."""


@dataclass(frozen=True)
class Example(Base):
    """Options of one command."""

    TEXTS: ClassVar = {"HALF": "a half"}

    images: Sequence[Path]
    """Images, 100% of them."""
    _: KW_ONLY
    by: Sequence[str] = ()
    """Columns."""
    sizes: Sequence[int] = ()
    """Sizes."""
    model: Annotated[Sequence[str], REPEATED] = ()
    """A model."""
    output: Path = Path("out")
    """A path."""
    name: str | None = None
    """A name."""
    count: Count | None = None
    """A count
    in two lines."""
    speed: Positive = 1.0
    """A speed."""
    kind: Literal["a", "b"] | None = None
    """A kind."""
    number: Literal[7, 8] = 8
    """A number."""
    merge: dict[str, str | None] | None = None
    """New names."""
    flag: bool = False
    """A flag."""
    time: str | float = 0.0
    """Of two types: the class checks it."""
    further: object = field(default=None, repr=False)
    """Anything."""


@takes(Example)
def example(options: Example) -> Example:
    """Does something.

    Returns:
        The options.
    """
    return options


def from_words(*words: str) -> Example:
    return example(**OptionParser("example", "Does something.", [Example]).read(words))


SAME: dict[str, tuple[list[str], dict[str, Any]]] = {
    "inputs": (["x", "y"], {"images": ["x", Path("y")]}),
    "several values": (["x", "--by", "a", "b"], {"by": ["a", "b"]}),
    "several times": (["x", "--by=a", "--by", "b", "c"], {"by": ("a", "b", "c")}),
    "one value": (["x", "--by=a", "--sizes=3"], {"by": "a", "sizes": 3}),
    "repeated": (["--model", "a", "--model=b", "x"], {"model": ["a", "b"]}),
    "path": (["x", "--output=a/b"], {"output": "a/b"}),
    "null is a name": (["x", "--name=null"], {"name": "null"}),
    "numbers": (["x", "--count=3", "--speed=1e-3"], {"count": np.int64(3), "speed": 1e-3}),
    "choices": (["x", "--kind=b", "--number", "7"], {"kind": "b", "number": 7}),
    "names": (["x", "--merge={a: b, c: null}"], {"merge": {"a": "b", "c": None}}),
    "flag before an input": (["--flag", "x"], {"flag": True}),
    "two types": (["x", "--time=1:01"], {"time": "1:01"}),
    "of the base": (["x", "--share=0.25"], {"share": 0.25}),
    "a file like an option": (["--", "--no-option.png"], {"images": ["--no-option.png"]}),
}


@pytest.mark.parametrize("name", SAME)
def test_words_and_arguments_give_the_same_options(name: str) -> None:
    words, arguments = SAME[name]
    options = example(**{"images": "x", **arguments})
    assert from_words(*words) == options
    assert options == example(**vars(options))


def test_options_have_their_types() -> None:
    options = example("x", sizes=["3", 4], output="y", count="5", speed=2, share=1)
    assert options.images == (Path("x"),)
    assert (options.sizes, options.output, options.count) == ((3, 4), Path("y"), 5)
    assert [type(value) for value in (options.speed, options.share)] == [float, float]
    assert example(["x"], name=Path("a/b")).name == str(Path("a/b"))
    assert example(Path("x"), further=example).further is example


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("count=0", "1 or more"),
        ("count=1.5", "a whole number"),
        (f"count={2**63}", "below 2"),
        ("speed=0", "a number above 0"),
        ("speed=inf", "a number above 0"),
        ("speed=nan", "a number"),
        ("speed=fast", "a number"),
        ("share=1.1", "from 0 to 1"),
        ("kind=c", "one of a, b"),
        ("number=9", "one of 7, 8"),
        ("sizes=x", "a whole number"),
        ("merge=a", "names with values"),
        ("merge={a: [b]}", "names with values"),
        ("merge={", "names with values"),
        (
            "merge={no: x, 1: y}",
            "names with values, such as {old: new}, each name once",
        ),
        ("merge={a: no}", "names with values"),
        ("merge={a: b, a: c}", "names with values, such as {old: new}, each name once"),
    ],
)
def test_a_wrong_value_is_one_line_with_option_expectation_and_value(
    word: str, expected: str
) -> None:
    name, _, value = word.partition("=")
    with pytest.raises(FerVitError) as error, command_line():
        from_words("x", f"--{word}")
    with command_line():
        assert str(error.value).startswith(f"Expected `--{name}` to be {expected}")
        assert str(error.value).endswith(f"but got {value}.")
    assert f"`{name}`" in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"flag": "yes"},
        {"name": 3},
        {"name": b"m"},
        {"count": 1.5},
        {"count": True},
        {"speed": True},
        {"by": None},
        {"by": 0.5},
        {"by": {"a": "b"}},
        {"by": b"m"},
        {"merge": {1: "a"}},
    ],
)
def test_values_of_another_type_are_refused_in_python(arguments: dict[str, Any]) -> None:
    with pytest.raises(FerVitError, match=f"`{next(iter(arguments))}`"):
        example("x", **arguments)


def test_a_command_has_the_signature_and_the_texts_of_its_options() -> None:
    signature = inspect.signature(example)
    assert signature.return_annotation == inspect.get_annotations(example)["return"]
    parameters = signature.parameters
    assert next(iter(parameters)) == "images"
    assert parameters["share"].default == 0.5
    assert all(each.kind is each.KEYWORD_ONLY for each in [*parameters.values()][1:])
    documented = inspect.getdoc(example) or ""
    assert documented.startswith("Does something.\n\nArgs:\n    images: Images, 100% of them.\n")
    assert "    count: A count in two lines.\n" in documented
    assert "    share: A share; the default is a half.\n" in documented
    assert documented.endswith("\n\nReturns:\n    The options.")


def test_help_has_inputs_own_options_and_those_of_the_base() -> None:
    text = OptionParser("example", "Does 100% of it.", [Example]).format_help()
    assert "Does 100% of it." in text
    _, _, listed = text.partition("positional arguments:")
    places = [
        listed.index(part) for part in ("100% of them", "--by BY [", "--kind {a,b}", "--share")
    ]
    assert places == sorted(places)
    assert "--flag  " in listed
    assert "A speed. (default: 1)" in listed


@pytest.mark.parametrize("verb", PLAIN_VERBS)
def test_every_option_of_a_command_has_a_text(verb: str) -> None:
    command = getattr(import_module(f"fer_vit.commands.{verb}"), verb)
    if hasattr(command, "options"):
        texts = option_texts(command.options)
        assert all(texts.values())
        assert not re.findall(r"\{[A-Z]+\}", " ".join(texts.values()))
