"""Processes that tests start, end and wait for."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 300.0
"""Seconds to wait for what must happen: far more than it takes,
since other work may slow it down.
"""


def wait_until(condition: Callable[[], T | None]) -> T:
    """Waits until a condition holds, and returns its value; fails after `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"still not so after {PATIENCE:.0f} seconds"
        time.sleep(0.01)
    return value


def squares(number: int) -> Iterator[int]:
    """A task for a worker, which imports this file alone."""
    yield number**2
