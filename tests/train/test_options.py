"""Settings of a run: from the command line, configs, a checkpoint, and defaults."""

import re
import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
import torch.distributed as dist
import yaml

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.model.attention import has_bf16
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, fails, main

Build = Callable[..., SimpleNamespace]


@pytest.fixture
def build(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds everything for a run of `fit`, but does not run it."""

    def build_run(*words: object) -> SimpleNamespace:
        built = []

        @wraps(L.Trainer.fit)  # the command line has options of its arguments
        def fit(trainer: L.Trainer, model: L.LightningModule, **options: object) -> None:
            built.append((trainer, model, options))

        monkeypatch.setattr(L.Trainer, "fit", fit)
        tiny = [*TINY[5:], "--trainer.max_epochs=2"]  # a checkpoint of one epoch can go on
        main(["fit", *tiny, f"--data.manifest={drawn / 'faces.parquet'}", *map(str, words)])
        ((trainer, model, options),) = built
        return SimpleNamespace(
            trainer=trainer, model=model, data=options.pop("datamodule"), options=options
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
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert build(*TINY[:5], "--trainer.precision=bf16-mixed").trainer.precision == "32-true"


def test_a_resumed_run_needs_no_pretrained_weights(
    build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    words = [f"--model.network.pretrained={tmp_path / 'gone.pth'}", f"--ckpt_path={checkpoint}"]
    assert build(*words).model.net.config.pretrained is False


def test_a_precision_of_all_weights_is_refused(drawn: Path, capsys: pytest.CaptureFixture) -> None:
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}", "--trainer.precision=bf16-true"]
    assert "bf16-true" in fails(capsys, "fit", *words)


@pytest.mark.slow
def test_runs_without_logger_and_without_checkpoints(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", "--trainer.logger=false"]
    main(words)
    assert len([*tmp_path.rglob("best.ckpt")]) == 1
    assert [path.name for path in tmp_path.glob("*.yaml")] == []
    monkeypatch.chdir(tmp_path.parent)
    place = f"--trainer.logger.init_args.save_dir={tmp_path / 'logs'}"
    main([*words[:-1], place, "--trainer.enable_checkpointing=false"])
    assert not [*(tmp_path / "logs").rglob("*.ckpt")]
    printed = capsys.readouterr()
    assert "error" not in printed.err
    # no best checkpoint was wanted
    assert "No best checkpoint" not in printed.out
    (line,) = [line for line in printed.out.splitlines() if line.startswith("Next: ")]
    (checkpoint,) = tmp_path.rglob("best.ckpt")
    assert shlex.split(line)[1:] == [
        *("fer-vit", "evaluate", str(drawn / "faces.parquet")),
        *("--checkpoint", str(checkpoint)),
    ]


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


def test_an_abbreviated_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "fit", "--data.manifest=x.parquet", "--trainer.max_epoch=1")
    assert "--trainer.max_epoch=1. Did you mean" in line


# What a face costs, and how a run ends when something outside of it fails


D = 32  # width of the network
N = 16  # its patches
R = 2 * 4  # its region tokens
PATCH = 3 * 8 * 8 * D  # embeds one token


def block(tokens: int) -> int:
    """Multiply-adds of a ViT block by hand: qkv 3, projection 1, feed-forward 8 times D^2;
    scores and sums T^2 D.
    """
    return 12 * tokens * D * D + 2 * tokens * tokens * D


def ranking(tokens: int) -> int:
    """Multiply-adds by which hard attention ranks patches: a query,
    and every token's key and score.
    """
    return D * D + tokens * D * D + tokens * D


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["pool=additive"], (N + R) * PATCH + 2 * block(1 + N + R) + 25 * (D * D + D)),
        (["tokens=region", "attention=additive"], R * PATCH + 2 * block(1 + R)),
        (
            ["depth=3", "keep_rate=[1.0,0.5,0.5]"],
            (N + R) * PATCH + sum(map(block, (25, 17, 13))) + ranking(25) + ranking(17),
        ),
    ],
)
def test_multiply_adds_of_a_face_by_the_formula(
    options: list[str], expected: int, build: Build, capsys: pytest.CaptureFixture
) -> None:
    words = ["regions=[nose,mouth]", "region_grid=2", *options]
    net = build(*TINY[:5], *(f"--model.network.{word}" for word in words)).model.net
    assert all(block.attn.fused_attn for block in net.vit.blocks)
    assert net.training
    number = (expected + 8 * D) / 1e3
    parameters = sum(value.numel() for value in net.parameters()) / 1e3
    line = f"{parameters:.3g} k parameters, .* {number:.3g} k multiply-adds a face"
    assert re.search(line, capsys.readouterr().out)


def run_that_raises(error: BaseException, last: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets `fit` raise an error; returns the list of the processes that are killed then."""
    killed: list[int] = []

    @wraps(L.Trainer.fit)
    def fit(trainer: L.Trainer, model: L.LightningModule, **options: object) -> None:
        trainer.checkpoint_callbacks[0].dirpath = str(last.parent)
        last.touch()
        processes = [SimpleNamespace(kill=lambda: killed.append(1))]
        trainer.strategy._launcher = SimpleNamespace(procs=processes)
        raise error

    monkeypatch.setattr(L.Trainer, "fit", fit)
    return killed


@pytest.mark.parametrize(
    "error",
    [
        dist.DistBackendError("NCCL communicator was aborted"),
        RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"),
    ],
)
def test_a_lost_process_is_one_line_with_the_command_that_resumes(
    error: Exception,
    drawn: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    last = tmp_path / "last.ckpt"
    killed = run_that_raises(error, last, monkeypatch)
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}"]
    line = fails(capsys, "fit", *words, f"--trainer.logger.init_args.save_dir={tmp_path}")
    assert f"`--ckpt_path {last}`" in line
    assert killed == [1]


def test_a_full_gpu_is_named_with_its_remedy(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
    run_that_raises(error, tmp_path / "last.ckpt", monkeypatch)
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}"]
    line = fails(capsys, "fit", *words, f"--trainer.logger.init_args.save_dir={tmp_path}")
    assert "lower the batch size" in line


@pytest.mark.parametrize(
    ("capabilities", "gpu", "has"),
    [
        (
            {"avx512_f": True, "avx512_bf16": False, "amx_bf16": False},
            None,
            (False, False),
        ),  # would be emulated
        ({"avx512_bf16": False, "amx_tile": True, "amx_bf16": True}, None, (True, True)),
        ({"neon": True, "bf16": True}, False, (False, True)),
        ({}, True, (True, False)),
    ],
)
def test_bf16_is_used_where_the_hardware_has_instructions(
    capabilities: dict[str, bool],
    gpu: bool | None,
    has: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: gpu or including_emulation
    )
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert (has_bf16("auto"), has_bf16("cpu")) == has
