"""Texts from tables, for the help of options."""

import pytest

from fer_vit.wording import describe_entries, fill_docstring, join_names


def test_names_are_joined_with_a_word_before_the_last() -> None:
    assert join_names(["a"]) == "a"
    assert join_names(["a", "b"], "and") == "a and b"
    assert join_names({"a": 1, "b": 2, "c": 3}) == "a, b or c"


def test_a_docstring_is_filled() -> None:
    def documented() -> None:
        """One of {NAMES}; {others} stay."""

    filled = fill_docstring(NAMES=describe_entries({"a": "first", "b": "second"}))(documented)
    assert filled is documented
    assert filled.__doc__ == "One of a: first; b: second; {others} stay."


def test_a_docstring_that_lacks_the_name_is_an_error() -> None:
    def documented() -> None:
        """One of {NAMES}."""

    with pytest.raises(AssertionError, match="TABLE"):
        fill_docstring(TABLE="a")(documented)


def test_a_docstring_may_have_been_removed() -> None:
    def documented() -> None:
        pass

    assert fill_docstring(NAMES="a")(documented).__doc__ is None
