"""Optimiser, schedule, seeds, averaged weights and symmetric networks."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fer_vit.callbacks import EMA, Symmetry
from fer_vit.errors import FerVitError
from fer_vit.face.crop import REGIONS, region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.heads import HEADS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.processes import derived_seed
from fer_vit.train.pretraining import MaskedPretraining
from tests.train.test_task import NETWORK, batch, build, with_trainer


def test_a_gpu_draws_from_the_seed_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    task = with_trainer(build(), global_rank=3, current_epoch=2)
    task.on_train_batch_start(batch(), 7)
    assert seeds == []
    task._device = torch.device("cuda", 0)
    task.on_train_batch_start(batch(), 7)
    assert seeds == [derived_seed(5, 2, 7, 3)] == [torch.default_generator.initial_seed()]


@pytest.mark.parametrize("pretraining", [False, True])
def test_rates_and_decays_of_parameters(pretraining: bool) -> None:
    task: Any = build(layer_decay=0.5, weight_decay=0.1)
    if pretraining:
        task = MaskedPretraining(NETWORK, weight_decay=0.1)
    made = with_trainer(task, estimated_stepping_batches=100).configure_optimizers()
    named = {id(value): name.removeprefix("net.") for name, value in task.named_parameters()}
    groups = {
        named[id(p)]: group for group in made["optimizer"].param_groups for p in group["params"]
    }
    assert groups.keys() == set(named.values())
    factors = {
        "vit.blocks.1.attn.qkv.weight": 0.5,
        "vit.blocks.0.attn.qkv.weight": 0.25,
        "vit.cls_token": 0.125,
    }
    factors |= {"region_embed.patch_embed.late.1.weight": 0.125}
    factors |= {"mask_token": 1, "decoder.weight": 1} if pretraining else {"vit.head.weight": 1}
    for name, factor in factors.items():
        expected = 1e-3 if pretraining else 1e-3 * factor
        assert groups[name]["initial_lr"] == pytest.approx(expected), name
    assert groups["vit.blocks.0.attn.qkv.weight"]["weight_decay"] == 0.1
    plain = {"region_embed.name_embed.mouth", "vit.pos_embed", "vit.cls_token", "vit.norm.weight"}
    plain |= {"mask_token", "decoder.weight"} if pretraining else {"vit.head.bias"}
    assert {groups[name]["weight_decay"] for name in plain} == {0.0}


@pytest.mark.parametrize(("warmup", "rise"), [(0.1, 20), (0.0, 0), (1.0, 200)])
def test_the_schedule_of_a_run(warmup: float, rise: int) -> None:
    task = with_trainer(build(lr=0.5, warmup=warmup, min_lr=0.2), estimated_stepping_batches=200)
    made = task.configure_optimizers()
    optimiser = made["optimizer"]
    schedule = made["lr_scheduler"]["scheduler"]
    assert type(optimiser) is torch.optim.AdamW
    assert made["lr_scheduler"]["interval"] == "step"
    rates = []
    for _ in range(201):
        assert len({group["lr"] for group in optimiser.param_groups}) == 1
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    np.testing.assert_allclose(rates[:rise], 0.5 * np.arange(1, rise + 1) / (rise + 1), rtol=1e-6)
    assert rates[rise] == max(rates) == pytest.approx(0.5)
    assert rates[rise:] == sorted(rates[rise:], reverse=True)
    if rise < 200:
        cosine = np.cos(np.linspace(0, np.pi, 201 - rise))
        np.testing.assert_allclose(rates[rise:], 0.5 * (0.2 + 0.8 * (1 + cosine) / 2), rtol=1e-6)


@pytest.mark.parametrize(("min_lr", "lines"), [(1e-5, 1), (1e-4, 0), (0.0, 0)])
def test_a_min_lr_that_may_be_a_learning_rate_is_logged(
    min_lr: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fer_vit")
    task = with_trainer(build(lr=1e-3, min_lr=min_lr), estimated_stepping_batches=200)
    task.configure_optimizers()
    logged = [record for record in caplog.records if "1e-08" in record.getMessage()]
    assert len(logged) == lines


class Tiny(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("counter", torch.tensor(0))


def test_the_average_is_made_on_the_device_to_which_the_model_goes() -> None:
    model = Tiny()
    ema = EMA()
    assert model.device.type == "cpu"
    ema.setup(
        SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("meta"))), model, "fit"
    )
    assert {value.device.type for value in ema._average_model.parameters()} == {"meta"}


def test_the_decay_reaches_the_average() -> None:
    model = Tiny()
    ema = EMA(decay=0.2)
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("cpu")), global_step=0
    )
    ema.setup(trainer, model, "fit")
    for step in (1, 2, 3):
        with torch.no_grad():
            model.weight += 1
            model.counter += 1
        trainer.global_step = step
        ema.on_train_batch_end(trainer, model, None, None, 0)
    # The first value is taken whole; then 2/11 of it is kept, and then 1/5, which is less than
    # 3/12.
    second = 1 * 2 / 11 + 2 * 9 / 11
    assert ema._average_model.module.weight.tolist() == pytest.approx([0.2 * second + 0.8 * 3] * 2)
    assert ema._average_model.module.counter == 3


SWAPPED = [1, 0, 3, 2, 4, 5, 7, 6, 8, 9, 10]
"""Whose place each region has in a mirror image."""
CONFIG = RegionViTConfig(
    img_size=25,
    in_chans=1,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=4,
    stem="conv",
    standardize=True,
    tokens="region",
    regions=tuple(REGIONS),
    region_grid=1,
    region_source="stem",
    pos_embed="none",
    pool="avg",
)
NEW: Any = SimpleNamespace(ckpt_path=None)
RESUMED: Any = SimpleNamespace(ckpt_path="last.ckpt")


def network(**changes: Any) -> RegionViT:
    """A network none of whose weights or statistics is what it starts as."""
    torch.manual_seed(0)
    net = build_model(replace(CONFIG, **changes), ["a", "b", "c"])
    shake(net)
    return net.eval()


def faces(number: int, size: int) -> tuple[Tensor, Tensor]:
    """Random images and boxes of their regions."""
    rng = np.random.default_rng(0)
    landmarks = size * (np.array(TEMPLATE) + rng.normal(0, 0.03, (number, 5, 2)))
    boxes = np.stack([region_boxes(points, tuple(REGIONS)) for points in landmarks])
    return torch.from_numpy(rng.random((number, 3, size, size), np.float32)), torch.from_numpy(
        boxes
    )


def mirrored(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    left, top, right, bottom = boxes[:, SWAPPED].unbind(-1)
    width = image.shape[3]
    return image.flip(3), torch.stack([width - right, top, width - left, bottom], dim=-1)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"in_chans": 3, "img_size": 49, "standardize": False},
        {"stem_convs": 1, "pool": "token", "reg_tokens": 3, "block": "post_norm"},
        {"attention": "gaussian"},
        {"stem": "patch", "region_source": "image", "img_size": 30},
        {"pos_embed": "mirror"},
        {"tokens": "both", "pos_embed": "mirror", "img_size": 49, "patch_size": 8},
        {"tokens": "both", "pos_embed": "none", "img_size": 25, "stem_last_convs": 1},
        {"tokens": "patch", "pos_embed": "learn", "img_size": 25, "reg_tokens": 2},
    ],
)
def test_a_face_and_its_mirror_image_have_the_same_logits(change: dict[str, Any]) -> None:
    net = network(**change)
    face = faces(4, net.config.img_size)
    assert (net.logits(*face) - net.logits(*mirrored(*face))).abs().max() > 0.01
    make_symmetric(net)
    logits = net.logits(*face)
    assert torch.allclose(logits, net.logits(*mirrored(*face)), atol=1e-5)
    assert logits.std() > 0.1


def make_symmetric(net: RegionViT) -> None:
    """Starts a training that keeps the network symmetric."""
    Symmetry().on_fit_start(NEW, SimpleNamespace(net=net))


def test_heads_of_a_face_and_its_mirror_image_are_mirrored() -> None:
    outputs = {
        "movements": ["smileLeft", "smileRight", "jawOpen"],
        "pose": ["yaw", "pitch", "roll"],
        "affect": ["valence", "arousal"],
    }
    config = replace(CONFIG, tokens="both", pos_embed="mirror")
    torch.manual_seed(0)
    net = build_model(config, ["a", "b", "c"], outputs=outputs).eval()
    shake(net)
    make_symmetric(net)
    face = faces(4, config.img_size)
    raw = net(*face)
    mirrored_raw = net(*mirrored(*face))
    for head, names in outputs.items():
        source, sign = HEADS[head].mirror(names)
        expected = raw[head][:, source] * torch.tensor(sign)
        assert torch.allclose(mirrored_raw[head], expected, atol=1e-5), head
        assert raw[head].std() > 0.1


def shake(net: RegionViT) -> None:
    """Sets all weights and statistics to random values."""
    for value in net.state_dict().values():
        if value.is_floating_point():
            random = torch.randn_like(value)
            drawn = random.abs() if value.ndim == 1 else random / 4
            value.copy_(drawn)


def test_training_keeps_the_weights_symmetric() -> None:
    net = network().train()
    module = SimpleNamespace(net=net)
    callback = Symmetry()
    callback.on_fit_start(NEW, module)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    image, boxes = faces(8, net.config.img_size)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    for step in range(5):
        F.cross_entropy(net.logits(image, boxes), torch.arange(8) % 3).backward()
        callback.on_after_backward(NEW, module)
        if step % 2:  # the run ends amid the third group
            optimizer.step()
            optimizer.zero_grad()
    state = net.state_dict()
    Symmetry().on_fit_start(RESUMED, module)  # refuses weights that are not symmetric
    assert not any(torch.equal(value, start[name]) for name, value in state.items() if value.ndim)
    net.eval()
    assert torch.allclose(net.logits(image, boxes), net.logits(*mirrored(image, boxes)), atol=1e-5)


def test_networks_and_runs_that_cannot_be_symmetric() -> None:
    for change in (
        {"img_size": 24},
        {"num_heads": 3, "embed_dim": 24},
        {"regions": ("right_eye", "mouth")},
        {"region_grid": 2},
    ):
        net = build_model(replace(CONFIG, **change), ["a", "b", "c"])
        with pytest.raises(FerVitError, match="cannot be symmetric"):
            Symmetry().on_fit_start(NEW, SimpleNamespace(net=net))
    net = build_model(CONFIG, ["a", "b", "c"], outputs={"movements": ["jawOpen", "smileLeft"]})
    with pytest.raises(FerVitError, match="smileLeft of one side"):
        Symmetry().on_fit_start(NEW, SimpleNamespace(net=net))
    module = SimpleNamespace(net=network())
    with pytest.raises(FerVitError, match="cannot resume with it"):
        Symmetry().on_fit_start(RESUMED, module)
    make_symmetric(module.net)
    Symmetry().on_fit_start(RESUMED, module)


def test_every_step_of_every_process_draws_random_numbers_of_its_own() -> None:
    task = build()
    drawn = []
    for rank, epoch, step in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]:
        with_trainer(task, global_rank=rank, current_epoch=epoch).on_train_batch_start(
            batch(), step
        )
        drawn.append(torch.rand(()).item())
    assert len(set(drawn)) == 4
    assert drawn[0] == drawn[-1]
