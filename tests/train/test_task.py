import inspect
import math
import warnings
from dataclasses import asdict, replace
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch.utils.data import DataLoader

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.geometry import TEMPLATE
from fer_vit.model.config import ModelSettings, RegionViTConfig
from fer_vit.model.tokens import drop_regions
from fer_vit.processes import derived_seed
from fer_vit.train.module import warmup_cosine
from fer_vit.train.task import FERTask

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


def with_trainer(task: FERTask, **values: object) -> FERTask:
    task._trainer = SimpleNamespace(logger=None, **values)  # type: ignore[assignment]
    return task


def log_into(task: FERTask) -> dict[str, tuple[float, dict[str, object]]]:
    """Returns what the task logs from now on: value and options by name."""
    logged = {}

    def log(name: str, value: torch.Tensor, **options: object) -> None:
        logged[name] = (float(value), options)

    task.log = log  # type: ignore[method-assign, assignment]
    task.log_dict = lambda values: [log(*item) for item in values.items()]  # type: ignore[method-assign, assignment]
    return logged


def smoothed_loss(logits: torch.Tensor, target: torch.Tensor, smoothing: float) -> float:
    """Cross-entropy by its formula, in float64."""
    z, t = logits.detach().double().numpy(), target.double().numpy()
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    per_class = -((1 - smoothing) * t + smoothing / t.shape[1]) * log_p
    return float(per_class.sum(1).mean())


@pytest.mark.parametrize("change", [{}, {"label_smoothing": 0.2, "region_dropout": 0.9}])
def test_a_training_step_is_its_parts_in_order(change: dict[str, float]) -> None:
    task, data = build(**change).train(), batch()
    logged = log_into(task)
    torch.manual_seed(5)
    loss = task.training_step(data, 0)
    torch.manual_seed(5)
    net = task.net
    tokens = net.tokenize(data.image, data.boxes, data.valid)
    if "region_dropout" in change:
        tokens = drop_regions(tokens, net.layout, change["region_dropout"])
        assert not tokens.valid.all()
    logits = net.forward_head(net.forward_features(tokens))
    expected = smoothed_loss(logits, data.target, change.get("label_smoothing", 0))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert loss.requires_grad
    assert logged == {"train/loss": (loss.item(), {"prog_bar": True, "sync_dist": True})}


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_logits_are_adjusted_in_training_alone(tau: float) -> None:
    data, counts = batch(), [600.0, 30.0, 0.5]
    datamodule = SimpleNamespace(class_counts=lambda: torch.tensor(counts))
    task = with_trainer(build(logit_adjust=tau), datamodule=datamodule, testing=False)
    task.on_fit_start()
    log_into(task)
    logits = task.eval().net(data.image, data.boxes, data.valid)
    shares = np.array([600, 30, 1]) / 631
    adjusted = logits.detach().double() + tau * torch.from_numpy(np.log(shares))
    loss = task.training_step(data, 0).item()
    assert loss == pytest.approx(smoothed_loss(adjusted, data.target, 0), rel=1e-5)
    task.validation_step(data, 0)
    assert task.loss.compute().item() == pytest.approx(smoothed_loss(logits, data.target, 0), rel=1e-5)


def test_repeats_do_not_count() -> None:
    task, data = with_trainer(build().eval(), testing=False), batch()
    task.validation_step(data, 0)
    figures = task.metrics.compute()
    task.metrics.reset()
    repeated = Batch(*(torch.cat([v, v[:3]]) if isinstance(v, torch.Tensor) else v + v[:3] for v in data))
    repeated.row[6:] = -1
    task.validation_step(repeated, 0)
    task.validation_step(data._replace(row=torch.full((6,), -1)), 0)
    again = task.metrics.compute()
    assert figures["confusion"].sum() == 6
    assert all(torch.equal(again[name], value) for name, value in figures.items())


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


@pytest.mark.parametrize(
    ("stage", "precision", "compiled", "in_bf16"),
    [
        ("fit", "bf16-mixed", True, True),
        ("fit", "32-true", False, False),
        ("validate", "bf16-mixed", True, False),
    ],
)
def test_kernel_and_compilation(
    stage: str, precision: str, compiled: bool, in_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, chosen = [], []
    monkeypatch.setattr("fer_vit.train.module.fused_is_faster", lambda *args: calls.append(args) or "choice")
    monkeypatch.setattr("fer_vit.train.module.use_fused_attention", lambda *args: chosen.append(args))
    monkeypatch.setattr(torch, "compile", lambda function: ("compiled", function))
    device = torch.device("cpu")
    task = build(compile=compiled)
    plain = task.net.forward_features
    with_trainer(task, strategy=SimpleNamespace(root_device=device), precision=precision).setup(stage)
    assert calls == [(device, 1 + 16 + 2 * 4, in_bf16)]  # class token, patches, two regions of four tokens
    assert chosen == [(task.net, "choice")]
    now = task.net.forward_features
    assert now == (("compiled", plain) if compiled and stage == "fit" else plain)


def test_layer_decay_reaches_the_optimiser() -> None:
    task = with_trainer(build(lr=1e-3, layer_decay=0.5, weight_decay=0.1), estimated_stepping_batches=100)
    made = task.configure_optimizers()
    named = {id(p): name for name, p in task.net.named_parameters()}
    groups = {named[id(p)]: group for group in made["optimizer"].param_groups for p in group["params"]}
    rates = {name: group["initial_lr"] for name, group in groups.items()}
    assert rates["vit.head.weight"] == pytest.approx(1e-3)
    assert rates["vit.blocks.1.attn.qkv.weight"] == pytest.approx(5e-4)
    assert rates["vit.blocks.0.attn.qkv.weight"] == pytest.approx(2.5e-4)
    assert rates["vit.cls_token"] == pytest.approx(1.25e-4)
    assert rates["region_embed.patch_embed.late.1.weight"] == pytest.approx(1.25e-4)
    assert rates.keys() == {name for name, _ in task.net.named_parameters()}
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    assert decays["vit.blocks.0.attn.qkv.weight"] == 0.1
    plain = ("region_embed.name_embed.mouth", "vit.pos_embed", "vit.cls_token", "vit.head.bias", "vit.norm.weight")
    assert {decays[name] for name in plain} == {0.0}


@pytest.mark.parametrize(("warmup", "rise"), [(0.1, 20), (0.0, 0), (1.0, 200)])
def test_the_schedule_of_a_run(warmup: float, rise: int) -> None:
    task = with_trainer(build(lr=0.5, warmup=warmup, min_lr=0.2), estimated_stepping_batches=200)
    made = task.configure_optimizers()
    optimiser, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
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


def test_a_run_without_an_end_has_no_schedule() -> None:
    with pytest.raises(FerVitError, match=r"set trainer\.max_epochs or max_steps"):
        with_trainer(build(), estimated_stepping_batches=math.inf).configure_optimizers()


def test_the_users_learning_rate_overrides_the_checkpoints() -> None:
    old = with_trainer(build(lr=1e-3, weight_decay=0.05), estimated_stepping_batches=100)
    made = old.configure_optimizers()
    optimiser, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    for _ in range(40):
        optimiser.step()
        schedule.step()
    new = with_trainer(
        build(lr=0.5, weight_decay=0.2, layer_decay=1.0, warmup=0.1, min_lr=0.01), estimated_stepping_batches=100
    )
    new.lr_schedulers = lambda: schedule  # type: ignore[method-assign]
    new.on_train_start()
    (factor, *_) = schedule.lr_lambdas
    assert 0.01 < factor(40) < 1
    for group in optimiser.param_groups:
        assert group["initial_lr"] == 0.5
        assert group["lr"] == pytest.approx(0.5 * factor(40))
    assert {group["weight_decay"] for group in optimiser.param_groups} == {0.0, 0.2}
    assert set(schedule.base_lrs) == {0.5}
    optimiser.step()
    schedule.step()
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx(
        [0.5 * factor(41)] * len(schedule.base_lrs)
    )


@pytest.mark.parametrize("stage", ["val", "test"])
def test_metrics_of_a_stage(stage: str) -> None:
    data_module = SimpleNamespace(manifest=SimpleNamespace(near_duplicates=lambda _: np.zeros(6, bool)))
    task = with_trainer(build().eval(), testing=stage == "test", datamodule=data_module)
    logged = log_into(task)
    start = {"val": task.on_validation_start, "test": task.on_test_start}[stage]
    step = {"val": task.validation_step, "test": task.test_step}[stage]
    end = {"val": task.on_validation_epoch_end, "test": task.on_test_epoch_end}[stage]
    large, small = batch(6), batch(2)
    for data in (large, small):
        step(data, 0)
    with torch.no_grad():
        logits = [task.net(data.image, data.boxes, data.valid) for data in (large, small)]
    target = torch.cat([large.target, small.target])
    preds, true = torch.cat(logits).argmax(1), target.argmax(1)
    end()
    assert logged.keys() == {f"{stage}/{name}" for name in ("accuracy", "f1", "ece", "loss", "uar")}
    # Every image counts once, in any batch.
    assert logged[f"{stage}/loss"][0] == pytest.approx(smoothed_loss(torch.cat(logits), target, 0), rel=1e-5)
    assert logged[f"{stage}/accuracy"] == (pytest.approx((preds == true).float().mean().item()), {"prog_bar": True})
    with warnings.catch_warnings(action="ignore"):
        assert logged[f"{stage}/uar"][0] == pytest.approx(balanced_accuracy_score(true, preds))
    assert task.confusion.sum() == 8
    assert task.confusion.sum(1).tolist() == torch.bincount(true, minlength=3).tolist()
    start()
    step(small, 0)
    end()
    assert task.confusion.sum() == 2  # and nothing of the epoch before
    assert logged[f"{stage}/loss"][0] == pytest.approx(smoothed_loss(logits[1], small.target, 0), rel=1e-5)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_accuracy_without_near_duplicates_stands_beside(stage: str) -> None:
    marks = np.array([True, False, False, True, False, False, True, True])
    manifest = SimpleNamespace(near_duplicates=lambda split: marks if split == stage else marks[:0])
    task = with_trainer(build().eval(), datamodule=SimpleNamespace(manifest=manifest), testing=stage == "test")
    logged = log_into(task)
    verbs = {"val": "validation", "test": "test"}
    start, step, end = (
        getattr(task, name.format(verbs[stage])) for name in ("on_{}_start", "{}_step", "on_{}_epoch_end")
    )
    data = batch(8)
    for rows in (list(range(8)), [3, 5, 4, 6, -1, 2, 1, 0]):  # in any order, and with a repeat
        start()
        for some in data._replace(row=torch.tensor(rows)).split(3):
            step(some, 0)
        end()
        hit = (task.net(data.image, data.boxes, data.valid).argmax(1) == data.target.argmax(1)).numpy()
        single = [place for place, row in enumerate(rows) if row >= 0 and not marks[row]]
        assert logged[f"{stage}/accuracy_without_near_duplicates"][0] == pytest.approx(hit[single].mean())
    logged.clear()
    marks[:] = False
    start()
    step(data, 0)
    end()
    assert logged.keys() == {f"{stage}/{name}" for name in ("accuracy", "f1", "ece", "loss", "uar")}


def test_a_loader_of_your_own_is_enough_to_evaluate() -> None:
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    task, data = build(), batch()
    (found,) = trainer.validate(task, DataLoader([data], batch_size=None), verbose=False)
    right = task.net(data.image, data.boxes, data.valid).argmax(1) == data.target.argmax(1)
    assert found["val/accuracy"] == pytest.approx(right.float().mean().item())
    assert "val/accuracy_without_near_duplicates" not in found


def test_the_differences_of_a_checkpoint_are_named() -> None:
    task = build()
    state = task.state_dict()

    def refusal(**parts: object) -> str:
        with pytest.raises(FerVitError) as error:
            task.on_load_checkpoint({"state_dict": state, **parts})
        return str(error.value)

    task.on_load_checkpoint({"state_dict": state})
    task.on_load_checkpoint({"state_dict": state, "hyper_parameters": dict(task.hparams)})
    assert refusal(hyper_parameters={"labels": ["b", "a", "c"]}) == (
        "The checkpoint's classes are b, a, c, but the manifest's are a, b, c. Use the manifest it was trained on, or "
        "one with the same classes in the same order."
    )
    less = {name: value for name, value in state.items() if name != "net.vit.norm.bias"}
    other = refusal(state_dict={**state, "net.vit.pos_embed": torch.zeros(1, 5, 32)})
    assert "`net.vit.norm.bias` is missing in it, but float (32,) in this model" in refusal(state_dict=less)
    assert "`net.vit.pos_embed` is float (1, 5, 32) in it, but float (1, 17, 32) in this model" in other


def test_settings_in_a_checkpoint_are_plain_and_complete() -> None:
    change = {"align": "crop", "lr": 0.5, "logit_adjust": 1.0, "warmup": 0.0}
    task = build(**change)
    defaults = {name: one.default for name, one in inspect.signature(FERTask).parameters.items()}
    assert dict(task.hparams) == {**defaults, "network": asdict(NETWORK), "labels": ["a", "b", "c"], **change}
    again = FERTask(**task.hparams)
    assert again.hparams == task.hparams
    assert again.net.config == NETWORK
    assert again.net.settings == ModelSettings(["a", "b", "c"], "crop", TEMPLATE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": -0.1}, "model.lr to be 0 or more, but got -0.1"),
        ({"logit_adjust": -0.1}, "model.logit_adjust to be 0 or more"),
        ({"region_dropout": 1.1}, "model.region_dropout to be from 0 to 1, but got 1.1"),
        ({"warmup": -0.1}, "model.warmup to be from 0 to 1"),
        ({"labels": None}, "the labels in order, but got none"),
        ({"network": RegionViTConfig(regions=("ear",))}, "regions from .* got `ear`"),
        ({"network": RegionViTConfig(regions=("nose", "nose"))}, "every region once"),
    ],
)
def test_wrong_settings(change: dict[str, object], words: str) -> None:
    with pytest.raises(FerVitError, match=words):
        FERTask(**{"network": NETWORK, "labels": ["a", "b"], **change})


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
    task = with_trainer(build().eval(), testing=False)
    with torch.no_grad():
        task.net.vit.norm.weight.fill_(torch.nan)
    task.validation_step(batch(), 0)
    logged = log_into(task)
    with pytest.raises(FerVitError, match="The loss on the val split is nan: the weights are unusable"):
        task.on_validation_epoch_end()
    assert logged == {}


def test_a_batch_is_learned() -> None:
    task = build(region_dropout=0.5, label_smoothing=0.1).train()
    optimiser = torch.optim.AdamW(task.parameters(), 3e-3)
    data = batch()
    for _ in range(40):
        optimiser.zero_grad()
        loss = task.training_step(data, 0)
        loss.backward()
        optimiser.step()
    logits = task.eval().net(data.image, data.boxes, data.valid)
    assert logits.argmax(1).tolist() == [0, 1, 2, 0, 1, 2]


def test_a_schedule_of_one_step_and_beyond_the_last() -> None:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = warmup_cosine(optimiser, steps=1, warmup_steps=1, floor=0.25)
    (factor,) = schedule.lr_lambdas
    assert [factor(step) for step in range(4)] == pytest.approx([0.5, 1.0, 0.25, 0.25])


def test_a_checkpoint_needs_no_pretrained_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        "fer_vit.train.task.build_model", lambda *args, **_: built.append(args) or torch.nn.Linear(1, 1)
    )
    network = replace(NETWORK, pretrained="weights.pth")
    task = FERTask(network, ["a", "b"], "crop", ((0.5, 0.5),) * 5)
    assert built == [(network, ["a", "b"])]
    assert task.hparams["network"]["pretrained"] is False
