from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.store.folder import find_config, shipped_configs

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_package_has_the_configs_of_the_checkout() -> None:
    names = {name: path.read_bytes() for name, path in shipped_configs().items()}
    files = {path.name: path.read_bytes() for path in CONFIGS.glob("*.yaml")}
    assert {f"{name}.yaml": text for name, text in names.items()} == files


def test_a_file_is_taken_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("ddp").endswith("configs/ddp.yaml")
    Path("drawn").mkdir()  # a folder is no config
    assert find_config("drawn") == str(shipped_configs()["drawn"])
    Path("drawn").rmdir()
    Path("drawn").touch()
    assert find_config("drawn") == "drawn"
    assert find_config("{model: {lr: 0.1}}") == "{model: {lr: 0.1}}"
    with pytest.raises(FerVitError, match=r"\(ablation, .*pretrained_vit\), but got gone\."):
        find_config("gone")
