"""The commands fit, validate and test: LightningCLI over a task (FERTask, MaskedPretraining) and FaceDataModule."""

import logging
import os
import shlex
import warnings
from argparse import ArgumentError, ArgumentParser
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import lightning as L
import yaml
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO

from fer_vit.errors import FerVitError, suggest_option
from fer_vit.face.crop import CropSpec
from fer_vit.files import json_text, remove_stale_below
from fer_vit.model.attention import has_bf16
from fer_vit.model.config import RegionViTConfig
from fer_vit.processes import dead_worker
from fer_vit.store import folder
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.module import model_settings
from fer_vit.train.run import AtomicCheckpointIO, LastCheckpoint, print_once, run
from fer_vit.train.task import FERTask, MaskedPretraining

Task = Literal["classification", "pretraining"]


class TrainCLI(LightningCLI):
    """LightningCLI that logs to runs/`name`; options override that, and the `settings` of a checkpoint."""

    def __init__(
        self,
        verb: str,
        args: list[str],
        name: str,
        settings: Namespace | None,
        task: Task = "classification",
    ) -> None:
        self.verb, self.settings, self.task = verb, settings, task
        logger = "lightning.pytorch.loggers.TensorBoardLogger"
        super().__init__(
            FERTask if task == "classification" else MaskedPretraining,
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

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links what model and data share, and adds options for checkpoints and for the Trainer's method."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        monitor, mode = (
            ("val/accuracy", "max") if self.task == "classification" else ("val/loss", "min")
        )
        parser.set_defaults(
            {"checkpoint.filename": "best", "checkpoint.monitor": monitor, "checkpoint.mode": mode}
        )
        words = "What is trained: a classifier, or by masked pretraining an encoder from which a classifier starts."
        parser.add_argument("--task", type=Task, default="classification", help=words)
        crop = ("model.network.img_size", "model.network.regions", "model.align", "model.template")
        parser.link_arguments(crop, "data.spec", compute_fn=CropSpec)
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
        """Parses the options on top of the settings of the checkpoint, or of the model to start from."""
        try:
            self.config = parser.parse_args(args, self.settings)
        except ArgumentError as error:
            raise FerVitError(f"{error}{suggest_option(args, parser)}") from error
        if name := self.config.model.get("init"):
            taken = model_settings(folder.read_model(name, pretraining=True)[0])
            self.config = parser.parse_args(args, as_options(taken, taken["network"]))
        if self.verb != "fit" and not self.config.ckpt_path:
            raise FerVitError(
                f"Expected `--ckpt_path FILE`, because `{self.verb}` evaluates a checkpoint."
            )

    def before_instantiate_classes(self) -> None:
        """Checks the precision; replaces bfloat16 by float32 where it would be emulated, many times slower."""
        trainer = self.config.trainer
        self._leave_out_callbacks(trainer)
        if str(trainer.precision) in (
            "bf16-true",
            "16-true",
            "64-true",
            "64",
        ):  # crops and boxes are in float32
            raise FerVitError(
                f"Expected trainer.precision bf16-mixed, 16-mixed or 32, but got {trainer.precision}."
            )
        if trainer.precision == "bf16-mixed" and not has_bf16(trainer.accelerator):
            print_once(
                "This machine has no bfloat16 instructions: training in float32 (see `--trainer.precision`)."
            )
            trainer.precision = "32-true"

    def _leave_out_callbacks(self, trainer: Namespace) -> None:
        """Leaves out the callbacks that need a logger, or checkpoints, where the user wants none."""
        callbacks = self.trainer_defaults["callbacks"]
        if trainer.logger is False:
            callbacks = [item for item in callbacks if not isinstance(item, LearningRateMonitor)]
        if trainer.enable_checkpointing is False:
            callbacks = [item for item in callbacks if not isinstance(item, ModelCheckpoint)]
            self.parser.callback_keys.remove("checkpoint")
        self.trainer_defaults["callbacks"] = callbacks

    def instantiate_classes(self) -> None:
        """Builds everything; raises FerVitError when the configuration has, for example, a list in the wrong place."""
        try:
            super().instantiate_classes()
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise FerVitError(
                f"The configuration has a value of the wrong kind ({reason})."
            ) from error
        strategy = self.trainer.strategy
        if type(strategy.checkpoint_io) is TorchCheckpointIO:  # unless the user chose another
            strategy.checkpoint_io = AtomicCheckpointIO()


def train(args: list[str]) -> str:
    """Runs fit, validate or test with command-line words.

    With `ckpt_path` the settings of the checkpoint are the defaults; options override them. Returns the best checkpoint
    of a fit ("": none was written), or the evaluated one. Raises FerVitError when an option is wrong, or the run fails
    for a known reason.
    """
    hide_noise()
    verb, *words = args
    try:
        cli = build_run(verb, words)
        method = {name: cli.config_init[name] for name in cli.run_options}
        try:
            run(verb, cli.trainer, cli.model, datamodule=cli.datamodule, **method)
        except RuntimeError as error:
            named = dead_worker(error, cli.datamodule.worker_notes)
            if named is None:
                raise
            raise named from error
        if verb != "fit":
            return str(cli.config.ckpt_path)
        callbacks: list[Any] = cli.trainer.checkpoint_callbacks
        best = next((str(item.best_model_path) for item in callbacks if item.monitor), "")
        if best:
            print_once(next_command(cli, best))
        return best
    except (
        ArgumentError,
        MisconfigurationException,
        ModuleNotFoundError,
        RuntimeError,
        ValueError,
    ) as error:
        # An error from a worker has a traceback as its text; the last line is the message.
        lines = (
            str(error).strip().splitlines()[-1:]
            if "Traceback (most recent" in str(error)
            else [str(error)]
        )
        raise FerVitError(" ".join(" ".join(lines).split())) from error


def no_best(config: str | Path) -> FerVitError:
    """Returns the error for a run that wrote no best checkpoint."""
    return FerVitError(
        f"Expected a best checkpoint from the config {config}, but it wrote none. "
        "It needs a validation in every run, checkpoint.monitor and enable_checkpointing."
    )


def next_command(cli: TrainCLI, best: str) -> str:
    """Returns a line with the command that uses a checkpoint."""
    manifest, best = shlex.quote(str(cli.config.data.manifest)), shlex.quote(best)
    if cli.task == "pretraining":
        return f"Next: fer-vit fit --config finetune --model.init {best} --data.manifest MANIFEST"
    return f"Next: fer-vit evaluate {manifest} --checkpoint {best}"


def fit(config: str | Path, **overrides: Any) -> str:
    """Trains with a config (a file or a shipped one) and options: `fit("finetune", **{"data.manifest": path})`."""
    words = ["fit", f"--config={config}"]
    for name, value in overrides.items():
        words.append(
            f"--{name}={json_text(value) if isinstance(value, dict | list | tuple | bool | None) else value}"
        )
    return train(words)


def build_run(verb: str, words: list[str]) -> TrainCLI:
    """Builds everything for a run.

    The task and the checkpoint, whose settings are defaults, are read first, from the options or else from the last
    config that names one. Raises FerVitError when the checkpoint is of another task.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--config", action="append", default=[], type=folder.find_config)
    parser.add_argument("--ckpt_path")
    parser.add_argument("--task")
    given, options = parser.parse_known_args(words)
    first: dict[str, Any] = {}
    for config in given.config:
        with suppress(OSError, TypeError, ValueError, yaml.YAMLError):  # LightningCLI reports them
            first |= yaml.safe_load(Path(config).read_text())
    first |= {name: word for name, word in vars(given).items() if word is not None}
    word = first.get("ckpt_path")
    checkpoint, settings, path = None, None, Path("null" if word is None else str(word))
    task: Task = first.get("task") or "classification"
    if str(path) != "null":
        checkpoint = folder.load_checkpoint(path)
        if verb == "fit":
            remove_stale_below(path.parent)  # of the run that is resumed in a new folder
        task = (
            "pretraining"
            if folder.is_pretraining(checkpoint["hyper_parameters"])
            else "classification"
        )
        if first.get("task", task) != task:
            advice = "A classifier starts from any model by `--model.init`."
            raise FerVitError(
                f"Expected a checkpoint of {first['task']}, but {path} is of {task}. {advice}"
            )
        settings = checkpoint_settings(checkpoint, path)
        options += [
            "--model.network.pretrained=false",
            *["--model.init=null"] * (task == "classification"),
        ]
    options = [
        *(f"--config={config}" for config in given.config),
        *options,
        f"--ckpt_path={path}",
        f"--task={task}",
    ]
    name = next((Path(config).stem for config in given.config if os.path.isfile(config)), "default")
    cli = TrainCLI(verb, options, name, settings, task)
    if checkpoint:  # before the run has a folder
        cli.model.on_load_checkpoint(checkpoint)
    return cli


def checkpoint_settings(checkpoint: dict[str, Any], path: Path) -> Namespace:
    """Returns a checkpoint's settings as parsed options; raises FerVitError when they do not fit the weights."""
    settings, state = folder.unpack_checkpoint(checkpoint, path)
    folder.build_network(settings, state, path)
    hyper = {
        name: value
        for name, value in checkpoint["hyper_parameters"].items()
        if name not in ("labels", "init", "outputs")
    }
    hyper["heads"] = settings["outputs"]  # of the data, there may be others
    return as_options(hyper, settings["config"])


def as_options(settings: dict[str, Any], network: RegionViTConfig) -> Namespace:
    """Returns a model's settings as parsed options of the command line."""
    options = {**settings, "network": Namespace(**asdict(network))}  # type: ignore[no-untyped-call]
    return Namespace(model=Namespace(**options))  # type: ignore[no-untyped-call]


def needs_no_labels(task: Task) -> bool:
    """Whether faces without a label can be learned from; `--help` shows this name."""
    return task == "pretraining"


def hide_noise() -> None:
    """Hides advertisements, and warnings about what is intended here or reported elsewhere."""
    hidden = (
        "Tip: For",
        "An SIGTERMException was",
        "TPU available",
        "Loading `train_dataloader` to estimate",
    )
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda line: not any(words in line.getMessage() for words in hidden)
    )
    for message in (
        ".*sync_dist=True.*accumulate the metric across devices",  # the metrics are already over all processes
        "You're resuming from a checkpoint that ended before the epoch",  # FaceDataModule restores the position
        r".*could not find the monitored key .*: \['epoch', 'step'\]",  # resumed at the end of an epoch: no figures yet
        "The dirpath has changed from",  # LastCheckpoint restores the best score
        r"Found \d+ module\(s\) in eval mode at the start of training",  # from `model.freeze`
        ".*isinstance.treespec, LeafSpec.*",  # Lightning's own use of torch
    ):
        warnings.filterwarnings("ignore", message=message)
