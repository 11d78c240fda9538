"""Marks of parameters."""

import pytest
from _pytest.mark import ParameterSet


def slow(*values: object) -> list[ParameterSet]:
    """Parameters that only `make test-all` tries; a tuple is one set of several."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
