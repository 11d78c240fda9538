"""The commands fit, validate and test: LightningCLI over a task and FaceDataModule.

The task is FERTask, MaskedPretraining or, with `--model my_module.MyTask`, a subclass of either.
"""

import logging
import os
import shlex
import warnings
from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lightning as L
import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO

from fer_vit.errors import FerVitError, check_number, describe_option, short, suggest_option
from fer_vit.face.crop import CropSpec, crop_for
from fer_vit.files import json_text, remove_stale_below
from fer_vit.geometry import Align
from fer_vit.model.attention import has_bf16
from fer_vit.model.config import RegionViTConfig
from fer_vit.processes import dead_worker_error
from fer_vit.store.checkpoint import is_pretraining, load_checkpoint, unpack_checkpoint
from fer_vit.store.configs import find_config
from fer_vit.store.folder import build_network, classifier_command, read_model
from fer_vit.train.checkpoints import AtomicCheckpointIO, LastCheckpoint
from fer_vit.train.custom import import_task
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.log import log_once
from fer_vit.train.module import NETWORK, RegionViTModule, class_name
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.run import run
from fer_vit.train.starting import model_settings
from fer_vit.train.task import FERTask

Task = Literal["classification", "pretraining"]
TASKS: dict[str, type[RegionViTModule]] = {
    "classification": FERTask,
    "pretraining": MaskedPretraining,
}


# Weights in one precision do not fit crops and boxes, which are in float32.
WHOLE_PRECISIONS = ("bf16-true", "16-true", "64-true", "64")


def task_of(kind: type[RegionViTModule]) -> Task:
    """Returns what a class trains."""
    return "pretraining" if issubclass(kind, MaskedPretraining) else "classification"


def has_no_default_network(kind: type[RegionViTModule]) -> bool:
    """Returns whether None is the default of the network of a class, as of FERTask."""
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(kind, "model")
    settings = parser.get_defaults().model
    return "network" in settings and settings.network is None


class TrainCLI(LightningCLI):
    """LightningCLI that logs to runs/`name`; options override the `settings` of a checkpoint."""

    def __init__(
        self,
        verb: str,
        args: list[str],
        name: str,
        settings: Namespace | None,
        kind: type[RegionViTModule] = FERTask,
        other_class: bool = False,
    ) -> None:
        self.verb = verb
        self.other_class = other_class  # whether `settings` are of another class than `kind`
        self.settings = settings
        self.kind = kind
        self.task = task_of(kind)
        logger = "lightning.pytorch.loggers.TensorBoardLogger"
        super().__init__(
            kind,
            FaceDataModule,
            args=args,
            run=False,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            trainer_defaults={
                "callbacks": [LearningRateMonitor("step"), LastCheckpoint()],
                "enable_model_summary": False,  # `run` prints a line instead
                "logger": {"class_path": logger, "init_args": {"save_dir": "runs", "name": name}},
            },
            parser_kwargs={"exit_on_error": False, "prog": f"fer-vit {verb}"},
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of the Trainer, the task, its network and the data.

        jsonargparse lists no options of a network that is None by default; so they are added here.
        """
        parser.add_lightning_class_args(L.Trainer, "trainer")
        defaults = {f"trainer.{name}": value for name, value in self.trainer_defaults.items()}
        del defaults["trainer.callbacks"]  # LightningCLI adds them
        parser.set_defaults(defaults)

        if has_no_default_network(self.kind):
            parser.add_class_arguments(
                self.kind, "model", skip={"network"}, fail_untyped=False, sub_configs=True
            )
            parser.add_class_arguments(
                RegionViTConfig, "model.network", default=asdict(NETWORK), sub_configs=True
            )
        else:
            parser.add_lightning_class_args(self.kind, "model")
        parser.add_lightning_class_args(FaceDataModule, "data")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds options for checkpoints and the Trainer's method, and links between them."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        checkpoint = {"filename": "best", "monitor": "val/loss", "mode": "min"}
        if self.task == "classification":
            checkpoint |= {"monitor": "val/accuracy", "mode": "max"}
        parser.set_defaults({f"checkpoint.{name}": value for name, value in checkpoint.items()})
        parser.add_argument(
            "--task",
            type=Task,
            default=self.task,
            help="What is trained: a classifier, or by masked pretraining an encoder from which a "
            "classifier starts.",
        )
        options = {action.dest: action for action in parser._actions}
        needed = ["network", "align", "template"]
        if self.task == "classification":
            needed += ["labels", "outputs"]
        for name in needed:
            if f"model.{name}" not in options:
                raise FerVitError(
                    f"Expected {self.kind.__name__} to have the argument `{name}` of FERTask. "
                    "Pass further options on: `def __init__(self, **options)`."
                )
        options["model"].help = (
            "A subclass of fer_vit.FERTask, for example my_module.MyTask, whose arguments are "
            "options; or the path of a config of the model."
        )
        crop = ("model.network.img_size", "model.network.regions", "model.align", "model.template")
        parser.link_arguments(crop, "data.spec", compute_fn=crop_spec)
        parser.link_arguments("task", "data.unlabelled", compute_fn=needs_no_labels)
        if self.task == "classification":
            parser.link_arguments("data.labels", "model.labels", apply_on="instantiate")
            parser.link_arguments("data.outputs", "model.outputs", apply_on="instantiate")
        filled_in = {
            "model",
            "datamodule",
            "dataloaders",
            "train_dataloaders",
            "val_dataloaders",
            "weights_only",
        }
        self.run_options = parser.add_method_arguments(L.Trainer, self.verb, skip=filled_in)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses the options on top of the settings of the checkpoint, or the model of `init`."""
        if self.settings and self.other_class:
            self._leave_out_settings(parser, self.settings.model)
        try:
            self.config = parser.parse_args(args, self.settings)
        except ArgumentError as error:
            reason = describe_option(str(error))
            raise FerVitError(f"{reason}{suggest_option(args, parser)}") from error
        init = self.config.model.get("init")
        if init:
            settings, _ = read_model(init, pretraining=True)
            taken = model_settings(settings)
            self.config = parser.parse_args(args, as_options(taken, taken["network"]))
        if self.verb != "fit" and not self.config.ckpt_path:
            raise FerVitError(
                f"Expected `--ckpt_path FILE`, because `{self.verb}` evaluates a checkpoint."
            )

    def _leave_out_settings(self, parser: LightningArgumentParser, settings: Namespace) -> None:
        """Leaves out the settings of a checkpoint that the user's other class does not have."""
        known = {action.dest for action in parser._actions}
        left_out = [name for name in vars(settings) if f"model.{name}" not in known]
        for name in left_out:
            del settings[name]
        if left_out:
            log_once(
                f"{self.kind.__name__} has no option {', '.join(left_out)}: left out from the "
                "settings of the checkpoint."
            )

    def before_instantiate_classes(self) -> None:
        """Checks counts and precision; replaces bfloat16 by float32 where it would be emulated."""
        trainer = self.config.trainer
        check_counts(trainer)
        self._leave_out_callbacks(trainer)
        if str(trainer.precision) in WHOLE_PRECISIONS:
            raise FerVitError(
                "Expected `--trainer.precision` to be bf16-mixed, 16-mixed or 32, but got "
                f"{trainer.precision}."
            )
        if trainer.precision == "bf16-mixed" and not has_bf16(trainer.accelerator):
            log_once(
                "This machine has no bfloat16 instructions: training in float32 (see "
                "`--trainer.precision`)."
            )
            trainer.precision = "32-true"

    def _leave_out_callbacks(self, trainer: Namespace) -> None:
        """Leaves out the callbacks that need a logger or checkpoints if the user wants none.

        Without a logger there is no folder of the run: config.yaml would be written to the current
        one, where it would stop the next run.
        """
        callbacks = self.trainer_defaults["callbacks"]
        if trainer.logger is False:
            self.save_config_callback = None
            log_once("Without a logger, config.yaml with the options of this run is not written.")
            callbacks = [item for item in callbacks if not isinstance(item, LearningRateMonitor)]
        if trainer.enable_checkpointing is False:
            callbacks = [item for item in callbacks if not isinstance(item, ModelCheckpoint)]
            self.parser.callback_keys.remove("checkpoint")
        self.trainer_defaults["callbacks"] = callbacks

    def instantiate_classes(self) -> None:
        """Builds everything; raises FerVitError for values of the wrong kind in a configuration."""
        try:
            super().instantiate_classes()
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            name = class_name(self.kind)
            cause = f"{name} failed, or the" if name else "The"
            raise FerVitError(
                f"{cause} configuration has a value of the wrong kind ({reason})."
            ) from error
        strategy = self.trainer.strategy
        if type(strategy.checkpoint_io) is TorchCheckpointIO:  # unless the user chose another
            strategy.checkpoint_io = AtomicCheckpointIO()


LIMITS = ("max_epochs", "max_steps")
"""Options of the Trainer for which -1 is no limit."""
POSITIVE = (
    *LIMITS,
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "limit_train_batches",
    "val_check_interval",
)
"""Options of the Trainer by which Lightning divides, or with which 0 trains nothing."""


def check_counts(trainer: Namespace) -> None:
    """Raises FerVitError when an option of the Trainer is a number that makes no sense."""
    for name in POSITIVE:
        value = trainer[name]
        unlimited = name in LIMITS and value == -1
        if isinstance(value, int | float) and not value > 0 and not unlimited:
            raise FerVitError(f"Expected `--trainer.{name}` to be above 0, but got {short(value)}.")
    check_number("trainer.gradient_clip_val", trainer.gradient_clip_val or 0, 0)


def train(args: list[str]) -> str:
    """Runs fit, validate or test with command-line words.

    With `ckpt_path` the settings of the checkpoint are the defaults; options override them. Returns
    the best checkpoint of a fit ("": none was written), or the evaluated one. Raises FerVitError
    when an option is wrong, or the run fails for a known reason.
    """
    hide_noise()
    verb, *words = args
    try:
        cli = build_run(verb, words)
        method = {name: cli.config_init[name] for name in cli.run_options}
        try:
            run(verb, cli.trainer, cli.model, datamodule=cli.datamodule, **method)
        except RuntimeError as error:
            named = dead_worker_error(error, cli.datamodule.worker_notes)
            if named is None:
                raise
            raise named from error
        if verb != "fit":
            return str(cli.config.ckpt_path)
        best = best_checkpoint(cli.trainer)
        if best:
            log_once(next_command(cli, best))
        elif best is not None:
            log_once("No best checkpoint was written: without a validation there is none.")
        return best or ""
    except (
        ArgumentError,
        MisconfigurationException,
        ModuleNotFoundError,
        RuntimeError,
        ValueError,
    ) as error:
        message = str(error).strip()
        # An error from a worker has a traceback as its text; the last line is the message.
        if "Traceback (most recent" in message:
            message = message.splitlines()[-1]
        raise FerVitError(" ".join(message.split())) from error


def best_checkpoint(trainer: L.Trainer) -> str | None:
    """Returns the path of the best checkpoint of a fit; empty if no epoch was validated.

    None: none was wanted, as after `--trainer.enable_checkpointing false` or in a dry run.
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
    name = class_name(cli.kind)
    if name:
        command += ["--model", name]
    return f"Next: fer-vit {shlex.join(command)}"


def fit(config: str | Path, words: Sequence[str] = (), **overrides: Any) -> str:
    """Trains with a config and options.

    Args:
        config: A file or a shipped config.
        words: Options as words of the command line, such as `--trainer.max_epochs=3`.
        **overrides: Options by name, which win: `fit("finetune", **{"data.manifest": path})`.

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
        return train(line)
    except FerVitError as error:
        error.with_groups = True  # names like `model.lr` are what this function takes
        raise


class RunWords(NamedTuple):
    """What a run needs to know before its options can be parsed."""

    options: list[str]  # the other words of the command line
    configs: list[str]  # paths
    checkpoint: Path | None
    model: str | None  # the class of a user's task
    task: Task | None


def read_words(words: list[str]) -> RunWords:
    """Reads task and checkpoint from the options, or else from the last config that names one."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--config", action="append", default=[], type=find_config)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--task")
    parser.add_argument("--model")
    given, options = parser.parse_known_args(words)

    settings: dict[str, Any] = {}
    for config in given.config:
        with suppress(OSError, TypeError, ValueError, yaml.YAMLError):  # LightningCLI reports them
            settings |= yaml.safe_load(Path(config).read_text("utf-8"))
    model = settings.get("model")
    if isinstance(model, dict) and "class_path" in model:
        raise FerVitError(
            "Expected the options of the task under `model` in a config, but got class_path. "
            f"Name the class by `--model {short(model['class_path'])}`."
        )
    task = settings.get("task") if given.task is None else given.task
    checkpoint = settings.get("ckpt_path") if given.ckpt_path is None else given.ckpt_path

    model = given.model
    if model and os.path.isfile(model):  # a config of the model alone
        options = [f"--model={model}", *options]
        model = None
    return RunWords(
        options=options,
        configs=given.config,
        checkpoint=None if checkpoint in (None, "null") else Path(str(checkpoint)),
        model=model,
        task=task,
    )


def build_run(verb: str, words: list[str]) -> TrainCLI:
    """Builds everything for a run; the settings of a checkpoint are defaults.

    Raises:
        FerVitError: An option is wrong, or the checkpoint is of another task.
    """
    given = read_words(words)
    kind = TASKS.get(given.task or "", FERTask)
    if given.model is not None:
        kind = import_task(given.model)
    if given.model is not None and given.task not in (None, task_of(kind)):
        raise FerVitError(
            f"Expected a task of {given.task}, but {given.model} is of {task_of(kind)}. "
            "Leave out `--task`."
        )

    options = [f"--config={config}" for config in given.configs]
    options += given.options
    checkpoint = None
    settings = None
    other_class = False
    if given.checkpoint:
        checkpoint = load_checkpoint(given.checkpoint)
        kind = check_task(checkpoint, given, kind)
        other_class = checkpoint.get("task_class", "") != class_name(kind)
        settings = checkpoint_settings(checkpoint, given.checkpoint, custom=given.model is not None)
        if verb == "fit":
            # of the run that is resumed in a new folder
            remove_stale_below(given.checkpoint.parent)
        options.append("--model.network.pretrained=false")
        if task_of(kind) == "classification":
            options.append("--model.init=null")
    options.append(f"--ckpt_path={given.checkpoint or 'null'}")
    options.append(f"--task={given.task or task_of(kind)}")

    files = [Path(config).stem for config in given.configs if os.path.isfile(config)]
    cli = TrainCLI(
        verb=verb,
        args=options,
        name=files[0] if files else "default",
        settings=settings,
        kind=kind,
        other_class=other_class,
    )
    if checkpoint:  # before the run has a folder
        cli.model.on_load_checkpoint(checkpoint)
    return cli


def check_task(
    checkpoint: dict[str, Any], given: RunWords, kind: type[RegionViTModule]
) -> type[RegionViTModule]:
    """Returns the class that continues a checkpoint: `kind` if the user has named it or its task.

    Raises:
        FerVitError: The checkpoint is of another task, or a class of the user has trained it.
    """
    pretraining = is_pretraining(checkpoint["hyper_parameters"])
    task: Task = "pretraining" if pretraining else "classification"
    wanted = given.task if given.model is None else task_of(kind)
    if wanted not in (None, task):
        raise FerVitError(
            f"Expected a checkpoint of {wanted}, but {given.checkpoint} is of {task}. "
            "A classifier starts from any model by `--model.init`."
        )
    if given.model is not None:
        return kind
    trained_by = checkpoint.get("task_class")
    if trained_by:
        raise FerVitError(
            f"{given.checkpoint} was trained by {short(trained_by)}. Repeat "
            f"`--model {short(trained_by)}`; `--model fer_vit.FERTask` continues without it."
        )
    return TASKS[task]


def checkpoint_settings(checkpoint: dict[str, Any], path: Path, custom: bool = False) -> Namespace:
    """Returns a checkpoint's settings as parsed options.

    Raises:
        FerVitError: They do not fit the weights; not checked for a `custom` task, which may have
            changed the network.
    """
    settings, state = unpack_checkpoint(checkpoint, path)
    if not custom:
        build_network(settings, state, path)
    hyper = {}
    for name, value in checkpoint["hyper_parameters"].items():
        if name not in ("labels", "init", "outputs") and not name.startswith("_"):
            hyper[name] = value
    if settings["labels"]:
        hyper["heads"] = settings["outputs"]  # of the data, there may be others
    return as_options(hyper, settings["config"])


def as_options(settings: dict[str, Any], network: RegionViTConfig) -> Namespace:
    """Returns a model's settings as parsed options of the command line."""
    options = {**settings, "network": Namespace(**asdict(network))}  # type: ignore[no-untyped-call]
    return Namespace(model=Namespace(**options))  # type: ignore[no-untyped-call]


def crop_spec(
    size: int,
    regions: tuple[str, ...],
    align: Align | None,
    template: tuple[tuple[float, float], ...] | None,
) -> CropSpec:
    """How a face is cropped, by the options of a task; `--help` shows this name."""
    return crop_for(size, regions, align, template)


def needs_no_labels(task: Task) -> bool:
    """Whether faces without a label can be learned from; `--help` shows this name."""
    return task == "pretraining"


ADVERTISEMENTS = (
    "Tip: For",
    "An SIGTERMException was",
    "TPU available",
    "Loading `train_dataloader` to estimate",
)
"""Lines of Lightning's log that are hidden."""
EXPECTED = (
    # the metrics are already over all processes
    ".*sync_dist=True.*accumulate the metric across devices",
    # FaceDataModule restores the position
    "You're resuming from a checkpoint that ended before the epoch",
    # resumed at the end of an epoch: no figures yet
    r".*could not find the monitored key .*: \['epoch', 'step'\]",
    # LastCheckpoint restores the best score
    "The dirpath has changed from",
    # from `model.freeze`
    r"Found \d+ module\(s\) in eval mode at the start of training",
    # Lightning's own use of torch
    ".*isinstance.treespec, LeafSpec.*",
)
"""Warnings about what is intended here or reported elsewhere."""


def is_news(line: logging.LogRecord) -> bool:
    """Returns whether a line of Lightning's log is none of `ADVERTISEMENTS`."""
    message = line.getMessage()
    return not any(words in message for words in ADVERTISEMENTS)


def hide_noise() -> None:
    """Hides advertisements, and warnings about what is intended here or reported elsewhere."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(is_news)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)
