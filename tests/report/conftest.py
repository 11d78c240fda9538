from collections.abc import Iterator

import pytest

from tests.helpers.browser import Tab, chromium


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """A tab of a real browser."""
    with chromium() as tab:
        yield tab
