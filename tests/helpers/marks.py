"""Marks of parameters."""

import pytest
from _pytest.mark import ParameterSet


def slow(*values: object) -> list[ParameterSet]:
    """Parameters that only `make test-all` tries; a tuple is one set of several."""
    marked = []
    for value in values:
        arguments = value if isinstance(value, tuple) else (value,)
        marked.append(pytest.param(*arguments, marks=pytest.mark.slow))
    return marked
