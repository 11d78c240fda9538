"""The commands fit, validate and test.

The task is FERTask, MaskedPretraining or, with `--model my_module.MyTask`, a subclass of either.
"""

import os
import shlex
from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException

from fer_vit.errors import FerVitError, short
from fer_vit.files import clear_remains_in
from fer_vit.store.checkpoint import is_pretraining, load_checkpoint
from fer_vit.store.config_files import find_config
from fer_vit.store.model_folder import classifier_command
from fer_vit.texts import json_text
from fer_vit.train.custom import import_class, import_task
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.fit_options import TASKS, TaskName, TrainCLI, checkpoint_settings, task_of
from fer_vit.train.log import hide_noise, log_once
from fer_vit.train.module import RegionViTModule, class_name
from fer_vit.train.run import run_trainer
from fer_vit.train.task import FERTask


def train(args: list[str], *, name_next: bool = True) -> str:
    """Runs fit, validate or test with command-line words; returns the path of a checkpoint.

    This is the best checkpoint of a fit ("": none was written), or the evaluated one. With
    `ckpt_path`, the settings of the checkpoint are the defaults; options override them. A fit
    names the next command if `name_next`. Raises FerVitError when an option is wrong, or the run
    fails for a known reason.
    """
    hide_noise()
    verb, *words = args
    try:
        cli = build_run(verb, words)
        method = {name: cli.config_init[name] for name in cli.run_options}
        try:
            run_trainer(verb, cli.trainer, cli.model, datamodule=cli.datamodule, **method)
        except (RuntimeError, ConnectionResetError, EOFError) as error:
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            # a worker that dies while it sends a batch breaks its connection
            raise FerVitError(
                "A worker process died, perhaps for lack of memory or in a decoder. Try fewer "
                "`--data.num_workers`; 0 needs no worker."
            ) from error
        if verb != "fit":
            return str(cli.config.ckpt_path)
        best = best_checkpoint(cli.trainer)
        if best and name_next:
            log_once(next_command(cli, best))
        elif best == "":
            log_once("No best checkpoint was written: without a validation there is none.")
        return best or ""
    except torch.OutOfMemoryError:
        raise  # the command line names the remedy
    except (
        ArgumentError,
        MisconfigurationException,
        ModuleNotFoundError,
        RuntimeError,
        ValueError,
    ) as error:
        message = str(error).strip()
        # The text of a worker's error is a traceback with the message in the last line.
        if "Traceback (most recent" in message:
            message = message.splitlines()[-1]
        raise FerVitError(" ".join(message.split())) from error


def best_checkpoint(trainer: L.Trainer) -> str | None:
    """Returns the path of the best checkpoint of a fit; "" if no epoch was validated.

    Returns None if no checkpoint was wanted, as by `--trainer.enable_checkpointing false` or in a
    dry run.
    """
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return None
    callbacks: list[Any] = trainer.checkpoint_callbacks
    for callback in callbacks:
        if callback.monitor and callback.save_top_k != 0:
            return str(callback.best_model_path)
    return None


def next_command(cli: TrainCLI, best: str) -> str:
    """Returns a line with the command that uses a checkpoint."""
    if cli.task == "pretraining":
        return f"Next: {classifier_command(best)}"
    command = ["evaluate", str(cli.config.data.manifest), "--checkpoint", best]
    name = class_name(cli.task_class)
    if name:
        command += ["--model", name]
    return f"Next: fer-vit {shlex.join(command)}"


def fit(config: str | Path, words: Sequence[str] = (), **overrides: Any) -> str:
    """Trains with a config and options.

    Args:
        config: A file or a shipped config.
        words: Options as words of the command line, such as `--trainer.max_epochs=3`.
        **overrides: Options by name, such as `**{"data.manifest": path}`; they win over `words`.

    Returns:
        The best checkpoint; "" if none was written.

    Raises:
        FerVitError: As for `train`.
    """
    line = ["fit", f"--config={config}", *words]
    for name, value in overrides.items():
        as_json = isinstance(value, dict | list | tuple | bool | None)
        line.append(f"--{name}={json_text(value) if as_json else value}")
    try:
        return train(line, name_next=False)
    except FerVitError as error:
        error.with_groups = True  # this function takes names such as `model.lr`
        raise


# Names in a config that have options below them.
CONFIG_GROUPS = ("model", "data", "trainer", "checkpoint")


class RunWords(NamedTuple):
    """The words of the command line that are read before the options can be parsed."""

    options: list[str]  # the other words of the command line
    configs: list[str]  # paths of configs
    checkpoint: Path | None
    model: str | None  # the class of a user's task
    data: str | None  # the class of a user's data module
    task: TaskName | None


def read_words(words: list[str]) -> RunWords:
    """Reads the class from the options; task and checkpoint else from the last config with them."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--config", action="append", default=[], type=find_config)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--task")
    parser.add_argument("--model")
    parser.add_argument("--data")
    given, options = parser.parse_known_args(words)

    settings: dict[str, Any] = {}
    for config in given.config:
        try:
            content = yaml.safe_load(Path(config).read_text("utf-8"))
            settings |= content
        except (OSError, TypeError, ValueError, yaml.YAMLError):  # LightningCLI reports these
            continue
        for name in CONFIG_GROUPS:
            if name in content and content[name] is None:
                raise FerVitError(
                    f"Expected options below `{name}:` in {config}, but got none. Add some, or "
                    "leave out the line."
                )
    for group in ("model", "data"):
        content = settings.get(group)
        if isinstance(content, dict) and "class_path" in content:
            raise FerVitError(
                f"Expected the options of a class under `{group}` in a config, but got class_path. "
                f"Name the class by `--{group} {short(content['class_path'])}`."
            )
    task = settings.get("task") if given.task is None else given.task
    checkpoint = settings.get("ckpt_path") if given.ckpt_path is None else given.ckpt_path

    classes = {"model": given.model, "data": given.data}
    for group, name in classes.items():
        if name and os.path.isfile(name):  # a config of the group alone
            options = [f"--{group}={name}", *options]
            classes[group] = None
    return RunWords(
        options=options,
        configs=given.config,
        checkpoint=None if checkpoint in (None, "null") else Path(str(checkpoint)),
        model=classes["model"],
        data=classes["data"],
        task=task,
    )


def build_run(verb: str, words: list[str]) -> TrainCLI:
    """Builds everything for a run; the settings of a checkpoint are defaults.

    Raises:
        FerVitError: An option is wrong, or the checkpoint is of another task.
    """
    given = read_words(words)
    task_class = TASKS.get(given.task or "", FERTask)
    if given.model is not None:
        task_class = import_task(given.model)
    if given.model is not None and given.task not in (None, task_of(task_class)):
        raise FerVitError(
            f"Expected a task of {given.task}, but {given.model} is of {task_of(task_class)}. "
            "Remove `--task`."
        )

    options = [f"--config={config}" for config in given.configs]
    options += given.options
    checkpoint = None
    settings = None
    other_class = False
    if given.checkpoint:
        checkpoint = load_checkpoint(given.checkpoint)
        task_class = class_to_continue(checkpoint, given, task_class)
        if verb == "fit":
            check_data(checkpoint, given)
        other_class = checkpoint.get("task_class", "") != class_name(task_class)
        settings = checkpoint_settings(checkpoint, given.checkpoint, custom=given.model is not None)
        if verb == "fit":
            # The run resumes in a new folder, so remains in the former one are cleared here.
            clear_remains_in(given.checkpoint.parent)
        options.append("--model.network.pretrained=false")
        if task_of(task_class) == "classification":
            options.append("--model.init=null")
    options.append(f"--ckpt_path={given.checkpoint or 'null'}")
    options.append(f"--task={given.task or task_of(task_class)}")

    data_class: type[FaceDataModule] = FaceDataModule
    if given.data:
        data_class = import_class("data", given.data, (FaceDataModule,))

    files = [Path(config).stem for config in given.configs if os.path.isfile(config)]
    cli = TrainCLI(
        verb=verb,
        args=options,
        name=files[0] if files else "default",
        settings=settings,
        task_class=task_class,
        other_class=other_class,
        data_class=data_class,
    )
    if checkpoint and given.checkpoint:  # errors are raised before the run creates a folder
        cli.model.on_load_checkpoint(checkpoint)
        if verb == "fit":
            cli.model.check_resumed(checkpoint, given.checkpoint, cli.trainer)
    return cli


def class_to_continue(
    checkpoint: dict[str, Any], given: RunWords, task_class: type[RegionViTModule]
) -> type[RegionViTModule]:
    """Returns the class that continues a checkpoint.

    This is `task_class` if the user has named a class, else FERTask or MaskedPretraining, as the
    checkpoint requires.

    Raises:
        FerVitError: The checkpoint is of another task, or was trained by a user's class that is not
            named.
    """
    pretraining = is_pretraining(checkpoint["hyper_parameters"])
    task: TaskName = "pretraining" if pretraining else "classification"
    if given.model is not None:
        check_task(task, task_of(task_class), given.checkpoint)
        return task_class
    if given.task is not None:
        check_task(task, given.task, given.checkpoint)
    trained_by = checkpoint.get("task_class")
    if trained_by:
        raise FerVitError(
            f"{given.checkpoint} was trained by {short(trained_by)}. Repeat "
            f"`--model {short(trained_by)}`; `--model fer_vit.FERTask` continues without it."
        )
    return TASKS[task]


def check_data(checkpoint: dict[str, Any], given: RunWords) -> None:
    """Raises FerVitError when a user's data module, whose position is resumed, is not repeated."""
    trained_by = checkpoint.get("data_class")
    if trained_by and trained_by != given.data:
        raise FerVitError(
            f"{given.checkpoint} was trained with the data of {short(trained_by)}. Repeat "
            f"`--data {short(trained_by)}`."
        )


def check_task(task: TaskName, wanted: TaskName, checkpoint: Path | None) -> None:
    """Raises FerVitError when the task of a checkpoint is not the wanted one."""
    if task != wanted:
        raise FerVitError(
            f"Expected a checkpoint of {wanted}, but {checkpoint} is of {task}. "
            "A classifier starts from any model by `--model.init`."
        )
