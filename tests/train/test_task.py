import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.model.config import RegionViTConfig
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.train.task import FERTask, warmup_cosine

NETWORK = RegionViTConfig(
    img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, regions=("mouth", "nose"), stem="conv"
)


def batch(size: int = 6) -> Batch:
    torch.manual_seed(0)
    boxes = torch.tensor([[4.0, 4.0, 20.0, 20.0], [8.0, 12.0, 28.0, 30.0]]).expand(size, 2, 4)
    return Batch(
        image=torch.rand(size, 3, 32, 32),
        boxes=boxes,
        valid=torch.ones(size, 2, dtype=torch.bool),
        target=torch.eye(3)[torch.arange(size) % 3],
        row=torch.arange(size),
        path=[str(i) for i in range(size)],
        to_crop=torch.eye(3)[:2].expand(size, 2, 3),
    )


def build(**change: object) -> FERTask:
    torch.manual_seed(0)
    return FERTask(NETWORK, ["a", "b", "c"], **change)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"mixup": 0.4, "label_smoothing": 0.1},
        {"cutmix": 1.0},
        {"region_dropout": 0.5},
        {"region_dropout": 1.0},
        {"mixup": 0.4, "cutmix": 0.5},
    ],
)
def test_every_recipe_learns_a_batch(change: dict[str, float]) -> None:
    task = build(**change).train()
    optimiser = torch.optim.AdamW(task.parameters(), 3e-3)
    data = batch()
    for _ in range(60):
        optimiser.zero_grad()
        loss = task.training_step(data, 0)
        loss.backward()
        optimiser.step()
    logits = task.eval().net(data.image, data.boxes, data.valid)
    assert logits.argmax(1).tolist() == [0, 1, 2, 0, 1, 2]


def test_without_mixing_the_step_is_the_plain_loss() -> None:
    task = build().eval()
    data = batch()
    plain = torch.nn.functional.cross_entropy(task.net(data.image, data.boxes, data.valid), data.target)
    assert torch.allclose(task.training_step(data, 0), plain, atol=1e-6)


def test_repeats_do_not_count() -> None:
    task, data = build().eval(), batch()
    task._evaluate(data, "val")
    figures = task.metrics["val"].compute()
    task.metrics["val"].reset()
    repeated = Batch(*(torch.cat([v, v[:3]]) if isinstance(v, torch.Tensor) else v + v[:3] for v in data))
    repeated.row[6:] = -1
    task._evaluate(repeated, "val")
    task._evaluate(data._replace(row=torch.full((6,), -1)), "val")
    again = task.metrics["val"].compute()
    assert figures["val/confusion"].sum() == 6
    assert all(torch.equal(again[name], value) for name, value in figures.items())


def test_schedule_against_the_formula() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.AdamW([{"params": [weight], "lr": 0.5}], lr=1.0)
    schedule = warmup_cosine(optimiser, steps=100, warmup_steps=10, floor=0.1)
    rates = []
    for _ in range(100):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.5 / 11)
    assert rates[10] == pytest.approx(0.5)
    assert rates[55] == pytest.approx(0.5 * (0.1 + 0.9 * (1 + math.cos(math.pi * 0.5)) / 2))
    assert rates[99] == pytest.approx(0.5 * (0.1 + 0.9 * (1 + math.cos(math.pi * 89 / 90)) / 2))
    assert max(rates) == rates[10]


def test_every_step_of_every_process_draws_random_numbers_of_its_own() -> None:
    class Trainer:
        def __init__(self, rank: int, epoch: int) -> None:
            self.global_rank, self.current_epoch = rank, epoch

    task, drawn = build(), []
    for rank, epoch, step in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]:
        task._trainer = Trainer(rank, epoch)  # type: ignore[assignment]
        task.on_train_batch_start(batch(), step)
        drawn.append(torch.rand(()).item())
    assert len(set(drawn)) == 4
    assert drawn[0] == drawn[-1]


def test_layer_decay_reaches_the_optimiser() -> None:
    task = build(lr=1e-3, layer_decay=0.5, weight_decay=0.1)

    class Trainer:
        estimated_stepping_batches = 100

    task._trainer = Trainer()  # type: ignore[assignment]
    made = task.configure_optimizers()
    named = {id(p): name for name, p in task.net.named_parameters()}
    rates = {named[id(p)]: g["initial_lr"] for g in made["optimizer"].param_groups for p in g["params"]}
    assert rates["vit.head.weight"] == pytest.approx(1e-3)
    assert rates["vit.blocks.1.attn.qkv.weight"] == pytest.approx(5e-4)
    assert rates["vit.blocks.0.attn.qkv.weight"] == pytest.approx(2.5e-4)
    assert rates["vit.cls_token"] == pytest.approx(1.25e-4)
    assert rates.keys() == {name for name, _ in task.net.named_parameters()}


def test_another_architecture_or_other_classes_are_said(checkpoint: Path) -> None:
    saved = load_checkpoint(checkpoint)
    task = FERTask(**saved["hyper_parameters"])
    task.on_load_checkpoint(saved)
    saved["hyper_parameters"]["network"] |= {"patch_downscale": 1, "head_drop_rate": 0.0}  # as it was written before
    assert FERTask(**saved["hyper_parameters"]).hparams == task.hparams
    other = copy.deepcopy(saved)
    other["hyper_parameters"]["labels"] = ["x", "y"]
    with pytest.raises(FerVitError, match="classes are x, y, but the manifest's are neutral, happiness"):
        task.on_load_checkpoint(other)
    other = copy.deepcopy(saved)
    other["state_dict"]["net.vit.pos_embed"] = torch.zeros(1, 5, 32)
    with pytest.raises(FerVitError, match=r"`net.vit.pos_embed` is \(1, 5, 32\) in it, but \(1, 17, 32\)"):
        task.on_load_checkpoint(other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": None}, "Expected the labels"),
        ({"network": RegionViTConfig(regions=("ear",))}, "Expected regions out of .* got `ear`"),
        ({"network": RegionViTConfig(regions=("nose", "nose"))}, "every region once"),
        ({"network": RegionViTConfig(regions=("nose",), tokens="region"), "cutmix": 1.0}, "rectangle of patches"),
    ],
)
def test_contradictions_are_said(change: dict[str, object], words: str) -> None:
    with pytest.raises(FerVitError, match=words):
        FERTask(**{"labels": ["a", "b"], **change})


def test_a_loss_that_is_not_finite_names_the_images() -> None:
    task, data = FERTask(replace(NETWORK, stem="patch"), ["a", "b", "c"]).train(), batch()
    data.image[2] = torch.nan
    with pytest.raises(FerVitError, match=r"loss is nan \(epoch 0, step 0\).* Images: 2$"):
        task.training_step(data, 0)
    with torch.no_grad():
        task.net.vit.norm.weight.fill_(torch.inf)
    with pytest.raises(FerVitError, match=r"Lower model.lr.* Images: 0, 1, 2, 3, 4, 5$"):
        task.training_step(batch(), 0)


def test_a_val_loss_that_is_not_finite_ends_the_run() -> None:
    task = build().eval()
    with torch.no_grad():
        task.net.vit.norm.weight.fill_(torch.nan)
    task._evaluate(batch(), "val")
    with pytest.raises(FerVitError, match="The loss on the val split is nan: the weights are lost"):
        task.on_validation_epoch_end()
