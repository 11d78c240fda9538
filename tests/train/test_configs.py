"""Every shipped config runs, on drawn faces and for a few steps."""

import re
from pathlib import Path

import pytest
import timm
import torch
import yaml

from fer_vit.store.folder import load_network
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask
from tests.helpers.commands import main, parse_fit

CONFIGS = Path(__file__).parents[2] / "configs"
LAID_OVER = {
    "ddp": "drawn",
    "attention_is_all_you_need": "ferplus_teacher",
    "ferplus_fairface_finish": "ferplus_fairface_small",
}
"""Configs that change a part of another one."""
QUICK = [
    "--data.num_workers=0",
    "--data.batch_size=8",
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
]


def fit(configs: list[str], manifest: Path, *more: str) -> None:
    words = [word for name in configs for word in ("--config", str(CONFIGS / f"{name}.yaml"))]
    main(["fit", *words, *QUICK, f"--data.manifest={manifest}", *more])


def run(name: str, manifest: Path, folder: Path, *more: str) -> Path:
    fit([name], manifest, f"--trainer.logger.init_args.save_dir={folder}", *more)
    (best,) = folder.rglob("best.ckpt")
    return best


def pretrained_options(path: Path) -> tuple[torch.nn.Module, list[str]]:
    """Writes random weights of one block where ImageNet's would be; returns them and the options that load them."""
    network = yaml.safe_load((CONFIGS / "pretrained_vit.yaml").read_text())["model"]["network"]
    own = timm.create_model(network["backbone"], depth=1)
    torch.save(own.state_dict(), path)
    return own, ["--model.network.depth=1", f"--model.network.pretrained={path}"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_config_takes_a_step(name: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    task = MaskedPretraining if name == "pretrain" else FERTask
    step = task.training_step
    monkeypatch.setattr(task, "training_step", lambda *args: losses.append(loss := step(*args)) or loss)
    more = ["--trainer.fast_dev_run=true"]
    if name == "pretrained_vit":
        more += pretrained_options(tmp_path / "weights.pth")[1]
    if name == "ddp":  # batch norms synchronise on GPUs only; test_distributed starts several processes
        more += ["--trainer.devices=1", "--trainer.sync_batchnorm=false"]
    fit([*([LAID_OVER[name]] if name in LAID_OVER else []), name], drawn / "faces.parquet", *more)
    (loss,) = losses
    assert loss.isfinite()


def test_pretrained_weights_are_loaded_once(drawn: Path, tmp_path: Path) -> None:
    own, options = pretrained_options(tmp_path / "weights.pth")
    best = run("pretrained_vit", drawn / "faces.parquet", tmp_path / "runs", *options, "--model.lr=0")
    (tmp_path / "weights.pth").unlink()
    state = load_network(best).state_dict()  # needs nothing but the checkpoint
    # Without a learning rate the saved weights are the loaded ones.
    assert torch.equal(state["vit.blocks.0.attn.qkv.weight"], own.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize("page", ["docs/attention.md", "docs/ablation.md", "docs/explaining.md"])
def test_options_in_the_documentation_exist(page: str) -> None:
    text = (CONFIGS.parent / page).read_text()
    words = sorted(set(re.findall(r"--model\.network\.(\w+)(?:=| )(\S+)", text)))
    words += sorted(set(re.findall(r"`(\w+): (\w+)`", text)))
    for option, value in words:
        found = parse_fit(f"--model.network.{option}={value}").model.network[option]
        assert (list(found) if isinstance(found, tuple) else found) == yaml.safe_load(value), f"{option}: {value}"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_header_has_the_command(path: Path) -> None:
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("fer-vit fit --config configs/" in line and path.stem in line for line in header)
