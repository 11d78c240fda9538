"""Consistent distillation: teachers and student see the same views."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.geometry import TEMPLATE
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.mix import mixup
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.folder import save_network
from fer_vit.train.task import FERTask
from fer_vit.train.teachers import Teachers
from tests.helpers.commands import TINY, fails, main

STUDENT = RegionViTConfig(
    img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, regions=("mouth", "nose", "chin"), stem="conv"
)
LABELS = ["a", "b", "c"]


def net(seed: int = 1, **change: Any) -> RegionViT:
    extra = {"labels": LABELS, "align": "landmarks", "template": TEMPLATE}
    extra |= {name: change.pop(name) for name in extra.keys() & change.keys()}
    torch.manual_seed(seed)
    return RegionViT(replace(STUDENT, **change), **extra).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[RegionViT], str]:
    def save(net: RegionViT) -> str:
        folder = tmp_path / f"teacher{len(list(tmp_path.iterdir()))}"
        save_network(net, folder)
        return str(folder)

    return save


def batch() -> Batch:
    torch.manual_seed(0)
    corners = torch.rand(6, 3, 2) * 16
    return Batch(
        image=torch.rand(6, 3, 32, 32),
        boxes=torch.cat([corners, corners + 4 + torch.rand(6, 3, 2) * 12], -1),
        valid=torch.rand(6, 3) < 0.8,
        target=torch.rand(6, 3).softmax(-1),
        row=torch.arange(6),
        path=[str(i) for i in range(6)],
        to_crop=torch.eye(3)[:2].expand(6, 2, 3),
    )


def student(*teachers: str, **change: Any) -> FERTask:
    torch.manual_seed(0)
    task = FERTask(STUDENT, LABELS, teachers=teachers, **change)
    task.on_fit_start()
    return task.train()


def said(teacher: RegionViT, data: Batch, row: int, regions: list[int]) -> np.ndarray:
    """What a teacher says of one face, alone."""
    one = slice(row, row + 1)
    with torch.no_grad():
        logits = teacher(data.image[one], data.boxes[one][:, regions], data.valid[one][:, regions])
    z = np.exp(logits[0].double().numpy())
    return z / z.sum()


@pytest.mark.parametrize("mixed", [0.0, 0.7])
def test_the_loss_is_that_of_a_loop_over_faces_and_teachers(mixed: float, saved: Callable[[RegionViT], str]) -> None:
    # The second does not read all regions, nor in the same order; the third reads none; temperatures do not count.
    teachers = [net(1), net(2, regions=("chin", "mouth"), embed_dim=16), net(3, tokens="patch", regions=("forehead",))]
    teachers[0].temperature = 3.0
    task, data = student(*map(saved, teachers), teacher_weight=0.3, mixup=mixed), batch()
    torch.manual_seed(7)
    loss = task.training_step(data, 0).item()
    target = np.zeros((6, 3))
    for row in range(6):
        read = zip(teachers, ([0, 1, 2], [2, 0], []), strict=True)
        mean = np.mean([said(teacher, data, row, regions) for teacher, regions in read], axis=0)
        target[row] = 0.7 * data.target[row].double().numpy() + 0.3 * mean
    torch.manual_seed(7)
    tokens, wanted = task.net.tokenize(data.image, data.boxes, data.valid), torch.from_numpy(target).float()
    if mixed:
        tokens, wanted = mixup(tokens, wanted, mixed)
    logits = task.net.forward_head(task.net.forward_features(tokens)).detach().double().numpy()
    total = 0.0
    for z, t in zip(logits, wanted.double().numpy(), strict=True):
        total -= t @ (z - np.log(np.exp(z).sum()))
    assert loss == pytest.approx(total / 6, rel=1e-5)


def test_teachers_are_no_part_of_the_student(saved: Callable[[RegionViT], str]) -> None:
    name = saved(net())
    task, alone = student(name), student()
    assert task.state_dict().keys() == alone.state_dict().keys()
    assert len([*task.parameters()]) == len([*alone.parameters()])
    assert task.hparams["teachers"] == (name,)
    assert task.teachers
    (teacher,) = task.teachers.nets
    before = {key: value.clone() for key, value in teacher.state_dict().items()}
    task.training_step(batch(), 0).backward()
    assert not any(module.training for module in teacher.modules())
    assert all(torch.equal(value, before[key]) for key, value in teacher.state_dict().items())
    assert all(weight.grad is None for weight in teacher.parameters())
    assert FERTask(**task.hparams).teachers is None  # to evaluate a student takes no teacher


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ["a", "c", "b"]}, r"a teacher with labels \['a', 'b', 'c'\], but .* has \['a', 'c', 'b'\]"),
        ({"img_size": 48}, "a teacher with img_size 32, but .* has 48"),
        ({"align": "crop"}, "a teacher with align landmarks, but .* has crop"),
        ({"template": ((0.5, 0.5),) * 5}, "a teacher with template "),
        ({"regions": ("nose", "forehead")}, "reads the region forehead. Add it to model.network.regions"),
    ],
)
def test_teachers_that_see_something_else(
    change: dict[str, Any], message: str, saved: Callable[[RegionViT], str]
) -> None:
    with pytest.raises(FerVitError, match=message):
        Teachers([saved(net()), saved(net(**change))], net(0), torch.device("cpu"))


def test_a_run_with_teachers_resumes_with_them(
    drawn: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked, real = [], Teachers.__call__
    monkeypatch.setattr(Teachers, "__call__", lambda self, batch: asked.append(len(self.nets)) or real(self, batch))
    ema = "--trainer.callbacks+=fer_vit.train.ema.EMA"
    words = [
        *TINY,
        f"--data.manifest={drawn / 'faces.parquet'}",
        f"--trainer.logger.init_args.save_dir={tmp_path}",
        ema,
    ]
    teachers = f"--model.teachers=[{checkpoint}, {checkpoint}]"
    main(["fit", *words, teachers])
    (last,) = tmp_path.rglob("last.ckpt")
    assert asked == [2, 2]
    saved = load_checkpoint(last)
    assert saved["hyper_parameters"]["teachers"] == (str(checkpoint),) * 2
    assert saved["state_dict"].keys() == load_checkpoint(checkpoint)["state_dict"].keys()
    words += [f"--ckpt_path={last}", "--trainer.max_epochs=2"]
    assert "Name them again: `--model.teachers" in fails(capsys, "fit", *words)  # a stranger's file names no other
    main(["fit", *words, teachers])
    assert asked == [2] * 4
