"""Every shipped config runs, on drawn faces and for a few steps."""

import re
from pathlib import Path

import pytest
import timm
import torch
import yaml

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.cost import describe
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import load_network
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, main, parse_fit
from tests.helpers.marks import slow

CONFIGS = Path(__file__).parents[2] / "configs"
FERPLUS = [f"ferplus_{name}" for name in ("small", "teacher", "gpu", "fairface_small")]
SCRATCH = ("drawn", *FERPLUS, "ablation")
PRETRAINED = ("rafdb", "affectnet")
STARTS = ("pretrain", "finetune")
OVERLAYS = ("ddp", "ferplus_fairface_finish")
QUICK = [
    "--data.num_workers=0",
    "--data.batch_size=8",
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
]


def fit(configs: list[Path], manifest: Path, *more: str) -> None:
    words = [word for path in configs for word in ("--config", str(path))]
    main(["fit", *words, *QUICK, f"--data.manifest={manifest}", *more])


def run(configs: list[Path], manifest: Path, folder: Path, *more: str) -> Path:
    fit(configs, manifest, f"--trainer.logger.init_args.save_dir={folder}", *more)
    (best,) = folder.rglob("best.ckpt")
    return best


def weights(name: str, path: Path) -> torch.nn.Module:
    """Writes random weights for the backbone that a config names, of one block, as ImageNet's would be; returns it."""
    network = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["model"]["network"]
    own = timm.create_model(network["backbone"], depth=1)
    torch.save(own.state_dict(), path)
    return own


@pytest.mark.parametrize("name", [*SCRATCH[1:], *PRETRAINED[1:], *STARTS])  # the first of each are trained below
def test_every_config_takes_a_step(name: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    task = MaskedPretraining if name == "pretrain" else FERTask
    step = task.training_step
    monkeypatch.setattr(task, "training_step", lambda *args: losses.append(loss := step(*args)) or loss)
    more = []
    if name in PRETRAINED:
        weights(name, tmp_path / "weights.pth")
        more = ["--model.network.depth=1", f"--model.network.pretrained={tmp_path / 'weights.pth'}"]
    fit([CONFIGS / f"{name}.yaml"], drawn / "faces.parquet", "--trainer.fast_dev_run=true", *more)
    (loss,) = losses
    assert loss.isfinite()


@pytest.mark.parametrize("name", ["drawn", *slow(*SCRATCH[1:])])
def test_from_scratch(name: str, drawn: Path, tmp_path: Path) -> None:
    best = run([CONFIGS / f"{name}.yaml"], drawn / "faces.parquet", tmp_path)
    assert best.parents[2].name == name
    assert all(v.isfinite().all() for v in torch.load(best, weights_only=True)["state_dict"].values())


@pytest.mark.parametrize("name", ["rafdb", *slow(*PRETRAINED[1:])])
def test_pretrained(name: str, drawn: Path, tmp_path: Path) -> None:
    own = weights(name, tmp_path / "weights.pth")
    small = ["--model.network.depth=1", f"--model.network.pretrained={tmp_path / 'weights.pth'}", "--model.lr=0"]
    best = run([CONFIGS / f"{name}.yaml"], drawn / "faces.parquet", tmp_path / "runs", *small)
    (tmp_path / "weights.pth").unlink()
    state = load_network(best).state_dict()  # needs nothing but the checkpoint
    # Without a learning rate what is saved is what was loaded.
    assert torch.equal(state["vit.blocks.0.attn.qkv.weight"], own.blocks[0].attn.qkv.weight)


def test_overlay_for_several_processes(drawn: Path) -> None:
    overlay = [CONFIGS / "drawn.yaml", CONFIGS / "ddp.yaml"]
    # Batch norms synchronise on GPUs only; the processes themselves are tested in test_distributed.
    alone = ["--trainer.devices=1", "--trainer.sync_batchnorm=false", "--trainer.fast_dev_run=true"]
    fit(overlay, drawn / "faces.parquet", *alone)


def test_overlay_that_finishes_the_shipped_model(drawn: Path) -> None:
    overlay = [CONFIGS / f"ferplus_fairface_{name}.yaml" for name in ("small", "finish")]
    fit(overlay, drawn / "faces.parquet", "--trainer.fast_dev_run=true")


PAPER = [CONFIGS / "drawn.yaml", CONFIGS / "model" / "attention_is_all_you_need.yaml"]
PATCHES = ["--model.network.stem=patch", "--model.network.region_source=image"]


def test_the_paper_overlay() -> None:
    settings = parse_fit(*(f"--config={path}" for path in PAPER), *PATCHES)
    assert_papers(RegionViT(RegionViTConfig(**settings.model.network.as_dict()), "ab"))


@pytest.mark.slow
def test_the_paper_overlay_trains(drawn: Path, tmp_path: Path) -> None:
    assert_papers(load_network(run(PAPER, drawn / "faces.parquet", tmp_path, *PATCHES)))


def assert_papers(net: RegionViT) -> None:
    block = net.vit.blocks[5]
    assert (len(net.vit.blocks), block.attn.num_heads, block.mlp.fc1.weight.shape) == (6, 8, (2048, 512))
    assert type(block.mlp.act) is torch.nn.ReLU


def test_mechanisms_train_together(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mechanisms = ["attention=gaussian", "keep_rate=[0.9,0.6]", "head=query", "causal=true", "pos_embed=sincos_1d"]
    words = [f"--model.network.{word}" for word in (*mechanisms, "block=post_norm", "reg_tokens=2")]
    manifest, logs = drawn / "faces.parquet", f"--trainer.logger.init_args.save_dir={tmp_path}"
    main(["fit", *TINY, *words, "--model.mixup=0.2", "--model.region_dropout=0.5", f"--data.manifest={manifest}", logs])
    best = next(tmp_path.rglob("best.ckpt"))
    assert f"RegionViT: {describe(load_network(best))}." in capsys.readouterr().out
    main(["validate", f"--ckpt_path={best}", f"--data.manifest={manifest}", *QUICK[:1], logs])


@pytest.mark.parametrize("page", ["docs/attention.md", "docs/ablation.md", "docs/explaining.md"])
def test_options_in_the_documentation_exist(page: str) -> None:
    text = (CONFIGS.parent / page).read_text()
    words = sorted(set(re.findall(r"--model\.network\.(\w+)(?:=| )(\S+)", text)))
    words += sorted(set(re.findall(r"`(\w+): (\w+)`", text)))
    for option, value in words:
        found = parse_fit(f"--model.network.{option}={value}").model.network[option]
        assert (list(found) if isinstance(found, tuple) else found) == yaml.safe_load(value), f"{option}: {value}"


def test_every_config_is_run_here() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {*SCRATCH, *PRETRAINED, *STARTS, *OVERLAYS}
    assert [path.stem for path in CONFIGS.glob("*/*.yaml")] == ["attention_is_all_you_need"]


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_header_says_the_command(path: Path) -> None:
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("fer-vit fit --config configs/" in line and path.stem in line for line in header)


@pytest.mark.slow
def test_two_runs_with_one_seed_end_in_the_same_weights(drawn: Path, tmp_path: Path) -> None:
    states = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        best = run([CONFIGS / "drawn.yaml"], drawn / "faces.parquet", folder, "--data.num_workers=1")
        states.append(torch.load(best, weights_only=True)["state_dict"])
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
