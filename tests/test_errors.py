"""Errors are one line that no name in it can change."""

import pytest

from fer_vit.errors import FerVitError, printable, short


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\rb", "a\x9bb", "a\u202eb", "a\ud800b", "a\nb"])
def test_a_message_is_one_line_without_control_characters(text: str) -> None:
    message = str(FerVitError(f"Expected a file, but got {text}."))
    assert message == f"Expected a file, but got {printable(text)}."
    assert message.isprintable()


def test_a_long_value_is_cut() -> None:
    assert len(short("x" * 1000)) == 80
