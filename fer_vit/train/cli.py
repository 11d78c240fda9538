"""The verbs fit, validate and test: LightningCLI over FERTask and FaceDataModule."""

import logging
import signal
import sys
import tempfile
import warnings
from argparse import ArgumentError
from errno import ENOSPC
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fer_vit.errors import FerVitError
from fer_vit.model.cost import describe
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.folder import load_network
from fer_vit.train.checkpoints import AtomicCheckpointIO, LastCheckpoint, newest_checkpoint
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.results import ResultWriter
from fer_vit.train.task import FERTask


class TrainCLI(LightningCLI):
    """LightningCLI whose model and data agree on sizes, regions and labels."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The verbs, and the arguments of the Trainer's methods that the command line fills in itself."""
        given = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders", "weights_only"}
        return dict.fromkeys(("fit", "validate", "test"), given)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links what the model says to the data, and adds the checkpoint's options."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "checkpoint.filename": "best",
                "checkpoint.monitor": "val/accuracy",
                "checkpoint.mode": "max",
            }
        )
        parser.link_arguments("model.network.img_size", "data.size")
        parser.link_arguments("model.network.regions", "data.regions")
        parser.link_arguments("model.align", "data.align")
        parser.link_arguments("model.template", "data.template")
        parser.link_arguments("data.labels", "model.labels", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses the words that are given, whatever the process was called with."""
        self.config = parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        """Computes in float32 where bfloat16 would be emulated, which is many times slower."""
        trainer = self.config[self.subcommand].trainer
        if trainer.precision == "bf16-mixed" and not has_bf16(trainer.accelerator):
            print_once(
                "This machine does not compute in bfloat16: training in float32 (`--trainer.precision` says which)."
            )
            trainer.precision = "32-true"

    def instantiate_classes(self) -> None:
        """Builds everything, and compares the model with the checkpoint before the run has a folder."""
        try:
            super().instantiate_classes()
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
            # A config may say null or a list anywhere, and not everything that it reaches looks at what it gets.
            reason = f"{type(error).__name__}: {error}"
            raise FerVitError(f"The configuration does not fit what it configures ({reason}).") from error
        strategy = self.trainer.strategy
        if type(strategy.checkpoint_io) is TorchCheckpointIO:  # and none of the user's
            strategy.checkpoint_io = AtomicCheckpointIO()
        if path := self.config[self.subcommand].ckpt_path:
            self.model.on_load_checkpoint(load_checkpoint(Path(path)))

    def before_fit(self) -> None:
        """Says what the model costs."""
        print_once(f"RegionViT: {describe(self.model.net)}.")

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs the verb; when this process fails, none that it started stays behind, waiting for it.

        Raises:
            FerVitError: Another process of the run is gone, or the disk is full.
        """
        try:
            super()._run_subcommand(subcommand)
        except BaseException as error:
            processes = getattr(self.trainer.strategy.launcher, "procs", [])  # none when torchrun or SLURM started them
            while processes:  # and so none that Lightning would find dead, and kill this one before it speaks
                processes.pop().kill()
            if isinstance(error, SIGTERMException):
                path = self._newest_checkpoint() if subcommand == "fit" else None
                print_once(
                    "Ended by SIGTERM." + (f" Go on with the same options and `--ckpt_path {path}`." if path else "")
                )
                sys.exit(128 + signal.SIGTERM)
            if isinstance(error, OSError) and error.errno == ENOSPC:  # of the logs; a checkpoint says it by itself
                path = self._newest_checkpoint()
                go_on = f"Go on with `--ckpt_path {path}`" if path else "Start again"
                raise FerVitError(f"Cannot write the logs ({error.strerror}). {go_on} when there is room.") from error
            lost = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
            if not lost or not dist.is_initialized():
                raise
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun would end this process before it speaks
            path = self._newest_checkpoint()
            raise FerVitError(
                "Another process of this run died or no longer answers; it may have said why. "
                + (
                    f"Go on with the same options and `--ckpt_path {path}`."
                    if path
                    else "Start again: there is no checkpoint yet."
                )
            ) from error

    def _newest_checkpoint(self) -> Path | None:
        callbacks: list[Any] = self.trainer.checkpoint_callbacks
        folders = {Path(callback.dirpath) for callback in callbacks if callback.dirpath}
        return newest_checkpoint(folders)

    def _parse_ckpt_path(self) -> None:
        """Lightning would let a checkpoint's hyper-parameters win over the user's words; see `checkpoint_config`."""


def train(args: list[str]) -> None:
    """Runs fit, validate or test.

    Args:
        args: The verb and its options. With `--ckpt_path` the checkpoint's own settings come first, and whatever the
            user says wins over them.

    Raises:
        FerVitError: The options are wrong.
    """
    # Advertisements of other products, and what is said better below
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda line: not any(words in line.getMessage() for words in ("Tip: For", "An SIGTERMException was"))
    )
    # Our figures are already those of all processes
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*accumulate the metric across devices")
    # Of the average of weights dealt out to processes, which `EMA` refuses
    warnings.filterwarnings("ignore", message=".*WeightAveraging callback with a model that overrides")
    # FaceDataModule keeps the position
    warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch")
    # Lightning's own use of torch
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    asks = {"-h", "--help"} & set(args) or any(word.startswith("--print_config") for word in args)
    if args[0] != "fit" and not asks and checkpoint_path(args) is None:
        raise FerVitError(f"Expected `--ckpt_path FILE`, because `{args[0]}` judges a checkpoint, but got none.")
    with tempfile.TemporaryDirectory() as folder:
        base = checkpoint_config(args, Path(folder) / "checkpoint.yaml")
        try:
            TrainCLI(
                FERTask,
                FaceDataModule,
                args=[args[0], *base, *args[1:], *(["--model.network.pretrained=false"] if base else [])],
                seed_everything_default=0,
                auto_configure_optimizers=False,
                save_config_kwargs={"overwrite": False},
                trainer_defaults={
                    "callbacks": [ResultWriter(), LearningRateMonitor("step"), LastCheckpoint()],
                    "logger": {
                        "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
                        "init_args": {"save_dir": "runs", "name": "default"},
                    },
                },
                parser_kwargs={verb: {"exit_on_error": False} for verb in TrainCLI.subcommands()}
                | {"exit_on_error": False, "prog": "fer-vit"},
            )
        except (ArgumentError, MisconfigurationException, ModuleNotFoundError, RuntimeError, ValueError) as error:
            # Out of a process that loads data an error comes with its traceback as text, its own words last.
            words = str(error).strip().splitlines()[-1:] if "Traceback (most recent" in str(error) else [str(error)]
            raise FerVitError(" ".join(" ".join(words).split()).removeprefix("fer_vit.errors.FerVitError: ")) from error


@rank_zero_only
def print_once(line: str) -> None:
    """Prints a line, in the first process of a run alone."""
    print(line)


def has_bf16(accelerator: str) -> bool:
    """Tells whether the GPU, if there is one and it is wanted, or else the CPU multiplies in bfloat16 by itself."""
    if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # type: ignore[no-untyped-call, no-any-return]


def checkpoint_path(args: list[str]) -> Path | None:
    """Returns the file that `--ckpt_path` names in the words of a command, or None."""
    for word, following in zip(args, [*args, ""][1:], strict=True):
        if word.partition("=")[0] == "--ckpt_path":
            return Path(word.partition("=")[2] or following)
    return None


def checkpoint_config(args: list[str], path: Path) -> list[str]:
    """Writes the settings inside the checkpoint that `--ckpt_path` names as a config; returns the words to add.

    Raises:
        FerVitError: The checkpoint is missing or is not fer-vit's.
    """
    checkpoint = checkpoint_path(args)
    if checkpoint is None:
        return []
    hyper = load_checkpoint(checkpoint)["hyper_parameters"]
    load_network(checkpoint)  # else its settings could be anything: a huge model, or a module to import
    path.write_text(yaml.safe_dump({"model": {key: _plain(value) for key, value in hyper.items() if key != "labels"}}))
    return ["--config", str(path)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
