"""A resumed run follows the settings of its command, or one line refuses it."""

import math
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.tuner import Tuner

from fer_vit.data.schema import write_manifest
from fer_vit.model.config import RegionViTConfig
from fer_vit.sources.drawn import read
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.task import FERTask
from tests.helpers import commands
from tests.helpers.commands import TINY, fails
from tests.helpers.marks import slow

LR = 1e-3
WORDS = [word for word in TINY if "limit_train" not in word and "max_epochs" not in word]
WORDS += [f"--model.lr={LR}", "--data.batch_size=8"]
EPOCHS = 2
STEPS = 8
"""Steps of the checkpoint that is resumed: two epochs of four."""


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 38 training faces and some to validate on."""
    folder = tmp_path_factory.mktemp("faces")
    write_manifest(folder / "faces.parquet", read(folder / "faces", count=54, size=32), "drawn")
    return folder / "faces.parquet"


@pytest.fixture(scope="module")
def half(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run of two epochs."""
    folder = tmp_path_factory.mktemp("half")
    return commands.fit(faces, folder, *WORDS, f"--trainer.max_epochs={EPOCHS}")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--trainer.max_epochs=4", "--trainer.accumulate_grad_batches=3"], 12),
        *slow(
            (["--trainer.max_epochs=4", "--data.batch_size=16"], 12),
            (["--trainer.max_epochs=9", "--trainer.max_steps=11"], 11),
        ),
    ],
)
def test_the_rate_ends_with_the_last_step_of_a_resumed_run(
    options: list[str],
    steps: int,
    half: Path,
    faces: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    last = load_checkpoint(commands.fit(faces, tmp_path, *WORDS, *options, f"--ckpt_path={half}"))
    assert last["global_step"] == steps
    (schedule,) = last["lr_schedulers"]
    assert max(schedule["_last_lr"]) == pytest.approx(0.01 * LR)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Resumed at" in line]
    assert f"step {STEPS} of {steps}" in line


def test_the_settings_of_a_resumed_run_are_used_from_its_first_step(
    half: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = ["--trainer.max_epochs=4", "--model.lr=0.5", "--model.weight_decay=0.2"]
    options += ["--model.warmup=0", "--model.min_lr=0"]
    path = commands.fit(faces, tmp_path, *WORDS, *options, f"--ckpt_path={half}")
    rate = 0.5 * (1 + math.cos(math.pi * STEPS / 16)) / 2
    assert f"continues at {rate:.2g}" in capsys.readouterr().out
    (optimiser,) = load_checkpoint(path)["optimizer_states"]
    decays = {group["weight_decay"] for group in optimiser["param_groups"]}
    assert decays == {0.0, 0.2}


def test_a_checkpoint_names_no_teacher(
    half: Path,
    faces: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Reading it would be refused: tests have no network."""
    teacher = "https://host.invalid/model"
    checkpoint = load_checkpoint(half)
    checkpoint["hyper_parameters"] |= {"teachers": [teacher], "init": teacher}
    given = tmp_path / "given.ckpt"
    torch.save(checkpoint, given)
    words = [*WORDS, "--trainer.max_epochs=3", f"--data.manifest={faces}", f"--ckpt_path={given}"]
    words += [f"--trainer.logger.init_args.save_dir={tmp_path / 'runs'}"]
    line = fails(capsys, "fit", *words)
    assert teacher in line
    assert "`--model.teachers`" in line
    assert not (tmp_path / "runs").exists()
    commands.run("validate", *words)
    commands.run("fit", *words, "--model.teachers=[]")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--model.freeze=encoder"], ["`--model.freeze none`", "`--model.init {half}`"]),
        ([f"--trainer.max_epochs={EPOCHS}"], ["`--trainer.max_epochs` is 2", "best.ckpt"]),
        (["--trainer.max_epochs=-1", f"--trainer.max_steps={STEPS}"], ["max_steps"]),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_before_it_has_a_folder(
    options: list[str],
    parts: list[str],
    half: Path,
    faces: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    words = [*WORDS, "--trainer.max_epochs=4", *options, f"--data.manifest={faces}"]
    words += [f"--trainer.logger.init_args.save_dir={tmp_path}", f"--ckpt_path={half}"]
    line = fails(capsys, "fit", *words)
    for part in parts:
        assert part.format(half=half) in line
    assert not list(tmp_path.iterdir())


def trainer(folder: Path, **options: object) -> L.Trainer:
    """A trainer that writes to a folder alone."""
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    return L.Trainer(
        default_root_dir=folder, num_sanity_val_steps=0, **{"max_epochs": 2, **quiet, **options}
    )


@pytest.mark.slow
def test_the_tuner_finds_a_rate_with_which_a_run_starts(faces: Path, tmp_path: Path) -> None:
    data = FaceDataModule(faces, batch_size=8, num_workers=0)
    network = RegionViTConfig(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    task = FERTask(network=network, labels=data.labels, lr=LR, warmup=0)
    finder = Tuner(trainer(tmp_path, max_epochs=20)).lr_find(task, data, num_training=20)
    assert finder is not None
    found = finder.suggestion()
    assert found is not None
    assert task.hparams["lr"] == found != LR

    rates = []

    class Rates(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
            rates.append(max(group["lr"] for group in trainer.optimizers[0].param_groups))

    trainer(tmp_path, callbacks=[Rates()], enable_checkpointing=False).fit(task, data)
    assert rates[0] == pytest.approx(found)
    assert len(rates) == STEPS


@pytest.mark.slow
def test_fit_finds_a_learning_rate(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "--trainer.max_epochs=6", "--trainer.callbacks+=LearningRateFinder"]
    words += ["--trainer.callbacks.num_training_steps=20"]
    last = load_checkpoint(commands.fit(faces, tmp_path / "runs", *words))
    assert last["global_step"] == 24
    assert last["hyper_parameters"]["lr"] != LR
    assert max(last["lr_schedulers"][0]["_last_lr"]) == pytest.approx(
        0.01 * last["hyper_parameters"]["lr"]
    )


@pytest.mark.slow
def test_fit_finds_a_batch_size(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "--trainer.max_epochs=2", "--trainer.callbacks+=BatchSizeFinder"]
    words += ["--trainer.callbacks.max_trials=1", "--trainer.callbacks.steps_per_trial=1"]
    last = load_checkpoint(commands.fit(faces, tmp_path / "runs", *words))
    assert max(last["lr_schedulers"][0]["_last_lr"]) == pytest.approx(0.01 * LR)
