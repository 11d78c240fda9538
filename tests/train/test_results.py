import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from fer_vit.errors import FerVitError
from fer_vit.train.results import write_results

MODEL = SimpleNamespace(confusion=torch.tensor([[3, 1], [0, 0]]), labels=["anger", "fear"])


def trainer(folder: Path, first: bool = True) -> SimpleNamespace:
    logged = {"test/accuracy": torch.tensor(0.75), "val/accuracy": torch.tensor(0.5)}
    data = SimpleNamespace(manifest=SimpleNamespace(path=Path("faces.parquet")))
    return SimpleNamespace(
        log_dir=str(folder), is_global_zero=first, callback_metrics=logged, ckpt_path="best.ckpt", datamodule=data
    )


def test_results_are_whole_and_their_neighbours_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    write_results(trainer(tmp_path), MODEL, "test")
    names = {"test.json", "test.md", "test_confusion.png"}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "config.yaml"}
    assert json.loads((tmp_path / "test.json").read_text()) == {
        "checkpoint": "best.ckpt",
        "manifest": "faces.parquet",
        "accuracy": 0.75,
        "images": 4,
        "recall": {"anger": 0.75, "fear": None},
        "labels": ["anger", "fear"],
        "confusion": [[3, 1], [0, 0]],
    }
    assert "| anger | 4 | 0.7500 |" in (tmp_path / "test.md").read_text()
    assert Image.open(tmp_path / "test_confusion.png").size > (100, 100)
    assert capsys.readouterr().out == (
        f"Results: {tmp_path / 'test'}.md, test.json and test_confusion.png in the same folder.\n"
    )


def test_an_error_while_writing_leaves_the_older_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(trainer(tmp_path), MODEL, "test")
    older = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_: Image.Image, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(FerVitError, match=r"Cannot write .*test_confusion.png \(No space left on device\)"):
        write_results(trainer(tmp_path), MODEL, "test")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == older


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    write_results(trainer(tmp_path, first=False), MODEL, "test")
    assert list(tmp_path.iterdir()) == []
