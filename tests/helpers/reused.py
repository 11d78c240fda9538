"""Parts of a run that do not depend on the run: made once for all tests of a process."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from lightning.fabric.utilities import registry
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor

from fer_vit import cli
from fer_vit.geometry import Array, Image, IntArray
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT
from fer_vit.model_settings import ModelSettings
from fer_vit.report import score_figures
from fer_vit.store import checkpoint, folder, stored_model
from fer_vit.train import run, tables, task
from fer_vit.train.options import TrainCLI


@contextmanager
def reused_parts() -> Iterator[None]:
    """Makes parsers, pictures of results, shapes of weights and counts of operations
    once within this block, reads checkpoints and settings of models once, and searches the
    installed packages once.
    """
    with pytest.MonkeyPatch.context() as patch:
        reuse_parsers(patch)
        reuse_command_parsers(patch)
        reuse_settings(patch)
        reuse_pictures(patch)
        reuse_checkpoints(patch)
        reuse_descriptions(patch)
        reuse_counts(patch)
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


def reuse_parsers(patch: pytest.MonkeyPatch) -> None:
    """Builds the parser of each verb and class once; only the name of the run's folder differs."""
    build = TrainCLI.setup_parser
    built: dict[tuple[str, type, type], tuple[LightningArgumentParser, list[str], list[str]]] = {}

    def set_up(training: TrainCLI, *given: Any) -> None:
        kind = training.verb, training.task_class, training.data_class
        if kind not in built:
            build(training, *given)
            built[kind] = training.parser, [*training.parser.callback_keys], training.run_options
        training.parser, callbacks, training.run_options = built[kind]
        training.parser.callback_keys = [*callbacks]  # a run without checkpoints removes one
        training.parser.set_defaults({"trainer.logger": training.trainer_defaults["logger"]})

    patch.setattr(TrainCLI, "setup_parser", set_up)


def reuse_command_parsers(patch: pytest.MonkeyPatch) -> None:
    """Builds the parser of each plain command once for all runs.

    The first run adds an option for shells to it, which pages and help of new parsers do not have.
    """
    build = cli.verb_parser
    built: dict[tuple[str, object], ArgumentParser] = {}

    def build_once(verb: str, module: Any) -> ArgumentParser:
        key = verb, inspect.unwrap(getattr(module, verb))
        if key not in built:
            built[key] = build(verb, module)
        return built[key]

    patch.setattr(cli, "verb_parser", build_once)


def reuse_settings(patch: pytest.MonkeyPatch) -> None:
    """Converts equal settings of models once."""
    convert = stored_model.read_settings
    converted: dict[tuple[type, str], Any] = {}

    def convert_once(kind: type, values: dict[str, Any], name: object) -> Any:
        key = kind, repr(values)
        if key not in converted:
            converted[key] = convert(kind, values, name)
        return deepcopy(converted[key])

    patch.setattr(stored_model, "read_settings", convert_once)


def reuse_pictures(patch: pytest.MonkeyPatch) -> None:
    """Draws the confusion matrix of the same classes and the outputs of a head once."""
    confusions: dict[tuple[str, ...], Image] = {}
    outputs: dict[tuple[str, ...], Image] = {}

    def draw_confusion(confusion: IntArray, labels: Sequence[str]) -> Image:
        key = tuple(labels)
        if key not in confusions:
            confusions[key] = score_figures.draw_confusion(confusion, labels)
        return confusions[key]

    def outputs_figure(names: Sequence[str], preds: Array, target: Array, unit: str) -> Image:
        key = tuple(names)
        if key not in outputs:
            outputs[key] = score_figures.outputs_figure(names, preds, target, unit)
        return outputs[key]

    patch.setattr(task, "draw_confusion", draw_confusion)
    patch.setattr(tables, "draw_confusion", draw_confusion)
    patch.setattr(tables, "outputs_figure", outputs_figure)


def reuse_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """Reads a checkpoint once as long as its file is the same; each reader has its own tensors."""
    read = checkpoint.load_tensors

    @lru_cache(maxsize=8)
    def read_once(path: Path, *state: int) -> Any:
        return read(path)

    def read_file(path: Path) -> Any:
        file = path.stat()
        content = read_once(path.resolve(), file.st_ino, file.st_size, file.st_mtime_ns)
        return own_tensors(content)

    patch.setattr(checkpoint, "load_tensors", read_file)


def own_tensors(value: Any) -> Any:
    """Copies the lists, dictionaries and tensors of a checkpoint.

    `deepcopy` takes seven times as long.
    """
    if isinstance(value, dict):
        copied = copy(value)  # its class and its attributes stay
        for key, part in value.items():
            copied[key] = own_tensors(part)
        return copied
    if isinstance(value, list):
        return [own_tensors(part) for part in value]
    if isinstance(value, Tensor):
        return value.clone()
    return value if isinstance(value, (str, int, float, NoneType)) else deepcopy(value)


def reuse_descriptions(patch: pytest.MonkeyPatch) -> None:
    """Builds networks of equal settings once to learn the shapes of their weights."""
    describe = folder.describe_state
    described: dict[str, dict[str, Tensor]] = {}

    def describe_once(config: RegionViTConfig, settings: ModelSettings) -> dict[str, Tensor]:
        key = f"{config} {settings}"
        if key not in described:
            described[key] = describe(config, settings)
        return described[key]

    patch.setattr(folder, "describe_state", describe_once)


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
