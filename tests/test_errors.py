"""Errors are one line that no name in it can change."""

from argparse import ArgumentError
from typing import Any, Literal

import pytest
from jsonargparse import ArgumentParser

from fer_vit.errors import FerVitError, describe_option, printable, short


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\rb", "a\x9bb", "a\u202eb", "a\ud800b", "a\nb"])
def test_a_message_is_one_line_without_control_characters(text: str) -> None:
    message = str(FerVitError(f"Expected a file, but got {text}."))
    assert message == f"Expected a file, but got {printable(text)}."
    assert message.isprintable()


def test_a_long_value_is_cut() -> None:
    assert len(short("x" * 1000)) == 80


@pytest.mark.parametrize(
    ("kind", "word", "expected"),
    [
        (float, "half", "a number"),
        (float | None, "nan", "a number"),
        (int | None, "1.5", "a whole number"),
        (Literal["detect", "crop"], "cut", "one of detect, crop"),
        (dict[str, str | None] | None, "a", "names with values"),
    ],
)
def test_an_option_of_another_type_is_one_plain_line(kind: Any, word: str, expected: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model.part", type=kind)
    with pytest.raises(ArgumentError) as error:
        parser.parse_args([f"--model.part={word}"])
    text = describe_option(str(error.value))
    assert text.startswith(f"Expected `--model.part` to be {expected}")
    assert text.endswith(f"but got {word}")
    assert describe_option("unrecognized arguments: --x") == "unrecognized arguments: --x"
