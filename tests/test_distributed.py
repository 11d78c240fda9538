"""Several processes on one machine see what one sees."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import TINY

from fer_vit.data.manifest import write_shards
from fer_vit.sources.drawn import read

SCRIPT = Path(__file__).parents[1] / "cli.py"


def test_two_processes_count_every_sample_once(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    figures = []
    for devices in (1, 2):
        folder = tmp_path / str(devices)
        words = ["test", f"--ckpt_path={checkpoint}", f"--data.manifest={drawn / 'faces.parquet'}", *TINY[5:8]]
        words += ["--data.batch_size=5", f"--trainer.devices={devices}", "--trainer.enable_progress_bar=false"]
        words += ["--trainer.strategy=ddp"] if devices > 1 else []
        words += [f"--trainer.logger.init_args.save_dir={folder}"]
        subprocess.run([sys.executable, SCRIPT, *words], check=True, capture_output=True, timeout=300)
        figures.append(json.loads((folder / "default" / "version_0" / "test.json").read_text()))
    assert figures[0]["images"] % 2 == 1  # an even number could be dealt out without repeats
    assert figures[0]["confusion"] == figures[1]["confusion"]
    for name in ("loss", "accuracy", "f1", "uar", "ece"):
        assert figures[0][name] == pytest.approx(figures[1][name], abs=1e-6)


def test_two_processes_share_a_stream(tmp_path: Path) -> None:
    reading = read(tmp_path / "faces", count=96, size=32)
    write_shards(tmp_path / "shards", reading, "drawn", 3)
    words = [word for word in TINY if "limit" not in word]
    words += [f"--data.manifest={tmp_path / 'shards'}", f"--trainer.logger.init_args.save_dir={tmp_path}"]
    words += ["--data.batch_size=4", "--data.num_workers=1", "--trainer.devices=2", "--trainer.strategy=ddp"]
    subprocess.run([sys.executable, SCRIPT, "fit", *words], check=True, capture_output=True, timeout=300)
    state = torch.load(tmp_path / "default" / "version_0" / "checkpoints" / "last.ckpt", weights_only=True)
    trained = sum(row.split == "train" for row in reading.rows)
    assert state["global_step"] == trained // 8
    assert state["FaceDataModule"]["dataset"]["world_size"] == 2
