"""What happens beside the training: averaged weights, checkpoints, figures as files and pictures."""

import io
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fer_vit.files import atomic_write, remove_stale


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, flushes it to the disk and renames it.

    Lightning's own way goes through a file in $TMPDIR that is moved, which from one disk to another copies onto the
    checkpoint before.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a checkpoint.

        Raises:
            FerVitError: It cannot be written; the message names the newest one that is kept.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        kept = newest_checkpoint([Path(path).parent])
        go_on = f"The one before is kept: go on with `--ckpt_path {kept}`" if kept else "Start again"
        data = io.BytesIO()
        torch.save(checkpoint, data)
        remove_stale(Path(path))
        with atomic_write(Path(path), advice=f"{go_on} when there is room.") as part:
            part.write_bytes(data.getbuffer())


def newest_checkpoint(folders: Iterable[Path]) -> Path | None:
    """Returns the checkpoint to go on from: the last.ckpt that is newest, or else the newest of any name."""
    files = [path for folder in folders for path in folder.glob("*.ckpt") if path.exists()]
    return max(files, key=lambda path: (path.name == "last.ckpt", path.stat().st_mtime_ns), default=None)


class LastCheckpoint(ModelCheckpoint):
    """Keeps the newest epoch as last.ckpt; when SIGTERM announces the end of the machine, the newest step.

    ModelCheckpoint's own `save_last` is the last one that was among the best. Lightning ends a run on SIGTERM, too, but
    saves nothing, and its processes can wait for each other for ever when it reaches them at different steps.
    """

    def __init__(self) -> None:
        super().__init__(filename="last", save_on_train_epoch_end=False, enable_version_counter=False)
        self.asked = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: what a checkpoint notes as the one before, Lightning would remove, wherever it is."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forgets the signal of a run before."""
        super().setup(trainer, pl_module, stage)
        self.asked = False

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes the signal over from Lightning, which gives it back at the end."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes it over in runs that have no sanity check."""
        super().on_train_start(trainer, pl_module)
        self.on_sanity_check_start(trainer, pl_module)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def _agree(self, trainer: L.Trainer) -> None:
        """Lets all processes end at the same step: Lightning raises SIGTERMException where it can go on later."""
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False):
            trainer._signal_connector.received_sigterm = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks for the signal after each optimiser's step."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if not trainer.fit_loop._should_accumulate():
            self._agree(trainer)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: int
    ) -> None:
        """Looks for the signal after each batch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._agree(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves an epoch that was not validated."""
        super().on_train_epoch_end(trainer, pl_module)
        self._save_newest(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves the step at which the signal was heard."""
        if not isinstance(exception, SIGTERMException):
            return
        if trainer.validating:
            # Lightning would go on with the next batch, but the figures of those before are lost: it begins anew.
            progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
            progress.reset()
            progress.increment_ready()
            progress.increment_started()
        self._save_newest(trainer)

    def _save_newest(self, trainer: L.Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_checkpoint(trainer, self.format_checkpoint_name(self._monitor_candidates(trainer)))
