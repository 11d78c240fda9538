from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.helpers.browser import chromium


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """A real browser."""
    with chromium() as browser:
        yield browser
