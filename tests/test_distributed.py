"""Several processes on one machine see what one sees."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY

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
