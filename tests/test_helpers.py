import pytest

from fer_vit import cli
from tests.helpers.commands import exit_code, main


def test_ctrl_c_in_a_command_ends_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(args: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main(["models"])


def test_the_exit_code_of_a_command() -> None:
    assert exit_code("--version") == 0
    assert exit_code("nothing") == 2
