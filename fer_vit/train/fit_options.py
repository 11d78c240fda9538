"""The options of fit, validate and test: LightningCLI over a task and FaceDataModule."""

import sys
from argparse import ArgumentError
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import lightning as L
from jsonargparse import Namespace
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO

from fer_vit.errors import FerVitError, check_number, short, suggest_option
from fer_vit.face.crop import CropSpec, crop_for
from fer_vit.geometry import Align
from fer_vit.imports import search_current_folder
from fer_vit.model.attention import has_bf16
from fer_vit.model.config import RegionViTConfig, check_config
from fer_vit.store.checkpoint import own_settings, unpack_checkpoint
from fer_vit.store.model_folder import build_network, read_model
from fer_vit.train.checkpoints import AtomicCheckpointIO, LastCheckpoint
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.log import log_once
from fer_vit.train.module import DEFAULT_NETWORK, RegionViTModule, class_name
from fer_vit.train.option_errors import describe_option
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.progress import EpochLines
from fer_vit.train.task import FERTask

TaskName = Literal["classification", "pretraining"]
TASKS: dict[str, type[RegionViTModule]] = {  # by `TaskName`
    "classification": FERTask,
    "pretraining": MaskedPretraining,
}

# Precisions in which all weights are converted: these do not fit crops and boxes in float32.
WHOLE_PRECISIONS = ("bf16-true", "16-true", "64-true", "64")


def task_of(task_class: type[RegionViTModule]) -> TaskName:
    """Returns the name of the task of a class."""
    return "pretraining" if issubclass(task_class, MaskedPretraining) else "classification"


def has_no_default_network(task_class: type[RegionViTModule]) -> bool:
    """Returns whether None is the default of the argument `network` of a class, as in FERTask."""
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(task_class, "model")
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
        task_class: type[RegionViTModule] = FERTask,
        other_class: bool = False,
        data_class: type[FaceDataModule] = FaceDataModule,
    ) -> None:
        self.verb = verb
        # whether another class than `task_class` has saved `settings`
        self.other_class = other_class
        self.settings = settings
        self.task_class = task_class
        self.task = task_of(task_class)
        self.data_class = data_class
        logger = "lightning.pytorch.loggers.TensorBoardLogger"
        super().__init__(
            task_class,
            data_class,
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
            parser_kwargs={
                "exit_on_error": False,
                "prog": f"fer-vit {verb}",
                "allow_abbrev": False,  # --trainer.max_epoch would be max_epochs
            },
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of the Trainer, the task, its network and the data.

        jsonargparse lists no options of a network that is None by default, so these are added here.
        """
        parser.add_lightning_class_args(L.Trainer, "trainer")
        defaults = {f"trainer.{name}": value for name, value in self.trainer_defaults.items()}
        del defaults["trainer.callbacks"]  # LightningCLI adds them
        parser.set_defaults(defaults)

        if has_no_default_network(self.task_class):
            parser.add_class_arguments(
                self.task_class, "model", skip={"network"}, fail_untyped=False, sub_configs=True
            )
            parser.add_class_arguments(
                RegionViTConfig, "model.network", default=asdict(DEFAULT_NETWORK), sub_configs=True
            )
        else:
            parser.add_lightning_class_args(self.task_class, "model")
        parser.add_lightning_class_args(self.data_class, "data")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds options for checkpoints and the Trainer's method, and links between them."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        checkpoint = {"filename": "best", "monitor": "val/loss", "mode": "min"}
        if self.task == "classification":
            checkpoint |= {"monitor": "val/accuracy", "mode": "max"}
        parser.set_defaults({f"checkpoint.{name}": value for name, value in checkpoint.items()})
        parser.add_argument(
            "--task",
            type=TaskName,
            default=self.task,
            help="What is trained: a classifier; or an encoder by masked pretraining, from which a "
            "classifier can start.",
        )
        # argparse has no public list of its options, whose help is replaced below
        options = {action.dest: action for action in parser._actions}
        needed = ["model.network", "model.align", "model.template", "data.spec", "data.unlabelled"]
        if self.task == "classification":
            needed += ["model.labels", "model.outputs"]
        for option in needed:
            if option not in options:
                group, _, name = option.partition(".")
                named = self.task_class if group == "model" else self.data_class
                base = "FERTask" if group == "model" else "FaceDataModule"
                raise FerVitError(
                    f"Expected {named.__name__} to have the argument `{name}` of {base}. "
                    "Pass further options on: `def __init__(self, **options)`."
                )
        options["model"].help = (
            "A subclass of fer_vit.FERTask, for example my_module.MyTask, whose arguments are "
            "options; or the path of a config of the model."
        )
        options["data"].help = (
            "A subclass of fer_vit.FaceDataModule, for example my_module.MyData, whose arguments "
            "are options; or the path of a config of the data."
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
            try:
                self.config = parser.parse_args(args, self.settings)
            except ArgumentError as error:
                if "No module named" not in str(error):
                    raise
                search_current_folder()  # a callback or logger of the user
                self.config = parser.parse_args(args, self.settings)
        except ArgumentError as error:
            reason = describe_option(str(error))
            names = [name for action in parser._actions for name in action.option_strings]
            raise FerVitError(f"{reason}{suggest_option(args, names)}") from error
        init = self.config.model.get("init")
        if init:
            start = read_model(init, pretraining=True)
            crop = start.settings.crop
            settings = {"align": crop.align, "template": crop.template}
            self.config = parser.parse_args(args, as_options(settings, start.config))
        if self.verb != "fit" and not self.config.ckpt_path:
            raise FerVitError(
                f"Expected `--ckpt_path FILE`, because `{self.verb}` evaluates a checkpoint."
            )

    def _leave_out_settings(self, parser: LightningArgumentParser, settings: Namespace) -> None:
        """Leaves out the settings of a checkpoint that the user's class does not have."""
        known = {action.dest for action in parser._actions}
        left_out = [name for name in vars(settings) if f"model.{name}" not in known]
        for name in left_out:
            del settings[name]
        if left_out:
            log_once(
                f"{self.task_class.__name__} has no option {', '.join(left_out)}: left out from "
                "the settings of the checkpoint."
            )

    def before_instantiate_classes(self) -> None:
        """Checks counts and precision; replaces bfloat16 by float32 where it would be emulated."""
        trainer = self.config.trainer
        check_counts(trainer)
        self._choose_callbacks(trainer)
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

    def _choose_callbacks(self, trainer: Namespace) -> None:
        """Leaves out callbacks without a logger or checkpoints; adds lines without a progress bar.

        Without a logger, a run has no folder: config.yaml would be written to the current folder,
        where it would stop the next run.
        """
        callbacks = self.trainer_defaults["callbacks"]
        if trainer.logger is False:
            self.save_config_callback = None
            log_once("Without a logger, config.yaml with the options of this run is not written.")
            callbacks = [item for item in callbacks if not isinstance(item, LearningRateMonitor)]
        if trainer.enable_checkpointing is False:
            callbacks = [item for item in callbacks if not isinstance(item, ModelCheckpoint)]
            self.parser.callback_keys.remove("checkpoint")
        if trainer.enable_progress_bar is None:
            trainer.enable_progress_bar = sys.stdout.isatty()
        if not trainer.enable_progress_bar:
            callbacks = [*callbacks, EpochLines()]
        self.trainer_defaults["callbacks"] = callbacks

    def instantiate_classes(self) -> None:
        """Builds everything; raises FerVitError for values of the wrong kind in a configuration."""
        network = self.config.model.get("network")
        try:
            if network:
                names = [item.name for item in fields(RegionViTConfig)]
                check_config(RegionViTConfig(**{name: network[name] for name in names}))
            super().instantiate_classes()
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            name = class_name(self.task_class)
            cause = f"{name} failed, or the" if name else "The"
            raise FerVitError(
                f"{cause} configuration has a value of the wrong kind ({reason})."
            ) from error
        strategy = self.trainer.strategy
        if type(strategy.checkpoint_io) is TorchCheckpointIO:  # unless the user chose another
            strategy.checkpoint_io = AtomicCheckpointIO()


LIMITS = ("max_epochs", "max_steps")  # options of the Trainer for which -1 is no limit
POSITIVE = (  # options of the Trainer by which Lightning divides, or with which 0 trains nothing
    *LIMITS,
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "limit_train_batches",
    "val_check_interval",
)


def check_counts(trainer: Namespace) -> None:
    """Raises FerVitError when an option of the Trainer is a number that makes no sense."""
    for name in POSITIVE:
        value = trainer[name]
        unlimited = name in LIMITS and value == -1
        if isinstance(value, int | float) and not value > 0 and not unlimited:
            raise FerVitError(f"Expected `--trainer.{name}` to be above 0, but got {short(value)}.")
    check_number("trainer.gradient_clip_val", trainer.gradient_clip_val or 0, 0)


def checkpoint_settings(checkpoint: dict[str, Any], path: Path, custom: bool = False) -> Namespace:
    """Returns a checkpoint's settings as parsed options.

    Raises:
        FerVitError: The settings do not fit the weights. This is not checked for a `custom` task,
            because its class may have changed the network.
    """
    model = unpack_checkpoint(checkpoint, path)
    if not custom:
        build_network(model)
    settings = {}
    for name, value in own_settings(checkpoint).items():
        if name not in ("labels", "outputs"):
            settings[name] = value
    if model.settings.labels:
        settings["heads"] = model.settings.outputs.plain  # the data may have targets of other heads
    return as_options(settings, model.config)


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
    """Returns how a face is cropped, by the options of a task. `--help` shows this name."""
    return crop_for(size, regions, align, template)


def needs_no_labels(task: TaskName) -> bool:
    """Returns whether a task learns from faces without a label. `--help` shows this name."""
    return task == "pretraining"
