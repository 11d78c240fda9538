"""A training without a terminal prints a line for each epoch."""

import re
from pathlib import Path

import pytest

from tests.helpers.commands import TINY, run
from tests.helpers.marks import slow


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ([], ["1 of 2", "2 of 2"]),
        *slow((["--trainer.max_epochs=-1", "--trainer.max_steps=3"], ["1", "2"])),
    ],
)
def test_fit_prints_a_line_for_each_epoch(
    options: list[str],
    epochs: list[str],
    drawn: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    words = [word for word in TINY if "progress" not in word]
    words += ["--trainer.max_epochs=2", *options, f"--data.manifest={drawn / 'faces.parquet'}"]
    run("fit", *words, f"--trainer.logger.init_args.save_dir={tmp_path}")
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if line.startswith("Epoch ")]
    assert [line.partition(":")[0] for line in lines] == [f"Epoch {name}" for name in epochs]
    for line in lines:
        assert re.search(r"loss \d", line)
        assert "val/accuracy 0." in line
        assert re.search(r"\d:\d\d:\d\d left$", line)
    assert lines[-1].endswith("0:00:00 left")
    assert "it/s" not in printed.out + printed.err


@pytest.mark.slow
def test_fit_with_a_progress_bar_prints_no_lines(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [word for word in TINY if "progress" not in word]
    words += ["--trainer.enable_progress_bar=true", f"--data.manifest={drawn / 'faces.parquet'}"]
    run("fit", *words, f"--trainer.logger.init_args.save_dir={tmp_path}")
    printed = capsys.readouterr()
    assert "it/s" in printed.out + printed.err
    assert not re.search(r"^Epoch 1 of", printed.out, re.MULTILINE)
