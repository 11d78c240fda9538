"""Settings of a run: from the command line, configs, a checkpoint, and defaults."""

import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.train.fit import next_command, train
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, fails, main

Build = Callable[..., SimpleNamespace]


@pytest.fixture
def build(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds everything for a run of `fit`, but does not run it."""

    def build_run(*words: object) -> SimpleNamespace:
        built = []
        monkeypatch.setattr(
            "fer_vit.train.fit.run_trainer",
            lambda verb, trainer, model, **options: built.append((verb, trainer, model, options)),
        )
        tiny = [*TINY[5:], "--trainer.max_epochs=2"]  # a checkpoint of one epoch can go on
        main(["fit", *tiny, f"--data.manifest={drawn / 'faces.parquet'}", *map(str, words)])
        ((verb, trainer, model, options),) = built
        return SimpleNamespace(
            verb=verb, trainer=trainer, model=model, data=options.pop("datamodule"), options=options
        )

    return build_run


def test_words_win_over_configs_and_configs_over_the_checkpoint(
    build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    network = {"dropout": 0.1, "drop_path_rate": 0.1}
    config = {"model": {"warmup": 0.3, "min_lr": 0.3, "network": network}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    words = ["--model.min_lr=0.4", "--model.network.dropout=0.2", f"--ckpt_path={checkpoint}"]
    run = build("--config", tmp_path / "mine.yaml", *words)
    assert run.model.hparams["warmup"] == 0.3
    assert run.model.hparams["min_lr"] == 0.4
    assert run.model.hparams["lr"] == 1e-3
    network = run.model.net.config
    assert network.dropout == 0.2
    assert network.drop_path_rate == 0.1

    assert run.options == {"ckpt_path": str(checkpoint)}
    assert network.img_size == 32
    assert network.patch_size == 8
    assert network.embed_dim == 32
    assert network.depth == 2
    assert network.num_heads == 2
    assert Path(run.trainer.logger.root_dir) == Path("runs/mine")


def test_checkpoints_of_configs(
    build: Build, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "resume.yaml").write_text(yaml.safe_dump({"ckpt_path": str(checkpoint)}))
    words = [*TINY[:5], "--config", tmp_path / "resume.yaml"]
    assert build(*words).options == {"ckpt_path": str(checkpoint)}
    with pytest.raises(SystemExit):
        build(*words, "--model.network.depth=1")
    assert "different architecture" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ("--config=a.yaml --config=b.yaml -c c.yaml", FERTask),
        ("--task=pretraining --config=b.yaml", MaskedPretraining),
    ],
)
def test_the_task_is_that_of_the_option_or_of_the_last_config(
    words: str, task: type, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("a", "task: pretraining"),
        ("b", "task: classification"),
        ("c", "trainer: {}"),
    ):
        Path(f"{name}.yaml").write_text(content)
    assert type(build(*TINY[:5], *words.split()).model) is task


def test_model_and_data_agree_on_the_crop(build: Build, checkpoint: Path) -> None:
    assert build(f"--ckpt_path={checkpoint}").data.spec == load(checkpoint).crop_spec
    points = [[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.4, 0.8], [0.6, 0.8]]
    words = [
        "--model.network.img_size=64",
        "--model.network.regions=[nose,chin]",
        "--model.align=crop",
    ]
    run = build(*TINY[1:5], *words, f"--model.template={points}")
    assert run.data.spec == CropSpec(64, ("nose", "chin"), "crop", tuple((x, y) for x, y in points))
    assert run.model.net.settings.crop.align == "crop"
    assert run.model.net.settings.crop.template == run.data.spec.template
    assert run.model.labels == run.data.labels


@pytest.mark.parametrize(("name", "value"), [("template", [[0.1, 0.2, 0.3]]), ("colour", 1)])
def test_settings_in_a_checkpoint_are_checked_like_words(
    name: str,
    value: object,
    build: Build,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    saved = torch.load(checkpoint, weights_only=True)
    torch.save(
        {**saved, "hyper_parameters": saved["hyper_parameters"] | {name: value}},
        tmp_path / "bad.ckpt",
    )
    with pytest.raises(SystemExit):
        build(f"--ckpt_path={tmp_path / 'bad.ckpt'}")
    error = capsys.readouterr().err
    assert name in error
    assert "Traceback" not in error


def test_bf16_is_emulated_nowhere(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fer_vit.train.fit_options.has_bf16", lambda accelerator: False)
    assert build(*TINY[:5], "--trainer.precision=bf16-mixed").trainer.precision == "32-true"


def test_a_resumed_run_needs_no_pretrained_weights(
    build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    words = [f"--model.network.pretrained={tmp_path / 'gone.pth'}", f"--ckpt_path={checkpoint}"]
    assert build(*words).model.net.config.pretrained is False


def test_a_precision_of_all_weights_is_refused(drawn: Path, capsys: pytest.CaptureFixture) -> None:
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}", "--trainer.precision=bf16-true"]
    assert "bf16-true" in fails(capsys, "fit", *words)


def test_runs_without_logger_and_without_checkpoints(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", "--trainer.logger=false"]
    assert train(words).endswith("best.ckpt")
    assert [path.name for path in tmp_path.glob("*.yaml")] == []
    monkeypatch.chdir(tmp_path.parent)
    place = f"--trainer.logger.init_args.save_dir={tmp_path / 'logs'}"
    assert train([*words[:-1], place, "--trainer.enable_checkpointing=false"]) == ""
    assert not [*(tmp_path / "logs").rglob("*.ckpt")]
    printed = capsys.readouterr()
    assert "error" not in printed.err
    # no best checkpoint was wanted
    assert "No best checkpoint" not in printed.out


def test_a_backbone_that_is_no_plain_vision_transformer_is_one_line() -> None:
    name = "swin_tiny_patch4_window7_224"
    with pytest.raises(FerVitError, match=f"vision transformer .*{name}"):
        build_model(RegionViTConfig(backbone=name, tokens="patch"), "abc")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("deit_tiny_distilled_patch16_224", "deit_tiny_patch16_224"),
        ("vit_medium_patch16_gap_240", "pool='avg'"),
    ],
)
def test_a_backbone_that_does_not_fit_names_the_remedy(name: str, remedy: str) -> None:
    with pytest.raises(FerVitError, match=remedy):
        build_model(RegionViTConfig(backbone=name, tokens="patch", depth=1), "abc")


@pytest.mark.parametrize("task", ["pretraining", "classification"])
def test_the_next_command_fits_the_task(task: str, drawn: Path) -> None:
    data = SimpleNamespace(manifest=str(drawn / "a b.parquet"))
    task_class = MaskedPretraining if task == "pretraining" else FERTask
    cli = SimpleNamespace(task=task, task_class=task_class, config=SimpleNamespace(data=data))
    line = next_command(cli, "run 1/best.ckpt")
    words = shlex.split(line.removeprefix("Next: fer-vit "))
    if task == "pretraining":
        assert words[:5] == ["fit", "--config", "finetune", "--model.init", "run 1/best.ckpt"]
    else:
        assert words == ["evaluate", str(drawn / "a b.parquet"), "--checkpoint", "run 1/best.ckpt"]


def test_a_network_without_regions_is_refused(
    drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default regions do not replace an empty list of the user."""
    words = ["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}"]
    line = fails(capsys, *words, "--model.network.regions=[]")
    assert "at least one region" in line
    assert "--model.network.tokens both" in line


def test_a_config_with_an_empty_group_is_named(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("seed_everything: 1\nmodel:\n")
    words = ["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", f"--config={config}"]
    line = fails(capsys, *words)
    assert "`model:`" in line
    assert str(config) in line


def test_an_abbreviated_option_is_refused() -> None:
    with pytest.raises(FerVitError, match=r"--trainer\.max_epoch=1\. Did you mean"):
        train(["fit", "--data.manifest=x.parquet", "--trainer.max_epoch=1"])
