"""The command that installs an extra names the source of the installation."""

import json
import shlex
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fer_vit.extras import command_for, install_command


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, ["fer-vit[torch]"]),
        (
            {"url": "file:///srv/me/fer%20vit", "dir_info": {}},
            ["fer-vit[torch] @ file:///srv/me/fer%20vit"],
        ),
        (
            {"url": "file:///srv/me/fer%20vit", "dir_info": {"editable": True}},
            ["-e", "/srv/me/fer vit[torch]"],
        ),
        (
            {"url": "file:///srv/fer_vit-1-py3-none-any.whl", "archive_info": {}},
            ["fer-vit[torch] @ file:///srv/fer_vit-1-py3-none-any.whl"],
        ),
        (
            {"url": "https://host/fer-vit", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            ["fer-vit[torch] @ git+https://host/fer-vit@0a1b"],
        ),
    ],
    ids=["index", "folder", "editable", "wheel", "git"],
)
def test_an_extra_comes_from_where_fer_vit_came(
    source: dict[str, object] | None, words: list[str]
) -> None:
    command = shlex.split(command_for(json.loads(json.dumps(source)), "torch"))
    assert command == ["pip", "install", *words]
    if "-e" not in words:
        assert Requirement(words[-1]).extras == {"torch"}


def test_the_command_for_this_installation_names_no_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = install_command("torch")
    monkeypatch.chdir(tmp_path)
    assert install_command("torch") == here
    assert "[torch]" in here
