import gc
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fer_vit
from fer_vit import cli
from fer_vit.cli import import_verb
from fer_vit.data.schema import Reading, Row
from fer_vit.data.writing import write_manifest
from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.commands import TINY, fails, main


def test_help_names_every_verb_and_needs_nothing_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    for verb in ("prepare", "predict", "visualize", "fit", "validate", "test"):
        assert f"\n  {verb} " in text
    heavy = "{'torch', 'lightning', 'cv2', 'pyarrow', 'timm', 'albumentations', 'matplotlib'}"
    code = f"import sys, fer_vit.cli; fer_vit.cli.main(['--help']); sys.exit(bool(set(sys.modules) & {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_python_m_is_the_command() -> None:
    command = [sys.executable, "-m", "fer_vit", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert fer_vit.__version__ in done.stdout


def test_predict_imports_nothing_that_training_or_pictures_need() -> None:
    heavy = "{'av', 'lightning', 'torchmetrics', 'albumentations', 'matplotlib', 'scipy', 'tensorboard', 'litdata'}"
    code = f"import sys, fer_vit.commands.predict; print(set(sys.modules) & {heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_verb_is_imported_without_the_garbage_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verb_of_a_test.py").write_text("import gc\nenabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not import_verb("verb_of_a_test").enabled
    with pytest.raises(ModuleNotFoundError):
        import_verb("fer_vit.commands.nothing")
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("verb", ["prepare", "finetune", "predict", "visualize", "evaluate"])
def test_verbs_help_shows_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"\n    fer-vit {verb} " in out
    assert "type: Path" in out
    assert "<class" not in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"fer-vit {fer_vit.__version__}\n"


def test_script_in_the_checkout_is_the_same_program() -> None:
    script = Path(__file__).parents[1] / "cli.py"
    done = subprocess.run([sys.executable, script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fer-vit {fer_vit.__version__}\n"


def test_an_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Expected a verb, one of prepare, " in fails(capsys, "train")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("predict clip.mp4 --fps nan", "Expected `--fps` to be a number, but got nan"),
        ("predict clip.mp4 --smooth=nan", "Expected `--smooth` to be a number, but got nan"),
        ("predict clip.mp4 --every 0.5", "Expected `--every` to be a whole number, but got 0.5"),
        ("predict clip.mp4 --every=", "Expected `--every` to be a whole number, but got nothing"),
        ("predict clip.mp4 --min-confidence abc", "Expected `--min_confidence` to be a number, but got abc"),
        ("predict clip.mp4 --overwrite=maybe", "Expected `--overwrite` to be true or false, but got maybe"),
        ("predict clip.mp4 --face round", "Expected `--face` to be detect or crop, but got round"),
        ("prepare imagenet a b", "Expected source to be ferplus or fer2013 or rafdb or affectnet or fairface or"),
        ("prepare ferplus a b --labels hard", "Expected `--labels` to be majority or soft, but got hard"),
        ("prepare affectnet a b --classes 9", "Expected `--classes` to be 7 or 8, but got 9"),
        ("export m.onnx --merge happy", "Expected `--merge` to be pairs such as {old: new}, but got happy"),
        ("predict clip.mp4 --nothing 3", "unrecognized arguments: --nothing 3"),
    ],
)
def test_wrong_values_are_told_plainly(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = fails(capsys, *words.split())
    assert told.startswith(f"fer-vit: error: {line}")
    assert told.endswith(f" (`fer-vit {words.split()[0]} --help` lists the options)")


@pytest.mark.parametrize("words", [("predict", ""), ("visualize", ""), ("predict", "photos", "--output=")])
def test_an_empty_word_is_not_the_current_folder(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert 'Expected a name or a value, but got "".' in fails(capsys, *words)


def test_a_missing_manifest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = fails(capsys, "fit", *TINY, f"--data.manifest={tmp_path / 'gone.parquet'}")
    assert "No manifest at" in line
    assert "fer-vit prepare" in line


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"trainer": {"callbacks": [{"class_path": "lightning.pytorch.callbacks.Nothing"}]}}, "Nothing"),
        ({"model": {"network": {"tokens": "everything"}}}, "everything"),
        ({"model": {"network": {"regions": ["ear"]}}}, "got `ear`"),
        ({"model": {"network": {"backbone": "vit_huge_nothing"}}}, "vit_huge_nothing"),
        ({"model": {"lerning_rate": 1}}, "lerning_rate"),
        ({"data": {"batch_size": "many"}}, "many"),
    ],
)
def test_a_wrong_config(
    config: dict[str, object], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, drawn: Path
) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    assert words in fails(capsys, "fit", *TINY, manifest, "--config", tmp_path / "c.yaml")


def test_a_config_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gone.yaml" in fails(capsys, "fit", "--config", "gone.yaml")


def test_a_config_by_name(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawn").mkdir()  # a folder is no config
    words = [*TINY, "--model.network.depth=1", f"--data.manifest={drawn / 'faces.parquet'}"]
    main(["fit", "--config", "drawn", *words])
    assert "align: crop" in (tmp_path / "runs/drawn/version_0/config.yaml").read_text()


def test_the_next_command_is_for_people(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["configs"])
    assert "Next:" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["configs"])
    assert capsys.readouterr().out.endswith("\n\nNext: fer-vit fit --config drawn --data.manifest faces.parquet\n")
    manifest, logs = f"--data.manifest={drawn / 'faces.parquet'}", f"--trainer.logger.init_args.save_dir={tmp_path}"
    main(["fit", *TINY, manifest, logs])
    (best,) = tmp_path.rglob("best.ckpt")
    line = f"\nNext: fer-vit validate --ckpt_path {best} --data.manifest {drawn / 'faces.parquet'}\n"
    assert capsys.readouterr().out.endswith(line)
    main(["fit", *TINY, manifest, logs, "--trainer.fast_dev_run=true"])  # writes no checkpoint
    monkeypatch.setenv("LOCAL_RANK", "1")
    main(["configs"])
    assert "Next:" not in capsys.readouterr().out


COMPLETE = """
COMP_WORDS=(fer-vit "$@"); COMP_CWORD=$#
_shtab_fer_vit
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_shells_complete_verbs_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out + COMPLETE
    (tmp_path / "best.ckpt").touch()

    def completed(*words: str) -> list[str]:
        command = ["bash", "-c", script, "bash", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout.split()

    assert completed("pre") == ["prepare", "predict"]
    assert completed("visualize", "--met") == ["--method"]
    assert completed("predict", "photos", "--detector", "") == ["yunet", "landmarks", "none"]
    assert completed("predict", "photos", "--checkpoint", "b") == ["best.ckpt"]
    assert completed("validate", "--ckpt_path", "b") == ["best.ckpt"]
    main(["completion", "zsh"])
    script = capsys.readouterr().out
    assert script.startswith("#compdef fer-vit\n")
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=script, text=True, check=True)


def test_completion_says_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fer-vit completion zsh" in fails(capsys, "completion", "fish")
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert 'pip install "fer-vit[completion]"' in fails(capsys, "completion", "bash")


def test_debug_shows_the_error_itself() -> None:
    with pytest.raises(fer_vit.errors.FerVitError):
        main(["train", "--debug"])


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_the_checkpoint_is_the_truth_and_figures_are_written(
    verb: str, checkpoint: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No word about the network: 32 px and the rest come out of the checkpoint.
    main(
        [
            verb,
            f"--ckpt_path={checkpoint}",
            f"--data.manifest={drawn / 'faces.parquet'}",
            f"--trainer.logger.init_args.save_dir={tmp_path}",
            "--trainer.enable_progress_bar=false",
            "--data.num_workers=0",
        ]
    )
    stage = {"validate": "val", "test": "test"}[verb]
    folder = tmp_path / "default" / "version_0"
    assert {path.name for path in folder.glob(f"{stage}*")} == {f"{stage}.{s}" for s in ("json", "md")} | {
        f"{stage}_confusion.png"
    }
    assert str(folder / f"{stage}.md") in capsys.readouterr().out
    figures = yaml.safe_load((folder / f"{stage}.json").read_text())
    confusion = figures["confusion"]
    assert figures["images"] == sum(map(sum, confusion))
    right = sum(confusion[i][i] for i in range(8))
    assert figures["accuracy"] == pytest.approx(right / figures["images"], abs=1e-6)


def test_the_users_word_wins_over_the_checkpoint(
    checkpoint: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    place = f"--trainer.logger.init_args.save_dir={tmp_path}"
    line = fails(capsys, "test", "--ckpt_path", checkpoint, manifest, place, "--model.network.img_size=64")
    assert "another architecture: `net.vit.pos_embed` is float (1, 17, 32) in it" in line
    assert list(tmp_path.iterdir()) == []
    main(["fit", *TINY, manifest, place, "--ckpt_path", str(checkpoint), "--model.lr=0.5", "--trainer.max_epochs=2"])
    (resumed,) = tmp_path.rglob("last.ckpt")
    saved = load_checkpoint(resumed)
    assert saved["epoch"] == 1
    assert saved["hyper_parameters"]["lr"] == 0.5
    assert {group["initial_lr"] for group in saved["optimizer_states"][0]["param_groups"]} == {0.5}
    assert set(saved["lr_schedulers"][0]["base_lrs"]) == {0.5}


def test_a_manifest_with_other_classes(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seven: Path
) -> None:
    place = f"--trainer.logger.init_args.save_dir={tmp_path}"
    line = fails(capsys, "test", "--ckpt_path", checkpoint, f"--data.manifest={seven}", place)
    assert "The checkpoint's classes are neutral, " in line
    assert "but the manifest's are surprise, " in line
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_others(capsys: pytest.CaptureFixture[str], tmp_path: Path, drawn: Path) -> None:
    (tmp_path / "x.ckpt").write_bytes(b"no checkpoint")
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    assert "cannot" not in fails(capsys, "test", manifest, "--ckpt_path", tmp_path / "gone.ckpt")
    assert "read safely" in fails(capsys, "test", manifest, "--ckpt_path", tmp_path / "x.ckpt")


def test_a_test_without_a_checkpoint_is_refused(capsys: pytest.CaptureFixture[str], drawn: Path) -> None:
    for verb in ("validate", "test"):
        assert "`--ckpt_path FILE`" in fails(capsys, verb, f"--data.manifest={drawn / 'faces.parquet'}")


def test_hardware_that_is_not_there(capsys: pytest.CaptureFixture[str], drawn: Path, tmp_path: Path) -> None:
    place = f"--trainer.logger.init_args.save_dir={tmp_path}"
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}", place, "--trainer.accelerator=tpu"]
    assert "torch_xla" in fails(capsys, "fit", *words)


def test_options_as_people_type_them(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.csv"
    out.write_text("older")
    words = ["--checkpoint", str(checkpoint), "--output", str(out), "--face=crop", "--detector", "none"]
    main(["predict", *words, "--batch-size", "4", "--overwrite", str(drawn / "faces" / "val")])
    assert "anger" in out.read_text().splitlines()[0]
    line = fails(capsys, "predict", *words, "--overwrite=false", drawn)
    assert "exists already" in line


def test_an_error_in_a_loading_process_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(b"no image", f"{i}.png", split, "anger") for i in range(4) for split in ("train", "val")]
    write_manifest(tmp_path / "m.parquet", Reading(("anger", "fear"), rows), "made")
    place = f"--trainer.logger.init_args.save_dir={tmp_path}"
    line = fails(capsys, "fit", *TINY, f"--data.manifest={tmp_path / 'm.parquet'}", place, "--data.num_workers=1")
    assert "m.parquet, image 0.png: not an image" in line


def test_last_is_the_newest_epoch_and_pictures_are_logged(drawn: Path, tmp_path: Path) -> None:
    words = [*TINY, f"--data.manifest={drawn / 'faces.parquet'}", f"--trainer.logger.init_args.save_dir={tmp_path}"]
    # Without a learning rate nothing changes: the first epoch stays the best.
    recipe = [
        "--model.lr=0",
        "--model.class_weight=balanced",
        "--trainer.max_epochs=3",
        "--trainer.log_every_n_steps=1",
    ]
    main(["fit", *words, *recipe])
    folder = tmp_path / "default" / "version_0"
    assert load_checkpoint(folder / "checkpoints" / "last.ckpt")["epoch"] == 2
    assert load_checkpoint(folder / "checkpoints" / "best.ckpt")["epoch"] == 0
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    assert len(events.Images("val/confusion")) == 3
    assert {"train/loss", "val/accuracy", "val/f1", "val/uar", "val/ece", "val/loss"} <= set(events.Tags()["scalars"])
