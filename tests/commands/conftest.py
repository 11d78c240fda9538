"""Commands that tests call as functions print, as on the command line."""

from collections.abc import Iterator

import pytest

from fer_vit.cli import printed_log


@pytest.fixture(autouse=True)
def printed() -> Iterator[None]:
    """Prints what commands log."""
    with printed_log():
        yield
