"""Masked pretraining: it learns, resumes, and a classifier starts from it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fer_vit.data.dataset import Batch
from fer_vit.data.schema import write_manifest, write_shards
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.sources.drawn import read
from fer_vit.store.folder import load_checkpoint, load_network
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.task import MaskedPretraining
from tests.helpers.commands import TINY, fails, fit, main
from tests.helpers.marks import slow
from tests.train.test_masking import CONFIG, MODELS

PRETRAIN = ["--task=pretraining", "--model.network.stem=conv", "--trainer.limit_val_batches=1"]


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest of 77 training faces and some to validate on, a third without a label; and shards."""
    folder = tmp_path_factory.mktemp("unlabelled")
    reading = read(folder / "faces", count=110, size=32)
    for row in reading.rows[::3]:
        row.label = None
    write_manifest(folder / "faces.parquet", reading, "drawn")
    write_shards(folder / "shards", reading, "drawn", 3)
    return folder


@pytest.fixture(scope="module")
def pretrained(unlabelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(unlabelled / "faces.parquet", tmp_path_factory.mktemp("pretrained"), *TINY, *PRETRAIN)


def faces(drawn: Path) -> Batch:
    data = FaceDataModule(drawn / "faces.parquet", 16, 0, spec=CropSpec(32, CONFIG.regions))
    return next(iter(data.val_dataloader())).ready(torch.device("cpu"))


QUICK = "conv, regions of the stem"


@pytest.mark.parametrize("name", [QUICK, *slow(*(name for name in MODELS if name != QUICK))])
def test_it_learns_a_batch(name: str, drawn: Path) -> None:
    torch.manual_seed(0)
    task, data = MaskedPretraining(replace(CONFIG, **MODELS[name])).train(), faces(drawn)
    optimiser = torch.optim.AdamW(task.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        losses.append(loss := task.training_step(data, 0))
        loss.backward()
        optimiser.step()
    assert all(value.grad is not None for value in task.parameters() if value.requires_grad)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_validation_depends_on_the_faces_alone(drawn: Path) -> None:
    torch.manual_seed(0)
    task, data = MaskedPretraining(replace(CONFIG, tokens="patch")).eval(), faces(drawn)
    logged: dict[str, float] = {}
    task.log = lambda name, value, **_: logged.update({name: float(value)})  # type: ignore[method-assign, assignment]
    results = []
    repeated = data._replace(row=torch.where(torch.arange(16) < 8, data.row, -1))
    for batches in ([data], list(data.split(5)), [repeated, next(iter(list(data.split(8))[1:]))]):
        for index, part in enumerate(batches):
            torch.manual_seed(index)
            task.validation_step(part, index)
        task.on_validation_epoch_end()
        results.append(logged.pop("val/loss"))
    assert results[1:] == pytest.approx([results[0]] * 2, rel=1e-5)
    task.validation_step(next(data.split(1)), 0)
    task.on_validation_epoch_end()  # raises if row 0 does not count


def test_the_command_line_pretrains_without_labels(
    pretrained: Path, unlabelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = load_checkpoint(pretrained)
    assert "labels" not in saved["hyper_parameters"]
    assert not any("head" in name or "pool" in name for name in saved["state_dict"])
    best = {state.get("best_model_path") for state in saved["callbacks"].values()}
    assert str(pretrained.parent / "best.ckpt") in best  # recorded before last.ckpt is saved
    assert "val/loss" in EventAccumulator(str(pretrained.parents[1])).Reload().Tags()["scalars"]
    manifest, logs = f"--data.manifest={unlabelled / 'shards'}", f"--trainer.logger.init_args.save_dir={tmp_path}"
    main(["validate", f"--ckpt_path={pretrained}", manifest, logs, "--data.num_workers=0"])
    assert "val/loss" in capsys.readouterr().out


def test_a_pretrained_encoder_is_no_classifier(
    pretrained: Path, drawn: Path, unlabelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FerVitError, match=r"has no expressions. Train a classifier from it with `--model.init`"):
        load_network(pretrained)
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    line = fails(capsys, "fit", "--task=classification", f"--ckpt_path={pretrained}", manifest)
    assert "Expected a checkpoint of classification, but" in line
    assert "--model.init" in line
    assert "test_step" in fails(capsys, "test", f"--ckpt_path={pretrained}", manifest)
    line = fails(capsys, "fit", *TINY, f"--data.manifest={unlabelled / 'faces.parquet'}")
    assert "rows without a label" in line
    assert "task" in fails(capsys, "fit", "--task=dreaming", manifest)


def test_a_classifier_starts_from_it(
    pretrained: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--model.init={pretrained}", "--model.lr=0", "--model.freeze=encoder"]
    last = fit(drawn / "faces.parquet", tmp_path, *TINY[5:], *words)
    out = capsys.readouterr().out
    assert f"Started from {pretrained}: 148 of 148 tensors of the encoder; new neutral, happiness, surprise" in out
    net, before = load_network(last), load_checkpoint(pretrained)
    assert load_checkpoint(last)["starts_from"] is None  # it has learned no labels
    assert net.config.stem == "conv"
    state = net.state_dict()
    taken = {name.removeprefix("net."): value for name, value in before["state_dict"].items() if "net." in name}
    assert len(taken) == 148
    assert all(torch.equal(state[name], value) for name, value in taken.items())


def test_a_loss_that_is_not_finite_ends_the_run(drawn: Path) -> None:
    task, data = MaskedPretraining(CONFIG), faces(drawn)
    torch.nn.init.constant_(task.decoder.weight, torch.nan)
    with pytest.raises(FerVitError, match=r"loss is nan \(epoch 0, step 0\)"):
        task.training_step(data, 0)
    task.eval().validation_step(data, 0)
    with pytest.raises(FerVitError, match="loss on the val split is nan"):
        task.on_validation_epoch_end()


def test_faces_are_held_out_when_there_is_no_val_split(tmp_path: Path) -> None:
    reading = read(tmp_path / "faces", count=110, size=32)
    for row in reading.rows:
        row.split, row.label = "train", None
    write_manifest(tmp_path / "faces.parquet", reading, "drawn")
    data = FaceDataModule(tmp_path / "faces.parquet", 16, 0, spec=CropSpec(32), unlabelled=True)
    assert (len(data.dataset("train")), len(data.dataset("val"))) == (107, 3)
    again = FaceDataModule(tmp_path / "faces.parquet", 16, 0, spec=CropSpec(32), unlabelled=True)
    assert [sample.path for sample in data.dataset("val")] == [sample.path for sample in again.dataset("val")]
    with pytest.raises(FerVitError, match="no rows with split val"):
        FaceDataModule(tmp_path / "faces.parquet", 16, 0, spec=CropSpec(32)).dataset("val")
