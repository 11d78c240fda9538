"""Writes the checkpoints of a run atomically, keeps the newest one, and resumes from any folder."""

import io
import math
import shutil
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from fer_vit.files import atomic_write, clear_remains_of, open_input
from fer_vit.signals import handle_ending
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.train.log import log_once
from fer_vit.train.resuming import find_best


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically: in a scratch folder beside the target, flushed, then renamed.

    Lightning writes to $TMPDIR and moves the file. Across disks, moving copies the file over the
    previous checkpoint.
    """

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Loads a checkpoint on the CPU as untrusted; Lightning loads files without limits."""
        return load_checkpoint(Path(path))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint. If this fails, the FerVitError names the newest existing one."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        file = Path(path)
        kept = newest_checkpoint([file.parent])
        resume = "Start again"
        if kept:
            resume = f"The previous checkpoint is kept: resume with `--ckpt_path {kept}`"

        data = io.BytesIO()
        torch.save(checkpoint, data)
        clear_remains_of(file)
        with atomic_write(file, advice=f"{resume} when there is room.") as scratch:
            scratch.write_bytes(data.getbuffer())


def newest_checkpoint(folders: Iterable[Path]) -> Path | None:
    """Returns the checkpoint to resume from: the newest last.ckpt, else the newest .ckpt file."""
    files = []
    for folder in folders:
        files += [path for path in folder.glob("*.ckpt") if path.exists()]

    def recency(path: Path) -> tuple[bool, int]:
        return path.name == "last.ckpt", path.stat().st_mtime_ns

    return max(files, key=recency, default=None)


class EndedBySignal(SystemExit):
    """A signal ends a run, after its checkpoint is saved."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(128 + number)
        self.signal = number


class LastCheckpoint(ModelCheckpoint):
    """Saves last.ckpt after each epoch or validation, and at the step at which a signal ends a run.

    `save_last` of ModelCheckpoint keeps the newest checkpoint that was among the best. Lightning
    saves nothing on SIGTERM, and its processes wait for each other forever if they receive SIGTERM
    at different steps. Only the folder is that of ModelCheckpoint.
    """

    def __init__(self) -> None:
        super().__init__(filename="last")
        self.signal: signal.Signals | None = None  # the signal that this process received
        self.ends = False  # whether all processes end the run
        self.complete = False  # whether no gradients are accumulated since the last step

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the callback has no memory."""
        return {}

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Copies the best checkpoint into the folder of a resumed run, to keep the best score.

        Every path that a callback has stored in the checkpoint is replaced: it may lead anywhere,
        and Lightning removes files that were worse. The best checkpoint is searched beside the
        resumed one.
        """
        resumed_folder = Path(str(trainer.ckpt_path)).parent
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if isinstance(callback, ModelCheckpoint) and state:
                if trainer.is_global_zero:
                    clear_remains_of(resumed_folder / f"{callback.filename or 'best'}.ckpt")
                state.update(
                    _resumed_state(state, callback, resumed_folder, trainer.is_global_zero)
                )

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over the signals that end a run; Lightning restores its handlers at the end."""
        if threading.current_thread() is threading.main_thread():
            handle_ending(self._receive)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over the signals in runs without a sanity check."""
        self.on_sanity_check_start(trainer, pl_module)

    def _receive(self, number: signal.Signals) -> None:
        self.signal = number

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Saves the step at which any process has received a signal.

        Between accumulated batches, a checkpoint would lack their gradients.
        """
        number = batch_idx + 1
        is_last = trainer.is_last_batch or number == trainer.num_training_batches
        self.complete = is_last or number % trainer.accumulate_grad_batches == 0
        if not self.complete:
            return
        self.ends = trainer.strategy.reduce_boolean_decision(self.signal is not None, all=False)
        if self.ends:
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves a validation within an epoch, once `checkpoint` has recorded its score."""
        # `on_train_epoch_end` saves the last validation of an epoch.
        within = self.complete and not trainer.is_last_batch
        if within and trainer.state.fn == "fit":
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the epoch."""
        self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(Path(self.dirpath or "") / "last.ckpt", weights_only=False)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Ends the run after a signal, once the figures of the saved step are logged."""
        if self.ends:
            raise EndedBySignal(self.signal or signal.SIGTERM)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ends the run after a signal that came in the last step or validation of an epoch."""
        self.ends = trainer.strategy.reduce_boolean_decision(self.signal is not None, all=False)
        self.on_train_batch_start(trainer, pl_module, None, 0)


def _resumed_state(
    state: dict[str, Any], callback: ModelCheckpoint, resumed_folder: Path, copy_file: bool
) -> dict[str, Any]:
    """Returns the state of a callback for a resumed run: its best checkpoint, or a new search.

    The best checkpoint is searched in `resumed_folder`, the folder of the resumed checkpoint. The
    search is new if the callback keeps several checkpoints.
    """
    worst = math.inf if callback.mode == "min" else -math.inf
    new_search: dict[str, Any] = {
        "dirpath": callback.dirpath,
        "best_model_path": "",
        "best_model_score": None,
        "best_k_models": {},
        "kth_best_model_path": "",
        "kth_value": torch.tensor(worst),
        "last_model_path": "",
    }
    best = find_best(state, resumed_folder)
    score = plausible_score(state.get("best_model_score"), callback.monitor or "")
    keeps_best = callback.monitor and callback.save_top_k == 1
    if not best or not keeps_best or score is None:
        if callback.monitor and state.get("best_model_path"):
            log_once(
                f"There is no best checkpoint with a valid score in {resumed_folder}, the folder "
                "of the resumed one: the search for the best epoch starts over."
            )
        return new_search

    folder = Path(callback.dirpath or "")
    path = str(folder / best.name)
    if copy_file and resumed_folder.resolve() != folder.resolve():
        with (
            open_input(best) as source,
            atomic_write(Path(path)) as scratch,
            scratch.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    return new_search | {
        "best_model_path": path,
        "best_model_score": score,
        "best_k_models": {path: score},
        "kth_best_model_path": path,
        "kth_value": score,
    }


SHARES = ("accuracy", "accuracy_without_near_duplicates", "uar", "f1", "ece")  # metrics from 0 to 1


def plausible_score(score: Any, monitor: str) -> torch.Tensor | None:
    """Returns a finite score that the metric can have, else None: checkpoints are untrusted."""
    try:
        value = torch.tensor(float(score))
    except (OverflowError, TypeError, ValueError, RuntimeError):
        return None
    is_share = monitor.rpartition("/")[2] in SHARES
    if not value.isfinite() or (is_share and not 0 <= value <= 1):
        return None
    return value
