import inspect
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
)
from torch import Tensor
from torch.utils.data import DataLoader

from fer_vit.data.dataset import Batch
from fer_vit.data.schema import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import DEFAULT_REGIONS, CropSpec
from fer_vit.geometry import TEMPLATE
from fer_vit.heads import HEADS
from fer_vit.labels import EXPRESSIONS
from fer_vit.losses import head_loss
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.model.tokens import drop_regions
from fer_vit.model_settings import ModelSettings
from fer_vit.sources import drawn as drawn_source
from fer_vit.stats.output_measures import MEASURES, measure
from fer_vit.store.model_folder import load_network, save_network
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.module import RegionViTModule
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, fit
from tests.helpers.models import ROUNDING
from tests.helpers.training import parts_of

USUAL = RegionViTConfig(regions=DEFAULT_REGIONS)
NETWORK = RegionViTConfig(
    img_size=32,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=2,
    regions=("mouth", "nose"),
    stem="conv",
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
        targets={},
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


@pytest.mark.parametrize("change", [{}, {"label_smoothing": 0.2, "region_dropout": 0.9}])
def test_a_training_step_is_its_parts_in_order(change: dict[str, float]) -> None:
    task = build(**change).train()
    data = batch()
    logged = log_into(task)
    torch.manual_seed(5)
    loss = task.training_step(data, 0)
    torch.manual_seed(5)
    net = task.net
    tokens = net.tokenize(data.image, data.boxes, data.valid)
    if "region_dropout" in change:
        tokens = drop_regions(tokens, net.layout, change["region_dropout"])
        assert not tokens.valid.all()
    logits = net.forward_head(net.encode(tokens))
    smoothing = change.get("label_smoothing", 0.0)
    expected = F.cross_entropy(logits, data.target, label_smoothing=smoothing)
    assert torch.allclose(loss, expected)
    assert loss.requires_grad
    assert logged == {"train/loss": (loss.item(), {"prog_bar": True, "sync_dist": True})}


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_logits_are_adjusted_in_training_alone(tau: float) -> None:
    data = batch()
    counts = [600.0, 30.0, 0.5]
    datamodule = SimpleNamespace(class_counts=lambda: torch.tensor(counts))
    task = with_trainer(build(logit_adjust=tau), datamodule=datamodule, testing=False)
    task.on_fit_start()
    log_into(task)
    logits = task.eval().net.logits(data.image, data.boxes, data.valid)
    adjusted = logits + tau * (torch.tensor([600, 30, 1]) / 631).log()
    assert torch.allclose(task.training_step(data, 0), F.cross_entropy(adjusted, data.target))
    task.validation_step(data, 0)
    assert torch.allclose(task.mean_loss.compute(), F.cross_entropy(logits, data.target))


def test_classes_are_evened_out_once() -> None:
    data = SimpleNamespace(class_counts=lambda: torch.ones(3), balanced=True)
    task = with_trainer(build(logit_adjust=1.0), datamodule=data, testing=False)
    with pytest.raises(FerVitError, match=r"logit_adjust.*balanced"):
        task.on_fit_start()


def test_repeats_do_not_count() -> None:
    task = with_trainer(build().eval(), testing=False, datamodule=None)
    data = batch()
    task.validation_step(data, 0)
    figures = {**task.metrics.compute(), "loss": task.mean_loss.compute()}
    task.on_validation_start()
    repeated = data._replace(
        image=torch.cat([data.image, data.image[:3]]),
        boxes=torch.cat([data.boxes, data.boxes[:3]]),
        valid=torch.cat([data.valid, data.valid[:3]]),
        target=torch.cat([data.target, data.target[:3]]),
        row=torch.cat([data.row, torch.full((3,), -1)]),
    )
    task.validation_step(repeated, 0)
    task.validation_step(data._replace(row=torch.full((6,), -1)), 0)
    again = {**task.metrics.compute(), "loss": task.mean_loss.compute()}
    assert figures["confusion"].sum() == 6
    assert torch.equal(again["confusion"], figures["confusion"])
    for name, value in figures.items():  # of a batch of another size
        assert torch.allclose(again[name], value, atol=ROUNDING, equal_nan=True)


def vary_outputs(task: FERTask) -> None:
    """Random weights of a usual size give other outputs for each face."""
    for value in task.net.parameters():
        if value.ndim > 1:
            torch.nn.init.normal_(value, std=0.3)


def hooks(task: FERTask, stage: str) -> tuple[Callable[..., None], ...]:
    """What starts, adds to, and ends the evaluation of a split."""
    names = ("on_validation_start", "validation_step", "on_validation_epoch_end")
    if stage != "val":
        names = [name.replace("validation", "test") for name in names]
    return tuple(getattr(task, name) for name in names)


def calibration_error(preds: np.ndarray, target: np.ndarray) -> float:
    """Its definition, in 15 bins."""
    confidence = preds.max(1)
    right = preds.argmax(1) == target
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return error


@pytest.mark.parametrize("stage", ["val", "test"])
def test_metrics_of_a_stage_are_scikit_learns(stage: str) -> None:
    task = with_trainer(build().eval(), testing=stage == "test", datamodule=None)
    vary_outputs(task)
    logged = log_into(task)
    start, step, end = hooks(task, stage)
    large = batch(60)
    small = batch(2)  # without the third class
    for batches in ([large, small], [small]):  # nothing is left of the first epoch in the second
        start()
        for data in batches:
            step(data, 0)
        end()
        with torch.no_grad():
            logits = torch.cat(
                [task.net.logits(data.image, data.boxes, data.valid) for data in batches]
            )
        target = torch.cat([data.target for data in batches])
        shares = logits.softmax(1).numpy()
        preds = shares.argmax(1)
        true = target.argmax(1).numpy()
        with warnings.catch_warnings(action="ignore"):
            uar = balanced_accuracy_score(true, preds)
        expected = {
            "accuracy": accuracy_score(true, preds),
            "f1": f1_score(true, preds, average="macro"),
            "ece": calibration_error(shares, true),
            "loss": F.cross_entropy(logits, target).item(),
            "uar": uar,
        }
        assert {name: value for name, (value, _) in logged.items()} == {
            f"{stage}/{name}": pytest.approx(value, rel=1e-5) for name, value in expected.items()
        }
        assert logged[f"{stage}/accuracy"][1] == {"prog_bar": True}
        assert (task.confusion.numpy() == confusion_matrix(true, preds, labels=range(3))).all()
    assert len({*true}) < 3


@torch.no_grad()
def test_measures_of_heads_are_those_of_all_known_targets() -> None:
    outputs = {"movements": ["smileLeft", "smileRight", "jawOpen"], "pose": ["yaw"]}
    task = with_trainer(build(outputs=outputs).eval(), testing=False, datamodule=None)
    logged = log_into(task)
    vary_outputs(task)
    data = batch(40)
    movements = torch.rand(40, 3)
    movements[torch.rand(40, 3) < 0.3] = torch.nan
    movements[:, 2] = torch.nan
    targets = {"movements": movements, "pose": 20 * torch.randn(40, 1)}
    data = data._replace(targets=targets)
    for _ in range(2):  # nothing is left of the first epoch in the second
        task.on_validation_start()
        for part in parts_of(data, 7):
            task.validation_step(part, 0)
        task.on_validation_epoch_end()
    raw = task.net(data.image, data.boxes, data.valid)
    values = {"movements": raw["movements"].sigmoid(), "pose": HEADS["pose"].step * raw["pose"]}
    for head, preds in values.items():
        for name in HEADS[head].measures:
            each = [
                measure(name, preds[:, k].numpy(), targets[head][:, k].numpy())
                for k in range(preds.shape[1])
            ]
            key = f"val/{head}_{name.lower().replace(' ', '_')}"
            if np.isfinite(each).any():
                assert logged[key][0] == pytest.approx(np.nanmean(each), rel=1e-4)
            else:
                assert key not in logged


@pytest.mark.parametrize("head", [*HEADS])
def test_every_head_has_measures_that_exist(head: str) -> None:
    assert set(HEADS[head].measures) <= set(MEASURES)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_accuracy_without_near_duplicates_stands_beside(stage: str) -> None:
    marks = np.array([True, False, False, True, False, False, True, True])
    manifest = SimpleNamespace(near_duplicates=lambda split: marks if split == stage else marks[:0])
    task = with_trainer(
        build().eval(), datamodule=SimpleNamespace(manifest=manifest), testing=stage == "test"
    )
    logged = log_into(task)
    start, step, end = hooks(task, stage)
    data = batch(8)
    for rows in (list(range(8)), [3, 5, 4, 6, -1, 2, 1, 0]):  # in any order, and with a repeat
        start()
        for part in parts_of(data._replace(row=torch.tensor(rows)), 3):
            step(part, 0)
        end()
        hit = (
            task.net.logits(data.image, data.boxes, data.valid).argmax(1) == data.target.argmax(1)
        ).numpy()
        single = [place for place, row in enumerate(rows) if row >= 0 and not marks[row]]
        assert logged[f"{stage}/accuracy_without_near_duplicates"][0] == pytest.approx(
            hit[single].mean()
        )
    logged.clear()
    marks[:] = False
    start()
    step(data, 0)
    end()
    assert f"{stage}/accuracy_without_near_duplicates" not in logged


@pytest.mark.parametrize(("checking", "logged"), [(True, []), (False, [("val/confusion", 7)])])
def test_the_confusion_matrix_is_a_picture_in_tensorboard(
    checking: bool, logged: list[tuple[str, int]]
) -> None:
    pictures: list[tuple[str, int]] = []
    logger = TensorBoardLogger("")
    writer = SimpleNamespace(
        add_image=lambda name, image, step, dataformats: pictures.append((name, step))
    )
    logger._experiment = writer  # type: ignore[assignment]
    task = with_trainer(
        build().eval(), testing=False, sanity_checking=checking, is_global_zero=True, global_step=7
    )
    task.trainer.logger = logger
    task.trainer.state = SimpleNamespace(fn="fit")
    log_into(task)
    task.validation_step(batch(), 0)
    task.on_validation_epoch_end()
    assert pictures == logged


def test_a_loader_of_your_own_is_enough_to_evaluate() -> None:
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    task = build()
    data = batch()
    (measures,) = trainer.validate(task, DataLoader([data], batch_size=None), verbose=False)
    right = task.net.logits(data.image, data.boxes, data.valid).argmax(1) == data.target.argmax(1)
    assert measures["val/accuracy"] == pytest.approx(right.float().mean().item())
    assert "val/accuracy_without_near_duplicates" not in measures


def test_the_differences_of_a_checkpoint_are_named() -> None:
    task = build()
    state = task.state_dict()

    def refusal(**parts: object) -> str:
        with pytest.raises(FerVitError) as error:
            task.on_load_checkpoint({"state_dict": state, **parts})
        return str(error.value)

    task.on_load_checkpoint({"state_dict": state})
    task.on_load_checkpoint({"state_dict": state, "hyper_parameters": dict(task.hparams)})
    classes = refusal(hyper_parameters={"labels": ["b", "a", "c"]})
    assert re.search("checkpoint.* b, a, c, .* a, b, c", classes)
    less = {name: value for name, value in state.items() if name != "net.vit.norm.bias"}
    of_positions = refusal(state_dict={**state, "net.vit.pos_embed": torch.zeros(1, 5, 32)})
    assert re.search(r"`net.vit.norm.bias` .*float \(32,\)", refusal(state_dict=less))
    assert re.search(r"`net.vit.pos_embed` .*\(1, 5, 32\).*\(1, 17, 32\)", of_positions)


def test_settings_in_a_checkpoint_are_plain_and_complete() -> None:
    change = {"align": "crop", "lr": 0.5, "logit_adjust": 1.0, "warmup": 0.0}
    task = build(**change)
    defaults = {}
    for task_class in (FERTask, RegionViTModule):
        for name, parameter in inspect.signature(task_class).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD:
                defaults[name] = parameter.default
    assert dict(task.hparams) == {
        **defaults,
        "network": asdict(NETWORK),
        "labels": ["a", "b", "c"],
        "outputs": {},
        "template": TEMPLATE,
        **change,
    }
    again = FERTask(**task.hparams)
    assert again.hparams == task.hparams
    assert again.net.config == NETWORK
    assert again.net.settings == ModelSettings(
        ["a", "b", "c"], CropSpec(NETWORK.img_size, NETWORK.regions, "crop", TEMPLATE)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": -0.1}, "`lr` .* 0 or more.* -0.1"),
        ({"region_dropout": 1.1}, "`region_dropout` .* 0 to 1.* 1.1"),
        ({"labels": None}, "labels"),
        ({"labels": ["a"]}, "two classes, .* 1"),
        ({"network": RegionViTConfig(regions=("ear",))}, "regions from .* got `ear`"),
        ({"network": RegionViTConfig(regions=("nose", "nose"))}, "every region once"),
    ],
)
def test_fer_task_refuses_wrong_settings(change: dict[str, object], words: str) -> None:
    with pytest.raises(FerVitError, match=words):
        FERTask(**{"network": NETWORK, "labels": ["a", "b"], **change})


def test_a_loss_that_is_not_finite_names_the_images() -> None:
    task = FERTask(replace(NETWORK, stem="patch"), ["a", "b", "c"]).train()
    data = batch()
    data.image[2] = torch.nan
    with pytest.raises(FerVitError, match=r"nan \(epoch 0, step 0\).* Images: 2$"):
        task.training_step(data, 0)
    torch.nn.init.constant_(task.net.vit.norm.weight, torch.inf)
    with pytest.raises(FerVitError, match=r"Lower `lr`.* Images: 0, 1, 2, 3, 4, 5$"):
        task.training_step(batch(), 0)


def test_a_val_loss_that_is_not_finite_ends_the_run() -> None:
    task = with_trainer(build().eval(), testing=False)
    torch.nn.init.constant_(task.net.vit.norm.weight, torch.nan)
    task.validation_step(batch(), 0)
    logged = log_into(task)
    with pytest.raises(FerVitError, match="val split is nan"):
        task.on_validation_epoch_end()
    assert logged == {}


def test_the_loss_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    logits = 50 * torch.randn(64, 8).half()
    target = torch.eye(8).double()[torch.arange(64) % 8]
    exact = F.cross_entropy(logits[:, :3].double(), target[:, :3]).item()
    assert build().loss(logits[:, :3], target[:, :3]).item() == pytest.approx(exact, rel=1e-6)


def test_a_checkpoint_needs_no_pretrained_weights(tmp_path: Path) -> None:
    network = replace(NETWORK, stem="patch", tokens="patch", regions=())
    weights = build_model(network, ["a", "b"]).vit.state_dict()
    torch.save(weights, tmp_path / "weights.pth")
    task = FERTask(replace(network, pretrained=str(tmp_path / "weights.pth")), ["a", "b"])
    name = "blocks.0.attn.qkv.weight"
    assert torch.equal(task.net.vit.state_dict()[name], weights[name])
    assert task.hparams["network"]["pretrained"] is False


class OwnData(L.LightningDataModule):
    """A data module of a user: loaders alone."""

    def __init__(self, data: FaceDataModule) -> None:
        super().__init__()
        self.train_dataloader = data.train_dataloader
        self.val_dataloader = data.val_dataloader
        self.on_after_batch_transfer = data.on_after_batch_transfer


class OwnOptimizer(FERTask):
    """A task of a user with another optimiser."""

    def configure_optimizers(self) -> torch.optim.Optimizer:  # type: ignore[override]
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_task_with_its_optimizer_and_other_data(drawn: Path, tmp_path: Path) -> None:
    network = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**network, regions=DEFAULT_REGIONS)
    task = OwnOptimizer(config, labels=[*EXPRESSIONS])
    data = FaceDataModule(drawn / "faces.parquet", 16, 0, spec=task.spec)
    trainer = L.Trainer(
        max_steps=1,
        limit_val_batches=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, datamodule=OwnData(data))
    assert trainer.global_step == 1
    task = FERTask(config, labels=[*EXPRESSIONS], logit_adjust=1.0)
    with pytest.raises(FerVitError, match="a method `class_counts`"):
        trainer.fit(task, datamodule=OwnData(data))


def test_what_is_not_given_is_the_starting_models(tmp_path: Path) -> None:
    points = tuple((0.3 + 0.1 * number, 0.5) for number in range(5))
    start = build_model(
        NETWORK, ["a", "b"], crop=CropSpec(NETWORK.img_size, NETWORK.regions, "crop", points)
    )
    save_network(start, tmp_path / "start")

    def settings(**given: Any) -> tuple[object, object]:
        task = FERTask(labels=["a", "b"], init=str(tmp_path / "start"), **given)
        assert task.net.config == NETWORK
        spec = task.spec
        assert spec.align == task.hparams["align"]
        assert spec.template == task.hparams["template"]
        return spec.align, spec.template

    assert settings() == ("crop", points)
    assert settings(align="landmarks") == ("landmarks", points)
    assert settings(template=TEMPLATE) == ("crop", TEMPLATE)
    assert settings(network=replace(NETWORK), align="landmarks") == ("landmarks", points)


def test_a_network_that_is_given_is_not_replaced_by_the_starting_models() -> None:
    with pytest.raises(FerVitError, match=r"ferplus-fairface-small.*img_size"):
        FERTask(USUAL, labels=["calm", "happiness"], init="ferplus-fairface-small")


def test_a_command_line_of_a_user_starts_from_a_model(tmp_path: Path) -> None:
    """LightningCLI over FERTask itself: without a network, the starting model's is used."""
    start = build_model(NETWORK, ["a", "b"])
    save_network(start, tmp_path / "start")
    words = [f"--model.init={tmp_path / 'start'}", "--model.labels=[a,b]", "--trainer.logger=false"]

    def task(*args: str) -> FERTask:
        cli = LightningCLI(FERTask, run=False, args=[*words, *args], save_config_callback=None)
        assert isinstance(cli.model, FERTask)
        return cli.model

    assert task().net.config == NETWORK
    given = replace(NETWORK, dropout=0.1)
    assert task(f"--model.network={json.dumps(asdict(given))}").net.config == given


def test_a_single_setting_of_a_network_starts_from_the_usual_one() -> None:
    """LightningCLI over FERTask itself, as in 0.1."""
    words = ["--model.labels=[a,b]", "--model.network.dropout=0.1", "--trainer.logger=false"]
    cli = LightningCLI(FERTask, run=False, args=words, save_config_callback=None)
    assert cli.model.net.config == replace(USUAL, dropout=0.1)


HEAD_OUTPUTS = {"movements": ["smileLeft", "smileRight"], "pose": ["yaw"]}


def batch_with_heads() -> Batch:
    """Three faces with a label and three with targets of other heads."""
    faces = batch()
    target = faces.target.clone()
    target[3:] = torch.nan
    movements = torch.rand(6, 2)
    movements[:3] = torch.nan
    pose = torch.linspace(-30, 30, 6)[:, None].clone()
    pose[4] = torch.nan
    return faces._replace(target=target, targets={"movements": movements, "pose": pose})


def test_training_loss_is_the_weighted_sum_of_the_heads_over_known_targets() -> None:
    weights = {"movements": 2.0, "pose": 0.5}
    task = build(outputs=HEAD_OUTPUTS, head_weights=weights).eval()
    faces = batch_with_heads()
    losses: list[torch.Tensor] = []
    task.check_and_log = lambda loss, logits, paths: losses.append(loss)  # type: ignore[method-assign]
    task.training_step(faces, 0)
    raw = task.net(faces.image, faces.boxes, faces.valid)
    expected = F.cross_entropy(raw["expression"][:3], faces.target[:3])
    for head, weight in weights.items():
        expected = expected + weight * head_loss(head, raw[head], faces.targets[head])
    assert losses[0].item() == pytest.approx(expected.item(), abs=1e-5)
    losses[0].backward()
    assert all(value.grad is not None for value in task.net.heads.parameters())


def test_a_batch_without_labels_trains_the_other_heads() -> None:
    task = build(outputs=HEAD_OUTPUTS)
    faces = batch_with_heads()
    faces.target[:] = torch.nan
    task.check_and_log = lambda loss, logits, paths: loss  # type: ignore[method-assign]
    task.training_step(faces, 0).backward()
    assert task.net.vit.head.weight.grad.abs().max() == 0
    assert task.net.heads["pose"].by_face.grad.abs().max() > 0


def test_the_loss_of_a_subclass_receives_faces_with_a_label_alone() -> None:
    received = []

    class FocalTask(FERTask):
        def loss(self, logits: Tensor, target: Tensor) -> Tensor:
            received.append(len(target))
            log_p = logits.log_softmax(-1)
            return -(target * (1 - log_p.exp()) ** 2 * log_p).sum(-1).mean()

    torch.manual_seed(0)
    task = FocalTask(NETWORK, ["a", "b", "c"], outputs=HEAD_OUTPUTS)
    log_into(task)
    faces = batch_with_heads()
    task.training_step(faces, 0).backward()
    assert received == [3]
    assert all(value.grad.isfinite().all() for value in task.net.heads.parameters())

    faces.target[:] = torch.nan
    assert task.training_step(faces, 0).isfinite()
    assert received == [3]


def test_a_weight_of_0_leaves_a_head_out_and_a_head_without_targets_is_an_error() -> None:
    task = build(outputs=HEAD_OUTPUTS, head_weights={"movements": 0.0})
    assert task.net.settings.outputs.plain == {"pose": ["yaw"]}
    assert task.hparams["outputs"] == {"pose": ["yaw"]}
    with pytest.raises(FerVitError, match="affect"):
        build(outputs=HEAD_OUTPUTS, head_weights={"affect": 1.0})
    with pytest.raises(FerVitError, match="pose"):
        build(outputs=HEAD_OUTPUTS, head_weights={"pose": -1.0})
    with pytest.raises(FerVitError, match="head_weights"):
        build(outputs=HEAD_OUTPUTS, head_weights={"pose": float("inf")})


def test_teachers_predict_the_augmented_face(tmp_path: Path) -> None:
    teacher = build_model(NETWORK, ["a", "b", "c"]).eval()
    save_network(teacher, tmp_path / "teacher")
    task = build(teachers=[str(tmp_path / "teacher")])
    assert task.accepts_unlabelled
    faces = batch_with_heads()
    probabilities = teacher.logits(faces.image, faces.boxes, faces.valid).softmax(1)
    taught = task.teachers.teach(faces)
    assert torch.allclose(taught[:3], (faces.target[:3] + probabilities[:3]) / 2, atol=1e-6)
    assert torch.allclose(taught[3:], probabilities[3:], atol=1e-6)
    assert not any("teacher" in name for name in task.state_dict())
    with pytest.raises(FerVitError, match="labels"):
        FERTask(NETWORK, ["a", "b"], teachers=[str(tmp_path / "teacher")])


def test_a_teacher_predicts_without_its_logit_adjustment(tmp_path: Path) -> None:
    """A student that learns adjusted logits would be adjusted twice."""
    net = build_model(NETWORK, ["a", "b", "c"]).eval()
    save_network(net, tmp_path / "plain")
    net.adjust([0.2, 0.2, 0.6], 0.5)
    save_network(net, tmp_path / "adjusted")
    plain, adjusted = (
        build(teachers=[str(tmp_path / name)]).teachers.teach(batch_with_heads())
        for name in ("plain", "adjusted")
    )
    assert torch.equal(plain, adjusted)


def test_a_small_teacher_sees_means_of_pixels(tmp_path: Path) -> None:
    """Of a pattern of single pixels, bilinear samples would show stripes; a mean is even."""
    size = NETWORK.img_size
    save_network(build_model(replace(NETWORK, img_size=size // 2), ["a", "b", "c"]), tmp_path / "t")
    teachers = build(teachers=[str(tmp_path / "t")]).teachers
    seen = []

    def record(image: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
        seen.append((image, boxes))
        return torch.zeros(len(image), 3)

    teachers.networks[0].logits = record
    faces = batch_with_heads()
    stripes = (torch.arange(size) // 3 % 2).float()  # stripes of three pixels
    teachers.teach(faces._replace(image=stripes.expand_as(faces.image)))
    ((image, boxes),) = seen
    assert torch.equal(boxes, faces.boxes / 2)

    # a triangle as wide as two new pixels, or four old ones
    expected = []
    for place in range(size // 2):
        centre = 2 * place + 1
        weights = [max(0.0, 1 - abs(pixel + 0.5 - centre) / 2) for pixel in range(size)]
        expected.append(np.dot(weights, stripes.numpy()) / sum(weights))
    np.testing.assert_allclose(image[0, 0, 0], expected, atol=1e-6)


def test_a_start_teacher_teaches_the_outputs_that_are_not_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = {"movements": ["b", "a"], "pose": ["yaw"]}
    start = build_model(NETWORK, ["x", "y"], outputs=outputs).eval()
    save_network(start, tmp_path / "start")
    caplog.set_level("INFO", "fer_vit")

    def begin(network: RegionViTConfig, **options: Any) -> FERTask:
        return FERTask(network, ["a", "b", "c"], init=str(tmp_path / "start"), **options)

    # outputs of the start come first, and those of a head that is not trained are kept
    task = begin(NETWORK, outputs={"movements": ["a", "new"], "pose": ["yaw"]})
    assert task.hparams["outputs"] == {"movements": ["b", "a", "new"], "pose": ["yaw"]}
    faces = batch_with_heads()
    targets = task.start_teacher.teach(faces)
    assert [*targets] == ["movements"]
    assert targets["movements"].isfinite().all(0).tolist() == [True, False, False]
    raw = start(faces.image, faces.boxes, faces.valid)["movements"]
    torch.testing.assert_close(targets["movements"][:, 0], raw[:, 0].sigmoid())
    assert not targets["movements"].requires_grad

    # the heads of the model may be given; nothing of them is left to teach
    task = begin(NETWORK, outputs={"pose": ["yaw"]}, heads={"pose": ["pitch", "yaw"]})
    assert task.hparams["outputs"] == {"pose": ["pitch", "yaw"]}
    assert task.start_teacher is None

    assert begin(replace(NETWORK, regions=NETWORK.regions[::-1])).start_teacher is None
    assert "regions is another" in caplog.text


@pytest.mark.parametrize(
    "change", [{"tokens": "patch", "regions": ()}, {"regions": NETWORK.regions[::-1]}]
)
def test_teachers_need_the_regions_of_the_student_in_order(
    change: dict[str, Any], tmp_path: Path
) -> None:
    save_network(build_model(NETWORK, ["a", "b", "c"]).eval(), tmp_path / "teacher")
    student = replace(NETWORK, **change)
    with pytest.raises(FerVitError, match="regions"):
        FERTask(student, ["a", "b", "c"], teachers=[str(tmp_path / "teacher")])


@pytest.mark.slow
def test_fit_trains_the_heads_of_a_manifest(tmp_path: Path) -> None:
    reading = drawn_source.read(tmp_path / "faces", count=40, size=32, heads=True)
    write_manifest(tmp_path / "faces.parquet", reading, "drawn")
    net = load_network(fit(tmp_path / "faces.parquet", tmp_path / "runs", *TINY))
    assert net.settings.outputs == reading.outputs
    assert [*net.heads] == [*net.settings.outputs.by_head]
