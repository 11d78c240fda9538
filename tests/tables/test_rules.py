"""The order of the rows of a table of `predict`."""

import math

import numpy as np

from fer_vit.tables.rules import distinct_rows


def test_rows_are_ordered_and_equal_ones_found() -> None:
    place = np.array([1, 0, 1, 0.0])
    time = np.array([math.nan, 2, 1, 1])
    order, twice = distinct_rows([place, time])
    assert order.tolist() == [3, 1, 0, 2]
    assert twice is None
    assert distinct_rows([place, np.full(4, math.nan)])[1] == (1, 3)
    assert distinct_rows([np.empty(0)])[1] is None
