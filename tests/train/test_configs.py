"""Every shipped config runs, on drawn faces and for a few steps."""

import re
from pathlib import Path

import pytest
import timm
import torch
import yaml
from lightning import LightningModule
from torch import Tensor

from fer_vit.data.dataset import Batch
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask
from tests.helpers.commands import main, parse_fit
from tests.helpers.marks import slow

CONFIGS = Path(__file__).parents[2] / "configs"
LAID_OVER = {
    "ddp": "drawn",
    "attention_is_all_you_need": "ferplus_teacher",
    "ferplus_fairface_finish": "ferplus_fairface_small",
    "ferplus_fairface_last": "ferplus_fairface",
    "ferplus_fairface_long": "ferplus_fairface",
}
"""Configs that change a part of another one."""
NAMES = {path.stem for path in CONFIGS.glob("*.yaml")}
SMALL = {"drawn", "drawn_heads", "pretrain"}
"""Configs of small networks; a step of each other one takes up to a second."""
QUICK = [
    "--data.num_workers=0",
    "--data.batch_size=2",
    "--trainer.accelerator=cpu",
    "--trainer.fast_dev_run=true",
]


@pytest.mark.parametrize("name", [*sorted(SMALL), *slow(*sorted(NAMES - SMALL))])
def test_every_config_takes_a_step(
    name: str, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    task = MaskedPretraining if name == "pretrain" else FERTask
    step = task.training_step

    def record(task: LightningModule, batch: Batch, index: int) -> Tensor:
        loss = step(task, batch, index)
        steps.append((task, loss))
        return loss

    monkeypatch.setattr(task, "training_step", record)
    more = []
    if name == "pretrained_vit":  # random weights of one block where ImageNet's would be
        network = yaml.safe_load((CONFIGS / "pretrained_vit.yaml").read_text())["model"]["network"]
        torch.save(
            timm.create_model(network["backbone"], depth=1).state_dict(), tmp_path / "weights.pth"
        )
        more = ["--model.network.depth=1", f"--model.network.pretrained={tmp_path / 'weights.pth'}"]
    # batch norms synchronise on GPUs only; test_distributed starts several processes
    if name == "ddp":
        more = ["--trainer.devices=1", "--trainer.sync_batchnorm=false"]
    configs = [
        f"--config={CONFIGS / f'{config}.yaml'}" for config in (LAID_OVER.get(name), name) if config
    ]
    main(["fit", *configs, *QUICK, f"--data.manifest={drawn / 'faces.parquet'}", *more])
    ((module, loss),) = steps
    assert loss.isfinite()
    assert module.hparams["network"]["pretrained"] is False  # a checkpoint needs no other weights


@pytest.mark.parametrize(
    "page",
    [
        "docs/explanation/how_it_works.md",
        "docs/results/ablation.md",
        "docs/explanation/faithfulness.md",
    ],
)
def test_options_in_the_documentation_exist(page: str) -> None:
    text = (CONFIGS.parent / page).read_text()
    words = sorted(set(re.findall(r"--model\.network\.(\w+)(?:=| )(\S+)", text)))
    words += sorted(set(re.findall(r"`(\w+): (\w+)`", text)))
    for option, value in words:
        parsed = parse_fit(f"--model.network.{option}={value}").model.network[option]
        assert (list(parsed) if isinstance(parsed, tuple) else parsed) == yaml.safe_load(value), (
            f"{option}: {value}"
        )
