import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fer_vit.commands import models as verb
from fer_vit.store.hub import DEFAULT
from tests.helpers.commands import main


def table(capsys: pytest.CaptureFixture[str]) -> list[str]:
    main(["models"])
    return capsys.readouterr().out.splitlines()


def test_shipped_models_with_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    header, first, *_ = table(capsys)
    assert header.split() == ["name", "where", "size", "trained", "on", "results"]
    assert first.startswith(f"{DEFAULT} *")
    assert "shipped" in first
    assert "FERPlus validation accuracy 0." in first


def test_models_in_the_hubs_cache(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def repo(name: str, folder: Path) -> SimpleNamespace:
        files = [SimpleNamespace(file_name=path.name) for path in folder.iterdir()]
        return SimpleNamespace(
            repo_id=name, revisions=[SimpleNamespace(last_modified=0, files=files, snapshot_path=folder)]
        )

    main(["export", str(tmp_path / "ours"), "--checkpoint", str(checkpoint)])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("config.json", "model.safetensors"):  # another library's, and without a card
        (foreign / name).touch()
    repos = [repo("somebody/ours", tmp_path / "ours"), repo("somebody/foreign", foreign)]
    for number, card in enumerate(
        (b"---\na: [\n---\n", b"---\n- 1\n---\n", b"\xff\xfe", b"---\nmodel-index: 3\n---\n")
    ):
        shutil.copytree(foreign, tmp_path / str(number))
        (tmp_path / str(number) / "README.md").write_bytes(card)
        repos.append(repo(f"somebody/{number}", tmp_path / str(number)))
    monkeypatch.setattr(verb, "scan_cache_dir", lambda: SimpleNamespace(repos=repos))
    capsys.readouterr()
    (line,) = [line for line in table(capsys) if "cached" in line]
    assert line.startswith("somebody/ours")
    assert line.split()[-2:] == ["-", "-"]


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    assert not any("cached" in line for line in table(capsys))
