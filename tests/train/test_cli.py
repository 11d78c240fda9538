"""Options of a training run that come from Lightning and torch work."""

import functools
from pathlib import Path

import pytest
import torch
import yaml

from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.commands import TINY, fails, main


def fit(drawn: Path, folder: Path, *more: str) -> Path:
    """Trains and returns the checkpoint of the newest epoch."""
    place = f"--trainer.logger.init_args.save_dir={folder}"
    main(["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", place, *more])
    return folder / "default" / "version_0" / "checkpoints" / "last.ckpt"


@pytest.mark.slow
def test_early_stopping_as_the_readme_says(drawn: Path, tmp_path: Path) -> None:
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/accuracy"]
    stopping += ["--trainer.callbacks.mode=max", "--trainer.callbacks.patience=2"]
    # Without a learning rate nothing gets better after the first epoch.
    last = fit(drawn, tmp_path, "--model.lr=0", "--trainer.max_epochs=9", *stopping)
    assert load_checkpoint(last)["epoch"] == 2


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load_checkpoint(fit(drawn, tmp_path / "plain"))
    # All of torch.compile but its code generator, which needs a C++ compiler and a minute.
    calls = []
    real = torch.compile

    def compile_eagerly(function: object) -> object:
        calls.append(function)
        return real(function, backend="eager", fullgraph=True)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "compile", functools.wraps(real)(compile_eagerly))
    compiled = load_checkpoint(fit(drawn, tmp_path / "compiled", "--model.compile=true"))
    assert len(calls) == 1
    assert all(torch.equal(value, compiled["state_dict"][name]) for name, value in plain["state_dict"].items())


@pytest.mark.parametrize("precision", ["bf16-true", "64"])
def test_another_precision_throughout_is_refused(
    precision: str, drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--data.manifest={drawn / 'faces.parquet'}", f"--trainer.precision={precision}"]
    error = fails(capsys, "fit", *TINY, *words)
    assert f"Expected trainer.precision bf16-mixed, 16-mixed or 32, but got {precision}." in error


@pytest.mark.parametrize(("has", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_bf16_where_the_hardware_has_it(
    has: bool, precision: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fer_vit.train.cli.has_bf16", lambda accelerator: has)
    last = fit(drawn, tmp_path, "--trainer.precision=bf16-mixed")
    config = yaml.safe_load((last.parents[1] / "config.yaml").read_text())
    assert config["trainer"]["precision"] == precision


def test_a_resumed_run_needs_no_pretrained_weights(drawn: Path, tmp_path: Path) -> None:
    first = fit(drawn, tmp_path / "first")
    gone = f"--model.network.pretrained={tmp_path / 'gone.pth'}"
    again = fit(drawn, tmp_path / "on", gone, "--trainer.max_epochs=2", f"--ckpt_path={first}")
    assert load_checkpoint(again)["epoch"] == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--data.batch_size=0", "data.batch_size to be 1 or more, but got 0"),
        ("--model.network.num_heads=0", "network.num_heads to be from 1 to 1024"),
        ("--trainer.devices=0", "devices"),
    ],
)
def test_numbers_out_of_range(
    option: str, words: str, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        fit(drawn, tmp_path, option)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert words in error.splitlines()[-1]
    assert "Traceback" not in error
