"""A resumed run ends with the same weights as an uninterrupted one, bit for bit."""

import logging
import math
import shutil
import signal
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from fer_vit.data.dataset import Batch
from fer_vit.data.schema import write_manifest
from fer_vit.sources.drawn import read
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.train.checkpoints import LastCheckpoint
from fer_vit.train.task import FERTask
from tests.helpers import commands
from tests.helpers.commands import TINY, newest

RECIPE = [
    "--model.network.drop_path_rate=0.1",
    "--model.network.dropout=0.1",
    "--model.network.stem=conv",
    "--model.region_dropout=0.5",
    "--model.logit_adjust=1",
    "--trainer.gradient_clip_val=0.5",
    "--trainer.callbacks+=fer_vit.callbacks.EMA",
    "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=1.0",
]
"""Everything in a run that is random or has a memory."""


def keep(name: str, every: str) -> list[str]:
    """Options that keep what is otherwise replaced."""
    options = {
        "filename": name,
        every.partition("=")[0]: every.partition("=")[2],
        "save_top_k": "-1",
    }
    options |= {"save_on_train_epoch_end": "false", "auto_insert_metric_name": "false"}
    callback = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    return [
        callback,
        *(f"--trainer.callbacks.{option}={value}" for option, value in options.items()),
    ]


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 38 training faces and some to validate on."""
    folder = tmp_path_factory.mktemp("faces")
    reading = read(folder / "faces", count=54, size=32)
    write_manifest(folder / "faces.parquet", reading, "drawn")
    return folder


LOGGED = ["--data.num_workers=0", "--trainer.log_every_n_steps=1"]
MIDDLE = 6
"""Steps: the second of four in the second epoch."""


@pytest.fixture(scope="module")
def whole(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run, with the checkpoints of a step and of every epoch."""
    folder = tmp_path_factory.mktemp("whole")
    kept = [
        *keep("step{step}", f"every_n_train_steps={MIDDLE}"),
        *keep("epoch{epoch}", "every_n_epochs=1"),
    ]
    fit(faces / "faces.parquet", folder, *LOGGED, *kept)
    return folder


def fit(manifest: Path, folder: Path, *more: str) -> dict[str, Any]:
    """Trains; returns the last checkpoint."""
    replaced = ("limit_train", "max_epochs", "batch_size")
    words = [word for word in TINY if not any(name in word for name in replaced)]
    words.append("--data.batch_size=8")
    return load_checkpoint(commands.fit(manifest, folder, *words, *RECIPE, *more))


def differences(first: Any, second: Any, place: str = "") -> list[str]:
    """Lists where two trees of plain values and tensors differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        pairs = [
            (f"{place}/{key}", first.get(key), second.get(key))
            for key in first.keys() | second.keys()
        ]
    elif (
        isinstance(first, list | tuple)
        and isinstance(second, list | tuple)
        and len(first) == len(second)
    ):
        pairs = [
            (f"{place}/{key}", *pair) for key, pair in enumerate(zip(first, second, strict=True))
        ]
    elif isinstance(first, Tensor) and isinstance(second, Tensor):
        return [] if torch.equal(first, second) else [place]
    else:
        return [] if first == second else [f"{place}: {first} {second}"]
    return [line for key, first, second in pairs for line in differences(first, second, key)]


def curves(folder: Path, first: int = 0) -> dict[str, list[tuple[int, float]]]:
    """Figures of a run by step, from a step on."""
    events = EventAccumulator(str(folder / "default" / "version_0")).Reload()
    every = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    return {tag: [point for point in points if point[0] >= first] for tag, points in every.items()}


def assert_resumes(path: Path, manifest: Path, whole: Path, folder: Path, *more: str) -> None:
    """Resumes from a checkpoint, and compares the end with an uninterrupted run."""
    step = load_checkpoint(path)["global_step"]
    again = fit(manifest, folder, *more, f"--ckpt_path={path}")
    last = load_checkpoint(newest(whole))
    assert again["global_step"] == last["global_step"] > step
    for part in (
        "state_dict",
        "current_model_state",
        "averaging_state",
        "optimizer_states",
        "lr_schedulers",
    ):
        assert part in last
        assert differences(again[part], last[part]) == []
    assert curves(folder, step) == curves(whole, step)


def test_a_run_resumes_bit_for_bit(whole: Path, faces: Path, tmp_path: Path) -> None:
    (path,) = whole.rglob(f"step{MIDDLE}.ckpt")
    assert_resumes(path, faces / "faces.parquet", whole, tmp_path, *LOGGED)


@pytest.mark.slow
def test_a_worse_epoch_after_resuming_is_not_the_best(
    whole: Path, faces: Path, tmp_path: Path
) -> None:
    (path,) = whole.rglob("epoch1.ckpt")
    (best,) = whole.rglob("best.ckpt")
    checkpoint = load_checkpoint(path)
    shutil.copy(best, tmp_path)  # a run that was moved
    (state,) = (state for name, state in checkpoint["callbacks"].items() if "val/accuracy" in name)
    assert state["best_model_path"] == str(best)
    state["best_model_score"] = torch.tensor(1.0)
    torch.save(checkpoint, tmp_path / "epoch1.ckpt")
    fit(faces / "faces.parquet", tmp_path / "a", *LOGGED, f"--ckpt_path={tmp_path / 'epoch1.ckpt'}")
    (copy,) = (tmp_path / "a").rglob("best.ckpt")
    assert copy.read_bytes() == best.read_bytes()
    state["best_model_score"] = torch.tensor(0.0)
    torch.save(checkpoint, tmp_path / "epoch1.ckpt")
    fit(faces / "faces.parquet", tmp_path / "b", *LOGGED, f"--ckpt_path={tmp_path / 'epoch1.ckpt'}")
    (better,) = (tmp_path / "b").rglob("best.ckpt")
    assert load_checkpoint(better)["epoch"] == 2
    assert best.exists()


def resume_untrusted(whole: Path, faces: Path, folder: Path, score: float, beside: bytes) -> Path:
    """Resumes a checkpoint that names another file as the best, and a score for it.

    `beside` is a file best.ckpt beside the checkpoint; without content there is none. Returns the
    best checkpoint of the new run.
    """
    (path,) = whole.rglob("epoch1.ckpt")
    checkpoint = load_checkpoint(path)
    (state,) = (state for name, state in checkpoint["callbacks"].items() if "val/accuracy" in name)
    secret = folder / "other" / "best.ckpt"
    secret.parent.mkdir()
    secret.write_bytes(b"secret")
    state["best_model_path"] = str(secret)
    state["best_model_score"] = torch.tensor(score)
    given = folder / "given"
    given.mkdir()
    torch.save(checkpoint, given / "evil.ckpt")
    if beside:
        (given / "best.ckpt").write_bytes(beside)
    fit(faces / "faces.parquet", folder / "new", *LOGGED, f"--ckpt_path={given / 'evil.ckpt'}")
    (best,) = (folder / "new").rglob("best.ckpt")
    return best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "beside"), [(0.5, b""), (1e9, b"beside, but with an impossible score")]
)
def test_an_untrusted_checkpoint_neither_copies_a_file_nor_hides_the_best_epoch(
    score: float, beside: bytes, whole: Path, faces: Path, tmp_path: Path
) -> None:
    best = resume_untrusted(whole, faces, tmp_path, score, beside)
    assert load_checkpoint(best)["epoch"] == 2, "the first epoch after resuming"


def test_what_a_killed_run_left_beside_a_checkpoint_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fer_vit")
    stale = tmp_path / "given" / ".best.ckpt.0123abcd.part"
    trainer = Mock(ckpt_path=str(tmp_path / "given" / "last.ckpt"), is_global_zero=True)
    best = ModelCheckpoint(dirpath=tmp_path / "new", filename="best", monitor="val/accuracy")
    trainer.checkpoint_callbacks = [best]
    state = {"best_model_path": "elsewhere/best.ckpt", "best_model_score": torch.tensor(0.5)}
    stale.mkdir(parents=True)
    LastCheckpoint().on_load_checkpoint(trainer, Mock(), {"callbacks": {best.state_key: state}})
    assert not stale.exists()
    assert state["best_model_path"] == ""
    assert str(tmp_path / "given") in caplog.text


@pytest.mark.parametrize(
    ("state", "beside"),
    [
        ({"best_model_path": "x/last.ckpt"}, "last.ckpt"),
        ({"best_model_path": "x/link.ckpt"}, "link.ckpt"),
        ({"best_model_path": f"{'x' * 300}.ckpt"}, "best.ckpt"),
        ({}, "best.ckpt"),
        ({"best_model_path": "x/best.ckpt"}, "best.ckpt"),
    ],
    ids=["last", "link", "long", "none", "best"],
)
def test_the_best_checkpoint_of_a_resumed_run_is_a_file_beside_it(
    state: dict[str, Any], beside: str, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    file = given / beside
    if beside == "link.ckpt":
        (tmp_path / "secret.ckpt").write_bytes(b"secret")
        file.symlink_to(tmp_path / "secret.ckpt")
    else:
        file.write_bytes(b"weights")
    trainer = Mock(ckpt_path=str(given / "given.ckpt"), is_global_zero=True)
    best = ModelCheckpoint(dirpath=tmp_path / "new", filename="best", monitor="val/accuracy")
    trainer.checkpoint_callbacks = [best]
    resumed = {"best_model_score": torch.tensor(0.999), **state}
    LastCheckpoint().on_load_checkpoint(trainer, Mock(), {"callbacks": {best.state_key: resumed}})
    copy = tmp_path / "new" / "best.ckpt"
    if state.get("best_model_path") == "x/best.ckpt":
        assert resumed["best_model_path"] == str(copy)
        assert copy.read_bytes() == b"weights"
        assert list(copy.parent.iterdir()) == [copy]
    else:
        assert resumed["best_model_path"] == ""
        assert resumed["best_model_score"] is None
        assert not copy.parent.exists()


@pytest.mark.parametrize(
    ("monitor", "score", "taken"),
    [
        ("val/accuracy", torch.tensor(0.5), True),
        ("val/accuracy", 0, True),
        ("val/loss", 7.5, True),
        *(("val/accuracy", score, False) for score in (1e9, -1.0, 10**400, "0.5x", [1.0, 0.5])),
        ("val/loss", math.nan, False),
        ("val/loss", None, False),
    ],
)
def test_a_best_score_that_the_measure_cannot_have_is_not_resumed(
    monitor: str, score: object, taken: bool, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "best.ckpt").write_bytes(b"weights")
    trainer = Mock(ckpt_path=str(given / "given.ckpt"), is_global_zero=True)
    best = ModelCheckpoint(dirpath=tmp_path / "new", filename="best", monitor=monitor)
    trainer.checkpoint_callbacks = [best]
    resumed = {"best_model_path": "x/best.ckpt", "best_model_score": score}
    LastCheckpoint().on_load_checkpoint(trainer, Mock(), {"callbacks": {best.state_key: resumed}})
    assert (resumed["best_model_score"] is not None) == taken
    assert (tmp_path / "new" / "best.ckpt").exists() == taken


@pytest.mark.parametrize("place", ["precious", "local://precious", "new/../precious"])
@pytest.mark.parametrize("save_top_k", [1, 3, -1])
def test_a_resumed_callback_takes_no_path_from_a_checkpoint(
    place: str, save_top_k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Mock(ckpt_path="given/last.ckpt", is_global_zero=True)
    best = ModelCheckpoint(tmp_path / "new", monitor="val/accuracy", save_top_k=save_top_k)
    trainer.checkpoint_callbacks = [best]
    state = {
        "dirpath": best.dirpath,
        "best_model_path": place,
        "best_model_score": torch.tensor(0.5),
        "best_k_models": {place: torch.tensor(0.5)},
        "kth_best_model_path": place,
        "kth_value": torch.tensor(0.5),
        "last_model_path": place,
    }
    LastCheckpoint().on_load_checkpoint(trainer, Mock(), {"callbacks": {best.state_key: state}})
    best.load_state_dict(state)
    assert "precious" not in str(vars(best))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "middle", "more"),
    [
        (
            "faces.parquet",
            6,
            ["--data.num_workers=2", "--data.balanced=true", "--model.logit_adjust=0"],
        ),
        (
            "faces.parquet",
            3,
            ["--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=0.5"],
        ),
    ],
    ids=["workers", "often"],
)
def test_any_run_resumes_bit_for_bit(
    data: str, middle: int, more: list[str], faces: Path, tmp_path: Path
) -> None:
    more = [*more, "--trainer.log_every_n_steps=1"]
    kept = [
        *keep("step{step}", f"every_n_train_steps={middle}"),
        *keep("epoch{epoch}", "every_n_epochs=1"),
    ]
    fit(faces / data, tmp_path / "whole", *more, *kept)
    for name in (f"step{middle}", "epoch0"):
        (path,) = (tmp_path / "whole").rglob(f"{name}.ckpt")
        assert_resumes(path, faces / data, tmp_path / "whole", tmp_path / name, *more)


@pytest.mark.slow
def test_ctrl_c_prints_the_option_that_resumes(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    step = FERTask.training_step
    handler = signal.getsignal(signal.SIGINT)

    def interrupted(task: FERTask, batch: Batch, index: int) -> Tensor:
        if task.current_epoch == 1:
            raise KeyboardInterrupt
        return step(task, batch, index)

    monkeypatch.setattr(FERTask, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):  # what the helper makes of status 130
        fit(faces / "faces.parquet", tmp_path, *LOGGED)
    signal.signal(signal.SIGINT, handler)  # Lightning ignores further ones
    assert f"`--ckpt_path {newest(tmp_path)}`" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("epoch=1,batch=1", 6),
        ("epoch=1,batch=3", 8),  # after the validation, at the end of the epoch
    ],
)
def test_a_signal_saves_the_step_that_it_came_at(
    moment: str, step: int, whole: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert_saved(moment, step, whole, faces / "faces.parquet", tmp_path, *LOGGED)
    assert f"`--ckpt_path {newest(tmp_path / 'ended')}`" in capsys.readouterr().out


@pytest.mark.slow
def test_sigterm_saves_a_step_of_several_batches(faces: Path, tmp_path: Path) -> None:
    more = [
        *LOGGED,
        "--trainer.accumulate_grad_batches=8",
        "--trainer.limit_val_batches=0",
    ]
    fit(faces / "faces.parquet", tmp_path / "whole", *more)
    assert_saved("epoch=0,batch=0", 1, tmp_path / "whole", faces / "faces.parquet", tmp_path, *more)


def assert_saved(
    moment: str, step: int, whole: Path, manifest: Path, tmp_path: Path, *more: str
) -> None:
    """Ends a run by a signal, resumes it, and compares both with an uninterrupted run."""
    number = signal.SIGTERM
    handler = signal.getsignal(number)
    ends = ["--trainer.callbacks+=tests.helpers.callbacks.Terminate"]
    ends += [f"--trainer.callbacks.{option}" for option in moment.split(",")]
    with pytest.raises(SystemExit) as ended:
        fit(manifest, tmp_path / "ended", *more, *ends)
    assert ended.value.code == 128 + number
    path = newest(tmp_path / "ended")
    assert load_checkpoint(path)["global_step"] == step
    assert signal.getsignal(number) == handler
    assert_resumes(path, manifest, whole, tmp_path / "again", *more)
    before, after, all_of_it = (
        curves(folder) for folder in (tmp_path / "ended", tmp_path / "again", whole)
    )
    for tag, points in all_of_it.items():
        assert {*before.get(tag, []), *after[tag]} == {*points}, tag


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "step"),
    [
        (["--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2"], 12),
        (["--trainer.max_steps=6"], 6),
    ],
)
def test_the_last_checkpoint_is_the_last_step(
    more: list[str], step: int, faces: Path, tmp_path: Path
) -> None:
    saved = fit(faces / "faces.parquet", tmp_path, *more)
    assert saved["global_step"] == step


@pytest.mark.slow
def test_a_compiled_run_is_the_same(
    whole: Path, faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of torch.compile but its code generator, which needs a C++ compiler and a minute.
    calls = []
    real = torch.compile

    def compile_eagerly(function: object) -> object:
        calls.append(function)
        return real(function, backend="eager", fullgraph=True)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "compile", wraps(real)(compile_eagerly))
    compiled = fit(faces / "faces.parquet", tmp_path, *LOGGED, "--model.compile=true")
    assert len(calls) == 1
    assert differences(compiled["state_dict"], load_checkpoint(newest(whole))["state_dict"]) == []
