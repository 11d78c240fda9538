"""The command that installs an extra names the source of the installation."""

import json
import shlex
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fer_vit.app.server import built_page
from fer_vit.extras import install_command


def install_from(source: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pip have recorded where fer-vit came from; None: an index."""
    recorded = source and json.dumps(source)
    monkeypatch.setattr(PathDistribution, "read_text", lambda *_: recorded)


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
    source: dict[str, object] | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_from(source, monkeypatch)
    command = shlex.split(install_command("torch"))
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


@pytest.mark.parametrize("kind", ["folder", "checkout", "archive", "index"])
def test_the_page_for_the_browser_is_in_the_folder_that_was_installed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {
        "folder": {"url": tmp_path.as_uri(), "dir_info": {"editable": True}},
        "checkout": {"url": "https://x.example/y.git", "vcs_info": {}},
        "archive": {"url": (tmp_path / "fer_vit.whl").as_uri(), "archive_info": {}},
        "index": None,
    }[kind]
    install_from(source, monkeypatch)
    assert built_page() is None
    page = tmp_path / "build" / "web"
    page.mkdir(parents=True)
    (page / "index.html").touch()
    assert built_page() == (page if kind == "folder" else None)
