"""Fixtures for tests of commands: commands print as on the command line, with a tiny config."""

from pathlib import Path

import pytest
import yaml

from tests.helpers.commands import TINY


@pytest.fixture(autouse=True)
def _commands_print(printed: None) -> None:
    """Uses `printed` in every test of this folder."""


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the config of a tiny network that is trained for two steps."""
    options = {}
    for word in TINY:
        name, _, value = word.removeprefix("--").partition("=")
        options[name] = yaml.safe_load(value)
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(options))
    return path
