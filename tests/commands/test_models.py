import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fer_vit.commands import models as verb
from fer_vit.store.hub import shipped_models
from tests.helpers.commands import main

ROOT = Path(__file__).parents[2]


def table(capsys: pytest.CaptureFixture[str]) -> list[str]:
    main(["models"])
    return capsys.readouterr().out.splitlines()


def test_the_official_test_results_are_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, folder in shipped_models().items():
        (line,) = [line for line in table(capsys) if line.startswith(name)]
        found = {
            one.metric_name: one.metric_value
            for one in verb.card_data(folder).eval_results
            if "test" in one.dataset_name
        }
        assert found.keys() == {"accuracy", "UAR", "ECE"}
        for metric, value in found.items():
            assert f"FERPlus official test {metric} {value:.1%}" in line
            for text in (
                readme.partition(f"[{name}]")[2].partition("\n")[0],
                (folder / "README.md").read_text("utf-8"),
            ):
                assert f"{value:.1%}" in text


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
