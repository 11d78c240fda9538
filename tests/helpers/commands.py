"""The command line as tests run it, in this process."""

import csv
import json
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning  # noqa: F401 - its log goes to the stderr of this moment, which must outlive a test
import pyarrow.parquet as pq
import pytest
from jsonargparse import capture_parser

from fer_vit import cli
from fer_vit.store.config_files import shipped_configs
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.task import FERTask
from tests.helpers.models import ROUNDING

TINY = [
    f"--model.network.{word}"
    for word in ("img_size=32", "patch_size=8", "embed_dim=32", "depth=2", "num_heads=2")
]
TINY += [
    "--data.batch_size=16",
    "--data.num_workers=0",
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
]
TINY += [
    f"--trainer.{word}"
    for word in (
        "limit_train_batches=2",
        "limit_val_batches=2",
        "num_sanity_val_steps=0",
        "enable_progress_bar=false",
    )
]
"""Options that make a run of fit last about a second."""
FOUR_DIGITS = 1e-3
"""The largest step, relative, between two numbers of four digits, which text tables have."""
CROPS = ("--face=crop", "--detector=none")
"""Options for images that are crops of one face."""


def main(args: list[str]) -> None:
    """Runs a command as `fer-vit` does, but lets Ctrl-C end the tests instead of one of them."""
    try:
        cli.main(args)
    except SystemExit as end:
        if end.code == 130:
            raise KeyboardInterrupt from None
        raise


def run(*words: object) -> None:
    """Runs a command, as `main` does, of words of any type."""
    main([str(word) for word in words])


def parse_fit(*args: str) -> Any:
    """The settings of `fit` with these options;
    nothing is built. A wrong option raises ArgumentError.
    """
    return fit_parser().parse_args(["--data.manifest=faces.parquet", *args])


def parse(verb: str, *words: str) -> dict[str, Any]:
    """Parses a command without running it; returns the values of a plain command."""
    given: dict[str, Any] = {}
    if verb not in cli.PLAIN_VERBS:
        configs = {name: str(file) for name, file in shipped_configs().items()}
        parse_fit(*(configs.get(word, word) for word in words))
        return given
    module = import_module(f"fer_vit.commands.{verb}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module, verb, wraps(getattr(module, verb))(lambda **values: given.update(values))
        )
        cli.run_plain(verb, list(words))
    return given


def build_fit(*args: str) -> tuple[FERTask, FaceDataModule]:
    """The task and the data of `fit` with these options."""
    built = fit_parser().instantiate_classes(fit_parser().parse_args(args))
    return built.model, built.data


@cache
def fit_parser() -> Any:
    """The parser of `fit`, which takes long to build."""
    return capture_parser(lambda: cli.main(["fit", "--data.manifest=faces.parquet"]))


def fails(capsys: pytest.CaptureFixture, *args: object) -> str:
    """Runs a command that must fail as promised: exit code 2 and one line; returns the line."""
    assert exit_code(*args) == 2
    return error_line(capsys)


def fit(manifest: Path, folder: Path, *more: str) -> Path:
    """Trains with logs in a folder; returns the newest checkpoint."""
    main(
        [
            "fit",
            *more,
            f"--data.manifest={manifest}",
            f"--trainer.logger.init_args.save_dir={folder}",
        ]
    )
    return newest(folder)


def newest(folder: Path) -> Path:
    return max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime_ns)


def exit_code(*args: object) -> str | int | None:
    """Runs a command; returns its exit code, 0 at its end."""
    try:
        run(*args)
    except SystemExit as end:
        return end.code
    return 0


def error_line(capsys: pytest.CaptureFixture) -> str:
    """The one line of a command that failed, at the end and without a traceback."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("fer-vit: error: ")]
    assert len(lines) == 1
    assert "Traceback" not in out + err
    assert err.splitlines()[-1] == lines[0]
    return lines[0]


def read(path: Path) -> list[dict[str, object]]:
    """The rows of a table; cells of CSV become numbers where they can."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return [{name: number(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def predict(
    images: Path, checkpoint: Path | str, output: Path, *more: object
) -> list[dict[str, object]]:
    """The rows of the table, or of the tables in a folder, that `predict` writes."""
    run("predict", images, "--checkpoint", checkpoint, "--output", output, *more)
    files = [output] if output.suffix else sorted(output.glob("part-*.parquet"))
    return [row for file in files for row in read(file)]


def number(cell: str) -> object:
    try:
        return float(cell)
    except ValueError:
        return cell


def assert_same(
    rows: list[dict[str, object]], expected: list[dict[str, object]], rel: float = 1e-6
) -> None:
    """Up to what another batch makes of a probability's last digits.

    Where it may change the last of four digits, `rel` is `FOUR_DIGITS`.
    """
    for row, expected_row in zip(rows, expected, strict=True):
        assert row == {
            name: pytest.approx(value, rel, ROUNDING) if isinstance(value, float) else value
            for name, value in expected_row.items()
        }
