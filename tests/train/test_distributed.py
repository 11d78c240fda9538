"""Several processes train and count like one process, and end together."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.face.image import encode_png
from fer_vit.sources.cartoon import draw_face
from fer_vit.sources.drawn import read
from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.commands import TINY, assert_same, main

SCRIPT = Path(__file__).parents[2] / "cli.py"
FOUND = os.pathsep.join([str(SCRIPT.parent), os.environ["PYTHONPATH"]])
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
BOUND = 600
"""Seconds that a run may last, its start on a slow machine included; without it,
gloo would wait for 30 minutes.
"""


def options(manifest: Path, folder: Path, *more: str) -> list[str]:
    return [
        *TINY,
        f"--data.manifest={manifest}",
        f"--trainer.logger.init_args.save_dir={folder}",
        *more,
    ]


def run(*words: str, launcher: list[str] | None = None) -> tuple[int, str, str]:
    """Runs a verb in processes that find this file's callbacks; returns exit status, stdout and
    stderr.

    It returns when the last of the processes has closed its output, so that one that lives on is an
    error, too.
    """
    environment = os.environ | {"PYTHONPATH": FOUND}
    command = [sys.executable, *(launcher or []), str(SCRIPT), *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_two_processes_learn_what_one_does_with_twice_the_batch(tmp_path: Path) -> None:
    recipe = [
        "--model.logit_adjust=1",
        "--model.layer_decay=0.8",
        "--trainer.gradient_clip_val=0.5",
    ]
    whole = [
        "--trainer.limit_train_batches=1.0",
        "--trainer.limit_val_batches=1.0",
        "--trainer.max_epochs=2",
    ]
    ema = "--trainer.callbacks+=fer_vit.callbacks.EMA"
    faces = read(tmp_path / "faces", count=167, size=48)
    # an odd number: one process has a repeat
    assert sum(row.split == "val" for row in faces.rows) == 25
    write_manifest(tmp_path / "faces.parquet", faces, "drawn")
    curves = {}
    states = {}
    weights = {}
    for name, processes, more in (("one", 1, []), ("ddp", 2, TWO)):
        words = [*recipe, *whole, *more, ema, "--trainer.log_every_n_steps=1"]
        verb = ["fit", *options(tmp_path / "faces.parquet", tmp_path / name, *words)]
        verb += [f"--data.batch_size={16 // processes}"]
        if processes == 1:
            main(verb)
        else:
            status, out, err = run(*verb)
            assert status == 0, err
            assert out.count("RegionViT: ") == 1
            assert "sync_dist" not in err
            assert "WeightAveraging" not in err
        version = tmp_path / name / "default" / "version_0"
        assert (version / "config.yaml").is_file()
        events = EventAccumulator(str(version)).Reload()
        curves[name] = {
            tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }
        saved = load_checkpoint(version / "checkpoints" / "last.ckpt")
        states[name] = saved["state_dict"]
        weights[name] = saved["current_model_state"]
    assert len(curves["one"]["train/loss"]) == 14
    # Sums of float32 in another order; AdamW makes of an entry whose gradient is but rounding (the
    # bias of the keys) a larger part of its step, which is 1e-3.
    for tag in ("train/loss", "val/accuracy", "val/f1", "val/uar", "val/ece", "val/loss"):
        assert curves["ddp"][tag] == pytest.approx(curves["one"][tag], abs=1e-5)
    for saved in (weights, states):
        for key, value in saved["one"].items():
            torch.testing.assert_close(saved["ddp"][key], value, atol=1e-4, rtol=0)


@pytest.fixture
def one_val_face(tmp_path: Path) -> Path:
    """A manifest with one face in `val`: the second process has but a repeat of it."""
    face = encode_png(draw_face("happiness", 0, 48)[0])
    rows = [Row(face, "0", "val", "happiness")]
    rows += [Row(face, str(place), "train", "happiness") for place in range(1, 100)]
    write_manifest(tmp_path / "faces.parquet", Reading(("happiness", "anger"), rows), "drawn")
    return tmp_path / "faces.parquet"


@pytest.mark.slow
def test_a_killed_process_ends_a_run_that_resumes(one_val_face: Path, tmp_path: Path) -> None:
    words = options(
        one_val_face, tmp_path, *TWO, "--trainer.max_epochs=3", "--trainer.limit_train_batches=3"
    )
    status, _, err = run("fit", *words, "--trainer.callbacks+=tests.helpers.callbacks.KillOne")
    assert status != 0, err
    last = tmp_path / "default" / "version_0" / "checkpoints" / "last.ckpt"
    assert load_checkpoint(last)["global_step"] == 3
    (accuracy,) = EventAccumulator(str(last.parents[1])).Reload().Scalars("val/accuracy")
    assert accuracy.value in (0, 1)
    status, _, err = run("fit", *words, f"--ckpt_path={last}")
    assert status == 0, err
    saved = load_checkpoint(tmp_path / "default" / "version_1" / "checkpoints" / "last.ckpt")
    assert saved["epoch"] == 2
    assert saved["global_step"] == 9


@pytest.mark.slow
def test_sigterm_to_one_process_ends_all_at_the_same_step(
    one_val_face: Path, tmp_path: Path
) -> None:
    words = options(one_val_face, tmp_path, *TWO, "--trainer.limit_train_batches=3")
    signal_options = [
        "--trainer.callbacks+=tests.helpers.callbacks.Terminate",
        "--trainer.callbacks.epoch=0",
        "--trainer.callbacks.batch=1",
    ]
    status, out, err = run("fit", *words, *signal_options)
    assert status == 128 + signal.SIGTERM, err
    last = tmp_path / "default" / "version_0" / "checkpoints" / "last.ckpt"
    (line,) = (line for line in out.splitlines() if "SIGTERM" in line)
    assert f"`--ckpt_path {last}`" in line
    assert load_checkpoint(last)["global_step"] == 2


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 60 drawn faces."""
    folder = tmp_path_factory.mktemp("photos") / "faces"
    read(folder, count=60, size=48)
    return folder


def prediction(faces: Path, output: Path, *more: str) -> list[str]:
    return [
        "predict",
        str(faces),
        "--output",
        str(output),
        "--face=crop",
        "--detector=none",
        "--part_size=7",
        *more,
    ]


def table(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_processes_of_torchrun_predict_each_row_once(faces: Path, tmp_path: Path) -> None:
    main(prediction(faces, tmp_path / "one"))
    status, out, err = run(*prediction(faces, tmp_path / "two"), launcher=TORCHRUN)
    assert status == 0, err
    assert re.search(r"\b9 tables.*\b60 files.*\(60 ok\).*\b60 faces", out)
    rows = table(tmp_path / "two")
    assert [row["path"] for row in rows] == sorted(map(str, faces.rglob("*.png")))
    assert_same(rows, table(tmp_path / "one"))
