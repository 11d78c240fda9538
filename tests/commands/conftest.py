"""Commands that tests call as functions print, as on the command line."""

import pytest


@pytest.fixture(autouse=True)
def _commands_print(printed: None) -> None:
    """Uses `printed` in every test of this folder."""
