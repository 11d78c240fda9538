"""Checkpoints of a run: how and when they are written, and the settings of a resumed run.

All of Lightning's private names that fer-vit uses are here and in `run`, each with its reason.
"""

import inspect
import io
import shutil
import signal
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fer_vit.errors import FerVitError
from fer_vit.files import atomic_write, remove_stale
from fer_vit.store.checkpoint import is_pretraining
from fer_vit.store.folder import build_network, unpack_checkpoint
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically: in a scratch folder beside the target, flushed to disk, then renamed.

    Lightning itself writes to $TMPDIR and moves the file, which across disks is a copy over the previous checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a checkpoint; if that fails, the FerVitError names the newest one that exists."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        kept = newest_checkpoint([Path(path).parent])
        resume = f"The previous one is kept: resume with `--ckpt_path {kept}`" if kept else "Start again"
        data = io.BytesIO()
        torch.save(checkpoint, data)
        remove_stale(Path(path))
        with atomic_write(Path(path), advice=f"{resume} when there is room.") as file:
            file.write_bytes(data.getbuffer())


def newest_checkpoint(folders: Iterable[Path]) -> Path | None:
    """Returns the checkpoint to resume from: the newest last.ckpt, or else the newest of any name."""
    files = [path for folder in folders for path in folder.glob("*.ckpt") if path.exists()]
    return max(files, key=lambda path: (path.name == "last.ckpt", path.stat().st_mtime_ns), default=None)


def checkpoint_settings(checkpoint: dict[str, Any], path: Path) -> Namespace:
    """Returns the settings in a checkpoint as options of the command line, without file names.

    Raises FerVitError when they do not fit the weights or are not fer-vit's, as in a stranger's file.
    """
    settings, state = unpack_checkpoint(checkpoint, path)
    build_network(settings, state, path)
    task = MaskedPretraining if is_pretraining(checkpoint["hyper_parameters"]) else FERTask
    left_out = ("labels", "init")
    hyper = {name: value for name, value in checkpoint["hyper_parameters"].items() if name not in left_out}
    if unknown := hyper.keys() - inspect.signature(task).parameters.keys():
        raise FerVitError(f"{path} is of another version of fer-vit (`{min(unknown)}` is unknown). Upgrade fer-vit.")
    network = Namespace(**asdict(settings["config"]))  # type: ignore[no-untyped-call]
    return Namespace(model=Namespace(**{**hyper, "network": network}))  # type: ignore[no-untyped-call]


class LastCheckpoint(ModelCheckpoint):
    """Keeps the newest epoch as last.ckpt, or the newest step when SIGTERM ends the run.

    ModelCheckpoint's own `save_last` keeps the last one that was among the best. Lightning ends a run on SIGTERM too,
    but saves nothing, and processes that receive it at different steps wait for each other forever.
    """

    def __init__(self) -> None:
        super().__init__(filename="last", save_on_train_epoch_end=False, enable_version_counter=False)
        self.sigterm = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads nothing: Lightning would delete the file that a checkpoint names as its predecessor, anywhere."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Copies the best checkpoint into the folder of a resumed run; Lightning would forget its score."""
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if not (isinstance(callback, ModelCheckpoint) and callback.monitor and callback.save_top_k == 1 and state):
                continue  # also for this callback, whose predecessor is not needed
            best, folder = Path(state["best_model_path"]), Path(callback.dirpath or "")
            if best.is_file() and best.suffix == ".ckpt" and best.parent != folder:
                if trainer.is_global_zero:
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copy(best, folder)
                copy, callback.best_model_score = str(folder / best.name), state["best_model_score"]
                callback.best_k_models, callback.kth_best_model_path = {copy: state["best_model_score"]}, copy
                callback.kth_value = state["best_model_score"]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forgets the signal of an earlier run."""
        super().setup(trainer, pl_module, stage)
        self.sigterm = False

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over SIGTERM from Lightning, which restores the handler at the end."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over SIGTERM in runs without a sanity check."""
        super().on_train_start(trainer, pl_module)
        self.on_sanity_check_start(trainer, pl_module)

    def _on_sigterm(self, *_: object) -> None:
        self.sigterm = True

    def _stop_together(self, trainer: L.Trainer) -> None:
        """Stops all processes at the same step; Lightning raises SIGTERMException where the run can resume."""
        if trainer.strategy.reduce_boolean_decision(self.sigterm, all=False):
            # Private: the flag that Lightning's own handler sets; there is no public way to set it.
            trainer._signal_connector.received_sigterm = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Checks for SIGTERM after each optimiser step."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if not accumulates(trainer):
            self._stop_together(trainer)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: int
    ) -> None:
        """Checks for SIGTERM after each batch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not accumulates(trainer):
            self._stop_together(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves an epoch without validation."""
        super().on_train_epoch_end(trainer, pl_module)
        self._save_newest(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves the step at which SIGTERM stopped the run."""
        if not isinstance(exception, SIGTERMException):
            return
        if trainer.validating:
            # Lightning would resume with the next batch, but the metrics of earlier ones are lost: validate again.
            progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
            progress.reset()
            progress.increment_ready()
            progress.increment_started()
        self._save_newest(trainer)

    def _should_skip_saving_checkpoint(self, trainer: L.Trainer) -> bool:
        # Private: ModelCheckpoint's hooks call it during a run.
        return super()._should_skip_saving_checkpoint(trainer) or accumulates(trainer)

    def _save_newest(self, trainer: L.Trainer) -> None:
        # Private, all three: ModelCheckpoint's own hooks call them at the end of an epoch; here there is no hook.
        # `trainer.save_checkpoint` would not record which step was saved last, and save it twice.
        if not super()._should_skip_saving_checkpoint(trainer):  # a run may end amid a group
            self._save_checkpoint(trainer, self.format_checkpoint_name(self._monitor_candidates(trainer)))


def accumulates(trainer: L.Trainer) -> bool:
    """Whether the optimiser waits for more batches; a checkpoint would lack the gradients of earlier ones."""
    # Private: it counts accumulated batches, also in the last, incomplete group.
    return trainer.fit_loop._should_accumulate()
