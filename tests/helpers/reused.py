"""Parts of a training run that do not depend on the run: made once for all tests of a process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from lightning.fabric.utilities import registry
from lightning.pytorch.cli import LightningArgumentParser

from fer_vit.geometry import Image, IntArray
from fer_vit.model.region_vit import RegionViT
from fer_vit.train import run, task
from fer_vit.train.options import TrainCLI


@contextmanager
def reused_parts() -> Iterator[None]:
    """Makes parsers, pictures of confusion matrices and counts of operations once within this
    block, and searches the installed packages once.
    """
    with pytest.MonkeyPatch.context() as patch:
        reuse_parsers(patch)
        reuse_pictures(patch)
        reuse_counts(patch)
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


def reuse_parsers(patch: pytest.MonkeyPatch) -> None:
    """Builds the parser of each verb and class once; only the name of the run's folder differs."""
    build = TrainCLI.setup_parser
    built: dict[tuple[str, type], tuple[LightningArgumentParser, list[str], list[str]]] = {}

    def set_up(cli: TrainCLI, *given: Any) -> None:
        kind = cli.verb, cli.kind
        if kind not in built:
            build(cli, *given)
            built[kind] = cli.parser, [*cli.parser.callback_keys], cli.run_options
        cli.parser, callbacks, cli.run_options = built[kind]
        cli.parser.callback_keys = [*callbacks]  # a run without checkpoints removes one
        cli.parser.set_defaults({"trainer.logger": cli.trainer_defaults["logger"]})

    patch.setattr(TrainCLI, "setup_parser", set_up)


def reuse_pictures(patch: pytest.MonkeyPatch) -> None:
    """Draws the confusion matrix in a run's logs once for the same classes."""
    draw = task.draw_confusion
    drawn: dict[tuple[str, ...], Image] = {}

    def draw_once(confusion: IntArray, labels: Sequence[str]) -> Image:
        key = tuple(labels)
        if key not in drawn:
            drawn[key] = draw(confusion, labels)
        return drawn[key]

    patch.setattr(task, "draw_confusion", draw_once)


def reuse_counts(patch: pytest.MonkeyPatch) -> None:
    """Counts the operations of equal networks once."""
    count = run.multiply_adds
    counts: dict[str, int] = {}

    def count_once(net: RegionViT) -> int:
        key = f"{net.config} {net}"
        if key not in counts:
            counts[key] = count(net)
        return counts[key]

    patch.setattr(run, "multiply_adds", count_once)
